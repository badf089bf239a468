"""Which format a chat template writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagechat.text.formats import deepseek, harmony
from pagechat.text.formats.deepseek import DeepSeek
from pagechat.text.formats.format import CallSyntax, Format, Think
from pagechat.text.formats.gemma import Gemma
from pagechat.text.formats.hermes import Hermes
from pagechat.text.formats.llama import Llama
from pagechat.text.formats.mistral import Mistral
from pagechat.text.formats.qwen_xml import QwenXml

PLAIN = Format("plain", None, None)
HARMONY = "harmony"


def choose(writes: Callable[[str], bool]) -> Format:
    """`writes`: whether the template itself contains a text."""
    if writes(harmony.CHANNEL) and writes(harmony.MESSAGE):
        return Format(HARMONY, None, None)
    name, calls = _calls(writes)
    return Format(name, _think(writes), calls)


def _think(writes: Callable[[str], bool]) -> Think | None:
    known: Sequence[Think] = (Think("<think>", "</think>"), Think("[THINK]", "[/THINK]"))
    return next((think for think in known if writes(think.closes)), None)


def _calls(writes: Callable[[str], bool]) -> tuple[str, CallSyntax | None]:
    if writes("<|tool_call>"):
        return "gemma4", Gemma("<|tool_call>", "<tool_call|>", '<|"|>')
    if writes("<start_function_call>"):
        return "functiongemma", Gemma("<start_function_call>", "<end_function_call>", "<escape>")
    if writes(deepseek.ONE):
        return "deepseek", DeepSeek(fenced=writes("```json"))
    if writes("[TOOL_CALLS]"):
        return "mistral", Mistral(named=writes("[ARGS]"))
    if writes("<tool_call>"):
        return ("qwen_xml", QwenXml()) if writes("<function=") else ("hermes", Hermes())
    if writes("<|python_tag|>") or (writes('"parameters": ') and writes('{"name": "')):
        return "llama", Llama()
    return "plain", None
