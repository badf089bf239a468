"""A large grammar is tried out in a process of its own, which may fail, before the engine compiles it.

llguidance bounds most of what it does, but not all: a long chain of references overflows its stack, which ends the
process, and some regexes of many thousand characters take it minutes. The trial has a small vocabulary (the bytes),
less stack than the engine's threads, and limits on time and memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from typing import Any

import msgspec

from engine.protocol import Grammar
from engine.sampling.grammar.errors import GrammarError

TRIAL_SECONDS = 5
SMALL = 4096
"""Characters of a grammar without a trial: none was found that takes more than two seconds, or a fifth of the stack."""

_STACK = 4 * 2**20
_MEMORY = 2 * 2**30


def try_out(grammar: Grammar) -> None:
    """Raises GrammarError for a grammar that the engine should not compile."""
    if len(grammar.text) <= SMALL:
        return
    command = [sys.executable, "-P", "-m", __name__]
    try:
        ended = subprocess.run(command, input=msgspec.json.encode(grammar), timeout=TRIAL_SECONDS, capture_output=True)
    except subprocess.TimeoutExpired:
        raise GrammarError(f"it takes more than {TRIAL_SECONDS} seconds to compile; simplify it") from None
    if ended.returncode:
        raise GrammarError("it is too large or too deeply nested to compile; simplify it")


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

    from engine.sampling.grammar.compile import LIMITS, in_llguidance

    grammar = msgspec.json.decode(sys.stdin.buffer.read(), type=Grammar)
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_SECONDS + 1, TRIAL_SECONDS + 1))  # should the engine go away
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
