"""Looks through /proc for processes in the pods of jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from snapshot_agent_server.core.ids import ContextKey, JobId, PodUid, ProcessId
from snapshot_agent_server.core.pods import Pod
from snapshot_agent_server.processes import proc
from snapshot_agent_server.processes.pod_cgroups import Place, places

Owner = Callable[[ProcessId], ContextKey | None]

SETTLED_S = 5.0
"""A runtime starts a container's process and moves it into its cgroup then; a process that is older than this stays
where it is. One of a container is taken for what it is at once."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Seen:
    inode: int
    id: ProcessId
    places: tuple[Place, ...]


class PodWalker:
    """Cheap when little has changed: of a process that was seen before nothing is read again."""

    def __init__(self, root: Path = Path("/proc"), boottime: Callable[[], float] | None = None) -> None:
        self._root = root
        self._boottime = boottime if boottime is not None else lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
        self._seen: dict[int, _Seen] = {}

    def find(
        self, pods: Mapping[PodUid, Pod], owner: Owner, own_pids: Set[int], jobs: Collection[JobId] | None = None
    ) -> list[tuple[PodUid, ProcessId]]:
        """Living processes in these pods (of these jobs) that belong to no context, again and again until they do."""
        if not pods:
            self._seen.clear()
            return []
        self._look(own_pids)
        containers = {container: pod.uid for pod in pods.values() for container in pod.containers}
        found = []
        for seen in self._seen.values():
            pod = _pod(seen.places, pods, containers) if seen.places else None
            is_wanted = pod is not None and (jobs is None or pods[pod].job in jobs) and owner(seen.id) is None
            if pod is not None and is_wanted and proc.is_same(seen.id, self._root):  # a zombie keeps its place in /proc
                found.append((pod, seen.id))
        return found

    def named(
        self, pods: Mapping[PodUid, Pod], job: JobId, pid: int, start_time: int | None, own_pids: Set[int]
    ) -> list[ProcessId]:
        """The living processes in the job's pods that have this pid there; `start_time` tells which of several.

        In containers that the pods' status names: each pod has a pause process besides, whose pid is 1, too.
        """
        found = self.find(pods, lambda process: None, own_pids, [job])
        return [
            process
            for pod, process in found
            if start_time in (None, process.start_time)
            and any(place.container in pods[pod].containers for place in self._seen[process.pid].places)
            and proc.inner_pid(process.pid, self._root) == pid
        ]

    def pod_of(self, pid: int, pods: Mapping[PodUid, Pod]) -> PodUid | None:
        """The pod that a process is in, if it is one of these."""
        containers = {container: pod.uid for pod in pods.values() for container in pod.containers}
        return _pod(self._places(pid), pods, containers)

    def inner_pid(self, pid: int) -> int:
        """What a process calls itself in its container; 0: it has ended."""
        return proc.inner_pid(pid, self._root) or 0

    def _look(self, own_pids: Set[int]) -> None:
        """Bring what was seen up to date."""
        before, self._seen = self._seen, {}
        settled = (self._boottime() - SETTLED_S) * CLOCK_TICKS
        mine = {os.getpid(), *own_pids}
        with os.scandir(self._root) as entries:
            listed = [(int(entry.name), entry.inode()) for entry in entries if entry.name.isdigit()]
        for pid, inode in listed:
            known = before.get(pid)
            if known is not None and known.inode == inode and (known.places or known.id.start_time < settled):
                self._seen[pid] = known
                continue
            facts = proc.facts(pid, self._root)
            if facts is not None and not facts.has_ended and pid not in mine:
                self._seen[pid] = _Seen(inode, facts.id, self._places(pid))

    def _places(self, pid: int) -> tuple[Place, ...]:
        try:
            return places((self._root / str(pid) / "cgroup").read_text().splitlines())
        except OSError:  # it has ended, or is hidden from us
            return ()


def _pod(found: tuple[Place, ...], pods: Mapping[PodUid, Pod], containers: Mapping[str, PodUid]) -> PodUid | None:
    """By the pod's uid, and where the path names none that is known, by the container's id."""
    for place in found:
        if (uid := PodUid(place.pod)) in pods:
            return uid
    for place in found:
        if place.container in containers:
            return containers[place.container]
    return None
