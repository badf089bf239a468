"""The engine in a script's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pagechat
from pagechat import LLM, SamplingParams
from pagechat.daemon.errors import RequestError
from tests.models import tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return LLM(str(tiny_llama(tmp_path_factory.mktemp("llm"))), num_blocks=200, threads=1)


def test_prompts_are_answered_in_their_order(llm: Any) -> None:
    prompts = ["A page table", "The scheduler", "A page table"]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == prompts
    assert outputs[0].outputs[0].text == outputs[2].outputs[0].text != outputs[1].outputs[0].text
    assert [len(output.outputs[0].token_ids) for output in outputs] == [12] * 3


def test_text_and_its_token_ids_are_one_prompt(llm: Any) -> None:
    (by_text,) = llm.generate("A page table", GREEDY)
    (by_ids,) = llm.generate([by_text.prompt_token_ids], GREEDY)
    assert by_ids.outputs == by_text.outputs


def test_n_answers_differ_by_their_seeds(llm: Any) -> None:
    (output,) = llm.generate("A page", SamplingParams(n=4, temperature=0.8, seed=1))
    assert [answer.index for answer in output.outputs] == [0, 1, 2, 3]
    assert len({answer.text for answer in output.outputs}) == 4


def test_each_prompt_may_have_its_own_way(llm: Any) -> None:
    short, long = llm.generate(["A", "A"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5)])
    assert (len(short.outputs[0].token_ids), len(long.outputs[0].token_ids)) == (2, 5)
    with pytest.raises(RequestError, match="2 prompts, but 1"):
        llm.generate(["A", "A"], [GREEDY])


def test_priorities_change_the_order_of_work_and_not_of_outputs(llm: Any) -> None:
    outputs = llm.generate(["A page table", "The scheduler"], GREEDY, priority=[1, 0])
    assert outputs == llm.generate(["A page table", "The scheduler"], GREEDY)
    with pytest.raises(RequestError, match="2 prompts, but 1 priorities"):
        llm.generate(["A", "A"], GREEDY, priority=[1])


def test_a_chat_goes_through_the_template(llm: Any) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(messages, GREEDY)
    (raw,) = llm.generate("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", GREEDY)
    assert output.prompt_token_ids == raw.prompt_token_ids
    assert output.outputs == raw.outputs
    assert len(llm.chat([messages, messages], GREEDY)) == 2


def test_log_probabilities_of_answer_and_prompt(llm: Any) -> None:
    (output,) = llm.generate("A page table", SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=1))
    (answer,) = output.outputs
    assert [one.token for one in answer.logprobs] == answer.token_ids
    assert answer.cumulative_logprob == pytest.approx(sum(one.logprob for one in answer.logprobs))
    assert [one.token for one in output.prompt_logprobs] == output.prompt_token_ids[1:]


def test_a_stop_string_ends_the_engines_work_too(llm: Any) -> None:
    (whole,) = llm.generate("A page", SamplingParams(temperature=0, max_tokens=40))
    stop = whole.outputs[0].text[4:6]
    (stopped,) = llm.generate("A page", SamplingParams(temperature=0, max_tokens=40, stop=stop))
    assert stopped.outputs[0].text == whole.outputs[0].text[: whole.outputs[0].text.index(stop)]
    assert stopped.outputs[0].finish_reason == "stop"
    assert not llm._core.has_work


@pytest.mark.parametrize(
    ("params", "words"),
    [({"temperature": -1}, "temperature"), ({"logprobs": 99}, "logprobs"), ({"min_tokens": 20}, "min_tokens")],
)
def test_what_cannot_be_is_said_and_leaves_nothing_behind(llm: Any, params: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        llm.generate(["one", "two"], SamplingParams(**params))
    assert not llm._core.has_work
    with pytest.raises(RequestError, match="the context holds 512"):
        llm.generate("word " * 1000)


def test_a_client_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; from pagechat import EngineClient, AsyncEngineClient; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pagechat.nothing


def test_an_answer_that_a_stop_string_ended_computes_no_more(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wants: dict[str, Any] = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 60, "ignore_eos": True}
    (whole,) = llm.generate("A page", SamplingParams(**wants))
    stop = next(one for one in whole.outputs[0].text[5:] if one.strip() and one not in whole.outputs[1].text)
    most: list[int] = []
    step = llm._core.step
    monkeypatch.setattr(llm._core, "step", lambda: (most.append(len(llm._core.scheduler.running)), step())[1])
    (stopped,) = llm.generate("A page", SamplingParams(**wants, stop=stop))
    assert stopped.outputs[0].text == whole.outputs[0].text.partition(stop)[0]
    assert stopped.outputs[1].text == whole.outputs[1].text
    assert most.count(2) < 59, "one of them ended early"
    assert most.count(1) > 1
