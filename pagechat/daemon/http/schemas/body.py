"""What every request body is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

MAX_DEPTH = 64
MAX_ITEMS = 4096
"""Of an array or an object, except for an array of whole numbers: that may hold a prompt's token ids."""


def _fail_fast(schema: Any) -> None:
    parts = list(schema.values()) if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and schema.get("type") == "list":
        schema["fail_fast"] = True
    for part in parts:
        if isinstance(part, dict | list | tuple):
            _fail_fast(part)


class Body(BaseModel):
    """Strict: a number in quotes is no number, and no field is unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """An array is refused at its first wrong item: no error is made for each of a million."""
        schema = handler(source)
        _fail_fast(schema)
        return schema


class WholeBody(Body):
    """The outermost object of a request."""

    @model_validator(mode="before")
    @classmethod
    def _is_text_of_some_depth(cls, data: Any) -> Any:
        """Every string is valid Unicode and nothing is nested deeply, so nobody further in has to ask."""
        if isinstance(data, dict):
            if len(data) > MAX_ITEMS:
                raise wrong("", f"may have {MAX_ITEMS:,} fields, and has {len(data):,}")
            for name, value in data.items():
                _check(name, value)
        return data


def _check(field: str, value: Any) -> None:
    rest = [(value, 1)]
    while rest:
        value, depth = rest.pop()
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise wrong(field, f"not valid text: a lone surrogate at character {error.start}") from None
        elif depth > MAX_DEPTH:
            raise wrong(field, f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(value, dict | list) and len(value) > MAX_ITEMS and not _ids(value):
            raise wrong(field, f"an array or an object may have {MAX_ITEMS:,} items, and one here has {len(value):,}")
        elif isinstance(value, dict):
            rest += [(part, depth + 1) for item in value.items() for part in item]
        elif isinstance(value, list) and not _ids(value):
            rest += [(part, depth + 1) for part in value]


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(part) is int for part in value)


def wrong(field: str, words: str) -> PydanticCustomError:
    """To raise in a check of several fields: which of them is to be changed."""
    return PydanticCustomError("wrong_field", "{words}", {"field": field, "words": words})
