"""Which chats are open, in which order, and how they come from and go to the history. It knows no widget."""

from __future__ import annotations

from pagechat.app.conversation import Conversation
from pagechat.app.keeper import Keeper
from pagechat.app.letters import Letters
from pagechat.store import StoreError


class Tabs:
    """The open conversations, never none of them. One is active."""

    def __init__(self, keeper: Keeper, letters: Letters) -> None:
        self._keeper = keeper
        self._letters = letters
        self.conversations: list[Conversation] = []
        self.index = 0
        self.new()

    @property
    def active(self) -> Conversation:
        return self.conversations[self.index]

    @property
    def streaming(self) -> list[Conversation]:
        return [conversation for conversation in self.conversations if conversation.streaming]

    def letter(self, conversation: Conversation) -> str:
        return self._letters.get(conversation.id)

    def find(self, chat_id: str) -> Conversation | None:
        return next((conversation for conversation in self.conversations if conversation.id == chat_id), None)

    def new(self) -> Conversation:
        """An empty chat, active. An empty one that is open already serves."""
        empty = next((c for c in self.conversations if c.blank), None)
        if empty is None:
            empty = Conversation()
            self._add(empty)
        self.choose(self.conversations.index(empty))
        return empty

    def choose(self, index: int) -> None:
        """Make that tab the active one; the index wraps."""
        self.index = index % len(self.conversations)
        self.active.unread = False

    def insert(self, conversation: Conversation) -> None:
        """A chat in a new tab beside the active one, active."""
        self._add(conversation, self.index + 1)
        self.choose(self.index + 1)

    def move(self, step: int) -> None:
        """The active tab changes places with a neighbour; at the ends nothing happens."""
        to = self.index + step
        if 0 <= to < len(self.conversations):
            self.conversations.insert(to, self.conversations.pop(self.index))
            self.index = to

    def reopen(self, conversation: Conversation, index: int) -> None:
        """A chat that was closed, where it was. When it is open again already, that tab serves."""
        found = self.find(conversation.id)
        if found is None:
            self._add(conversation, min(index, len(self.conversations)))
        self.choose(self.conversations.index(found or conversation))

    def close(self, conversation: Conversation) -> int:
        """Close the tab and say where it was. Its last changes are saved; the chat stays in the history."""
        index = self.conversations.index(conversation)
        self.conversations.remove(conversation)
        self._letters.close_tab(conversation.id)
        self._keeper.unwatch(conversation)
        if not self.conversations:
            self._add(Conversation())
        self.choose(min(self.index - (index < self.index), len(self.conversations) - 1))
        return index

    async def open(self, chat_id: str) -> Conversation:
        """The chat of that id in a tab, active. Raises StoreError."""
        conversation = self.find(chat_id)
        if conversation is None:
            loaded = await self._load(chat_id)
            conversation = self.find(chat_id)  # opened twice at once, the first has won
            if conversation is None:
                conversation = loaded
                blank = self.active if self.active.blank else None
                self._add(conversation)
                if blank is not None:
                    self.close(blank)
        self.choose(self.conversations.index(conversation))
        return conversation

    async def restore(self) -> None:
        """Open the tabs that windows which have ended left. Raises StoreError; the tabs opened before it stay."""
        store = self._keeper.store
        try:
            chat_ids, active = await self._keeper.call(store.enter)
        except StoreError:  # it can only be read
            chat_ids, active = await self._keeper.call(store.open_tabs)
        if chat_ids:  # the empty tab that they replace leaves its letter to them
            self._letters.close_tab(self.active.id)
            self._letters.forget_unused(())
        for chat_id in chat_ids:
            await self.open(chat_id)
        found = self.find(active) if active else None
        if found is not None:
            self.choose(self.conversations.index(found))

    def remember(self) -> None:
        """Note which tabs are open, for the next start."""
        kept = [conversation.id for conversation in self.conversations if not conversation.blank]
        self._keeper.note_tabs(kept, None if self.active.blank else self.active.id)

    def _add(self, conversation: Conversation, index: int | None = None) -> None:
        self.conversations.insert(len(self.conversations) if index is None else index, conversation)
        self._letters.open_tab(conversation.id)
        self._keeper.watch(conversation)

    async def _load(self, chat_id: str) -> Conversation:
        keeper, store = self._keeper, self._keeper.store
        held = keeper.held(chat_id)
        if held is not None and not held.kept:  # closed a moment ago and not saved yet
            return held
        chat = await keeper.call(store.find_chat, chat_id)
        if chat is None:
            raise StoreError("that chat is no longer in the history")
        if held is None:
            queue, draft = await keeper.call(store.take, chat_id)
            held = Conversation.restored(chat, await keeper.call(store.messages, chat_id), queue, draft)
            held.elsewhere = chat_id in await keeper.call(store.open_elsewhere)
        else:  # it was open in this run: the same one, with what other windows have done to it since
            await keeper.follow(held)
        return held
