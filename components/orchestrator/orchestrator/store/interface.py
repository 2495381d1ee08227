"""What the orchestrator asks of its durable memory. Every store passes tests/store/test_store_contract.py."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.core.effects import ForgetEnded, ForgetWaiter, Publish, Record, RecordWaiter
from orchestrator.core.types import EndedLease, Epoch, GroupId, GroupRecord, GroupView, WaiterRecord

Write = Record | RecordWaiter | ForgetWaiter | ForgetEnded


class StoreRefused(Exception):
    """The store cannot be opened or read. Nothing in it was changed; the text says what to do."""


class StoreFailed(Exception):
    """A write did not happen, and it is certain that it did not. The same write may be tried again."""


class StoreUnclear(Exception):
    """A write was cut off: all of it happened, or nothing. Read what stands there before acting."""


class Deposed(Exception):
    """Another leader has opened the store since: this one must not act any more."""

    def __init__(self, own: int, stored: int) -> None:
        super().__init__(
            f"the store belongs to the orchestrator with epoch {stored}; this one has epoch {own} and stops."
            " Let one orchestrator run per store.")
        self.own, self.stored = own, stored


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that a store keeps."""

    records: tuple[GroupRecord, ...] = ()
    ended: tuple[EndedLease, ...] = ()
    waiters: tuple[WaiterRecord, ...] = ()


class Store(Protocol):
    """A store that this process has opened, and leads."""

    writes_groups_apart: bool
    """Whether groups are written side by side: each by a request of its own, so that a slow one holds up no other. Else
    one transaction takes what there is of all groups."""

    @property
    def epoch(self) -> Epoch:
        """This leader's number: durable, and higher than that of everybody who opened the store before."""
        ...

    async def load(self) -> Loaded:
        """Everything; StoreRefused if something in it cannot be understood."""
        ...

    async def read(self, group: GroupId) -> GroupRecord | None:
        """What stands in the store about this group now; StoreFailed if it cannot be told."""
        ...

    def write(self, writes: Sequence[Write]) -> Awaitable[None]:
        """Do all of these, in order, in one transaction; a `Record` among them is durable when this returns. A store
        may make it a coroutine; one that returns a future spares a task per write.

        Without a `Record` a power cut may lose them (a killed process does not). StoreFailed: none was done.
        StoreUnclear: all or none. Deposed: none, and none ever will be again.
        """
        ...

    async def raise_epoch(self, above: int) -> Epoch:
        """Make this leader's number higher than `above`, durably: agents know a leader that the store has lost."""
        ...

    def show_by(self, view: Callable[[GroupId], GroupView | None], wall: Callable[[float], float]) -> None:
        """Where people look at the store: `view` is what they should see of a group (None: it is not served), `wall`
        makes its times seconds since 1970."""
        ...

    def tell(self, published: Publish) -> None:
        """Something happened that changes what people see. Never waits."""
        ...

    async def close(self) -> None:
        """Finish what is being written, and let others have the store."""
        ...
