"""What the orchestrator asks of its durable memory. Every store passes tests/store/contract.py."""

from collections.abc import Sequence
from typing import Protocol


class StoreRefused(Exception):
    """The store cannot be opened. Nothing in it was changed; the text says what to do."""


class StoreFailed(Exception):
    """A write did not happen, and it is certain that it did not. The same write may be tried again."""


class StoreUnknown(Exception):
    """A write was cut off: it may have happened. Read what stands there before acting."""


class Deposed(Exception):
    """Another leader has opened the store since: this one must not act any more."""

    def __init__(self, own: int, stored: int) -> None:
        super().__init__(
            f"the store belongs to the orchestrator with epoch {stored}; this one has epoch {own} and stops."
            " Let one orchestrator run per store.")
        self.own, self.stored = own, stored
