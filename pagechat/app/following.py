"""What other windows did to a chat that is open here too, taken into it.

A window writes only its own messages; of the others' it follows content, and of all of them deletion. What this window
has changed and not saved yet stays as it is here: it is saved next.
"""

from __future__ import annotations

from pagechat.app.chat_settings import settings_from
from pagechat.app.conversation import Conversation
from pagechat.app.message import Message, restored
from pagechat.store import News, StoredMessage
from pagechat.text_safety import sanitize


def take(conversation: Conversation, news: News) -> str | None:
    """Take the news in. Returns what the person is to be told, if anything."""
    known = {one.stored_id: one for one in (*conversation.messages, *conversation.dropped) if one.stored_id is not None}
    for stored in news.messages:
        message = known.get(stored.id)
        if message is not None:
            _update(conversation, message, stored)
        elif not stored.deleted:
            _insert(conversation, restored(stored))
            conversation.unread = True
    _take_settings(conversation, news)
    conversation.seen = news.chat.revision
    was_gone, conversation.gone = conversation.gone, news.deleted
    conversation.changed()
    if news.deleted and not was_gone:
        return f"{conversation.label} was deleted in another window. It stays open here; what is sent here restores it."
    return None


def _update(conversation: Conversation, message: Message, stored: StoredMessage) -> None:
    if not message.here and message.saved_edits == message.edits:
        if (message.content, message.status) != (stored.content, stored.status):
            conversation.unread = True
        message.content, message.shown = stored.content, sanitize(stored.content)
        message.status, message.facts, message.here = stored.status, stored.facts, stored.here
        message.version += 1
    if stored.deleted == message.saved_deleted:
        return
    unchanged = message.deleted == message.saved_deleted
    message.saved_deleted = stored.deleted
    if not unchanged or message is conversation.answer:
        return  # as it is here: it is being written, or was just changed
    if stored.deleted:
        conversation.set_messages([one for one in conversation.messages if one is not message])
    else:
        conversation.dropped.discard(message)
        message.deleted = False
        message.version += 1
        _insert(conversation, message)


def _insert(conversation: Conversation, message: Message) -> None:
    """At its place in the order of writing; what is not saved yet comes last."""
    messages, at = conversation.messages, len(conversation.messages)
    while at > 0 and ((before := messages[at - 1].stored_id) is None or before > (message.stored_id or 0)):
        at -= 1
    conversation.messages = [*messages[:at], message, *messages[at:]]


def _take_settings(conversation: Conversation, news: News) -> None:
    chat, settings = news.chat, settings_from(news.chat.settings)
    if conversation.title == conversation.saved_title:
        conversation.title = chat.title
    if conversation.settings == conversation.saved_settings:
        conversation.settings = settings
    if conversation.priority == conversation.saved_priority:
        conversation.priority = chat.priority
    conversation.saved_title, conversation.saved_settings, conversation.saved_priority = (
        chat.title,
        settings,
        chat.priority,
    )
