"""Who pays for the pool: block-seconds and tokens, per session and per tenant (the label of an API key).

A reducer over pool events with times, as `PoolMirror` is one without. Sessions of different tenants have different
names: the front sees to that. A block's time is split equally among the
table entries that are this block, at each moment; a block without owner, free or cached, is nobody's. It knows
no price, and no request.

Each event costs O(1). Per block it keeps the integral of dt / owners since the block got its first owner:

```
owners   1        2              1        0
         |--------|--------------|--------|        A's entry saw all of it, B's the middle:
time     0        4              10       12       A pays 4 + 6/2 + 2, B pays 6/2
integral 0        4              7        9        A: 9 - 0, B: 7 - 4
```
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.protocol import OwnerUsage, PoolEvent, UsageReport
from engine.scheduling.step import ScheduledStep

EARLIER = "(earlier)"
"""Name under which the usage of sessions that are no longer remembered is summed up."""


@dataclass(slots=True, eq=False)
class Account:
    """What one session of one tenant has used; of its blocks, those it has given back."""

    session: str
    tenant: str
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    generated_tokens: int = 0
    block_seconds: float = 0.0
    open: int = 0
    """Requests under way and sequences with blocks. With any, it is remembered."""

    def add(self, other: Account) -> None:
        """Take over what another one has used."""
        self.prompt_tokens_computed += other.prompt_tokens_computed
        self.prompt_tokens_cached += other.prompt_tokens_cached
        self.generated_tokens += other.generated_tokens
        self.block_seconds += other.block_seconds


@dataclass(slots=True)
class _Table:
    """A sequence's block table, and each block's integral when its entry began."""

    account: Account
    blocks: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)


class Meter:
    """The accounts of one pool since `now`, seconds of any clock that never goes back."""

    def __init__(self, num_blocks: int, now: float, *, remembered: int = 10_000) -> None:
        self.num_blocks = num_blocks
        self._started = self._now = now
        self._remembered = remembered
        self._accounts: OrderedDict[tuple[str, str], Account] = OrderedDict()
        """The keys are (session, tenant); the least recently opened account stands first."""
        self._latest: dict[str, Account] = {}
        """The account that opened a session last: its sequences are on that one."""
        self._earlier: dict[str, Account] = {}
        """This holds what forgotten accounts had used, by tenant."""
        self._tables: dict[int, _Table] = {}
        self._owners = [0] * (num_blocks + 1)
        self._integral = [0.0] * (num_blocks + 1)
        self._since = [now] * (num_blocks + 1)
        """The time at which the block's integral was last brought up to date."""
        self._unowned = num_blocks
        self._unowned_seconds = 0.0

    def begin(self, session: str, tenant: str) -> None:
        """A request of this session: what the session takes from now on is charged to this tenant."""
        account = self._account(session, tenant)
        account.open += 1
        self._accounts.move_to_end((session, tenant))
        self._latest[session] = account

    def end(self, session: str, tenant: str) -> None:
        """A request that began has ended."""
        self._account(session, tenant).open -= 1

    def fork(self, source: str, target: str) -> None:
        """`target`, a session forked from `source`, is charged to the same tenant."""
        if source in self._latest:
            self._latest[target] = self._account(target, self._latest[source].tenant)

    def saw_step(self, step: ScheduledStep) -> None:
        """Count the prompt tokens of a step."""
        latest = self._latest
        for span in step.spans:
            sequence = span.sequence
            account = latest.get(sequence.session) or self._payer(sequence.session)
            if span.start < sequence.prompt_len:
                account.prompt_tokens_computed += min(span.count, sequence.prompt_len - span.start)
                if span.start == sequence.cached_tokens and not sequence.preemptions:  # its first chunk
                    account.prompt_tokens_cached += sequence.cached_tokens

    def saw_tokens(self, session: str, count: int) -> None:
        """So many tokens of its answers came. A step that was launched before a stop token was known brings one that
        nobody is told of, and nobody pays for."""
        (self._latest.get(session) or self._payer(session)).generated_tokens += count

    def apply(self, events: Iterable[PoolEvent], now: float) -> None:
        """Advance to `now` and then let all these events happen at once."""
        self._advance(now)
        for event in events:
            kind = event.kind
            if kind == "allocate" or kind == "share" or kind == "hit":
                self._enter(event)
            elif kind == "release":
                table = self._tables[event.seq]
                self._leave(table, table.blocks.pop(), table.starts.pop())
                if not table.blocks:
                    table.account.open -= 1
                    del self._tables[event.seq]
            elif kind == "copy":
                table = self._tables[event.seq]
                self._leave(table, table.blocks[event.index], table.starts[event.index])
                table.blocks[event.index], table.starts[event.index] = event.block, self._take(event.block)

    def usage(self, ticket: int, now: float) -> UsageReport:
        """Everything up to `now`. O(table entries)."""
        self._advance(now)
        running: dict[int, float] = {}
        for table in self._tables.values():
            owed = sum(map(self._bring_up, table.blocks)) - sum(table.starts)
            running[id(table.account)] = running.get(id(table.account), 0.0) + owed
        sessions: list[Account] = []
        tenants: dict[str, Account] = {}
        earlier = Account(EARLIER, "")
        for account in [*self._accounts.values(), *self._earlier.values()]:
            so_far = Account(account.session, account.tenant)
            so_far.add(account)
            so_far.block_seconds += running.get(id(account), 0.0)
            tenants.setdefault(account.tenant, Account(account.tenant, account.tenant)).add(so_far)
            if self._earlier.get(account.tenant) is account:
                earlier.add(so_far)
            else:
                sessions.append(so_far)
        if self._earlier:
            sessions.append(earlier)
        return UsageReport(
            ticket=ticket,
            seconds=now - self._started,
            num_blocks=self.num_blocks,
            sessions=[_usage(account) for account in sessions],
            tenants=[_usage(account) for account in tenants.values()],
            unowned_block_seconds=self._unowned_seconds,
        )

    # -- inside --------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if now > self._now:
            self._unowned_seconds += (now - self._now) * self._unowned
            self._now = now

    def _enter(self, event: PoolEvent) -> None:
        table = self._tables.get(event.seq)
        if table is None:
            account = self._payer(event.session)
            account.open += 1
            table = self._tables[event.seq] = _Table(account)
        table.blocks.append(event.block)
        table.starts.append(self._take(event.block))

    def _take(self, block: int) -> float:
        """One more owner; the block's integral now."""
        if self._owners[block] == 0:
            self._integral[block], self._since[block] = 0.0, self._now
            self._unowned -= 1
        else:
            self._bring_up(block)
        self._owners[block] += 1
        return self._integral[block]

    def _leave(self, table: _Table, block: int, start: float) -> None:
        table.account.block_seconds += self._bring_up(block) - start
        self._owners[block] -= 1
        if self._owners[block] == 0:
            self._unowned += 1

    def _bring_up(self, block: int) -> float:
        """The block's integral now; it has an owner."""
        self._integral[block] += (self._now - self._since[block]) / self._owners[block]
        self._since[block] = self._now
        return self._integral[block]

    def _payer(self, session: str) -> Account:
        return self._latest.get(session) or self._account(session, "")

    def _account(self, session: str, tenant: str) -> Account:
        account = self._accounts.get((session, tenant))
        if account is None:
            account = self._accounts[session, tenant] = Account(session, tenant)
            self._forget_old()
        return account

    def _forget_old(self) -> None:
        """Fold the accounts longest unused into one a tenant; of tenants, no more are remembered than of sessions."""
        for _ in range(len(self._accounts) - self._remembered):
            key, account = self._accounts.popitem(last=False)
            if account.open:  # counts as used now
                self._accounts[key] = account
                continue
            if self._latest.get(account.session) is account:
                del self._latest[account.session]
            tenant = account.tenant
            if tenant not in self._earlier and len(self._earlier) >= self._remembered:
                tenant = EARLIER
            self._earlier.setdefault(tenant, Account(EARLIER, tenant)).add(account)


def _usage(account: Account) -> OwnerUsage:
    return OwnerUsage(
        name=account.session,
        tenant=account.tenant,
        prompt_tokens_computed=account.prompt_tokens_computed,
        prompt_tokens_cached=account.prompt_tokens_cached,
        generated_tokens=account.generated_tokens,
        block_seconds=account.block_seconds,
    )
