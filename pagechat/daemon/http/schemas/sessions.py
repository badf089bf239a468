"""The bodies of /v1/sessions."""

from __future__ import annotations

from pagechat.daemon.http.schemas.base import Body, SessionName


class ForkBody(Body):
    target: SessionName
    """The new session, which shares every block of the old one."""


class PinBody(Body):
    pinned: bool
    """True: its blocks are never reclaimed."""
