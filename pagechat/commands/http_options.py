"""The options of `serve` that are about its HTTP door, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pagechat.daemon.front import TcpPlan
    from pagechat.daemon.http.door import HttpPlan

Http = Annotated[
    str,
    typer.Option(
        envvar="PAGECHAT_HTTP",
        metavar="HOST:PORT",
        help='Where OpenAI-compatible clients find it; port 0 takes a free one, "off" none.',
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="No HTTP: as --http off.")]
Keys = Annotated[
    Path | None,
    typer.Option("--keys", envvar="PAGECHAT_KEYS", metavar="FILE", help="The API keys. [keys.json in the data folder]"),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        envvar="PAGECHAT_ALLOWED_HOST",
        metavar="NAME",
        help="A further name of this machine that requests without a key may use. Several times for several.",
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        envvar="PAGECHAT_CORS_ORIGIN",
        metavar="ORIGIN",
        help="Whose web pages may use the daemon, like https://chat.example.org. Several times for several.",
    ),
]
MaxQueuedRequests = Annotated[
    int,
    typer.Option(
        envvar="PAGECHAT_MAX_QUEUED_REQUESTS", min=1, metavar="N", help="HTTP answers that may wait to begin; then 429."
    ),
]
MaxQueuedTokens = Annotated[
    int, typer.Option(envvar="PAGECHAT_MAX_QUEUED_TOKENS", min=1, metavar="N", help="Prompt tokens of those; then 429.")
]
HttpLog = Annotated[
    Path | None,
    typer.Option(
        envvar="PAGECHAT_HTTP_LOG", metavar="FILE", help="A JSON line for each HTTP request; never its text. [none]"
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(envvar="PAGECHAT_TLS_CERT", metavar="FILE", help="Serve HTTPS with this certificate chain (PEM)."),
]
TlsKey = Annotated[
    Path | None, typer.Option(envvar="PAGECHAT_TLS_KEY", metavar="FILE", help="The certificate's private key (PEM).")
]
VllmMetricNames = Annotated[bool, typer.Option("--vllm-metric-names", help="/metrics says vllm: instead of pagechat:.")]
Drain = Annotated[
    float,
    typer.Option(
        envvar="PAGECHAT_DRAIN",
        min=0,
        metavar="SECONDS",
        help="How long answers may go on after SIGTERM or Ctrl-C; a second one ends them. [0]",
        show_default=False,
    ),
]
Tcp = Annotated[
    str,
    typer.Option(
        envvar="PAGECHAT_TCP",
        metavar="HOST:PORT",
        help="Let clients that `curve add` knows in from other machines; PORT + 1 too. [off]",
        show_default=False,
    ),
]
CurveKeys = Annotated[
    Path | None,
    typer.Option(
        "--curve-keys",
        envvar="PAGECHAT_CURVE_KEYS",
        metavar="FILE",
        help="Who they are. [curve.json in the data folder]",
    ),
]


def tcp_plan(tcp: str, keys: Path | None) -> TcpPlan | None:
    """None: no such door. Raises AddressError."""
    from pagechat.daemon.curve import default_path
    from pagechat.daemon.front import TcpPlan
    from pagechat.daemon.http.address import parse

    return None if tcp == "off" else TcpPlan(parse(tcp), keys or default_path())


def http_plan(
    http: str,
    *,
    keys: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    max_queued_requests: int,
    max_queued_tokens: int,
    log: Path | None,
    vllm_metric_names: bool,
    allowed_hosts: list[str] | None = None,
    cors_origins: list[str] | None = None,
) -> HttpPlan | None:
    """None: no door. Raises AddressError."""
    from pagechat.daemon.http.address import AddressError, parse
    from pagechat.daemon.http.admission import Limits
    from pagechat.daemon.http.door import HttpPlan
    from pagechat.daemon.http.metrics import PREFIX, VLLM_PREFIX
    from pagechat.daemon.http.origin import Pages, is_origin

    if (tls_cert is None) != (tls_key is None):
        raise AddressError("--tls-cert and --tls-key belong together: give both for HTTPS, or neither")
    for origin in cors_origins or ():
        if not is_origin(origin):
            raise AddressError(f"--cors-origin {origin!r} is no origin: write https://HOST or https://HOST:PORT")
    if http == "off":
        return None
    return HttpPlan(
        address=parse(http),
        keys=keys,
        tls=(tls_cert, tls_key) if tls_cert and tls_key else None,
        limits=Limits(max_queued_requests, max_queued_tokens),
        metrics_prefix=VLLM_PREFIX if vllm_metric_names else PREFIX,
        log=log,
        pages=Pages(frozenset(cors_origins or ()), frozenset(map(str.lower, allowed_hosts or ()))),
    )
