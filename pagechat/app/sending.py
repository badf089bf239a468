"""When a prompt is sent: now, or as soon as the engine is ready and the answer before it has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from pagechat.app.client_api import Client
from pagechat.app.conversation import Conversation


class Sender:
    """Sends prompts, in the order in which they were given. `pump` is called whenever something may have changed."""

    def __init__(
        self,
        client: Callable[[], Client | None],
        save: Callable[[], Awaitable[None]],
        preemptions: Callable[[str], int],
    ) -> None:
        """`client` None: the engine is not ready. `preemptions`: of a session, as far as telemetry told."""
        self._client = client
        self._save = save
        self._preemptions = preemptions

    def submit(self, conversation: Conversation, text: str) -> None:
        """Send a prompt, or queue it."""
        conversation.queue.append(text)
        conversation.held = False
        conversation.changed()
        self.pump([conversation])

    def release(self, conversation: Conversation) -> None:
        """Go on with a queue that was held after a failure."""
        conversation.held = False
        self.pump([conversation])

    def take_back(self, conversation: Conversation) -> str | None:
        """The prompt queued last, which is then no longer queued."""
        if not conversation.queue:
            return None
        conversation.changed()
        return conversation.queue.pop()

    def pump(self, conversations: Iterable[Conversation]) -> bool:
        """Send what can be sent now. True when something was."""
        client, sent = self._client(), False
        for conversation in conversations:
            busy = conversation.streaming or conversation.held or conversation.choosing or conversation.preparing
            if conversation.queue and client is not None and not busy and conversation.followed is None:
                conversation.ask(conversation.queue.pop(0), client, self._save)
                self._count_preemptions(conversation)
                sent = True
        return sent

    def edit(self, conversation: Conversation, index: int, text: str) -> None:
        conversation.edit(index, text, self._client(), self._save)
        self._count_preemptions(conversation)

    def regenerate(self, conversation: Conversation, index: int) -> None:
        conversation.regenerate(index, self._client(), self._save)
        self._count_preemptions(conversation)

    def several(self, conversation: Conversation, index: int, count: int) -> None:
        conversation.ask_several(index, count, self._client(), self._save)
        self._count_preemptions(conversation)

    def go_on(self, conversation: Conversation) -> None:
        conversation.go_on(self._client(), self._save)
        self._count_preemptions(conversation)

    def _count_preemptions(self, conversation: Conversation) -> None:
        """When the answer ends, how often it was preempted becomes one of its facts."""
        answer, before = conversation.answer, self._preemptions(conversation.id)

        def ended(_: object) -> None:
            assert answer is not None
            answer.note(preemptions=self._preemptions(conversation.id) - before)

        if conversation.task is not None and answer is not None:
            conversation.task.add_done_callback(ended)
