"""The public bug reports of reference/serving.md, section 4: what other servers did wrong, by its number there.

A report has a test here that is named after it, or one elsewhere (ELSEWHERE), or does not apply (NOT_HERE).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from pagechat.daemon.generation import Text
from pagechat.daemon.prompt import ChatTokenizer
from pagechat.daemon.template import ChatTemplate
from tests.daemons import ROOT, model_folder, wait_until
from tests.models import CHAT_TEMPLATE
from tests.pagechat.daemon.http.conftest import Served

ELSEWHERE = {
    5: "tests/pagechat/daemon/test_answer.py::test_one_leading_space_is_taken_off_and_no_other",
    8: "tests/pagechat/daemon/http/test_chat.py::test_token_ids_come_when_they_are_asked_for",
    10: "tests/pagechat/daemon/http/test_tools.py::test_calls_and_their_results_reach_the_template",
    23: "tests/pagechat/daemon/test_answer.py::test_only_what_could_still_be_a_stop_string_is_held_back",
    28: "tests/pagechat/daemon/http/test_sampling.py::test_the_log_probabilities_of_a_stream_are_those_of_the_whole",
    31: "tests/pagechat/daemon/http/test_chat.py::test_a_client_that_hangs_up_frees_its_blocks",
    32: "tests/pagechat/daemon/http/test_admission.py::test_a_request_is_let_in_whole_or_not_at_all",
    35: "tests/engine/test_forks.py::test_answers_differ_by_their_seeds_and_equal_those_of_single_requests",
    37: "tests/pagechat/daemon/http/test_sampling.py::test_a_seed_gives_the_same_answer_whatever_runs_beside_it",
    38: "tests/pagechat/daemon/http/test_sampling.py::test_a_seed_gives_the_same_answer_whatever_runs_beside_it",
    40: "tests/pagechat/daemon/http/test_sampling.py::test_a_temperature_near_zero_is_greedy",
    41: "tests/pagechat/daemon/http/test_sampling.py::test_a_temperature_near_zero_is_greedy",
    44: "tests/pagechat/daemon/http/test_sampling.py::test_an_echo_has_the_prompts_log_probabilities",
    47: "tests/pagechat/daemon/http/test_admission.py::test_a_request_that_can_never_fit_is_refused_with_the_numbers",
    49: "tests/pagechat/daemon/http/test_errors.py::"
    "test_a_prompt_that_the_context_cannot_hold_is_refused_before_the_first_byte",
    50: "tests/pagechat/daemon/http/test_errors.py::"
    "test_a_prompt_that_the_context_cannot_hold_is_refused_before_the_first_byte",
    52: "tests/engine/test_equality.py::test_a_thousand_requests_in_a_tiny_pool_say_what_they_say_with_endless_memory",
    56: "tests/engine/test_equality.py::test_a_saved_session_of_something_else_is_not_used_and_says_why",
    58: "tests/engine/scheduling/test_scheduler.py::test_many_requests_get_the_answers_an_endless_memory_would_give",
    59: "tests/engine/test_equality.py::test_a_thousand_requests_in_a_tiny_pool_say_what_they_say_with_endless_memory",
    61: "tests/engine/scheduling/test_scheduler.py::"
    "test_cached_tokens_are_those_of_the_first_admission_also_after_preemption",
    62: "tests/engine/blocks/test_pool.py::test_releasing_twice_is_an_error_not_a_second_free_block",
    68: "tests/pagechat/daemon/http/test_admission.py::"
    "test_an_engine_that_dies_under_an_answer_is_an_error_and_not_an_end",
    71: "tests/pagechat/daemon/http/test_chat.py::test_usage_comes_last_in_a_chunk_without_choices",
    73: "tests/pagechat/daemon/http/test_metrics.py::test_figures_are_those_of_the_requests",
    74: "tests/engine/sampling/grammar/test_grammar.py::test_blanks_between_the_parts_of_a_json_text_have_an_end",
    77: "tests/engine/sampling/grammar/test_grammar.py::test_an_answer_cut_short_has_finish_reason_length",
    86: "tests/pagechat/test_cli_daemon.py::test_a_second_signal_does_not_break_the_clean_up",
    87: "tests/pagechat/daemon/test_front.py::test_stopping_while_the_engine_loads_does_not_wait_for_it",
    88: "tests/pagechat/daemon/test_front.py::test_a_client_that_does_not_read_loses_its_requests_and_hears_of_it",
    89: "tests/pagechat/test_rundir.py::test_a_path_too_long_for_a_socket_is_refused_with_the_numbers",
    90: "tests/pagechat/daemon/test_front.py::test_stopping_gives_everybody_the_text_so_far",
    92: "tests/engine/models/loading/test_gguf.py::test_quantized_weights_are_what_gguf_decodes",
    93: "tests/engine/models/loading/test_gguf.py::test_quantized_weights_are_what_gguf_decodes",
    94: "tests/engine/models/loading/test_weights.py::test_a_missing_tensor_is_named",
    98: "tests/engine/process/test_memory.py::test_what_does_not_fit_is_refused_with_numbers",
}

NOT_HERE = {
    53: "the KV cache is not quantised",
    55: "a window limits the context (test_a_sliding_window_in_force_limits_the_context_to_it): no block is dropped",
    91: "about one project's leak; tests/pagechat/daemon/http/test_endurance.py measures RssAnon here",
    95: "there is no tensor parallelism",
    96: "there is no tensor parallelism",
    97: "memory is asked of the system once, and nothing is profiled by running",
}

REPORTS = {
    *(1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41, 43),
    *(44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 77, 80, 81, 82, 83, 86, 87),
    *range(88, 99),
}
"""The numbers that reference/serving.md lists."""


def test_every_report_is_held_by_a_test_or_does_not_apply() -> None:
    named = (re.match(r"test_report_(\d+)(?:_and_(\d+))?_", name) for name in globals())
    here = {int(number) for found in named if found for number in found.groups() if number}
    assert here | set(ELSEWHERE) | set(NOT_HERE) == REPORTS
    assert not set(ELSEWHERE) & set(NOT_HERE)
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), place


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test with the real engine, no sequence owns a block."""
    yield
    if "real_http" in request.fixturenames:
        engine = request.getfixturevalue("real").engine
        wait_until(lambda: not engine.snapshot().sequences, "end of every sequence")


