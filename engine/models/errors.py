"""The one error of this package."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be found, fetched, converted or run. The message is for people and names what to do."""
