"""What the front needs of a model's folder: tokenizer, chat template, sampling defaults, end-of-answer tokens.

Only files are read (tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json,
config.json), never code. The engine has weights and knows no text; this is the other half.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.protocol import SamplingParams, SamplingRules
from engine.protocol.sampling import Temperature, TopK, TopP
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Conversation, Generation, Prompt, Text
from pagechat.daemon.prompt import ChatTokenizer
from pagechat.daemon.template import PLAIN_TEMPLATE, ChatTemplate
from pagechat.protocol import ChatOptions
from pagechat.text import reading
from pagechat.text.answer import AnswerText
from pagechat.text.reading import Reading

log = logging.getLogger(__name__)

CHAT_TEMPERATURE = 0.7
CHAT_TOP_P = 0.95
"""For models whose generation_config.json names no temperature: lively, and rarely off the rails."""

MAX_END_TOKENS = 128
"""A model's own tokens that end an answer; with those of a request they fit into the protocol's list."""


_TAIL = 8
"""Tokens at the end of a prompt that tell whether it opens the reasoning."""


class ModelTextError(Exception):
    """The model's folder has no usable tokenizer or template; the message is for people."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What generation_config.json says, or the chat defaults above."""

    temperature: float = CHAT_TEMPERATURE
    top_p: float = CHAT_TOP_P
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class ModelText:
    """Make it with `load`. Its methods block for as long as tokenizing takes; they may run in any thread."""

    tokenizer: ChatTokenizer
    defaults: SamplingDefaults
    stop_token_ids: tuple[int, ...]
    """Tokens that end an answer; never part of its text."""
    vocab_size: int
    has_template: bool
    """False: a base model, whose messages are written one a line (template.PLAIN_TEMPLATE)."""

    def prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt. Raises RequestError."""
        if isinstance(prompt, Conversation):
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, Text):
            return self.tokenizer.encode_text(prompt)
        self._check_ids("prompt", prompt)
        return list(prompt)

    def thinking(self, conversation: Conversation, tokens: Sequence[int]) -> bool:
        """The prompt of this conversation, which these are the tokens of, ends inside the reasoning."""
        think = self.tokenizer.format.think
        if think is None:
            return False
        if conversation.continue_final:
            message = conversation.messages[-1]
            said = str(message.get("content") or "")
            if message.get("reasoning_content") and not said:
                return True
            if think.opens in said or think.closes in said:
                return said.rfind(think.opens) > said.rfind(think.closes)
        return self.decode(tokens[-_TAIL:]).rstrip().endswith(think.opens)

    def reading(self, wants: Generation, tokens: Sequence[int]) -> Reading | None:
        """How the answers are taken apart; None: not at all."""
        if wants.reading is None and isinstance(wants.prompt, Conversation):
            follows = wants.options.grammar is not None
            return Reading(thinking=self.thinking(wants.prompt, tokens), follows=follows)
        return wants.reading

    def answer(self, options: ChatOptions, how: Reading | None = None) -> AnswerText:
        """The text side of an answer that is about to begin."""
        tokenizer, control = self.tokenizer.tokenizer, self.tokenizer.special_tokens
        if how is None:
            return AnswerText(tokenizer, options.stop, control=control)
        seen = set(reading.marks(self.tokenizer.format))
        shown = {id_: name for id_, name in control.items() if name in seen}
        reader = reading.reader(self.tokenizer.format, how)
        return AnswerText(tokenizer, options.stop, control=control, shown=shown, reader=reader)

    def token_text(self, token: int) -> str:
        """The text of one token, special ones by their names."""
        return self.tokenizer.tokenizer.decode([token], skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """What one token contributes to the text; of a control token, its name."""
        return self.tokenizer.token_bytes(token)

    def decode(self, tokens: Sequence[int]) -> str:
        """Their text, special ones by their names. Raises RequestError for ids that no token has."""
        self._check_ids("tokens", tokens)
        # decode_batch gives up the interpreter lock, decode does not
        return self.tokenizer.tokenizer.decode_batch([list(tokens)], skip_special_tokens=False)[0]

    def sampling(self, options: ChatOptions, room: int, how: Reading | None = None) -> SamplingParams:
        """What the engine is told. `room`: tokens the context still holds; no answer is longer, whatever was asked,
        and one that gets there ends with finish_reason "length". `how` the answers are taken apart tells where a
        grammar begins."""
        defaults = self.defaults
        rules = {name: getattr(options, name) for name in SamplingRules.__struct_fields__}
        if options.grammar is not None and how is not None:
            around = reading.around(self.tokenizer.format, how, self.tokenizer.control_id)
            rules["grammar"] = msgspec.structs.replace(options.grammar, around=around)
        return SamplingParams(
            **rules,
            max_tokens=room if options.max_tokens is None else min(options.max_tokens, room),
            temperature=defaults.temperature if options.temperature is None else options.temperature,
            top_p=defaults.top_p if options.top_p is None else options.top_p,
            top_k=defaults.top_k if options.top_k is None else options.top_k,
            seed=int.from_bytes(os.urandom(8)) >> 1 if options.seed is None else options.seed,
            stop_token_ids=self._stop_token_ids(options),
        )

    def _stop_token_ids(self, options: ChatOptions) -> tuple[int, ...]:
        """Raises RequestError for an id that no token has."""
        self._check_ids("stop_token_ids", options.stop_token_ids)
        own = () if options.ignore_eos else self.stop_token_ids
        return (*own, *options.stop_token_ids)

    def _check_ids(self, field: str, ids: Sequence[int]) -> None:
        for place, id_ in enumerate(ids):
            if not 0 <= id_ < self.vocab_size:
                raise RequestError(
                    "bad_request",
                    f"{field}[{place}]: {id_} is no token of this model; ids go from 0 to {self.vocab_size - 1}",
                    f"{field}[{place}]",
                )


def load(path: Path, vocab_size: int) -> ModelText:
    """Reads a model's folder (Hugging Face layout). Raises ModelTextError."""
    tokenizer_json = path / "tokenizer.json"
    if not tokenizer_json.is_file():
        raise ModelTextError(f"{path} has no tokenizer.json")
    tokenizer_config = _read(path / "tokenizer_config.json")
    generation = _read(path / "generation_config.json")
    variables = _special_tokens(_read(path / "special_tokens_map.json") | tokenizer_config)
    source = _template_source(path, tokenizer_config)
    try:
        template = ChatTemplate(source or PLAIN_TEMPLATE, variables)
        tokenizer = ChatTokenizer(tokenizer_json, template, add_special_tokens=source is None)
    except RequestError as error:
        raise ModelTextError(f"{path}: {error.message}") from None
    except Exception as error:  # the tokenizers library raises plain Exception
        raise ModelTextError(f"{tokenizer_json} is not a tokenizer that can be read: {error}") from None
    ends: list[Any] = [_read(path / "config.json").get("eos_token_id"), generation.get("eos_token_id")]
    if eos := variables.get("eos_token"):
        ends.append(tokenizer.tokenizer.token_to_id(eos))
    ends += _ends_by_name(tokenizer)
    stop_token_ids = _token_ids(ends, vocab_size)
    if len(stop_token_ids) > MAX_END_TOKENS:
        raise ModelTextError(f"{path} names {len(stop_token_ids)} end tokens; {MAX_END_TOKENS} is the most")
    return ModelText(
        tokenizer=tokenizer,
        defaults=_defaults(generation),
        stop_token_ids=stop_token_ids,
        vocab_size=vocab_size,
        has_template=source is not None,
    )


