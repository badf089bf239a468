"""What every request body is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

MAX_DEPTH = 64


class Body(BaseModel):
    """Strict: a number in quotes is no number, and no field is unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class WholeBody(Body):
    """The outermost object of a request."""

    @model_validator(mode="before")
    @classmethod
    def _is_text_of_some_depth(cls, data: Any) -> Any:
        """Every string is valid Unicode and nothing is nested deeply, so nobody further in has to ask."""
        for name, value in data.items() if isinstance(data, dict) else ():
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
        elif isinstance(value, dict):
            rest += [(part, depth + 1) for item in value.items() for part in item]
        elif isinstance(value, list):
            rest += [(part, depth + 1) for part in value]


def wrong(field: str, words: str) -> PydanticCustomError:
    """To raise in a check of several fields: which of them is to be changed."""
    return PydanticCustomError("wrong_field", "{words}", {"field": field, "words": words})