def streamed(http: httpx2.Client, body: dict[str, Any], path: str = "/v1/completions") -> list[str]:
    """The deltas of a stream, as they came."""
    with http.stream("POST", path, json=body | {"stream": True}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    return [json.loads(event)["choices"][0]["text"] for event in events]


def echo(http: httpx2.Client, prompt: str, **options: Any) -> str:
    """The fake engine's answer is the prompt's tokens."""
    body = {"prompt": prompt, "max_tokens": 200, **options}
    whole: str = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert "".join(streamed(http, body)) == whole
    return whole


# -- templates and tokenisation ----------------------------------------------------------------------


def test_report_1_the_first_delta_is_not_the_prompt(real_http: httpx2.Client) -> None:
    prompt = real_http.post("/tokenize", json={"prompt": "Hello world \U0001f336"}).json()["tokens"]
    body = {"prompt": prompt[:-1], "temperature": 0, "max_tokens": 8}  # the last character is cut
    deltas = streamed(real_http, body)
    whole = real_http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert "".join(deltas) == whole
    assert "Hello world" not in deltas[0]


def test_report_2_characters_of_several_tokens_come_whole(http: httpx2.Client) -> None:
    text = "ď 👩‍👩‍👧 漢字 🌶"
    assert echo(http, text) == text
    assert not any("\ufffd" in delta for delta in streamed(http, {"prompt": text, "max_tokens": 200}))


def test_report_4_a_replacement_character_that_the_model_writes_is_kept(http: httpx2.Client) -> None:
    assert echo(http, "a \ufffd b") == "a \ufffd b"
    cut = http.post("/tokenize", json={"prompt": "ok 🌶"}).json()["count"] - 1
    assert echo(http, "ok 🌶", max_tokens=cut) == "ok \ufffd"  # an answer that ends within a character


def test_report_7_one_begin_token_whichever_way_a_text_comes(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    chat = ChatTokenizer(folder / "tokenizer.json", ChatTemplate("<|endoftext|>" + CHAT_TEMPLATE, {}))
    for text in ("hello", "<|endoftext|>hello"):
        assert chat.encode_text(Text(text)).count(0) == 1
    assert chat.encode_text(Text("hello", add_special_tokens=False)).count(0) == 0


def test_report_11_a_template_that_refuses_is_a_400_with_its_words(real_http: httpx2.Client) -> None:
    messages = [{"role": "system", "content": "refuse me"}, {"role": "user", "content": "x"}]
    response = real_http.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert "System role not supported" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "turns",
    [
        [("user", "a"), ("system", "b"), ("user", "c")],
        [("user", "a"), ("assistant", ""), ("user", "b")],
    ],
)
def test_report_13_and_14_unusual_turns_are_taken(http: httpx2.Client, turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    found = http.post("/v1/chat/completions", json={"messages": messages}).json()
    expected = "".join(f"{role}\n{content}\n" for role, content in turns) + "assistant\n"
    assert found["choices"][0]["message"]["content"] == expected


def test_report_14_an_empty_answer_may_be_sent_back(http: httpx2.Client) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "b"},
    ]
    assert http.post("/v1/chat/completions", json={"messages": messages}).status_code == 200


