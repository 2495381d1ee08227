"""Pods of this node that belong to jobs, and which context a process in one of them belongs to."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field

from snapshot_agent_server.core.groups import Groups
from snapshot_agent_server.core.ids import AcceleratorId, ContextKey, GroupId, JobId, PodUid

MAX_HOST_NAME = 63
"""The kubelet cuts a longer name."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that names its job."""

    uid: PodUid
    """As cgroups name it."""
    name: str
    """"NAMESPACE/NAME", for people."""
    job: JobId
    group: GroupId | None = None
    """None: it does not say; its processes' accelerators tell."""
    containers: frozenset[str] = frozenset()
    """Ids of those that have been started, 64 digits each."""

    @property
    def host(self) -> str:
        """The host name that its processes see, unless the pod's spec sets another."""
        return self.name.rpartition("/")[2][:MAX_HOST_NAME]


@dataclass(slots=True)
class Pods:
    """What the cluster said last, and what is in use of what it said before.

    A pod that was deleted stays as long as its job has a context here: a pod is gone from the API server before its
    processes have ended, or long before, where nobody waited for them.
    """

    known: dict[PodUid, Pod] = field(default_factory=dict)
    _deleted: set[PodUid] = field(default_factory=set)

    def change(self, pods: Iterable[Pod], others: Collection[PodUid], jobs: Collection[JobId]) -> bool:
        """From now on these are there, and `others`, which belong to no job; `jobs`: those that have a context.

        False: nothing changes by that.
        """
        before = dict(self.known)
        new = {pod.uid: pod for pod in pods}
        kept = {uid: pod for uid, pod in before.items() if uid not in new and uid not in others and pod.job in jobs}
        self.known = {**new, **kept}
        self._deleted = set(kept)
        return self.known != before

    def left(self, job: JobId) -> bool:
        """The last context of a job has gone, and with it its pods that were deleted. True: there were some."""
        gone = {uid for uid in self._deleted if self.known[uid].job == job}
        for uid in gone:
            del self.known[uid]
        self._deleted -= gone
        return bool(gone)

    def of_job(self, job: JobId) -> bool:
        """Whether the job has pods here."""
        return any(pod.job == job for pod in self.known.values())

    def is_silent(self, uid: PodUid, job: JobId) -> bool:
        """The pod belongs to the job and says nothing of a group."""
        pod = self.known.get(uid)
        return pod is not None and pod.job == job and pod.group is None

    def key(
        self, uid: PodUid, usage: Mapping[AcceleratorId, int], groups: Groups, there: Container[ContextKey]
    ) -> ContextKey | None:
        """The context of a process in this pod that uses these accelerators; None: it belongs to none, or nothing tells
        to which. `there`: the contexts that exist; no others come into being in a group that is leaving the node."""
        pod = self.known.get(uid)
        if pod is None:
            return None
        if pod.group is not None:
            key = ContextKey(pod.job, pod.group)
            return key if pod.group in groups.present or key in there else None
        present = list(groups.present) or list(groups)
        if len(present) == 1:
            return ContextKey(pod.job, present[0])
        sizes: dict[GroupId, int] = {}
        for accelerator, size in usage.items():
            group = groups.of(accelerator)
            if group is not None:
                sizes[group] = sizes.get(group, 0) + size
        # Of two groups the one with more: the other's accelerators fault the context, which says what to do.
        return ContextKey(pod.job, max(sizes, key=lambda group: (sizes[group], group))) if sizes else None
