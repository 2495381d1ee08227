"""The client's two faces behind one: tests are written with plain calls, and run on either."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc
import grpc.aio

import timeslice
import timeslice.aio


class SyncFace:
    """The clients as they are."""

    name = "sync"
    interrupt: type[BaseException] = KeyboardInterrupt
    """What ends a block from outside."""

    def orchestrator(self, *args: Any, **kwargs: Any) -> Any:
        return timeslice.TimeSliceOrchestratorClient(*args, **kwargs)

    def agent(self, *args: Any, **kwargs: Any) -> Any:
        return timeslice.SnapshotAgentClient(*args, **kwargs)

    def channel(self, address: str) -> Any:
        """A channel of the user's own, to be used in a `with`."""
        return grpc.insecure_channel(address)

    def wait_until(self, client: Any, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Until something has come about inside the client, which its notices bring."""
        with client._engine.changed:
            assert client._engine.changed.wait_for(condition, timeout_s), "this never came about"

    def working(self) -> list[str]:
        """The names of the threads that work for clients now."""
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("timeslice ")]

    def function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A function as this face's decorator wants it."""
        return plain

    def script(self, body: str) -> str:
        """A program with this body, in which calls of `client` are written with `await`."""
        return IMPORTS.format(module="timeslice") + body.replace("await ", "").replace("async ", "")

    def close(self) -> None:
        pass


class AioFace:
    """The asyncio clients on an event loop in a thread of its own; every call is carried there and waited for."""

    name = "aio"
    interrupt: type[BaseException] = asyncio.CancelledError

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="event loop")
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def orchestrator(self, *args: Any, **kwargs: Any) -> Any:
        return Driven(self, timeslice.aio.TimeSliceOrchestratorClient(*args, **kwargs))

    def agent(self, *args: Any, **kwargs: Any) -> Any:
        async def make() -> Any:
            return timeslice.aio.SnapshotAgentClient(*args, **kwargs)

        return Driven(self, self.call(make()))

    @contextlib.contextmanager
    def channel(self, address: str) -> Iterator[Any]:
        async def make() -> Any:
            return grpc.aio.insecure_channel(address)

        channel = self.call(make())
        yield channel
        self.call(channel.close())

    def wait_until(self, client: Any, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        self.call(client._engine.changed.wait_for(condition, timeout_s))
        assert condition(), "this never came about"

    def working(self) -> list[str]:
        """The names of the tasks that work for clients now."""
        return [name for task in asyncio.all_tasks(self.loop) if (name := task.get_name()).startswith("timeslice ")]

    def function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        async def function(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs)

        return function

    def script(self, body: str) -> str:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        main = f"import asyncio\nasync def main():\n{lines}asyncio.run(main())\n"
        return IMPORTS.format(module="timeslice.aio") + main

    def close(self) -> None:
        async def settle() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:  # What grpc leaves behind of a closed channel.
                await asyncio.wait(others, timeout=10)

        self.call(settle())
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not left, f"tasks that nobody ended: {left}"


IMPORTS = "from {module} import TimeSliceOrchestratorClient\n"


class Driven:
    """An asyncio client with plain calls."""

    def __init__(self, face: AioFace, client: Any) -> None:
        self._face, self._client = face, client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if inspect.iscoroutinefunction(found):
            return lambda *args, **kwargs: self._face.call(found(*args, **kwargs))
        return found

    def on_accelerators(self, *args: Any, **kwargs: Any) -> Any:
        return DrivenTurns(self._face, self._client.on_accelerators(*args, **kwargs))

    def __enter__(self) -> Any:
        self._face.call(self._client.__aenter__())
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._face.call(self._client.__aexit__(*exc_info))


class DrivenTurns(contextlib.AbstractContextManager[Any]):
    """What the asyncio client's `on_accelerators` returns, with plain calls."""

    def __init__(self, face: AioFace, turns: Any) -> None:
        self._face, self._turns = face, turns

    def __enter__(self) -> Any:
        return self._face.call(self._turns.__aenter__())

    def __exit__(self, *exc_info: Any) -> None:
        self._face.call(self._turns.__aexit__(*exc_info))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        decorated = self._turns(function)
        return lambda *args, **kwargs: self._face.call(decorated(*args, **kwargs))
