"""The bounds of the protocol's types as pydantic wants them, so that each stands once.

temperature: Annotated[float, bounds(Temperature)] | None = None
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from pydantic import Field

_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")


def bounds(kind: Any, **changed: Any) -> Any:
    """A pydantic field with the bounds of an annotated type of the protocol; those in `changed` go before its own."""
    (meta,) = (one for one in get_args(kind) if isinstance(one, msgspec.Meta))
    own = {name: value for name in _BOUNDS if (value := getattr(meta, name)) is not None}
    return Field(**own | changed)
