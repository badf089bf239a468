"""Which web pages the daemon answers."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from pagechat.commands.http_options import http_plan
from pagechat.daemon.http.address import Address, AddressError
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from pagechat.daemon.http.origin import Pages, preflight
from pagechat.daemon.http.refusal import ApiError

HOST = b"127.0.0.1:8008"


def check(pages: Pages = Pages(), method: str = "POST", **headers: str) -> str | None:  # noqa: B008
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return pages.check(method, {b"host": HOST.decode()} | named)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2:8008", "127.1.2.3:1", "localhost", "LocalHost:80", "[::1]:8008"]
)
def test_this_machine_knows_its_own_names(host: str) -> None:
    Pages().check_host(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "10.0.0.1:8008", "localhost.evil.example", "[::2]", "0.0.0.0"],
)
def test_other_names_are_not_its_own_unless_they_are_allowed(host: str) -> None:
    with pytest.raises(ApiError) as caught:
        Pages().check_host(host)
    assert caught.value.status == 403
    if host:
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        Pages(hosts=frozenset({name})).check_host(host)


@pytest.mark.parametrize(
    "headers",
    [
        {},  # curl, the openai client
        {"sec_fetch_site": "none"},  # typed into the address bar
        {"sec_fetch_site": "same-origin"},
        {"origin": "http://127.0.0.1:8008", "sec_fetch_site": "same-origin"},
        {"origin": "https://127.0.0.1:8008"},  # a proxy before it speaks TLS
    ],
)
def test_its_own_pages_and_other_programs_are_answered(headers: dict[str, str]) -> None:
    assert check(**headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "https://evil.example", "sec_fetch_site": "same-origin"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "http://127.0.0.1:8008.evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {
            "sec_fetch_site": "cross-site",
            "sec_fetch_mode": "navigate",
            "sec_fetch_dest": "document",
        },  # a form that posts
    ],
)
def test_pages_of_others_are_not(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError) as caught:
        check(**headers)
    assert (caught.value.status, caught.value.code) == (403, "origin_not_allowed")


def test_a_link_may_lead_here_and_an_image_may_not() -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert check(method="GET", sec_fetch_dest="document", **link) is None
    for shown in ("iframe", "image"):
        with pytest.raises(ApiError):
            check(method="GET", sec_fetch_dest=shown, **link)


def test_a_page_that_is_allowed_may_ask_and_read() -> None:
    pages = Pages(origins=frozenset({"https://chat.example"}))
    assert check(pages, origin="https://chat.example", sec_fetch_site="cross-site") == "https://chat.example"
    asked = {b"access-control-request-method": "POST", b"access-control-request-headers": "authorization,content-type"}
    answer = dict(preflight("OPTIONS", "https://chat.example", asked) or ())
    assert answer[b"access-control-allow-origin"] == b"https://chat.example"
    assert answer[b"access-control-allow-headers"] == b"authorization,content-type"
    asked[b"access-control-request-headers"] = "x\r\nset-cookie: a=b"
    assert (
        b"set-cookie"
        not in dict(preflight("OPTIONS", "https://chat.example", asked) or ())[b"access-control-allow-headers"]
    )
    assert preflight("POST", "https://chat.example", asked) is None
    assert preflight("OPTIONS", None, asked) is None


def test_what_a_foreign_page_sends_uses_up_nothing(http: httpx2.Client) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        refused = http.post("/v1/completions", json=body, headers=headers)
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
        assert (
            http.post("/v1/completions", content=b"{}", headers=headers | {"content-type": "text/plain"}).status_code
            == 403
        )
    assert http.options("/v1/completions", headers={"origin": "https://evil.example"}).status_code == 403
    port = http.base_url.port
    assert httpx2.get(f"http://127.0.0.1:{port}/ready", headers={"host": f"127.0.0.2:{port}"}).status_code == 200


def plan(**options: list[str]) -> HttpPlan | None:
    return http_plan(
        "127.0.0.1:0",
        keys=None,
        tls_cert=None,
        tls_key=None,
        max_queued_requests=1,
        max_queued_tokens=1,
        log=None,
        vllm_metric_names=False,
        **options,
    )


def test_the_options_say_whose_pages_may_ask(tmp_path: Path) -> None:
    made = plan(allowed_hosts=["Box.local"], cors_origins=["https://a.example", "http://b.example:3000"])
    assert made is not None
    assert made.pages == Pages(frozenset({"https://a.example", "http://b.example:3000"}), frozenset({"box.local"}))
    for wrong in ("chat.example", "https://chat.example/", "https://a.example,https://b.example", ""):
        with pytest.raises(AddressError, match="is no origin"):
            plan(cors_origins=[wrong])
    with pytest.raises(AddressError, match="every page on the web"):
        HttpDoor.listen(HttpPlan(address=Address("127.0.0.1", 0), keys=tmp_path / "no", pages=Pages(frozenset({"*"}))))
