"""Warm worker processes. One call per worker at a time; a call that does not answer costs its worker's life."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence

from snapshot_agent_server.driver.interface import DriverMissing
from snapshot_agent_server.driver.wire import MAX_BYTES, Message, decode, encode, pair

log = logging.getLogger(__name__)

WORKER_START_S = 60.0  # cuInit alone took 2.7 s in NVIDIA/nvcf issue 263; eight GPUs and a cold page cache take longer

CLOSE_S = 2.0
SPARE = 8
"""Workers beyond the warm ones that are kept once they were needed."""


class WorkerDied(Exception):
    """The worker ended in the middle of a call, which may still take effect."""


class Worker:
    """`forget` is called once, when the process has been killed and reaped."""

    def __init__(self, command: Sequence[str], forget: Callable[[Worker], None]) -> None:
        ours, theirs = pair()
        self._forget = forget
        self._reaped = asyncio.Event()
        self._channel: socket.socket = ours
        self._reply: asyncio.Future[Message] | None = None
        self._is_dead = False
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # What is importable here must be importable there, however this process was started.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours.fileno(), self._readable)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    async def call(self, message: Message | None, timeout_s: float) -> Message:
        """Send a request (None: only wait for the first word) and return the reply.

        Leaving by an exception kills the worker: a thread stuck in libcuda cannot be cancelled.
        Raises: TimeoutError, WorkerDied.
        """
        reply = self._reply = self._loop.create_future()
        try:
            if self._is_dead:
                raise WorkerDied(f"driver worker {self.pid} is dead")
            if message is not None:
                try:
                    self._channel.send(encode(message))
                except OSError as error:
                    raise WorkerDied(f"driver worker {self.pid}: {error}") from error
            async with asyncio.timeout(timeout_s):
                answer: Message = await reply
                return answer
        except BaseException:
            self.kill()
            raise
        finally:
            self._reply = None

    def kill(self) -> None:
        """End it at once. A second time does nothing."""
        if self._is_dead:
            return
        self._is_dead = True
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        self._process.kill()
        # A process in an uninterruptible ioctl cannot be waited for here: the loop reaps it when its pidfd says so.
        if self._process.poll() is None:
            fd = os.pidfd_open(self._process.pid)  # ours, not reaped: the pid cannot be another's
            self._loop.add_reader(fd, self._reap, fd)
        else:
            self._end()

    async def reaped(self) -> None:
        """Wait until the killed process is gone."""
        await self._reaped.wait()

    def _reap(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        os.close(fd)
        self._process.wait()
        self._end()

    def _end(self) -> None:
        self._reaped.set()
        self._forget(self)

    def _readable(self) -> None:
        try:
            data = self._channel.recv(MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            reply = self._reply
            self.kill()
            if reply is not None and not reply.done():
                reply.set_exception(WorkerDied(f"driver worker {self.pid} ended in the middle of a call"))
        elif self._reply is not None and not self._reply.done():
            self._reply.set_result(decode(data))


WORKER_COMMAND = (sys.executable, "-m", "snapshot_agent_server.driver.worker")


class Pool:
    """`warm` workers that stand ready, and more while more calls run at once.

    No bound on their number but that of the calls: a bound would let one job's hanging calls delay another's. A call
    that finds all busy takes whichever is ready first, one that another call gives back or a new one: a new one takes
    seconds where cuInit does.
    """

    def __init__(self, warm: int, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._warm = warm
        self._command = command
        self._idle: list[Worker] = []
        self._waiting: deque[asyncio.Future[Worker]] = deque()
        self._all: set[Worker] = set()
        """Until they are reaped."""
        self._starts: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self.first_word: Message = {}

    @property
    def pids(self) -> set[int]:
        return {worker.pid for worker in self._all}

    async def start(self) -> None:
        """Wait for the first worker; the others come up behind it.

        Raises: DriverMissing, with what the worker said.
        """
        try:
            self._give(await self._start())
        except DriverMissing:
            await self.close()
            raise
        self._fill()

    async def call(self, message: Message, timeout_s: float) -> Message:
        """`timeout_s` counts from the moment when a worker has the call.

        Raises: TimeoutError and WorkerDied, the worker being dead then; DriverMissing if none can be started.
        """
        worker = await self._take()
        try:
            return await worker.call(message, timeout_s)
        finally:
            if worker.is_dead:
                self._fill()
            else:
                self._give(worker)

    async def close(self) -> None:
        self._is_closing = True
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        workers = list(self._all)
        for worker in workers:
            worker.kill()
        self._idle.clear()
        try:
            async with asyncio.timeout(CLOSE_S):
                for worker in workers:
                    await worker.reaped()
        except TimeoutError:
            log.warning("a driver worker hangs in the kernel and outlives the agent: %s", sorted(self.pids))

    async def _take(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if not worker.is_dead:
                return worker
        place: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._fill()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._give(place.result())  # it came too late
            raise

    def _give(self, worker: Worker) -> None:
        """Hand a worker to the call that has waited longest, or keep it."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(worker)
                return
        if len(self._idle) < self._warm + SPARE:
            self._idle.append(worker)
        else:
            worker.kill()

    def _fill(self) -> None:
        """Start, off the callers' path, what is missing of the warm workers, or one for each call that waits."""
        waiting = sum(not place.done() for place in self._waiting)
        ready = sum(not worker.is_dead for worker in self._all)
        wanted = max(self._warm - ready, waiting) - len(self._starts)
        for _ in range(0 if self._is_closing else wanted):
            task = asyncio.get_running_loop().create_task(self._add(), name="driver worker start")
            self._starts.add(task)
            task.add_done_callback(self._starts.discard)

    async def _add(self) -> None:
        try:
            self._give(await self._start())
        except DriverMissing as error:
            log.error("no new driver worker: %s", error)
            while self._waiting:
                place = self._waiting.popleft()
                if not place.done():
                    place.set_exception(error)
                    break

    async def _start(self) -> Worker:
        worker = Worker(self._command, self._all.discard)
        self._all.add(worker)
        try:
            word = await worker.call(None, WORKER_START_S)
        except (WorkerDied, TimeoutError) as error:
            raise DriverMissing(f"the driver worker did not start: {error or 'no answer'}") from error
        if "missing" in word:
            worker.kill()
            raise DriverMissing(str(word["missing"]))
        self.first_word = word["ready"]
        return worker
