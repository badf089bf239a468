"""Structured output: grammars, compiled beside the step loop, and the masks of tokens they allow.

llguidance does the work. Compiling takes from a millisecond to some seconds and runs in two threads of its own, one of
which takes small grammars only: they never wait for a large one. What nobody waits for any more is not compiled. A mask
takes from 50 microseconds to some milliseconds: it is begun, in another thread, as soon as the token before it is
known, so it is there when the next step's logits are. Only one thing holds the steps up: llguidance keeps the
interpreter to itself while it reads the model's tokenizer, once, when the first grammar comes.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from engine.protocol import Grammar
from engine.sampling.grammar.errors import GrammarError, GrammarQueueFull, brief
from engine.sampling.grammar.jobs import Compiling, FairQueue
from engine.sampling.grammar.matcher import Matcher
from engine.sampling.grammar.notation import LIMITS, in_llguidance
from engine.sampling.grammar.reading import read_tokenizer
from engine.sampling.grammar.trial import Trial

_REMEMBERED = 32
"""Compiled grammars that are kept."""


class GrammarCompiler:
    """Grammars over the tokenizer of one model. Nothing is read before the first one comes."""

    def __init__(self, directory: Path, vocab_size: int) -> None:
        self._directory = directory
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._reading = threading.Lock()
        self._compiled: OrderedDict[Grammar, Compiling] = OrderedDict()
        """Done, and well; the one that was wanted last at the end."""
        self._jobs: dict[Grammar, Compiling] = {}
        """Those that somebody waits for."""
        self._queue = FairQueue()
        self._changed = threading.Condition()
        """Holds the lock of the four above."""
        self._threads: list[threading.Thread] = []
        self._masking = ThreadPoolExecutor(4, thread_name_prefix="grammar-mask")

    def compile(self, grammar: Grammar, tenant: str = "") -> Compiling:
        """A matcher at the beginning, to be forked for each sequence; or GrammarError. `release` it when it is not
        waited for any more. It fails at once with GrammarQueueFull when too many wait."""
        with self._changed:
            if compiled := self._compiled.get(grammar):
                self._compiled.move_to_end(grammar)
                return compiled
            job = self._jobs.get(grammar) or Compiling(grammar)
            queued = job.began is not None or tenant in job.tenants or self._queue.put(tenant, job)
            if not queued and not job.tenants:
                job.set_exception(GrammarQueueFull("the grammar queue is full; try again later"))
                return job
            job.waiters += 1
            self._jobs[grammar] = job
            self._start_threads()
            self._changed.notify_all()
            return job

    def release(self, job: Compiling) -> None:
        """One request less waits for it. With the last one its trial ends, or it is never begun."""
        with self._changed:
            job.waiters -= 1
            if job.done() or job.waiters > 0:
                return
            if self._jobs.get(job.grammar) is job:
                del self._jobs[job.grammar]
            self._queue.remove(job)
            if job.began is None:
                job.cancel()
            else:
                job.trial.abandon()

    def _start_threads(self) -> None:
        if not self._threads:
            for name, only_small in (("grammar-compiler", False), ("small-grammar-compiler", True)):
                thread = threading.Thread(target=self._work, args=(only_small,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self, only_small: bool) -> None:
        while True:
            with self._changed:
                while (job := self._queue.take(only_small=only_small)) is None:
                    self._changed.wait()
                began = job.began = time.monotonic()
            error: BaseException | None = None
            try:
                matcher = self._compile(job.grammar, job.trial)
            except BaseException as caught:
                error = caught
            with self._changed:
                self._queue.charge(job, time.monotonic() - began)
                if self._jobs.get(job.grammar) is job:
                    del self._jobs[job.grammar]
                if error is None:
                    job.set_result(matcher)
                    self._compiled[job.grammar] = job
                    if len(self._compiled) > _REMEMBERED:
                        self._compiled.popitem(last=False)
                else:
                    job.set_exception(error)

    def _compile(self, grammar: Grammar, trial: Trial) -> Matcher:
        try:
            with self._reading:
                if self._tokenizer is None:
                    self._tokenizer = self._read_tokenizer()
            trial.run(grammar)
            text = in_llguidance(grammar)
        except ValueError as error:  # what llguidance and its converters raise, GrammarError too
            raise GrammarError(f"{grammar.kind}: {brief(str(error))}") from error
        matcher = LLMatcher(self._tokenizer, text, limits=LIMITS, log_level=0)
        mask: Future[bytes] = Future()
        if not matcher.is_error():
            mask.set_result(matcher.compute_bitmask())
        if matcher.is_error():  # the first mask may find that nothing can follow the grammar at all
            raise GrammarError(f"{grammar.kind}: {brief(matcher.get_error())}")
        return Matcher(matcher, mask, self._masking)

    def _read_tokenizer(self) -> LLTokenizer:
        file = self._directory / "tokenizer.json"
        if not file.is_file():
            raise GrammarError("the model has no tokenizer.json, which grammars need")
        ends = [token for token in end_tokens(self._directory) if 0 <= token < self._vocab_size]
        return read_tokenizer(file.read_bytes(), self._vocab_size, ends)


def end_tokens(directory: Path) -> list[int]:
    """The tokens that the model's config.json and generation_config.json call its end."""
    found: dict[int, None] = {}
    for file in (directory / "generation_config.json", directory / "config.json"):
        ids = json.loads(file.read_bytes()).get("eos_token_id") if file.is_file() else None
        found.update(dict.fromkeys(ids if isinstance(ids, list) else [] if ids is None else [ids]))
    return list(found)
