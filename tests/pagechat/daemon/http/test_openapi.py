"""schemathesis reads /openapi.json and tries what it allows, and what it does not: no 5xx, and no status or body that
is not written there. A longer run:

    PAGECHAT_FUZZ_EXAMPLES=2000 python -m pytest tests/pagechat/daemon/http/test_openapi.py
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.pagechat.daemon.http.conftest import Served

EXAMPLES = int(os.environ.get("PAGECHAT_FUZZ_EXAMPLES", "2"))
"""Of each operation and mode."""

CHECKS: Any = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.timeout(EXAMPLES * 20 + 60)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_nothing_that_the_document_allows_or_forbids_breaks_it(served: Served, mode: GenerationMode) -> None:
    schema: Any = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and "requestBody" not in operation.definition.raw:
            continue
        tried += 1

        @settings(
            max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=EXAMPLES < 100
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, timeout=30)

        attempt()
    assert tried >= 5
    for session in httpx2.get(f"{served.url}/v1/sessions").json()["data"]:  # some bodies ask to be kept
        httpx2.delete(f"{served.url}/v1/sessions/{quote(session['session'], safe='')}")
    assert httpx2.get(f"{served.url}/health").status_code == 200
