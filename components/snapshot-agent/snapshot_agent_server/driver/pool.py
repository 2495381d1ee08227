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
from snapshot_agent_server.driver.wire import MAX_BYTES, RELEASE, STOP, Message, decode, encode, pair

log = logging.getLogger(__name__)

WORKER_START_S = 60.0  # cuInit alone took 2.7 s in NVIDIA/nvcf issue 263; eight GPUs and a cold page cache take longer

CLOSE_S = 2.0
SPARE = 8
"""Workers beyond the warm ones that are kept once they were needed."""


class WorkerDied(Exception):
    """The worker ended in the middle of a call, which may still take effect."""


class Exchange:
    """One request to a worker, and its replies.

    `heard` is called from the loop with each reply, and with the error that ends them: WorkerDied, TimeoutError, or
    DriverMissing if no worker can be started. For a reply that says `goes_on` it returns how long the next may take, in
    seconds.
    """

    __slots__ = ("_said", "heard", "request", "timeout_s", "worker")

    def __init__(self, request: bytes | None, timeout_s: float, heard: Heard) -> None:
        """`request` None: there is only the worker's first word to hear."""
        self.request = request
        self.timeout_s = timeout_s
        self.heard = heard
        self.worker: Worker | None = None
        """Who has it; None: nobody yet, or it is over."""
        self._said: list[bytes] = []

    def stop(self) -> None:
        """Let the worker not go on to a further step, if it has not yet: its reply says which."""
        self._say(_STOP)

    def release(self) -> None:
        """Let the worker go on to steps that are held."""
        self._say(_RELEASE)

    def _say(self, word: bytes) -> None:
        self._said.append(word)
        if self.worker is not None:
            self.worker.send(word)

    def begin(self, worker: Worker) -> None:
        """From now on it is this worker's."""
        self.worker = worker
        if self.request is not None:
            worker.send(self.request)
        for word in self._said:
            worker.send(word)


_STOP, _RELEASE = encode(STOP), encode(RELEASE)
Heard = Callable[[Message | WorkerDied | TimeoutError | DriverMissing], float | None]


