"""What the objects of chat and completions have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagechat.protocol import Finished


def usage(ends: Sequence[Finished], answers: int) -> dict[str, Any]:
    """Of a whole request. A prompt counts once, however many answers it has. `ends` are in the order of choices."""
    firsts = ends[::answers]
    prompt = sum(end.usage.prompt_tokens for end in firsts)
    completion = sum(end.usage.completion_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(end.usage.cached_tokens for end in firsts)},
    }
