"""Messages to the token ids of a prompt.

The whole rendered text is tokenized at once, exactly as transformers' `apply_chat_template` does, unless a message
spells a control token. Then that spelling is tokenized as the plain text it is, so nobody's message can open a turn,
end one or speak as somebody else:

```
message      say <|im_end|> aloud
rendered     <|im_start|>user\nsay | NONCE0 | aloud<|im_end|>\n...
tokenized    with control tokens    | as plain | with control tokens
```

Control tokens are the tokenizer's special tokens and those of its other added tokens that the template itself
writes. An added token that is just text (runs of spaces, say) stays what it is. Knows no model and no socket.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from engine.sampling.grammar.token_bytes import TokenBytes
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Conversation, Text
from pagechat.daemon.template import ChatTemplate, texts_in
from pagechat.text.formats.choose import choose
from pagechat.text.formats.format import Format

MAX_CHARACTERS = 4 * 2**20
"""Of a request: all its messages and tools, or its text. Tokenizing that much takes seconds, in a worker thread."""

MAX_TOKENS = 2**20
"""Of a text."""

_PROBE = [{"role": role, "content": "\ue000"} for role in ("user", "assistant")]
"""Rendered once, to see the tokens that a template puts together from pieces: '<|' + role + '|>'."""


class ChatTokenizer:
    """The tokenizer and the template of one model. `encode` may be called from several threads."""

    def __init__(self, tokenizer_json: Path, template: ChatTemplate, *, add_special_tokens: bool = False) -> None:
        """`add_special_tokens`: put the tokenizer's own BOS before the text, for templates that write none."""
        self._source = tokenizer_json.read_bytes()
        self.tokenizer = Tokenizer.from_str(self._source.decode("utf-8"))
        # A file may carry the limits of a training run; cutting a prompt silently is never right.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._template = template
        self._first_tokens: list[int] = self.tokenizer.encode("").ids
        self._prefix = self._first_tokens if add_special_tokens else []
        self._newline = self._ids(self.tokenizer, "\n")
        self._control = self._control_tokens()
        longest_first = sorted(self._control, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        added = self.tokenizer.get_added_tokens_decoder()
        self._match_normalized = any(token.normalized for token in added.values() if token.content in self._control)

    def encode(self, conversation: Conversation) -> list[int]:
        """Token ids up to where the answer begins. Raises RequestError."""
        _check(conversation)
        nonce = secrets.token_hex(16)
        spelled: list[str] = []

        def mark(text: str) -> str:
            spelled.append(text)
            return f"{nonce}x{len(spelled) - 1}x"

        marked = [self._marked(message, mark) for message in conversation.messages]
        end = f"{nonce}end"
        if conversation.continue_final:
            if self.format.think and marked[-1].get("reasoning_content") and not marked[-1]["content"]:
                # It was cut off within its thoughts, which a template would close.
                marked[-1]["content"] = f"{self.format.think.opens}\n{marked[-1].pop('reasoning_content')}"
            marked[-1]["content"] += end
        rendered = self._template.render(
            marked,
            tools=self._marked(conversation.tools, mark),
            add_generation_prompt=conversation.add_generation_prompt and not conversation.continue_final,
            variables=self._marked(conversation.variables, mark),
        )
        if conversation.continue_final:
            rendered, found, _ = rendered.partition(end)
            if not found:
                raise RequestError("bad_request", "the chat template does not write the last message as it is")
        return self._prefix + self._rendered_ids(rendered, nonce, spelled)

    def encode_text(self, text: Text) -> list[int]:
        """Token ids of text that is no conversation. Raises RequestError."""
        _check_text(text.text, "the prompt")
        _check_size(len(text.text))
        ids = self._ids(self.tokenizer, text.text)
        first = self._first_tokens
        return ids if not text.add_special_tokens or ids[: len(first)] == first else first + ids

    def _rendered_ids(self, rendered: str, nonce: str, spelled: list[str]) -> list[int]:
        if not spelled:
            return self._ids(self.tokenizer, rendered)
        pieces = re.split(f"{nonce}x([0-9]+)x", rendered)
        if any(nonce in piece.lower() for piece in pieces):
            raise RequestError("bad_request", "the chat template rewrites message text that spells a control token")
        ids = self._ids(self.tokenizer, pieces[0])
        for index, piece in enumerate(pieces[1:], start=1):
            if index % 2:
                ids += self._plain_ids(spelled[int(piece)])
            elif piece:
                ids += self._ids_after(self.tokenizer, piece)
        return ids

    def _marked(self, value: Any, mark: Callable[[str], str]) -> Any:
        """A copy of what the template gets, each spelling of a control token in it marked, in names too."""
        if isinstance(value, str):
            return self._mark(value, mark)
        if isinstance(value, list | tuple):
            return [self._marked(item, mark) for item in value]
        if isinstance(value, Mapping):
            return {self._marked(key, mark): self._marked(item, mark) for key, item in value.items()}
        return value

    def _mark(self, content: str, mark: Callable[[str], str]) -> str:
        marked = self._control_pattern.sub(lambda match: mark(match.group()), content)
        if marked == content and self._match_normalized and self._holds_control(self._ids(self.tokenizer, content)):
            return mark(content)  # spelled in a form that the tokenizer's normalizer maps to a control token
        return marked

    def _plain_ids(self, text: str) -> list[int]:
        ids = self._ids_after(self._plain_tokenizer, text)
        if self._holds_control(ids):
            raise RequestError("bad_request", f"this model cannot read {text[:80]!r} as plain text")
        return ids

    def _holds_control(self, ids: Iterable[int]) -> bool:
        return not self._control_ids.isdisjoint(ids)

    @property
    def takes_tools(self) -> bool:
        """The template writes the tools it is given."""
        return self._template.takes_tools

    def writes(self, mark: str) -> bool:
        """The template itself contains this text."""
        return any(mark in literal for literal in self._template.literals)

    @cached_property
    def format(self) -> Format:
        """How the model marks reasoning and calls, as its template shows."""
        return choose(self.writes)

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """Names of the tokens that have no text of their own."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {id_: token.content for id_, token in added.items() if token.special}

    def control_id(self, name: str) -> int | None:
        """Of a special token; None for a name that is text."""
        id_ = self.tokenizer.token_to_id(name)
        return id_ if id_ is not None and id_ in self.special_tokens else None

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """What each token contributes to a text."""
        return TokenBytes(self.tokenizer)

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.content in self._control)

    @cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        """Knows no control token. An instance of its own: the switch is a mutable property of a tokenizer."""
        description = msgspec.json.decode(self._source)
        for token in description.get("added_tokens", ()):
            token["special"] = token["special"] or token["content"] in self._control
        plain = Tokenizer.from_str(msgspec.json.encode(description).decode("utf-8"))
        plain.no_truncation()
        plain.no_padding()
        plain.encode_special_tokens = True
        return plain

    def _control_tokens(self) -> frozenset[str]:
        added = self.tokenizer.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special and token.content}
        written = "\0".join(self._template.literals)
        with contextlib.suppress(RequestError):  # a template may refuse the probe; its literals remain
            written += "\0" + self._template.render(_PROBE)
        text = {token.content for token in added if not token.special and token.content.strip()}
        return frozenset(special | {content for content in text if content in written})

    @staticmethod
    def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
        # encode_batch gives up the interpreter lock, encode does not; the fast one makes no offsets
        encoded = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        if len(encoded) > MAX_TOKENS:  # the list of them is made in one go, which all other threads wait for
            raise RequestError("too_long", f"the text takes {len(encoded):,} tokens; {MAX_TOKENS:,} is the limit")
        return encoded.ids

    def _ids_after(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Ids of text that does not begin the prompt: without the space some tokenizers put before a beginning."""
        ids = self._ids(tokenizer, "\n" + text)  # as transformers' _encode_chat_piece
        if ids[: len(self._newline)] == self._newline:
            return ids[len(self._newline) :]
        return self._ids(tokenizer, text)


def _check(conversation: Conversation) -> None:
    messages = conversation.messages
    if not messages:
        raise RequestError("bad_request", "a chat needs at least one message")
    if conversation.continue_final and messages[-1]["role"] != "assistant":
        raise RequestError("bad_request", "only an assistant's message can be continued, and the last one is not")
    _check_size(sum(map(len, texts_in([messages, conversation.tools, conversation.variables]))))
    for number, message in enumerate(messages, start=1):
        for text in texts_in(message):
            _check_text(text, f"message {number}")
    for text in texts_in([conversation.tools, conversation.variables]):
        _check_text(text, "the tools or the template's variables")


def _check_size(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise RequestError(
            "bad_request", f"the request holds {characters:,} characters of text; {MAX_CHARACTERS:,} is the limit"
        )


def _check_text(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            "bad_request", f"{where} is not valid text: a lone surrogate at character {error.start}"
        ) from None
