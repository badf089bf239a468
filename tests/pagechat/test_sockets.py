"""A socket in the loop: what one message does costs no other message anything."""

from __future__ import annotations

import asyncio
import logging

import pytest
import zmq

from pagechat.seldom import Seldom
from pagechat.sockets import LoopSocket
from tests.daemons import until


async def test_a_message_whose_handling_fails_is_dropped_and_the_next_is_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inside, outside = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    inside.bind("inproc://test")
    outside.connect("inproc://test")
    handled: list[bytes] = []

    def handle(frames: list[bytes]) -> None:
        if frames == [b"bad"]:
            raise ValueError("no such message")
        handled.append(frames[0])

    link = LoopSocket(inside, handle)
    try:
        for number in range(1000):
            outside.send(b"bad")
            outside.send(str(number).encode())
            if not number % 100:
                await asyncio.sleep(0)
        await until(lambda: len(handled) == 1000, "all messages")
        assert handled == [str(number).encode() for number in range(1000)]
        said = [record for record in caplog.records if "could not be handled" in record.message]
        assert len(said) == 1, "a log that anybody can fill is no log"
        assert said[0].exc_info is not None
    finally:
        link.close()
        outside.close(0)
        context.term()


def test_what_happens_often_is_told_seldom_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    told = Seldom(10, lambda: now)
    log = logging.getLogger("test")
    for _ in range(5):
        told.log(log, logging.WARNING, "it happened to %s", "me")
    now = 10.0
    told.log(log, logging.WARNING, "it happened to %s", "you")
    now = 30.0
    told.log(log, logging.WARNING, "it happened to %s", "her")
    assert [record.message for record in caplog.records] == [
        "it happened to me",
        "it happened to you (and 4 times since the last such line)",
        "it happened to her",
    ]