@pytest.mark.parametrize("last", ["", "same", " padded "])
def test_report_16_a_prefill_is_cut_at_its_own_end(http: httpx2.Client, last: str) -> None:
    turns = [("user", "same"), ("assistant", "same"), ("user", "same"), ("assistant", last)]
    messages = [{"role": role, "content": content} for role, content in turns]
    body = {
        "messages": messages,
        "continue_final_message": True,
        "add_generation_prompt": False,
        "return_token_ids": True,
    }
    tokens = http.post("/v1/chat/completions", json=body).json()["prompt_token_ids"]
    text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text.endswith(f"<|im_start|>assistant\n{last}")
    assert text.count("<|im_start|>") == 4


@pytest.mark.parametrize("content", ["\ud800", "fine\udfff"])
@pytest.mark.parametrize("stream", [False, True])
def test_report_17_half_a_character_pair_is_a_400(http: httpx2.Client, content: str, stream: bool) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": content}], "stream": stream})
    response = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


async def test_report_19_many_requests_may_use_the_tokenizer_at_once(async_client: openai.AsyncOpenAI) -> None:
    async def ask(number: int) -> str | None:
        messages: Any = [{"role": "user", "content": f"{number} <|im_end|>"}]
        found = await async_client.chat.completions.create(
            model="smollm2", messages=messages, stop=[f"never {number}"], logit_bias={"5": 1}
        )
        return found.choices[0].message.content

    found = await asyncio.gather(*(ask(number) for number in range(150)))
    assert all(text == f"user\n{number} <|im_end|>\nassistant\n" for number, text in enumerate(found))


# -- stop strings ------------------------------------------------------------------------------------


def test_report_20_a_stop_string_of_many_tokens_leaks_nothing(http: httpx2.Client) -> None:
    assert echo(http, "ABCDEFGHIJKL", stop="DEFGHIJ") == "ABC"


def test_report_22_only_a_beginning_of_the_stop_string_is_held_back(http: httpx2.Client) -> None:
    assert echo(http, "the brown own fox", stop="own fox") == "the brown "
    assert echo(http, "the brown owl", stop="own fox") == "the brown owl"


def test_report_25_the_end_token_is_no_text(real_http: httpx2.Client) -> None:
    body = {"prompt": "A page", "logit_bias": {"2": 100}, "max_tokens": 5}  # <|im_end|>
    assert echo(real_http, "A page", logit_bias={"2": 100}) == ""
    found = real_http.post("/v1/completions", json=body).json()
    assert (found["choices"][0]["finish_reason"], found["usage"]["completion_tokens"]) == ("stop", 1)


# -- log probabilities, several answers ----------------------------------------------------------------


def test_report_26_minus_infinity_is_written_as_a_number(real_http: httpx2.Client) -> None:
    body = {"prompt": "A page", "echo": True, "logprobs": 5, "top_k": 1, "max_tokens": 3}
    response = real_http.post("/v1/completions", json=body)
    assert response.status_code == 200
    assert all(logprob > -10_000 for logprob in response.json()["choices"][0]["logprobs"]["token_logprobs"][1:])


