"""Traces through the real pool and scheduler: what is read, what is counted, that skipping ahead changes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from engine.blocks import POLICIES, Policy
from engine.blocks.observe.events import EventLog
from pagechat.bench.outcome import Outcome, Setup, StepCost
from pagechat.bench.replay import Replay
from pagechat.bench.sharing import share
from pagechat.bench.simulate import simulate_command
from pagechat.bench.traces import Trace, TraceError, TraceRequest, draw, find_trace, read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:51.2224670,879,55"
)


def trace_of(*requests: tuple[int, int], arrivals: list[float] | None = None) -> Trace:
    times = arrivals or [0.0] * len(requests)
    return Trace(
        "made",
        "drawn",
        [TraceRequest(t, p, o, i) for i, (t, (p, o)) in enumerate(zip(times, requests, strict=True))],
        "made",
    )


def replay(trace: Trace, policy: Policy = "paged", **settings: Any) -> Outcome:
    options = {"num_blocks": 16, "block_size": 4, "max_context": 64, **settings}
    return Replay(trace, Setup(policy=policy, **options)).run()


app = typer.Typer()
app.command()(simulate_command)


def run(arguments: str) -> Any:
    return CliRunner().invoke(app, arguments.split())


def run_json(arguments: str) -> dict[str, Any]:
    result = run(f"{arguments} --json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refusal(arguments: str) -> str:
    """The one line on stderr of a call that ends with exit code 2 and no data."""
    result = run(arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def write(folder: Path, text: str, name: str = "trace") -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


# -- reading -----------------------------------------------------------------------------------------


def test_azure_csv_is_read_with_carriage_returns_and_without_a_final_newline(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, AZURE))
    assert [(r.prompt, r.output) for r in trace.requests] == [(374, 44), (396, 109), (879, 55)]
    assert [r.arrival_s for r in trace.requests] == pytest.approx([0.0, 4.314579, 4.541877])
    assert len({r.stream for r in trace.requests}) == 3


def test_mooncake_lines_keep_their_hash_ids(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]},
    ]
    trace = read_trace(write(tmp_path, "\n".join(map(json.dumps, lines))))
    assert [r.hash_ids for r in trace.requests] == [(0, 1, 2), (0, 3)]
    assert trace.requests[1].arrival_s == 1.5
    # one id of five stood in an earlier prompt
    assert trace.reusable_share() == pytest.approx(1 / 5)


def test_each_answer_of_a_sharegpt_conversation_is_a_request_that_follows_the_one_before(tmp_path: Path) -> None:
    turns = [("human", "x" * 40), ("gpt", "y" * 20), ("human", "z" * 8), ("gpt", "w" * 4)]
    text = json.dumps([{"id": "a", "conversations": [{"from": f, "value": v} for f, v in turns]}])
    trace = read_trace(write(tmp_path, text))
    # four bytes are taken to be a token
    assert [(r.prompt, r.output, r.follows) for r in trace.requests] == [(10, 5, None), (17, 1, 0)]
    assert "estimated" in trace.lengths
    exact = read_trace(tmp_path / "trace", len)
    assert [(r.prompt, r.output) for r in exact.requests] == [(40, 20), (68, 4)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,many,1", "line 2"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,5", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,0", "line 2: 5 prompt and 0 generated"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}', "2 hash ids for 5 tokens"),
        ('{"timestamp": 0, "input_length": 5}', "line 1"),
        ('[{"conversations": "none"}]', "ShareGPT"),
        ("hello", "neither Azure CSV"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("", "neither"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        read_trace(write(tmp_path, text))


def test_drawn_lengths_have_the_means_of_the_paper_and_are_the_same_each_time() -> None:
    # PagedAttention paper, section 6.1: ShareGPT 161 and 338 tokens, Alpaca 19 and 58
    for name, prompt, output in (("sharegpt-like", 161, 338), ("alpaca-like", 19, 58)):
        trace = find_trace(name)
        assert trace.prompt_tokens / len(trace.requests) == pytest.approx(prompt, rel=0.02)
        assert trace.output_tokens / len(trace.requests) == pytest.approx(output, rel=0.02)
        assert trace.requests == draw(name).requests


# -- counting ----------------------------------------------------------------------------------------


def test_a_request_alone_is_counted_slot_by_slot() -> None:
    # given 5 + 3 tokens in blocks of 4 (of 16): steps hold 5, 6 and 7 tokens, each in two blocks
    outcome = replay(trace_of((5, 3)), cost=StepCost(step_ns=1, prompt_token_ns=0, sequence_ns=0))
    assert (outcome.steps, outcome.scheduled_tokens, outcome.finished) == (3, 7, 1)
    assert outcome.utilisation == pytest.approx((5 + 6 + 7) / (8 + 8 + 8))
    assert outcome.pool_utilisation == pytest.approx((5 + 6 + 7) / (3 * 64))
    assert outcome.waste.internal == pytest.approx((3 + 2 + 1) / (3 * 64))
    assert (outcome.requests_held.mean, outcome.requests_held.peak) == (1.0, 1)


def test_a_reservation_is_told_apart_into_what_will_be_used_and_what_never_will() -> None:
    # given the same request in a reservation of the whole context, 64 slots; the last token needs none
    outcome = replay(trace_of((5, 3)), "contiguous-max", cost=StepCost(step_ns=1, prompt_token_ns=0, sequence_ns=0))
    assert outcome.utilisation == pytest.approx((5 + 6 + 7) / (3 * 64))
    assert outcome.waste.reserved == pytest.approx((2 + 1 + 0) / (3 * 64))
    assert outcome.waste.internal == pytest.approx(57 / 64)


def test_free_slots_are_external_waste_while_the_next_request_fits_in_no_hole() -> None:
    # given 64 slots and requests of 40: one is held, 24 slots help nobody
    outcome = replay(trace_of((30, 10), (30, 10)), "contiguous-oracle")
    assert outcome.requests_held.peak == 1
    # at saturation only the time in which somebody waits is counted
    assert outcome.waste.external == pytest.approx(24 / 64)


def test_time_passes_as_the_cost_of_a_step_says() -> None:
    # given a step of 7 prompt tokens that samples, and two decode steps
    cost = StepCost(step_ns=1000, prompt_token_ns=10, sequence_ns=100)
    outcome = replay(trace_of((7, 3)), cost=cost)
    assert outcome.seconds_simulated == pytest.approx((1160 + 1100 + 1100) / 1e9)


def test_requests_arrive_as_recorded_when_a_rate_is_given() -> None:
    # given two short requests ten seconds apart, five times as fast
    trace = trace_of((4, 2), (4, 2), arrivals=[0.0, 10.0])
    outcome = replay(trace, rate=5.0)
    assert outcome.requests_held.peak == 1
    assert 2.0 < outcome.seconds_simulated < 2.5
    assert replay(trace).requests_held.peak == 2


def test_a_request_longer_than_the_pool_is_refused_and_the_others_are_served() -> None:
    outcome = replay(trace_of((60, 5), (4, 4)))
    assert (outcome.finished, outcome.refused) == (1, 1)


def test_equal_prefixes_are_found_in_whole_blocks() -> None:
    # given two prompts of 1,030 tokens that begin with the same 512
    requests = [TraceRequest(0.0, 1030, 1, i, hash_ids=(7, 10 + i, 20 + i)) for i in range(2)]
    trace = Trace("made", "mooncake", requests, "made")
    whole = replay(trace, block_size=512, num_blocks=20, max_context=2048)
    assert (whole.cached_tokens, whole.hit_share) == (512, pytest.approx(1 / 6))
    fine = replay(trace, block_size=16, num_blocks=640, max_context=2048)
    assert fine.cached_tokens == 512


def test_a_conversations_next_turn_finds_the_turn_before_it() -> None:
    # given a turn of 20 + 13 tokens, and one whose prompt is all of that and 7 more
    requests = [TraceRequest(0.0, 20, 13, 5), TraceRequest(0.0, 40, 2, 5, follows=0)]
    outcome = replay(Trace("made", "sharegpt", requests, "made"))
    # then the 32 tokens whose KV was computed are found
    assert (outcome.finished, outcome.cached_tokens) == (2, 32)
    assert outcome.requests_held.peak == 1


# -- skipping ahead ------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    requests=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 40), st.floats(0, 2), st.integers(0, 3)), min_size=1, max_size=12
    ),
    block_size=st.sampled_from([1, 2, 4, 16]),
    slots=st.integers(64, 160),
    max_running=st.integers(1, 6),
    step_tokens=st.integers(1, 40),
    rate=st.sampled_from([None, 1.0, 20.0]),
)
def test_skipping_steps_in_which_nothing_happens_gives_the_same_pool_history(
    policy: Policy,
    requests: list[tuple[int, int, float, int]],
    block_size: int,
    slots: int,
    max_running: int,
    step_tokens: int,
    rate: float | None,
) -> None:
    trace = Trace("made", "drawn", [TraceRequest(t, p, o, stream) for p, o, t, stream in requests], "made")
    trace.requests.sort(key=lambda request: request.arrival_s)
    setup = Setup(
        policy=policy,
        num_blocks=slots // block_size,
        block_size=block_size,
        max_context=70,
        max_running=max_running,
        step_tokens=step_tokens,
        rate=rate,
    )
    histories, outcomes = [], []
    for run_ahead in (True, False):
        log = EventLog()
        simulation = Replay(trace, setup, events=log, run_ahead=run_ahead)
        outcomes.append(simulation.run())
        histories.append(log.drain())
        simulation.blocks.check()
        assert simulation.blocks.pool.available == setup.num_blocks
    assert histories[0] == histories[1]
    same = [
        {name: getattr(o, name) for name in Outcome.__struct_fields__ if name not in ("cpu_s", "samples")}
        for o in outcomes
    ]
    assert same[0] == same[1]


# -- the command ---------------------------------------------------------------------------------------


def test_json_holds_every_policy_with_its_use_and_waste(tmp_path: Path) -> None:
    result = run_json(f"--trace {write(tmp_path, AZURE)} --policy paged,contiguous-max")
    assert result["trace"]["requests"] == 3
    # the smallest power of two that holds 879 + 55
    assert result["setup"]["max_context"] == 1024
    assert list(result["policies"]) == ["paged", "contiguous-max"]
    paged = result["policies"]["paged"]
    assert paged["finished"] == 3
    assert 0.9 < paged["utilisation"] < 1
    assert paged["requests_held"]["peak"] == 3
    assert set(paged["waste"]) == {"reserved", "internal", "external"}
    assert result["machine"]["cores"] >= 1


def test_the_prefix_cache_is_on_where_prompts_may_begin_alike(tmp_path: Path) -> None:
    assert run_json(f"--trace {write(tmp_path, AZURE)} --policy paged")["setup"]["prefix_cache"] is False
    line = json.dumps({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]})
    assert run_json(f"--trace {write(tmp_path, line)} --policy paged")["setup"]["prefix_cache"] is True
    asked = run_json(f"--trace {write(tmp_path, AZURE)} --policy paged --prefix-cache")
    assert asked["setup"]["prefix_cache"] is True


def test_the_table_and_the_plots_show_the_same_policies(tmp_path: Path) -> None:
    picture = tmp_path / "plot.svg"
    result = run(f"--trace {write(tmp_path, AZURE)} --svg {picture}")
    assert result.exit_code == 0
    for policy in POLICIES:
        assert result.stdout.count(policy) >= 2
    names = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert set(POLICIES) <= set(names)


def test_a_sweep_finds_fewer_prefixes_in_smaller_pools(tmp_path: Path) -> None:
    # given 40 prompts over four 512-token prefixes, each with a block of its own
    lines = [
        {"timestamp": i, "input_length": 1024, "output_length": 1, "hash_ids": [i % 4, 100 + i]} for i in range(40)
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)))
    result = run_json(f"--trace {path} --sweep --block-size 512 --max-running 1")
    shares = [point["hit_share"] for point in result["points"]]
    # 36 of 80 blocks stood in an earlier prompt
    assert shares[0] == pytest.approx(36 / 80)
    assert result["trace"]["reusable_share"] == pytest.approx(36 / 80)
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "--trace names a file"),
        ("--trace missing.csv", "No such file"),
        ("--trace alpaca-like --policy paged,best", "'best' is not among"),
        ("--trace alpaca-like --num-blocks few", "'few' is neither"),
        ("--trace alpaca-like --num-blocks 0", "'0' is neither"),
        ("--trace alpaca-like --saturate --rate 2", "--rate"),
        ("--trace alpaca-like --tokenizer missing.json", "--tokenizer"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(arguments: str, words: str) -> None:
    assert words in refusal(arguments)


# -- sharing -------------------------------------------------------------------------------------------


def test_parallel_answers_share_the_prompt_and_beams_share_more() -> None:
    parallel, beams = (share(method, "alpaca-like", 4, requests=8) for method in ("parallel", "beam"))
    # 3 of 4 references to the prompt's blocks at most
    assert 0 < parallel.saved < beams.saved < 0.75


# -- the real traces -------------------------------------------------------------------------------------

TRACES = Path(os.environ.get("PAGECHAT_TRACES") or Path(__file__).resolve().parents[4] / "shared" / "traces")
real_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="no traces: set PAGECHAT_TRACES to their folder")


@real_traces
def test_the_azure_conversation_trace_is_read_whole() -> None:
    trace = find_trace(str(TRACES / "azure" / "AzureLLMInferenceTrace_conv.csv"))
    # README of the traces: 19,366 requests in 58 minutes, contexts up to 14,050 tokens
    assert len(trace.requests) == 19_366
    assert max(request.prompt for request in trace.requests) == 14_050
    assert trace.requests[-1].arrival_s / 60 == pytest.approx(58, abs=1)


@real_traces
def test_paged_holds_tokens_in_at_least_96_3_percent_of_what_it_allocates() -> None:
    # the figure of the PagedAttention paper, here on the first 1,500 requests of the trace
    trace = find_trace(str(TRACES / "azure" / "AzureLLMInferenceTrace_conv.csv")).first(1500)
    outcome = replay(trace, num_blocks=4423, block_size=16, max_context=16_384)
    assert outcome.utilisation >= 0.963
    assert outcome.finished == 1500


@real_traces
@pytest.mark.parametrize(("name", "share"), [("conversation", 0.366), ("synthetic", 0.640)])
def test_the_reusable_share_of_the_mooncake_traces_is_the_published_one(name: str, share: float) -> None:
    trace = find_trace(str(TRACES / "mooncake" / f"{name}_trace.jsonl"))
    assert trace.reusable_share() == pytest.approx(share, abs=0.0005)
