"""What /proc and the driver say of processes: those that somebody named, and the members of process trees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from snapshot_agent_server.api.errors import RefusedCall
from snapshot_agent_server.core.contexts import ProcessRecord
from snapshot_agent_server.core.effects import CallDriver, ListMembers
from snapshot_agent_server.core.events import MembersListed, ObservedProcess
from snapshot_agent_server.core.ids import ContextKey, JobId, OperationId, PodUid, ProcessId
from snapshot_agent_server.core.memory import Memory
from snapshot_agent_server.core.outcomes import Abandoned, Code, Done, DriverState, Refused, Verb
from snapshot_agent_server.core.refusals import Refusal
from snapshot_agent_server.core.registry import Registry
from snapshot_agent_server.core.samples import Sample
from snapshot_agent_server.core.trees import Tree, TreeClaim
from snapshot_agent_server.driver.interface import Driver, outcome_of
from snapshot_agent_server.processes import proc
from snapshot_agent_server.processes.claims import claimed
from snapshot_agent_server.processes.pods import PodWalker
from snapshot_agent_server.processes.trees import TreeWalker, planted

SAMPLE_TIMEOUT_S = 2.0


class Observer:
    """Asks; decides and changes nothing. `registry` says who is known."""

    def __init__(self, driver: Driver, registry: Registry, own_pids: Callable[[], set[int]], pods: PodWalker) -> None:
        self._driver = driver
        self._registry = registry
        self._own_pids = own_pids
        self._walker = TreeWalker()
        self._pods = pods

    def claim(self, pids: Sequence[int]) -> list[ProcessId]:
        """Check processes that somebody named against /proc. Raises: RefusedCall."""
        found: list[ProcessId] = []
        for pid in pids:
            claim = claimed(pid, self._own_pids())
            if isinstance(claim, Refusal):
                raise RefusedCall(claim)
            found.append(claim)
        return found

    def claim_in_pods(self, pids: Sequence[int], job: JobId) -> list[ProcessId]:
        """Processes that somebody in a pod named, by the pids that they have there: of the job's own pods, and of no
        others. What cannot be told apart is left out: it is found when it uses a device."""
        named = [self._named(job, pid, None) for pid in pids]
        return [process for process in named if process is not None]

    def seen_in_pods(self, server: ProcessId | None, job: JobId) -> ProcessId | None:
        """The process of the job's pods that a workload says it is."""
        return self._named(job, server.pid, server.start_time) if server is not None else None

    def _named(self, job: JobId, pid: int, start_time: int | None) -> ProcessId | None:
        found = self._pods.named(self._registry.pods.known, job, pid, start_time, self._own_pids())
        return found[0] if len(found) == 1 else None

    def plant(self, claim: TreeClaim | None) -> Tree | None:
        """Check a tree that somebody described. Raises: RefusedCall."""
        tree = planted(claim, self._own_pids()) if claim is not None else None
        if isinstance(tree, Refusal):
            raise RefusedCall(tree)
        return tree

    def seen(self, server: ProcessId | None) -> ProcessId | None:
        """The process that a workload says it is, where this node's /proc agrees: it may live in another namespace."""
        if server is None or claimed(server.pid, self._own_pids()) != server:
            return None
        return server

    async def observe(self, processes: Sequence[ProcessId]) -> tuple[ObservedProcess, ...]:
        """Ask the driver and NVML about processes."""
        if not processes:
            return ()
        sample = await self._driver.sample([process.pid for process in processes], SAMPLE_TIMEOUT_S)
        pods = self._registry.pods.known
        found = [observed(process, sample) for process in processes]
        return tuple(self._in_pod(one, self._pods.pod_of(one.id.pid, pods)) if pods else one for one in found)

    def new_members(self) -> list[tuple[ContextKey, ProcessId]]:
        """Look all trees through: one look at /proc serves them all."""
        registry = self._registry
        return self._walker.find(registry.trees, registry.owner, self._own_pids()) if registry.trees else []

    def in_pods(self, jobs: Collection[JobId] | None = None) -> list[tuple[PodUid, ProcessId]]:
        """Processes in pods (of these jobs) that belong to no context: most of them never use a device."""
        registry = self._registry
        if jobs is not None and not jobs:
            return []
        return self._pods.find(registry.pods.known, registry.owner, self._own_pids(), jobs)

    def observed_in_pods(
        self, in_pods: Sequence[tuple[PodUid, ProcessId]], sample: Sample | Abandoned
    ) -> tuple[tuple[PodUid, ObservedProcess], ...]:
        """What a sample says of processes of `in_pods`."""
        found = [(pod, observed(process, sample)) for pod, process in in_pods]
        # Of those that use no device, which are most, nobody needs to know more.
        return tuple((pod, self._in_pod(one, pod) if _may_use_device(one) else one) for pod, one in found)

    async def list_members(self, wanted: ListMembers) -> MembersListed:
        """Look all trees through, and ask the driver of the new and of those that the core wants to know more of."""
        new = self.new_members()
        in_pods = self.in_pods(wanted.jobs)
        if in_pods:
            sample = await self._driver.sample([process.pid for _, process in in_pods], SAMPLE_TIMEOUT_S)
            seen = self.observed_in_pods(in_pods, sample)
        else:
            seen = ()
        known = [(self._registry.owner(process), process) for process in wanted.ask if proc.is_same(process)]
        processes = [*new, *((key, process) for key, process in known if key is not None)]
        states: Mapping[int, DriverState] = {}
        if processes:
            answer = await self._driver.states([process.pid for _, process in processes], SAMPLE_TIMEOUT_S)
            states = {} if isinstance(answer, Abandoned) else answer
        members = tuple(
            (key, ObservedProcess(process, states.get(process.pid, DriverState.UNKNOWN))) for key, process in processes
        )
        return MembersListed(members, wanted.operation, wanted.emptied, seen)

    def with_members(self, memory: Memory) -> Memory:
        """What an earlier agent did not put on record, since the trees tell it again."""
        on_record = {record.id: key for key, record in memory.processes}
        trees: dict[ContextKey, list[Tree]] = {}
        for key, tree in memory.trees:
            trees.setdefault(key, []).append(tree)
        new = TreeWalker().find(trees, on_record.get, self._own_pids()) if trees else []
        return replace(
            memory,
            processes=[*memory.processes, *((key, ProcessRecord(process, is_found=True)) for key, process in new)],
        )

    def name_pods(self, memory: Memory) -> None:
        """Say of processes on record in which pod they are: that is how they were found, but for members of trees."""
        pods = {pod.uid: pod for pod in memory.pods}
        trees = {key for key, _ in memory.trees}
        for key, record in memory.processes if pods else ():
            if key not in trees and proc.is_same(record.id):
                record.pod = self._pods.pod_of(record.id.pid, pods)
                record.inner_pid = self._pods.inner_pid(record.id.pid) if record.pod is not None else 0
                record.is_found = record.is_found or record.pod is not None

    def _in_pod(self, found: ObservedProcess, pod: PodUid | None) -> ObservedProcess:
        return replace(found, pod=pod, inner_pid=self._pods.inner_pid(found.id.pid) if pod is not None else 0)

    async def ask_states(self, memory: Memory, timeout_s: float, now: Callable[[], float]) -> None:
        """After a restart the driver's own state is the truth. One process that hangs does not hide the others."""

        async def ask(process: ProcessId) -> DriverState:
            outcome = await outcome_of(self._driver, CallDriver(OperationId(""), process, Verb.STATE, timeout_s))
            if isinstance(outcome, Refused):
                return DriverState.NONE if outcome.code == Code.INVALID_VALUE else DriverState.UNKNOWN
            return outcome.state if isinstance(outcome, Done) else DriverState.UNKNOWN

        living = [record for _, record in memory.processes if proc.is_same(record.id)]
        states = await asyncio.gather(*(ask(record.id) for record in living))
        for record, state in zip(living, states, strict=True):
            if state.is_settled:
                record.settle(state, now())


def observed(process: ProcessId, sample: Sample | Abandoned) -> ObservedProcess:
    """What a sample that asked for the process's state says of it."""
    if isinstance(sample, Abandoned):
        return ObservedProcess(process)
    usage = tuple(
        (device.accelerator, device.processes[process.pid] or 0)
        for device in sample.devices
        if process.pid in device.processes
    )
    return ObservedProcess(process, sample.states.get(process.pid, DriverState.UNKNOWN), usage)


def _may_use_device(found: ObservedProcess) -> bool:
    return bool(found.usage) or found.state is not DriverState.NONE