_END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
"""Control tokens that end a turn whatever a model's files say: files were converted that name another one only, or none
(llama.cpp looks for them, too)."""


def _ends_by_name(tokenizer: ChatTokenizer) -> list[int]:
    """Of gpt-oss, <|end|> ends a message only, and more may come."""
    names = _END_NAMES[:-1] if tokenizer.control_id("<|return|>") is not None else _END_NAMES
    return [id_ for name in names if (id_ := tokenizer.control_id(name)) is not None]


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelTextError(f"{path} cannot be read: {error}") from None


def _template_source(path: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """chat_template.jinja goes before tokenizer_config.json, as in transformers; of several, "default"."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):
        by_name = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = by_name.get("default")
    return found if isinstance(found, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """bos_token, eos_token and the like, as templates name them."""
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    tokens: dict[str, Any] = {name: _content(config[name]) for name in names if config.get(name) is not None}
    extra = config.get("additional_special_tokens")
    if isinstance(extra, list):
        tokens["additional_special_tokens"] = [_content(token) for token in extra]
    return tokens


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _token_ids(found: list[Any], vocab_size: int) -> tuple[int, ...]:
    """Ids and lists of ids, each once; what is no token of this model is left out."""
    flat = [id_ for entry in found for id_ in (entry if isinstance(entry, list) else [entry])]
    return tuple(dict.fromkeys(id_ for id_ in flat if type(id_) is int and 0 <= id_ < vocab_size))


def _defaults(generation: dict[str, Any]) -> SamplingDefaults:
    if generation.get("do_sample") is False:
        return SamplingDefaults(temperature=0.0, top_p=1.0)
    temperature = _within_bounds(generation, "temperature", Temperature)
    top_p = _within_bounds(generation, "top_p", TopP)
    if top_p is None:
        top_p = CHAT_TOP_P if temperature is None else 1.0
    return SamplingDefaults(
        temperature=CHAT_TEMPERATURE if temperature is None else temperature,
        top_p=top_p,
        top_k=_within_bounds(generation, "top_k", TopK) or 0,
    )


def _within_bounds(generation: dict[str, Any], name: str, kind: Any) -> Any:
    """A number of generation_config.json as a request could ask for it. None, and a word in the log, for one that no
    request could: the model answers all the same, and nobody's step meets it."""
    given = generation.get(name)
    if given is None:
        return None
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        log.warning("generation_config.json: %s is %.40r, which is ignored: %s", name, given, error)
        return None
