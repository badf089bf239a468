"""The bodies of /v1/sessions."""

from __future__ import annotations

from pagechat.daemon.http.schemas.base import SessionName
from pagechat.daemon.http.schemas.body import WholeBody


class ForkBody(WholeBody):
    target: SessionName
    """The new session, which shares every block of the old one."""


class PinBody(WholeBody):
    pinned: bool
    """True: its blocks are never reclaimed."""
