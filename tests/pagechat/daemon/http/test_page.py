"""The page at /: that it asks nobody but this daemon, that every field its script reads is one that /v1/pool tells; and
where a Chromium is installed (on Debian: `apt-get install chromium-headless-shell`), what a browser makes of it."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest

from tests.pagechat.daemon.http.conftest import Served

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)


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


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: install chromium-headless-shell to run it")
def test_a_browser_shows_the_pool_and_has_nothing_to_complain_about(served: Served, tmp_path: Path) -> None:
    arguments = ["--headless", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # a browser of the superuser has none
    shown = subprocess.run(
        [str(BROWSER), *arguments, f"--user-data-dir={tmp_path}", f"{served.url}/"],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert "CONSOLE" not in shown.stderr, shown.stderr  # an error of the script, or a breach of the page's own policy

    def text(name: str) -> str:
        found = re.search(rf'<(\w+) id="{name}"[^>]*>(.*?)</\1>(?=\s*<)', shown.stdout, re.DOTALL)
        assert found, shown.stdout
        return html.unescape(re.sub(r"<[^>]*>", " ", found[2])).strip()

    pool = httpx2.get(f"{served.url}/v1/pool?blocks=true").json()
    assert text("model") == f"{pool['model']['name']} on cpu"
    assert text("problem") == ""
    assert re.sub(r"\s", "", text("map")) == pool["blocks"]
    assert f"{pool['pool']['num_blocks']} of 16 tokens" in text("facts")
    for name in ("free", "cached", "active", "shared"):
        assert f"{pool['pool'][name]} {name}" in text("legend")
