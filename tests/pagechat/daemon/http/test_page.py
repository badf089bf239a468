"""The page at /. No browser is among the tests' tools, so it is read, not run: that it asks nobody but this daemon,
and that every field its script reads is one that /v1/pool tells."""

from __future__ import annotations

import re

import httpx2


def test_it_asks_nobody_but_this_daemon(http: httpx2.Client) -> None:
    response = http.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "connect-src 'self'" in response.headers["content-security-policy"]
    assert not re.search(r"""https?://|(?:src|href)\s*=|@import|url\(""", response.text)


def test_it_writes_text_and_never_markup(http: httpx2.Client) -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", http.get("/").text)


def test_its_script_reads_what_the_pool_tells(http: httpx2.Client) -> None:
    found = http.get("/v1/pool?blocks=true").json()
    script = http.get("/").text.partition("<script>")[2]
    for variable, told in (
        ("found", found),
        ("p", found["pool"]),
        ("s", found["scheduler"]),
        ("t", found["throughput"]),
        ("found.model", found["model"]),
    ):
        fields = set(re.findall(rf"\b{re.escape(variable)}\.([a-z_]+)\b", script))
        assert fields
        assert fields <= set(told), variable
    assert len(found["blocks"]) == found["pool"]["num_blocks"]
    assert set(found["blocks"]) <= set(".:+#")
