"""From what somebody asks to the answer's text: the one way that requests of every door take.

```
submit -> waits for the engine -> tokenized -> Accepted, AddRequest -> Delta ... -> Finished
   any time: cancel -> Finished(abort)   engine ends -> Failed   receiver lost -> AbortRequest
```
Rendering a template and tokenizing happen in worker threads; everything else in the callback that brought it.
Knows no socket and no HTTP: whoever asks is a `Receiver`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.protocol import (
    AbortRequest,
    AddRequest,
    CacheMiss,
    EngineReady,
    FinishReason,
    ProtocolError,
    SetPriority,
    StepOutputs,
    TokenOutput,
    checked,
)
from pagechat.daemon import text
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Generation, Prompt, is_large
from pagechat.daemon.heavy import Heavy
from pagechat.daemon.misses import describe
from pagechat.daemon.observer import Observer
from pagechat.daemon.requests import Answer, Receiver, Request, Requests
from pagechat.daemon.supervisor import Supervisor
from pagechat.daemon.suspects import Suspects
from pagechat.protocol import Accepted, Delta, Failed, Stopping
from pagechat.seldom import Seldom
from pagechat.text.answer import NOTHING, Piece

log = logging.getLogger(__name__)

_TEXT_THREADS = 2
_INTERNAL_WORDS = "the daemon failed on this request; its log says more"


class Answering:
    """Lives in the loop that made it, beside one supervisor."""

    def __init__(self, supervisor: Callable[[], Supervisor], newest_sequence: Callable[[], int]) -> None:
        """`supervisor` is asked when needed: it and this object know each other. `newest_sequence`: of PoolWatch."""
        self.text: text.ModelText | None = None
        """Of the model that was loaded last."""
        self.requests = Requests()
        self.observer = Observer()
        self._supervisor, self._newest_sequence = supervisor, newest_sequence
        self._text_path = ""
        self._threads = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="text")
        self._preparing: set[asyncio.Task[None]] = set()
        self._faults = Seldom()
        self.heavy = Heavy()
        """For what grows with what a client sends."""
        self._suspects = Suspects()

    # -- from whoever asks -----------------------------------------------------------------------

    def submit(self, receiver: Receiver, generation: Generation) -> Request:
        """Everything that follows is said to the receiver. Raises RequestError for what can be refused at once."""
        if self.requests.of_receiver(receiver, generation.request_id) is not None:
            raise RequestError("bad_request", f"request id {generation.request_id!r} is in use")
        beam = generation.beam
        if beam is not None and generation.n > beam.width:
            raise RequestError("bad_request", f"a search of {beam.width} beams has no {generation.n} answers")
        request = Request(receiver=receiver, wants=generation)
        self.requests.add(request)
        task = request.preparing = asyncio.create_task(self._prepare(request))
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)
        return request

    def cancel(self, receiver: Receiver, request_id: str) -> None:
        """Its answers end with the text they have. No error when there is no such request."""
        request = self.requests.of_receiver(receiver, request_id)
        if request is not None:
            self._finish_all(request, "abort")

    def set_priority(self, receiver: Receiver, request_id: str, priority: int) -> None:
        """The lower number is served first. No error when there is no such request."""
        request = self.requests.of_receiver(receiver, request_id)
        if request is not None:
            request.priority = priority
            if request.started:
                self._supervisor().send(SetPriority(request_id=request.engine_id, priority=priority))

    def drop(self, receiver: Receiver) -> list[Request]:
        """The receiver has gone: nothing more is said to it. Returns what it had asked."""
        theirs = self.requests.all_of_receiver(receiver)
        for request in theirs:
            self._release(request, abort=True)
        return theirs

    async def tokens(self, prompt: Prompt, tenant: str = "") -> list[int]:
        """Token ids of a prompt, once the engine is ready. Raises RequestError."""
        await self._supervisor().ready()
        assert self.text is not None
        if is_large(prompt):
            return await self.heavy.run(tenant, self.text.prompt, prompt)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.text.prompt, prompt)

    def end_all(self) -> None:
        """Every answer ends as it is; requests that have not begun fail."""
        receivers = self.requests.receivers()
        for request in self.requests:
            if request.started:
                self._finish_all(request, "abort")
            else:
                self._fail(request, RequestError("shutting_down", "the daemon is stopping"))
        for receiver in receivers:
            receiver.send(Stopping())

    def close(self) -> None:
        for task in list(self._preparing):
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.heavy.close()

    async def _prepare(self, request: Request) -> None:
        try:
            prompt = await self.tokens(request.wants.prompt, request.wants.tenant)
            await self._supervisor().ready()  # the engine may be another one by now
            self._start(request, prompt)
        except RequestError as error:
            self._fail(request, error)
        except Exception:
            log.exception("request of session %.80r failed", request.wants.session)
            self._fail(request, RequestError("internal", _INTERNAL_WORDS))

    def _start(self, request: Request, prompt: list[int]) -> None:
        wants = request.wants
        ready = self._supervisor().ready_engine
        assert ready is not None
        assert self.text is not None
        context = ready.model.max_context
        if not prompt:
            raise RequestError("bad_request", "the prompt is empty, and this model has no token that begins a text")
        if len(prompt) >= context:
            raise RequestError(
                "too_long",
                f"the prompt takes {len(prompt):,} tokens and leaves no room for an answer: "
                f"the context holds {context:,} tokens",
            )
        reading = self.text.reading(wants, prompt)
        sampling = self.text.sampling(wants.options, context - len(prompt), reading)
        for answer in request.answers:
            answer.text = self.text.answer(wants.options, reading)
        request.stop_token_ids = frozenset(sampling.stop_token_ids)
        request.prompt = tuple(prompt)
        command = AddRequest(
            request_id=request.engine_id,
            session=wants.session,
            prompt=request.prompt,
            sampling=sampling,
            n=wants.n,
            beam=wants.beam,
            keep=wants.keep,
            salt=wants.salt,
            tenant=wants.tenant,
            priority=request.priority,
        )
        try:
            command = checked(command)
        except ProtocolError as error:
            raise RequestError("bad_request", str(error), error.field) from None
        self._suspects.check(request)
        if request.receiver.send(Accepted(request_id=request.client_request_id, prompt_tokens=len(prompt))):
            request.started, request.before = True, self._newest_sequence()
            self._supervisor().send(command)

    # -- from the engine -------------------------------------------------------------------------

    async def prepare_engine(self, ready: EngineReady) -> None:
        """Reads the text side of the model that was loaded."""
        if self.text is None or self._text_path != ready.model.path:
            loop = asyncio.get_running_loop()
            self.text = await loop.run_in_executor(
                self._threads, text.load, Path(ready.model.path), ready.model.vocab_size
            )
            self._text_path = ready.model.path
            if not self.text.has_template:
                log.warning("%s has no chat template: messages are written one a line", ready.model.name)

    def on_outputs(self, step: StepOutputs) -> None:
        now = time.monotonic()
        for output in step.outputs:
            request = self.requests.of_engine(output.request_id)
            if request is None:
                continue  # ended here already: cancelled, stopped by a stop string, or its client has gone
            try:
                if output.finish_reason == "error":
                    self._fail(request, RequestError(output.code or "internal", output.message, output.param))
                else:
                    self._advance(request, output, now)
            except Exception:  # the tokens of the others in this step are still to be told
                self._give_up(request)

    def on_lost_engine(self, words: str) -> None:
        self._suspects.saw_death([request for request in self.requests if request.started])
        for request in self.requests:
            if not request.started:
                continue
            said = f"{words}, after {request.completion_tokens} tokens of this answer"
            try:
                self._fail(request, RequestError("engine_died", said))
            except Exception:
                self._give_up(request)

    def _advance(self, request: Request, output: TokenOutput, now: float) -> None:
        if output.miss is not None:
            self._explain(request, output.miss)
        if output.prompt_logprobs:
            name, index = request.client_request_id, output.index
            told = Delta(request_id=name, text="", tokens=0, index=index, prompt_logprobs=output.prompt_logprobs)
            if not request.receiver.send(told):
                return
        answer = request.answers[output.index]
        if output.tokens and answer.open:
            since, answer.last_token = answer.last_token, now
            self.observer.tokens(request, answer, None if since is None else now - since)
        piece, reason = request.take(answer, output, now)
        if piece and not self._send_delta(request, answer, piece):
            return
        if reason is not None:
            self._finish(request, answer, reason)

    def _explain(self, request: Request, miss: CacheMiss) -> None:
        ready = self._supervisor().ready_engine
        if self.text is not None and ready is not None:
            request.miss = describe(miss, ready.pool.block_size, self.text.token_text)
            request.miss_position = miss.position

    # -- endings ---------------------------------------------------------------------------------

    def _finish(self, request: Request, answer: Answer, reason: FinishReason) -> None:
        """An answer ends well, or as the client wished. With its last answer the request is complete. The engine is
        told when it does not know: it computes no more for an answer that a stop string has ended."""
        if request.open_answers == [answer]:
            self._suspects.saw_end(request)
            self._release(request, abort=request.engine_works)
        elif not answer.engine_done:
            self._supervisor().send(AbortRequest(request_id=request.engine_id, index=answer.index))
        self._say_finished(request, answer, reason)

    def _finish_all(self, request: Request, reason: FinishReason) -> None:
        self._release(request, abort=True)
        for answer in request.open_answers:
            self._say_finished(request, answer, reason)

    def _say_finished(self, request: Request, answer: Answer, reason: FinishReason) -> None:
        self._send_rest(request, answer)
        self.observer.ended(request, answer, reason)
        request.receiver.send(request.finished(answer, reason))

    def _fail(self, request: Request, error: RequestError) -> None:
        self._release(request, abort=False)
        for answer in request.open_answers:
            self._send_rest(request, answer)
            self.observer.ended(request, answer, "error")
        request.receiver.send(
            Failed(request_id=request.client_request_id, code=error.code, message=error.message, param=error.param)
        )

    def _give_up(self, request: Request) -> None:
        """In an exception's handler: this request ends, and no other is harmed."""
        self._faults.exception(log, "request of session %.80r failed", request.wants.session)
        started = request.started
        try:
            if started:
                self._supervisor().send(AbortRequest(request_id=request.engine_id))
            self.requests.remove(request)
            request.receiver.send(
                Failed(request_id=request.client_request_id, code="internal", message=_INTERNAL_WORDS)
            )
        except Exception:
            self._faults.exception(log, "and could not be told so")

    def _release(self, request: Request, *, abort: bool) -> None:
        self.requests.remove(request)
        if request.preparing is not None and request.preparing is not asyncio.current_task():
            request.preparing.cancel()
        if abort and request.started:
            self._supervisor().send(AbortRequest(request_id=request.engine_id))

    def _send_rest(self, request: Request, answer: Answer) -> None:
        """What was held back for a character or a stop string that will not be completed any more."""
        rest = answer.text.finish() if answer.text is not None else NOTHING
        if rest or answer.untold or answer.untold_logprobs:
            self._send_delta(request, answer, rest)

    def _send_delta(self, request: Request, answer: Answer, piece: Piece) -> bool:
        told, answer.untold = tuple(answer.untold), []
        logprobs, answer.untold_logprobs = tuple(answer.untold_logprobs), []
        return request.receiver.send(
            Delta(
                request_id=request.client_request_id,
                text=piece.text,
                reasoning=piece.reasoning,
                calls=piece.calls,
                tokens=answer.tokens,
                index=answer.index,
                token_ids=told,
                logprobs=logprobs,
            )
        )
