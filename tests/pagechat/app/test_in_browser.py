"""The app in a browser: for this machine's own browser, at its own address, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
async def visitor() -> AsyncIterator[tuple[TestClient[web.Request, web.Application], LocalServer]]:
    server = LocalServer("true", host="127.0.0.1", port=8017)
    app = await server._make_app()
    app.on_startup.clear()  # it draws a logo

    async def export(_: web.Request) -> web.Response:
        return web.Response(text="all chats")

    app.router.add_get("/export", export)
    async with TestClient(TestServer(app)) as client:
        yield client, server


HERE = {"Host": "127.0.0.1:8017"}


async def test_who_does_not_know_the_secret_sees_nothing(visitor: tuple[TestClient[Any, Any], LocalServer]) -> None:
    client, server = visitor
    for path in ("/", "/ws", "/export", "/static/css/xterm.css", "/download/x", "/nowhere"):
        for more in ("", "?token=", "?token=wrong", "?token=\u00e9"):
            response = await client.get(path + more, headers=HERE)
            assert response.status == 403, path + more
            assert not response.cookies
    assert (await client.get("/", headers=HERE | {"Cookie": "pagechat-8017=wrong"})).status == 403
    other = LocalServer("true", host="127.0.0.1", port=8017)
    assert other.address != server.address


async def test_the_printed_address_lets_in_once_and_the_cookie_from_then_on(
    visitor: tuple[TestClient[Any, Any], LocalServer],
) -> None:
    client, server = visitor
    path = server.address.removeprefix("http://127.0.0.1:8017")
    first = await client.get(path + "&fontsize=20", headers=HERE, allow_redirects=False)
    assert (first.status, first.headers["location"]) == (303, "/?fontsize=20"), "the secret is not in the address"
    cookie = first.cookies["pagechat-8017"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    mine = HERE | {"Cookie": f"pagechat-8017={cookie.value}"}
    assert await (await client.get("/export", headers=mine)).text() == "all chats"
    assert (await client.get("/", headers=mine)).status == 200
    elsewhere = mine | {"Origin": "http://evil.example"}
    assert (await client.get("/ws", headers=elsewhere)).status == 403
    assert (await client.get("/export", headers=mine | {"Host": "evil.example:8017"})).status == 403


async def test_the_other_name_of_this_machine_leads_to_the_address(
    visitor: tuple[TestClient[Any, Any], LocalServer],
) -> None:
    client, server = visitor
    path = server.address.removeprefix("http://127.0.0.1:8017")
    led = await client.get(path, headers={"Host": "localhost:8017"}, allow_redirects=False)
    assert (led.status, led.headers["location"]) == (303, server.address)
