"""Which requests are not tried again after engines ended under them."""

from __future__ import annotations

import pytest

from engine.protocol import Message
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Generation
from pagechat.daemon.requests import Request
from pagechat.daemon.suspects import FORGOTTEN_S, Suspects
from pagechat.protocol import ChatOptions


class Nobody:
    def send(self, message: Message) -> bool:
        return True


def request(prompt: tuple[int, ...] = (1, 2), seed: int | None = None) -> Request:
    wants = Generation(request_id="a", session="s", prompt=prompt, options=ChatOptions(seed=seed))
    return Request(receiver=Nobody(), wants=wants, prompt=prompt)


def test_two_ends_are_enough_and_only_for_the_same_request() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.check(request())
        suspects.saw_death(request())
    with pytest.raises(RequestError, match="not tried again"):
        suspects.check(request())
    suspects.check(request((1, 2, 3)))
    suspects.check(request(seed=1))


def test_an_answer_clears_and_time_does() -> None:
    now = [0.0]
    suspects = Suspects(lambda: now[0])
    for clear in (lambda: suspects.saw_end(request()), lambda: now.append(now.pop() + FORGOTTEN_S + 1)):
        for _ in range(2):
            suspects.saw_death(request())
        with pytest.raises(RequestError):
            suspects.check(request())
        clear()
        suspects.check(request())
