"""The store's thread: calls in order, each with its result, its error, or nobody who waits for it any more."""

import asyncio
import threading

import pytest

from orchestrator.store.own_thread import OwnThread


async def test_calls_happen_in_order_and_each_has_its_answer() -> None:
    thread = OwnThread("test")
    happened: list[int] = []

    def fail() -> None:
        raise ValueError("no")

    first, bad, last = thread.call(lambda: happened.append(1)), thread.call(fail), thread.call(lambda: len(happened))
    with pytest.raises(ValueError, match="no"):
        await bad
    assert first.done()
    assert await last == 1
    thread.stop()


async def test_a_call_that_nobody_waits_for_any_more_happens_all_the_same() -> None:
    thread = OwnThread("test")
    gate = threading.Event()
    happened: list[str] = []
    thread.call(gate.wait)
    abandoned = thread.call(lambda: happened.append("abandoned"))
    abandoned.cancel()
    gate.set()
    await thread.call(lambda: None)
    assert happened == ["abandoned"]
    thread.stop()


def test_a_loop_that_is_closed_does_not_end_the_thread() -> None:
    gate = threading.Event()

    async def leave() -> OwnThread:
        thread = OwnThread("test")
        thread.call(gate.wait)
        return thread

    thread = asyncio.run(leave())
    gate.set()

    async def use() -> int:
        return await thread.call(lambda: 7)

    assert asyncio.run(use()) == 7
    thread.stop()