class Worker:
    """`free` is called behind each request, when it can take another one or is dead; `forget` once, when the process
    has been killed and reaped."""

    def __init__(
        self, command: Sequence[str], free: Callable[[Worker], None], forget: Callable[[Worker], None]
    ) -> None:
        ours, theirs = pair()
        self._free = free
        self._forget = forget
        self._reaped = asyncio.Event()
        self._channel: socket.socket = ours
        self._exchange: Exchange | None = None
        self._limit: asyncio.TimerHandle | None = None
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

    def begin(self, exchange: Exchange) -> None:
        """Take a request. The limit counts from now; past it the worker is killed: a thread stuck in libcuda cannot be
        cancelled."""
        self._exchange = exchange
        self._limit = self._loop.call_later(exchange.timeout_s, self._expired)
        exchange.begin(self)

    def send(self, data: bytes) -> None:
        try:
            self._channel.send(data)
        except OSError as error:
            self._loop.call_soon(self._broken, self._exchange, f"driver worker {self.pid}: {error}")

    def kill(self) -> None:
        """End it at once; nothing more is heard of what it was at. A second time does nothing."""
        if self._is_dead:
            return
        self._is_dead = True
        self._over()
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

    def _over(self) -> Exchange | None:
        """The end of a request, whose answer is still to be told."""
        exchange, self._exchange = self._exchange, None
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if exchange is not None:
            exchange.worker = None
        return exchange

    def _reap(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        os.close(fd)
        self._process.wait()
        self._end()

    def _end(self) -> None:
        self._reaped.set()
        self._forget(self)

    def _expired(self) -> None:
        self._fail(TimeoutError())

    def _broken(self, exchange: Exchange | None, text: str) -> None:
        if exchange is self._exchange:
            self._fail(WorkerDied(text))

    def _fail(self, error: WorkerDied | TimeoutError) -> None:
        exchange = self._over()
        self.kill()
        if exchange is not None:
            self._tell(exchange, error)

    def _readable(self) -> None:
        try:
            data = self._channel.recv(MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._fail(WorkerDied(f"driver worker {self.pid} ended in the middle of a call"))
            return
        reply = decode(data)
        if reply.get("goes_on") and self._exchange is not None:
            exchange = self._exchange
            limit_s = exchange.heard(reply)
            if self._limit is not None and limit_s is not None and self._exchange is exchange:
                self._limit.cancel()
                self._limit = self._loop.call_later(limit_s, self._expired)
        elif (ended := self._over()) is not None:
            self._tell(ended, reply)

    def _tell(self, ended: Exchange, answer: Message | WorkerDied | TimeoutError) -> None:
        if ended.request is not None:  # who waits for the first word gives the worker out
            self._free(self)  # before: what comes of the answer finds it ready
        ended.heard(answer)


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
        self._waiting: deque[Exchange] = deque()
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

    def begin(self, message: Message, timeout_s: float, heard: Heard) -> Exchange:
        """Have a worker asked. `timeout_s` counts from the moment when it has the request."""
        exchange = Exchange(encode(message), timeout_s, heard)
        while self._idle:
            worker = self._idle.pop()
            if not worker.is_dead:
                worker.begin(exchange)
                return exchange
        self._waiting.append(exchange)
        self._fill()
        return exchange

    async def call(self, message: Message, timeout_s: float) -> Message:
        """The same for one reply that somebody awaits; when cancelled, its worker is killed.

        Raises: TimeoutError and WorkerDied, the worker being dead then; DriverMissing if none can be started.
        """
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        exchange = self.begin(message, timeout_s, lambda reply: _settle(answer, reply))
        try:
            return await answer
        finally:
            if exchange.worker is not None:
                worker = exchange.worker
                worker.kill()
                self._give_back(worker)
            elif exchange in self._waiting:
                self._waiting.remove(exchange)

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

    def _give_back(self, worker: Worker) -> None:
        if worker.is_dead:
            self._fill()
        else:
            self._give(worker)

    def _give(self, worker: Worker) -> None:
        """Hand a worker to the call that has waited longest, or keep it."""
        if self._waiting:
            worker.begin(self._waiting.popleft())
        elif len(self._idle) < self._warm + SPARE:
            self._idle.append(worker)
        else:
            worker.kill()

    def _fill(self) -> None:
        """Start, off the callers' path, what is missing of the warm workers, or one for each call that waits."""
        ready = sum(not worker.is_dead for worker in self._all)
        wanted = max(self._warm - ready, len(self._waiting)) - len(self._starts)
        for _ in range(0 if self._is_closing else wanted):
            task = asyncio.get_running_loop().create_task(self._add(), name="driver worker start")
            self._starts.add(task)
            task.add_done_callback(self._starts.discard)

    async def _add(self) -> None:
        try:
            self._give(await self._start())
        except DriverMissing as error:
            log.error("no new driver worker: %s", error)
            if self._waiting:
                self._waiting.popleft().heard(error)

    async def _start(self) -> Worker:
        worker = Worker(self._command, self._give_back, self._all.discard)
        self._all.add(worker)
        heard: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        worker.begin(Exchange(None, WORKER_START_S, lambda reply: _settle(heard, reply)))
        try:
            word = await heard
        except (WorkerDied, TimeoutError) as error:
            raise DriverMissing(f"the driver worker did not start: {error or 'no answer'}") from error
        except asyncio.CancelledError:
            worker.kill()
            raise
        if "missing" in word:
            worker.kill()
            raise DriverMissing(str(word["missing"]))
        self.first_word = word["ready"]
        return worker


def _settle(answer: asyncio.Future[Message], reply: Message | Exception) -> None:
    if answer.done():
        return
    if isinstance(reply, Exception):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)
