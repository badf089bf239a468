"""Which web pages may talk to the daemon: its own, and those of origins that were allowed.

A browser says from which page a request comes (Origin, Sec-Fetch-Site); other programs say nothing of that and are not
asked. What a foreign page sends is refused before anything is done, whatever its content type and whether or not the
page could read the answer: it must not even use up the model, with a key that the browser keeps for another page.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pagechat.daemon.http.refusal import ApiError

_EXPOSED = "x-request-id, retry-after, " + ", ".join(
    f"x-ratelimit-{name}-{what}" for what in ("requests", "tokens") for name in ("limit", "remaining", "reset")
)
_HEADER_NAMES = re.compile(r"[a-z0-9-]{1,64}( ?, ?[a-z0-9-]{1,64}){0,63}")
_ORIGIN = re.compile(r"https?://[^/\s,*]+")


@dataclass(frozen=True, slots=True)
class Pages:
    """Whose pages may ask, and by which names the daemon is known."""

    origins: frozenset[str] = frozenset()
    """As browsers write them: "https://chat.example.org". "*" is every page."""
    hosts: frozenset[str] = frozenset()
    """Names of this machine beside its own, for requests without a key."""

    def check_host(self, host: str) -> None:
        """Whether a request that needs no key asked for this machine by one of its names: a page whose name was made
        to point here (DNS rebinding) says another. Raises ApiError."""
        name = re.sub(r":[0-9]*$", "", host).lower()
        if not (_is_own(name) or name in self.hosts):
            raise ApiError(
                403,
                f"this daemon asks for no key and so answers to localhost only, not to {name[:200]!r}; "
                "--allowed-host lets a name in",
            )

    def check(self, method: str, headers: Mapping[bytes, str]) -> str | None:
        """The foreign origin that may read the answer; None where there is none. Raises ApiError for others."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "none")
        if origin is None:
            if site in ("none", "same-origin") or _follows_a_link(method, headers):
                return None
            raise _foreign("another site")
        if origin.partition("://")[2] == headers.get(b"host", "") != "":
            return None
        if origin in self.origins or "*" in self.origins:
            return origin
        raise _foreign(repr(origin[:200]))


def preflight(method: str, origin: str | None, headers: Mapping[bytes, str]) -> list[tuple[bytes, bytes]] | None:
    """The headers that answer a browser's question whether it may send a request; None where it is none."""
    if method != "OPTIONS" or origin is None or b"access-control-request-method" not in headers:
        return None
    asked = headers.get(b"access-control-request-headers", "").strip().lower()
    allowed = asked if _HEADER_NAMES.fullmatch(asked) else "authorization, content-type"
    found = {
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": allowed,
        "access-control-max-age": "600",
    }
    if headers.get(b"access-control-request-private-network") == "true":
        found["access-control-allow-private-network"] = "true"
    return [*readable(origin), *((name.encode(), value.encode()) for name, value in found.items())]


def readable(origin: str) -> list[tuple[bytes, bytes]]:
    """The headers that let a page of this origin read the answer."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", _EXPOSED.encode()),
        (b"vary", b"origin"),
    ]


def is_origin(text: str) -> bool:
    """What `--cors-origin` may be."""
    return text == "*" or _ORIGIN.fullmatch(text) is not None


def _is_own(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _follows_a_link(method: str, headers: Mapping[bytes, str]) -> bool:
    """Somebody was brought here by a link: the page they left learns nothing of the answer."""
    mode, shown = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return method in ("GET", "HEAD") and mode == "navigate" and shown == "document"


def _foreign(origin: str) -> ApiError:
    return ApiError(
        403, f"a page of {origin} may not use this daemon; --cors-origin lets it in", code="origin_not_allowed"
    )
