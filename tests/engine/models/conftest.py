"""All models here are small."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def small_models(one_thread: None) -> None:
    """One thread for every test of this folder."""
