"""The store of a cluster: each group's record is the status of its TimeSliceGroup, the epoch a Lease's transitions.

See STORE.md. Every write is a PUT of /status with the resourceVersion that was seen last.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core.effects import ForgetEnded, ForgetWaiter, Publish, Record, RecordWaiter
from orchestrator.core.types import EndedLease, Epoch, GroupId, GroupRecord, GroupView, RequestId, Token, WaiterRecord
from orchestrator.kube import groups
from orchestrator.kube.api import ApiError, ApiRefused, ApiUnclear, Object, Requests
from orchestrator.logs import say
from orchestrator.store.codec import BadRecord
from orchestrator.store.interface import Deposed, Loaded, StoreFailed, StoreRefused, StoreUnclear, Write
from orchestrator.store.kubernetes_status import Kept, Shown, build, parse, shown, timestamp
from orchestrator.store.writer import group_of

LEASE_NAME = "timesliceorchestrator"
QUEUE_WRITE_S = 1.0
"""Places in the queue, and what only people look at, are written at most this often for each group."""
MOST_TRIES = 5
"""A write meets somebody else's, say a change of labels, once or twice; never so often."""
AT_ONCE = 16
"""Requests side by side when all groups are taken over."""


@dataclass(slots=True)
class _Group:
    """A group as this store knows it: what is to be kept, and the object that was seen last."""

    id: GroupId
    found: Object | None = None
    """None: read it before writing."""
    record: GroupRecord | None = None
    """As last written, or read."""
    ended: dict[Token, EndedLease] = field(default_factory=dict)
    waiters: dict[RequestId, WaiterRecord] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_dirty: bool = False
    """The queue, or what people see, is not as in the object."""
    later: asyncio.TimerHandle | None = None
    is_behind: bool = False
    """People were told that the queue could not be written; they are told once."""

    def take(self, kept: Kept) -> None:
        self.record = kept.record
        self.ended = {lease.token: lease for lease in kept.ended}
        self.waiters = {waiter.request: waiter for waiter in kept.waiters}


