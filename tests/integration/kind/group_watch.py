"""What the orchestrator says of its groups, as it says it: `timeslice watch` in a pod that belongs to no job."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from job_pod import IMAGE, Process, pod
from kube import Kube, Object

CONTROLLER = "controller"


def controller(namespace: str) -> Object:
    """A pod as a job's controller has it: no accelerator, no label of a job, on any node."""
    made = pod(namespace, CONTROLLER, None, "", None)
    del made["metadata"]["labels"]
    del made["spec"]["nodeSelector"]
    assert made["spec"]["containers"][0]["image"] == IMAGE
    return made


class Controller(Process):
    """A client that speaks for a job from outside of its pods."""

    def __init__(self, kube: Kube, namespace: str, job: str, group: str, inside: list[str] | None = None) -> None:
        super().__init__(kube, namespace, CONTROLLER, inside)
        self.call("join", None, job, group)


class GroupWatch:
    """The states of one group: first the present one, then each change."""

    def __init__(self, kube: Kube, namespace: str, group: str, inside: list[str] | None = None) -> None:
        """`inside`: as for `Process`."""
        if inside is None:
            inside = [kube.kubectl, "--context", kube.context, "exec", CONTROLLER, "-n", namespace, "--"]
        command = [*inside, "timeslice", "watch", "--json", group]
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.status: dict[str, Any] = {}

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put("")

    def until(self, seen: Callable[[dict[str, Any]], bool], timeout_s: float = 60) -> dict[str, Any]:
        """Wait until the group's status is as `seen` wants it; an AssertionError shows the last status."""
        deadline = time.monotonic() + timeout_s
        while not self.status or not seen(self.status):
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not within {timeout_s:.0f} s: {self.status}") from None
            assert line, f"timeslice watch ended; last status: {self.status}"
            if line.startswith("{"):
                self.status = json.loads(line).get("status") or self.status
        return self.status

    def __enter__(self) -> Self:
        self.until(lambda _: True)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()
        self._reader.join()
        self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()


def waits(job: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: any(job == (one if isinstance(one, str) else one["job"]) for one in status["waiters"])


def holds(job: str) -> Callable[[dict[str, Any]], bool]:
    """It has the lease, or is being switched in."""
    return lambda status: bool(status["holder"] == job)


def is_granted(job: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: (status["state"], status["holder"]) == ("LOCKED", job)


def has_condition(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: any(one["type"] == kind for one in status["conditions"])
