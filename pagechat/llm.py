"""The engine in a script's own process, with vLLM's offline interface:

    from pagechat import LLM, SamplingParams

    llm = LLM("smollm2")
    for output in llm.generate(["The capital of France is"], SamplingParams(n=4, temperature=0.8)):
        print(output.outputs[0].text)

No daemon, no socket. Text is made by the same parts as in the daemon. Not for several threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import index
from typing import Any

import msgspec

from engine.process.build import build
from engine.process.config import EngineConfig
from engine.protocol import (
    AddRequest,
    LoadProgress,
    Message,
    ProtocolError,
    TokenLogprobs,
    TokenOutput,
    checked,
)
from engine.protocol.codec import field_of
from pagechat.daemon import text
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Conversation, Generation, Prompt, Text
from pagechat.daemon.requests import Answer, Request
from pagechat.protocol import ChatOptions


@dataclass(kw_only=True)
class SamplingParams:
    """vLLM's fields and defaults, as far as this engine honours them. `top_k` 0 and -1 take all tokens."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = 16
    """None: what the context holds."""
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def options(self) -> ChatOptions:
        """Raises RequestError for a value that is out of range."""
        given = {name: getattr(self, name) for name in ChatOptions.__struct_fields__ if hasattr(self, name)}
        given["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        given["top_k"] = 0 if self.top_k == -1 else self.top_k
        given["logit_bias"] = tuple(self.logit_bias.items())
        try:
            return msgspec.convert(given, ChatOptions)
        except msgspec.ValidationError as error:
            raise RequestError("bad_request", str(error), field_of(str(error))) from None


@dataclass(frozen=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    logprobs: list[TokenLogprobs]
    """Where they were asked for."""
    reasoning: str = ""
    """What the model thought before, in answers to conversations."""

    @property
    def cumulative_logprob(self) -> float | None:
        return sum(one.logprob for one in self.logprobs) if self.logprobs else None


@dataclass(frozen=True)
class RequestOutput:
    """The answers to one prompt."""

    prompt: str | None
    """None for token ids and conversations."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    prompt_logprobs: list[TokenLogprobs]
    """From the second token on, where they were asked for."""


class LLM:
    """One model, loaded."""

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        """`options` are those of `pagechat-daemon serve`: num_blocks, block_size, max_context, dtype, device, ...

        Raises msgspec.ValidationError for one that does not exist, and what loading the model raises.
        """
        config = msgspec.convert({"model": model, **options}, EngineConfig)
        engine = build(config, _silent)
        self._core, self.model = engine.core, engine.model
        self._text = text.load(engine.path, engine.model.vocab_size)
        self._numbers = count(1)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] = (),
    ) -> list[RequestOutput]:
        """What follows each prompt, all of them in one batch; a prompt is text as it is, or token ids.

        `priority`: of each, the lower number is served first. Outputs come in the order of the prompts all the same.
        Raises RequestError for one that cannot be answered; then none is.
        """
        several = [prompts] if isinstance(prompts, str) else prompts
        return self._answer(
            [Text(one) if isinstance(one, str) else tuple(one) for one in several], sampling_params, priority
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] = (),
    ) -> list[RequestOutput]:
        """The answer to a conversation, or to each of several. `priority` and what it raises are as of `generate`."""
        several: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        return self._answer(
            [Conversation(messages=conversation) for conversation in several], sampling_params, priority
        )

    def _answer(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int],
    ) -> list[RequestOutput]:
        each = [params or SamplingParams()] * len(prompts) if not isinstance(params, Sequence) else params
        if len(each) != len(prompts):
            raise RequestError("bad_request", f"{len(prompts)} prompts, but {len(each)} sampling_params")
        turns = priority or [0] * len(prompts)
        if len(turns) != len(prompts):
            raise RequestError("bad_request", f"{len(prompts)} prompts, but {len(turns)} priorities")
        pairs = [self._request(prompt, one, turn) for prompt, one, turn in zip(prompts, each, turns, strict=True)]
        tasks = {task.request.engine_id: task for task, _ in pairs}
        try:
            for _, message in pairs:
                self._core.add(message)
            self._run(tasks)
        except BaseException:
            for name in tasks:
                self._core.abort(name)
            raise
        return [task.output() for task in tasks.values()]

    def _request(self, prompt: Prompt, params: SamplingParams, priority: int) -> tuple[_Task, AddRequest]:
        options = params.options()
        tokens = self._text.prompt(prompt)
        room = self.model.max_context - len(tokens)
        if room <= 0:
            raise RequestError(
                "too_long", f"the prompt takes {len(tokens):,} tokens; the context holds {self.model.max_context:,}"
            )
        name = f"llm-{next(self._numbers)}"
        wants = Generation(request_id=name, session=name, prompt=prompt, options=options, n=params.n, with_tokens=True)
        how = self._text.reading(wants, tokens)
        sampling = self._text.sampling(options, room, how)
        try:
            message = checked(
                AddRequest(
                    request_id=name,
                    session=name,
                    prompt=tuple(map(index, tokens)),
                    sampling=sampling,
                    n=params.n,
                    priority=priority,
                )
            )
        except ProtocolError as error:
            raise RequestError("bad_request", str(error), error.field) from None
        request = Request(receiver=_Nobody(), wants=wants, engine_id=name, started=True, prompt=tuple(tokens))
        request.stop_token_ids = frozenset(sampling.stop_token_ids)
        for answer in request.answers:
            answer.text = self._text.answer(options, how)
        return _Task(request, prompt.text if isinstance(prompt, Text) else None), message

    def _run(self, tasks: dict[str, _Task]) -> None:
        while any(task.request.open_answers for task in tasks.values()):
            outputs, _ = self._core.step()
            for output in outputs:
                task = tasks[output.request_id]
                answer = task.take(output)
                if not answer.open and not answer.engine_done:
                    answer.engine_done = self._core.abort(output.request_id, answer.index) is not None
                if not task.request.open_answers and task.request.engine_works:
                    self._core.abort(output.request_id)


class _Nobody:
    """The receiver of a request whose answer is read where it is made."""

    def send(self, message: Message) -> bool:
        return True


class _Task:
    """A request, and what came of it."""

    def __init__(self, request: Request, prompt: str | None) -> None:
        self.request, self._prompt = request, prompt
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._reasons: dict[int, str] = {}

    def take(self, output: TokenOutput) -> Answer:
        """The answer that it belongs to. Raises RequestError when the engine refuses the request."""
        if output.finish_reason == "error":
            raise RequestError(output.code or "internal", output.message, output.param)
        self._prompt_logprobs += output.prompt_logprobs
        answer = self.request.answers[output.index]
        _, reason = self.request.take(answer, output, time.monotonic())
        if reason is not None and answer.open:
            answer.open = False
            self._reasons[answer.index] = reason
        return answer

    def output(self) -> RequestOutput:
        outputs = [
            CompletionOutput(
                index=answer.index,
                text=answer.text.text if answer.text else "",
                reasoning=answer.text.whole.reasoning if answer.text else "",
                token_ids=answer.untold,
                finish_reason=self._reasons[answer.index],
                logprobs=answer.untold_logprobs,
            )
            for answer in self.request.answers
        ]
        return RequestOutput(
            prompt=self._prompt,
            prompt_token_ids=list(self.request.prompt),
            outputs=outputs,
            num_cached_tokens=self.request.cached_tokens,
            prompt_logprobs=self._prompt_logprobs,
        )


def _silent(progress: LoadProgress) -> None:
    """A script's terminal is its own."""
