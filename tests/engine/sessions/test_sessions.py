"""Sessions between turns: resident blocks, forks, pins, reclaim, and why a turn missed."""

import pytest

from engine.protocol import CacheMiss
from engine.sessions.residents import UnknownSession
from tests.engine.fakes import expected_answer, make_core, request, run, tokens_of


def turn(core, name: str, prompt: list[int], session: str, max_tokens: int = 4):
    """One turn of a chat that keeps its blocks. Returns (outputs, tokens computed)."""
    before = core.executor.computed
    core.add(request(name, prompt, max_tokens, session=session, keep=True))
    outputs = run(core)[name]
    assert tokens_of(outputs) == expected_answer(prompt, max_tokens)
    return outputs, core.executor.computed - before


def test_the_next_turn_computes_only_what_is_new() -> None:
    core = make_core(64, block_size=16)
    first, _ = turn(core, "1", [1] * 20, "chat")
    prompt = [*[1] * 20, *tokens_of(first), 5, 6]
    second, computed = turn(core, "2", prompt, "chat")
    # 23 of 24 old tokens are in the blocks (the last one sampled never was); the tail block too.
    assert second[0].cached_tokens == 23
    assert computed == 3 + 3, "three prompt tokens, then one for each answer token but the last"
    assert second[0].miss is None


def test_a_rewritten_history_falls_back_to_the_common_prefix() -> None:
    core = make_core(64, block_size=4)
    turn(core, "1", [1] * 20, "chat")
    outputs, _ = turn(core, "2", [*[1] * 10, 9, 9, 9], "chat")
    assert outputs[0].cached_tokens == 10
    assert outputs[0].miss == CacheMiss(reason="diverged", position=10, expected=1, found=9)


def test_an_evicted_block_is_named_as_the_reason_of_a_miss() -> None:
    core = make_core(8, block_size=4)
    first, _ = turn(core, "1", [1] * 16, "chat")
    core.add(request("big", [2] * 16, max_tokens=4))  # needs 5 of 8 blocks: the chat gives way, its tail goes first
    run(core)
    outputs, _ = turn(core, "2", [*[1] * 16, *tokens_of(first), 3], "chat")
    miss = outputs[0].miss
    assert miss is not None
    assert miss.reason == "evicted"
    assert miss.position == outputs[0].cached_tokens
    assert miss.position % 4 == 0


def test_residents_are_taken_least_recently_used_first_and_pinned_ones_never() -> None:
    core = make_core(12, block_size=4)
    for name in ("old", "pinned", "new"):
        turn(core, name, [len(name)] * 10, name)  # three full blocks and a bit: 13 tokens in 4 blocks
    core.sessions.pin("pinned", True)
    turn(core, "old again", [4] * 2, "old")  # a short turn of another text: old is now the most recently used
    core.add(request("x", [8] * 10, max_tokens=4))
    run(core)
    assert [session.name for session in core.sessions.residents] == ["pinned", "old"]
    assert core.scheduler.preemptions == 0


def test_a_request_that_pinned_sessions_shut_out_fails_with_the_numbers_instead_of_waiting() -> None:
    core = make_core(8, block_size=4)
    turn(core, "1", [1] * 17, "chat")
    core.sessions.pin("chat", True)
    core.add(request("x", [2] * 20, max_tokens=4))
    (output,) = run(core)["x"]
    assert output.finish_reason == "error"
    assert "pinned" in output.message
    core.sessions.pin("chat", False)
    core.add(request("y", [2] * 20, max_tokens=4))
    assert tokens_of(run(core)["y"]) == expected_answer([2] * 20, 4)


def test_closing_a_session_leaves_its_content_cached() -> None:
    core = make_core(16, block_size=4)
    turn(core, "1", [1] * 9, "chat")
    core.sessions.close("chat")
    assert core.blocks.pool.available == 16
    assert core.blocks.pool.cached == 3
    with pytest.raises(UnknownSession):
        core.sessions.close("chat")


def test_a_chat_forked_in_mid_stream_shares_every_block_and_both_go_on() -> None:
    core = make_core(32, block_size=8)
    core.add(request("1", [1] * 11, max_tokens=12, session="essay", keep=True))
    for _ in range(4):
        core.step()
    before = core.blocks.pool.available
    shared = core.live_sessions.fork("essay", "essay'")
    assert shared == 11 + 3
    assert core.blocks.pool.available == before, "a fork takes no block"
    assert tokens_of(run(core)["1"], 0)[-1] == expected_answer([1] * 11, 12)[-1]
    history = [*[1] * 11, *expected_answer([1] * 11, 12)[:3]]
    outputs, _ = turn(core, "2", [*history, 4], "essay'")
    assert outputs[0].cached_tokens == 14


def test_a_fork_shares_the_blocks_of_the_first_tokens_only() -> None:
    core = make_core(32, block_size=4)
    turn(core, "1", [1] * 9, "essay", max_tokens=6)  # 14 tokens with KV, in 4 blocks
    essay = core.sessions.get("essay").resident
    assert core.live_sessions.fork("essay", "early", 6) == 6
    early = core.sessions.get("early").resident
    assert early.table == essay.table[:2], "two blocks of four, the second one half its own"
    assert [core.blocks.pool.refs[block] for block in essay.table] == [2, 2, 1, 1]
    before = list(essay.table)
    outputs, computed = turn(core, "2", [*[1] * 6, 2], "early")
    assert outputs[0].cached_tokens == 6
    assert computed == 1 + 3, "its own new token, and those of its answer but the last"
    assert essay.table == before, "who writes first copies: the essay's blocks are as they were"
    core.blocks.check()


def test_a_fork_of_more_tokens_than_there_are_shares_them_all() -> None:
    core = make_core(32, block_size=4)
    turn(core, "1", [1] * 5, "essay")
    assert core.live_sessions.fork("essay", "all", 1000) == core.sessions.get("essay").resident.computed


def test_an_aborted_turn_leaves_what_was_computed_for_the_next() -> None:
    core = make_core(32, block_size=4)
    core.add(request("1", [1] * 9, max_tokens=50, session="chat", keep=True))
    for _ in range(3):
        core.step()
    core.abort("1")
    said = expected_answer([1] * 9, 3)
    outputs, _ = turn(core, "2", [*[1] * 9, *said, 6], "chat")
    assert outputs[0].cached_tokens == 11
