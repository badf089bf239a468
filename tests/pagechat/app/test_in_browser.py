"""The app in a browser: for this machine's own browser, at its own address, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pagechat.app.in_browser import LocalServer, command, only_local


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8017"}, 200),
        ({"Host": "localhost:8017", "Origin": "http://localhost:8017"}, 200),
        ({"Host": "evil.example:8017"}, 403),  # a name that was pointed here
        ({"Host": "127.0.0.1:8017", "Origin": "http://evil.example"}, 403),  # another site's page, to our socket
    ],
)
async def test_only_this_machines_pages_are_answered(headers: dict[str, str], status: int) -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application(middlewares=[only_local(8017)])
    app.router.add_get("/ws", hello)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/ws", headers=headers)).status == status


async def test_the_server_listens_here_and_runs_this_program_for_a_visitor(tmp_path: Path) -> None:
    words = command("fjord", tmp_path)
    assert words.endswith(f"--theme fjord --run-dir {tmp_path}")
    server = LocalServer(words, host="127.0.0.1", port=8017)
    app = await server._make_app()
    assert (server.host, len(app.middlewares)) == ("127.0.0.1", 1)