class KubernetesStore:
    """A store on one API server. Opening it raises the epoch, and takes all groups from whoever led before."""

    writes_groups_apart = True

    def __init__(self, api: Requests, namespace: str, identity: str, wall: Callable[[], float] = time.time) -> None:
        """Use `open`. `identity`: of this process, for people; `wall`: seconds since 1970."""
        self._api = api
        self._lease_path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._identity = identity
        self._wall = wall
        self._epoch = Epoch(0)
        self._deposed_by: int | None = None
        self._groups: dict[GroupId, _Group] = {}
        self._show: Callable[[GroupId], Shown | None] = lambda _: None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls, api: Requests, namespace: str, identity: str, wall: Callable[[], float] = time.time
    ) -> "KubernetesStore":
        """Lead from now on. StoreRefused: the API server does not let us; ApiError: it cannot be reached."""
        store = cls(api, namespace, identity, wall)
        await store._raise_lease(0)
        await store._take_over()
        return store

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    def show_by(self, view: Callable[[GroupId], GroupView | None], wall: Callable[[float], float]) -> None:
        def show(group: GroupId) -> Shown | None:
            seen = view(group)
            return None if seen is None else shown(seen, wall)

        self._show = show

    def tell(self, published: Publish) -> None:
        """It is written within a second, for a group without a lease so far too."""
        self._write_later(self._group(published.group))

    def write_again(self, group: GroupId) -> None:
        """Its object stands there without a status; it gets what was written of it, within a second."""
        if group in self._groups:
            self._write_later(self._groups[group])

    async def load(self) -> Loaded:
        found = self._groups.values()
        return Loaded(
            tuple(group.record for group in found if group.record is not None),
            tuple(lease for group in found for lease in group.ended.values()),
            tuple(waiter for group in found for waiter in group.waiters.values()))

    async def read(self, group: GroupId) -> GroupRecord | None:
        known = self._group(group)
        async with known.lock:
            try:
                kept = await self._look(known)
            except (ApiError, BadRecord) as error:
                raise StoreFailed(str(error)) from error
            known.take(kept)
            return known.record

    async def write(self, writes: Sequence[Write]) -> None:
        if self._deposed_by is not None:
            raise Deposed(self._epoch, self._deposed_by)
        by_group: dict[GroupId, list[Write]] = {}
        for write in writes:
            by_group.setdefault(group_of(write), []).append(write)
        urgent = [group for group, own in by_group.items() if any(isinstance(write, Record) for write in own)]
        for group, own in by_group.items():
            if group not in urgent and group in self._groups:
                self._note(self._groups[group], own)
        done = await asyncio.gather(
            *(self._record(self._group(group), by_group[group]) for group in urgent), return_exceptions=True)
        failed = [error for error in done if error is not None]
        if failed and len(failed) < len(urgent) and all(isinstance(error, StoreFailed) for error in failed):
            raise StoreUnclear(f"some of {len(urgent)} groups were written: {failed[0]}") from failed[0]
        if failed:
            raise min(failed, key=lambda error: isinstance(error, StoreFailed))

    async def raise_epoch(self, above: int) -> Epoch:
        try:
            await self._raise_lease(above)
        except ApiError as error:
            raise StoreFailed(str(error)) from error
        return self._epoch

    async def close(self) -> None:
        """Write what was to be written later, and end. Places in the queue that cannot be written are lost."""
        for group in list(self._groups.values()):
            if group.later is not None:
                group.later.cancel()
                with suppress(StoreFailed, StoreUnclear, Deposed):
                    await self._flush(group)
        for task in self._tasks:
            task.cancel()

    # Epoch.

    async def _raise_lease(self, above: int) -> None:
        """Raise the Lease's transitions above themselves and `above`, durably; that is the epoch."""
        path = f"{self._lease_path}/{LEASE_NAME}"
        for _ in range(MOST_TRIES):
            try:
                try:
                    lease = await self._api.request("GET", path)
                except ApiRefused as error:
                    if error.code != 404:
                        raise
                    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE_NAME}}
                stored = int(lease.get("spec", {}).get("leaseTransitions", 0))
                if self._epoch and stored != self._epoch:
                    self._deposed_by = stored
                    raise Deposed(self._epoch, stored)
                epoch = max(stored, above) + 1
                lease["spec"] = {
                    "holderIdentity": self._identity, "leaseTransitions": epoch,
                    "acquireTime": timestamp(self._wall()).replace("Z", ".000000Z")}
                is_new = "resourceVersion" not in lease["metadata"]
                await self._api.request(
                    "POST" if is_new else "PUT", self._lease_path if is_new else path, lease)
            except ApiRefused as error:
                if error.code != 409:
                    raise StoreRefused(
                        f"the Lease {LEASE_NAME!r} with the epoch cannot be written: {error}; give the orchestrator's"
                        " ServiceAccount get, create and update of leases in its namespace") from error
                continue
            self._epoch = Epoch(epoch)
            return
        raise StoreRefused(f"the Lease {LEASE_NAME!r} changes all the time; let one orchestrator run")

    async def _take_over(self) -> None:
        """Read every group, and write our epoch into it, so that an earlier leader's next write is refused."""
        try:
            found = await self._api.request("GET", groups.COLLECTION)
        except ApiRefused as error:
            raise StoreRefused(
                f"TimeSliceGroups cannot be listed: {error}; install their definition, and give the orchestrator's"
                " ServiceAccount its ClusterRole") from error
        items = found.get("items") or ()
        highest = max((int(one.get("status", {}).get("epoch", 0)) for one in items), default=0)
        if highest >= self._epoch:
            # The Lease went with its namespace, and the groups stayed: agents know those epochs.
            await self._raise_lease(highest)
        room = asyncio.Semaphore(AT_ONCE)

        async def take(one: Object) -> None:
            group = self._group(groups.group_of(one))
            async with room, group.lock:
                group.found = one
                try:
                    group.take(parse(group.id, one.get("status", {})))
                    await self._put(group, ())
                except BadRecord as error:
                    raise StoreRefused(
                        f"{error}; if it cannot be mended, delete the TimeSliceGroup once its job has given it back"
                    ) from error
                except (StoreFailed, StoreUnclear) as error:
                    raise ApiUnclear(str(error)) from error

        await asyncio.gather(*map(take, items))

    # Writing.

    async def _record(self, group: _Group, writes: Sequence[Write]) -> None:
        async with group.lock:
            await self._put(group, writes)

    async def _put(self, group: _Group, writes: Sequence[Write]) -> None:
        """Write the group as it is after `writes`. StoreFailed, StoreUnclear, Deposed: as `write`, and then the group
        is as before. Held: its lock."""
        if self._deposed_by is not None:
            raise Deposed(self._epoch, self._deposed_by)
        after = replace(group, ended=dict(group.ended), waiters=dict(group.waiters))
        for write in writes:
            _apply(after, write)
        was_dirty, group.is_dirty = group.is_dirty, False
        try:
            await self._send(group, after)
        except BaseException:
            group.is_dirty |= was_dirty
            raise
        # On what is there now: a place in the queue may have changed during the write, and goes with the next one.
        for write in writes:
            _apply(group, write)

    async def _send(self, group: _Group, after: _Group) -> None:
        """PUT what is to be kept of `after`."""
        for _ in range(MOST_TRIES):
            if group.found is None:
                await self._see(group)
            assert group.found is not None
            status = build(
                group.found.get("status", {}),
                Kept(self._epoch, after.record, tuple(after.ended.values()), tuple(after.waiters.values())),
                self._show(group.id), timestamp(self._wall()))
            metadata = group.found["metadata"]
            body = {
                "apiVersion": groups.API_VERSION, "kind": groups.KIND, "spec": group.found.get("spec", {}),
                "metadata": {k: metadata[k] for k in ("name", "uid", "resourceVersion")}, "status": status}
            written, group.found = group.found, None
            try:
                group.found = await self._api.request("PUT", f"{groups.object_path(group.id)}/status", body)
            except ApiRefused as error:
                if error.code in (404, 409):
                    continue
                group.found = written
                raise StoreFailed(str(error)) from error
            except ApiUnclear as error:
                raise StoreUnclear(str(error)) from error
            except ApiError as error:
                group.found = written
                raise StoreFailed(str(error)) from error
            return
        raise StoreFailed(f"the TimeSliceGroup {groups.object_name(group.id)!r} changes all the time")

    async def _see(self, group: _Group) -> None:
        """Look at the object before a write to it: is it still ours, and as we left it?"""
        try:
            kept = await self._look(group)
            if group.found is None:
                group.found = await self._make(group.id)
                kept = parse(group.id, group.found.get("status", {}))
        except (ApiError, BadRecord) as error:
            raise StoreFailed(str(error)) from error
        if kept.record is not None and kept.record != group.record:
            group.found = None
            raise StoreUnclear(
                f"the status of TimeSliceGroup {groups.object_name(group.id)!r} was changed by somebody else")

    async def _make(self, group: GroupId) -> Object:
        """Make an object that is missing, without nodes: those come from labels (`infra/`), and so does the finalizer.

        Where somebody has made it in between it stays as it is: an apply without nodes would take off those there.
        """
        made = groups.manifest(group, is_held=False)
        try:
            return await self._api.request("POST", groups.COLLECTION, made)
        except ApiRefused as error:
            if error.code != 409:
                raise
        return await self._api.request("GET", groups.object_path(group))

    async def _look(self, group: _Group) -> Kept:
        """What stands in the object; nothing if there is none. Deposed: a later leader has written it."""
        group.found = None
        try:
            found = await self._api.request("GET", groups.object_path(group.id))
        except ApiRefused as error:
            if error.code == 404:
                return Kept()
            raise
        kept = parse(group.id, found.get("status", {}))
        if kept.epoch > self._epoch:
            self._deposed_by = kept.epoch
            raise Deposed(self._epoch, kept.epoch)
        group.found = found
        return kept

    # What can wait.

    def _note(self, group: _Group, writes: Sequence[Write]) -> None:
        for write in writes:
            _apply(group, write)
        self._write_later(group)

    def _write_later(self, group: _Group) -> None:
        group.is_dirty = True
        if group.later is None:
            group.later = asyncio.get_running_loop().call_later(
                QUEUE_WRITE_S, lambda: self._spawn(self._flush_quietly(group)))

    async def _flush_quietly(self, group: _Group) -> None:
        try:
            await self._flush(group)
        except (StoreFailed, StoreUnclear) as error:
            if not group.is_behind:
                say(f"group {group.id}: the queue cannot be written for now: {error}", level=logging.WARNING,
                    group=group.id)
            group.is_behind = True
            self._write_later(group)
        except Deposed:
            pass  # the next record says so, where it is heard
        else:
            group.is_behind = False

    async def _flush(self, group: _Group) -> None:
        group.later = None
        async with group.lock:
            if group.is_dirty:
                await self._put(group, ())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="write a group's queue")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _group(self, group: GroupId) -> _Group:
        return self._groups.setdefault(group, _Group(group))


def _apply(group: _Group, write: Write) -> None:
    match write:
        case Record(record, ended):
            group.record = record
            group.ended |= {lease.token: lease for lease in ended}
        case RecordWaiter(waiter):
            group.waiters[waiter.request] = waiter
        case ForgetWaiter(_, request):
            group.waiters.pop(request, None)
        case ForgetEnded(_, up_to):
            group.ended = {token: lease for token, lease in group.ended.items() if token > up_to}