def test_report_29_an_unknown_way_to_ask_for_log_probabilities_is_refused(http: httpx2.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": "a", "logprob_token_ids": []})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprob_token_ids")


def test_report_34_a_search_over_a_long_prompt_gives_every_block_back(real_http: httpx2.Client) -> None:
    body = {"prompt": "The scheduler takes requests. " * 12, "use_beam_search": True, "best_of": 8, "n": 4}
    found = real_http.post("/v1/completions", json=body | {"max_tokens": 20}).json()
    assert len(found["choices"]) == 4  # and the fixture waits until nobody owns a block


def test_report_43_greedy_answers_to_one_prompt_are_all_the_same(real_http: httpx2.Client) -> None:
    body = {"prompt": "A page", "n": 3, "temperature": 0, "max_tokens": 8}
    choices = real_http.post("/v1/completions", json=body).json()["choices"]
    assert len(choices) == 3
    assert len({choice["text"] for choice in choices}) == 1


# -- limits, ids, streams --------------------------------------------------------------------------------


def test_report_46_the_numbers_of_a_refusal_are_right(http: httpx2.Client) -> None:
    count = http.post("/tokenize", json={"prompt": "one two three"}).json()["count"]
    response = http.post("/v1/completions", json={"prompt": "one two three", "max_tokens": 512 - count + 1})
    message = response.json()["error"]["message"]
    assert [int(number) for number in re.findall(r"\d+", message)] == [512, count, 512 - count, 512 - count + 1]
    fits = http.post("/v1/completions", json={"prompt": "one two three", "max_tokens": 512 - count})
    assert fits.status_code == 200


async def test_report_64_and_65_a_callers_request_id_is_a_label_only(served: Served, idle: None) -> None:
    headers = {"x-request-id": "id"}
    async with httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=30) as http:
        body = {"prompt": "the same id twice " * 5, "max_tokens": 40}
        found = await asyncio.gather(*(http.post("/v1/completions", json=body) for _ in range(4)))
    assert {response.status_code for response in found} == {200}
    assert len({response.json()["id"] for response in found}) == 4
    assert {response.headers["x-request-id"] for response in found} == {"id"}


def test_report_65_a_name_may_be_used_again_while_its_abort_is_under_way(http: httpx2.Client) -> None:
    body = {"prompt": "a long story " * 10, "max_tokens": 100, "session": "again", "stream": True}
    for _ in range(3):
        with http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
    body["stream"] = False
    assert http.post("/v1/completions", json=body).status_code == 200
    http.delete("/v1/sessions/again")


def test_report_67_a_stream_of_no_answers_is_refused(http: httpx2.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": "a", "n": 0, "stream": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")


def test_report_70_a_stream_has_no_comments(http: httpx2.Client) -> None:
    with http.stream("POST", "/v1/completions", json={"prompt": "a b c", "stream": True}) as response:
        assert all(line.startswith("data: ") for line in response.iter_lines() if line)


# -- validation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [10**20, "100", 2**63, 2**64 - 1, -1, 1.5, True])
def test_report_80_and_81_a_seed_that_is_none_is_refused(http: httpx2.Client, seed: Any) -> None:
    response = http.post("/v1/completions", json={"prompt": "a", "seed": seed})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "seed")
    assert http.post("/v1/completions", json={"prompt": "a", "seed": 2**63 - 1}).status_code == 200


def test_report_81_large_numbers_never_reach_a_socket(http: httpx2.Client) -> None:
    for field in ("max_tokens", "top_k", "min_tokens", "n"):
        response = http.post("/v1/completions", json={"prompt": "a", field: 2**63})
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)


def test_report_82_no_field_is_taken_and_ignored(http: httpx2.Client) -> None:
    for field in ("strategy", "top_a", "mirostat", "use_cache"):
        response = http.post("/v1/completions", json={"prompt": "a", field: 1})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unknown_parameter")


@pytest.mark.parametrize("prompt", ["", [""], ["a", ""]])
def test_report_83_an_empty_prompt_is_refused(http: httpx2.Client, prompt: Any) -> None:
    assert http.post("/v1/completions", json={"prompt": prompt}).status_code == 400
    assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200
