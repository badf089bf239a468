"""The library is compiled by the first test on a machine that needs it, and kept where the engine keeps it."""

from __future__ import annotations

import pytest

import kernels.cpp as cpp
from engine.models.loading.names import cache_dir


@pytest.fixture(scope="session", autouse=True)
def cpu_kernels() -> None:
    problem = cpp.start(cache_dir() / "kernels", print)
    if problem is not None:
        pytest.skip(problem)
