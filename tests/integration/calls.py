"""Blocking calls that a test makes aside, and conditions that it waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from timeslice_orchestrator.v1alpha1 import orchestrator_pb2

LOCKED = orchestrator_pb2.GroupStatus.STATE_LOCKED
SWITCHING = orchestrator_pb2.GroupStatus.STATE_SWITCHING


class Caller:
    """A blocking call in a thread, whose result or error the test collects."""

    def __init__(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended_at = 0.0

        def run() -> None:
            try:
                self.result = call(*arguments, **keywords)
            except BaseException as error:
                self.error = error
            self.ended_at = time.monotonic()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def wait(self, timeout_s: float = 30.0) -> Any:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the call still blocks"
        if self.error is not None:
            raise self.error
        return self.result

    @property
    def blocks(self) -> bool:
        return self._thread.is_alive()


def waiting(*jobs: str) -> Callable[[Any], bool]:
    return lambda group: [w.job_id for w in group.waiters] == list(jobs)


def held_by(job: str) -> Callable[[Any], bool]:
    return lambda group: group.group_state == LOCKED and group.locking_job == job


def has_condition(kind: str, *jobs: str) -> Callable[[Any], bool]:
    return lambda group: any(c.type == kind and set(jobs) <= set(c.jobs) for c in group.conditions)
