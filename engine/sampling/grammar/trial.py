"""A large grammar is tried out in a process of its own, which may fail, before the engine compiles it.

llguidance bounds most of what it does, but not all: a long chain of references overflows its stack, which ends the
process, and some regexes of many thousand characters take it minutes. The trial has a small vocabulary (the bytes),
less stack than the engine's threads, and limits on time and memory.
"""

from __future__ import annotations

import math
import resource
import signal
import subprocess
import sys
import threading
from typing import Any

import msgspec

from engine.protocol import Grammar
from engine.sampling.grammar.errors import GrammarError

TRIAL_SECONDS = 5
"""Of a processor's time: a busy machine makes no grammar worse."""

_PATIENCE_S = 9.0
"""Of any clock, for when the machine is very busy."""

SMALL = 4096
"""Characters of a grammar without a trial: none was found that takes more than two seconds, or a fifth of the stack."""

_STACK = 4 * 2**20
_MEMORY = 2 * 2**30


def is_large(grammar: Grammar) -> bool:
    """Whether it needs a trial."""
    return len(grammar.text) > SMALL


class Trial:
    """One trial, which another thread may end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.abandoned = False
        """Nobody wants to know any more."""

    def run(self, grammar: Grammar) -> None:
        """Raises GrammarError for a grammar that the engine should not compile, and for one that was abandoned."""
        if self.abandoned:
            raise GrammarError("nobody waits for it")
        if not is_large(grammar):
            return
        with self._lock:
            if self.abandoned:
                raise GrammarError("nobody waits for it")
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(TRIAL_SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        with process:
            try:
                process.communicate(msgspec.json.encode(grammar), timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise GrammarError(f"it takes more than {_PATIENCE_S:g} seconds to compile; simplify it") from None
        if self.abandoned:
            raise GrammarError("nobody waits for it")
        if process.returncode == -signal.SIGXCPU:
            raise GrammarError(f"it takes more than {TRIAL_SECONDS} seconds to compile; simplify it")
        if process.returncode:
            raise GrammarError("it is too large or too deeply nested to compile; simplify it")

    def abandon(self) -> None:
        """Its process is ended, or never started."""
        with self._lock:
            self.abandoned = True
            if self._process is not None:
                self._process.kill()


class _Bytes:
    """The vocabulary of a trial, as llguidance's TokenizerWrapper wants it."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def main() -> None:
    """Compile the grammar on stdin. What is wrong with it is left for the engine to find: here only ends matter."""
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    from engine.sampling.grammar.notation import LIMITS, in_llguidance

    grammar = msgspec.json.decode(sys.stdin.buffer.read(), type=Grammar)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    tokenizer: Any = TokenizerWrapper(_Bytes())
    LLMatcher(LLTokenizer(tokenizer), in_llguidance(grammar), limits=LIMITS, log_level=0).compute_bitmask()


def _main_with_little_stack() -> None:
    threading.stack_size(_STACK)
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()


if __name__ == "__main__":
    _main_with_little_stack()
