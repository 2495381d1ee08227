"""All that one client has: its core, its threads, its channel; and how these go through a fork."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from timeslice._core.client import CLOSE_S, ClientConfig, ClientCore
from timeslice._core.keeping import KeptSession
from timeslice._core.leases import Holding
from timeslice._core.steps import Plan
from timeslice._core.telling import Listeners
from timeslice._forks import FORKS
from timeslice._processes import REGISTERED
from timeslice._sync.callbacks import Callbacks
from timeslice._sync.runner import Runner
from timeslice._sync.sessions import SessionKeeper
from timeslice.orchestrator.exceptions import OrchestratorError
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc

T = TypeVar("T")


class Engine:
    """Carries out one client's calls. Safe between threads; made anew in a forked child."""

    def __init__(self, config: ClientConfig, listeners: Listeners, open_channel: Callable[[], grpc.Channel]) -> None:
        """`open_channel` is called at the first call."""
        self._config, self._listeners, self._open_channel = config, listeners, open_channel
        self.clock = time.monotonic
        self._left_behind: list[Any] = []
        self._begin(frozenset())
        FORKS.take_part(self)

    def _begin(self, inherited: frozenset[Holding]) -> None:
        self.core = ClientCore(self._config, lambda: uuid.uuid4().hex, inherited)
        self.changed = threading.Condition()
        self.channel: grpc.Channel | None = None
        self.stub: Any = None
        self._is_disconnected = False
        self._keepers: list[SessionKeeper] = []
        self._callbacks = Callbacks(self._listeners, self.clock)
        self._runner = Runner(self.core, self.changed, self._rpc, self._start_session, self._callbacks, self.clock)

    def run(self, plan_for: Callable[[ClientCore, float], Plan[T]]) -> T:
        """The result of the plan that `plan_for(core, now)` makes.

        Raises:
            OrchestratorError: as the plan does; besides: this process is a child in which grpc cannot be used.
        """
        if FORKS.unusable is not None:
            raise OrchestratorError(FORKS.unusable)
        return self._runner.run(plan_for(self.core, self.clock()))

    def close(self) -> None:
        """Give back what is held, end the sessions and close the channel. A second call does nothing."""
        if FORKS.unusable is not None:
            return
        kept = self._runner.run(self.core.close())
        if kept is None:
            return
        for keeper in self._keepers:
            if keeper.kept in kept:
                keeper.close(CLOSE_S)
        self._callbacks.close(CLOSE_S)
        with self.changed:
            channel, self.channel, self.stub, self._is_disconnected = self.channel, None, None, True
        if channel is not None:
            channel.close()

    def _rpc(self, method: str) -> Any:
        return getattr(self._connect(), method)

    def _connect(self) -> Any:
        with self.changed:
            if self.stub is None:
                if self._is_disconnected:
                    raise ValueError("the channel is closed")  # As grpc says it.
                self.channel = self._open_channel()
                self.stub = pb2_grpc.TimeSliceOrchestratorServiceStub(self.channel)  # type: ignore[no-untyped-call]
            return self.stub

    def _start_session(self, kept: KeptSession) -> None:
        keeper = SessionKeeper(
            kept, self.changed, lambda requests: self._connect().Session(requests), self._runner.carry_out,
            REGISTERED, self.clock,
        )  # fmt: skip
        with self.changed:
            self._keepers.append(keeper)
        keeper.start()

    def start_afresh_in_child(self) -> None:
        parent = self.core
        # Not torn down: the connection is the parent's, and its locks may be held by threads that are not here.
        self._left_behind += [self.channel, self.stub, self._keepers, self._runner, self._callbacks]
        self._begin(frozenset(lease.holding for lease in parent.book.all_held()))
        self.core.is_closed = parent.is_closed
