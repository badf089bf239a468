"""How one block looks on the map, and how several look that share a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CellKind = Literal["free", "cached", "active", "shared", "filling"]
Flash = Literal["allocate", "hit", "share", "copy", "evict", "preempt"]


@dataclass(frozen=True, slots=True)
class Cell:
    """How one block looks."""

    kind: CellKind
    letter: str = ""
    """Upper-case letter of the owner; of the last owner, for a cached block."""
    fill: int = 0
    """Eighths of the block that hold tokens, 0..8."""
    flash: Flash | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """How blocks look that share one cell."""

    blocks: int
    used: int
    """Those with an owner."""
    cached: bool
    """Nobody owns any, and some have content."""
    letter: str
    """Of who owns most of them, as far as a few of them tell."""
    shared: bool
    """Most of these few have several owners."""
    copied: bool
    """One was just copied."""
