"""The store of a cluster: each group's record in the status of its TimeSliceGroup, the leader's epoch in a Lease.

Every write is a PUT of /status under the resourceVersion that was read. Groups do not wait for each other.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core.effects import ForgetEnded, ForgetWaiter, Record, RecordWaiter
from orchestrator.core.types import EndedLease, Epoch, GroupId, GroupRecord, RequestId, Token, WaiterRecord
from orchestrator.kube import groups
from orchestrator.kube.api import ApiError, ApiRefused, ApiServer, ApiUnclear, ApiUnreachable, Object
from orchestrator.kube.backoff import Backoff
from orchestrator.logs import say
from orchestrator.store.codec import BadRecord
from orchestrator.store.interface import Deposed, Loaded, StoreFailed, StoreRefused, StoreUnclear, Write
from orchestrator.store.kubernetes_epoch import EpochLease
from orchestrator.store.kubernetes_status import Kept, Shown, Status, build, parse, timestamp

CONFLICT, NOT_FOUND, INVALID = 409, 404, 422
TRIES = 5
"""How often one write is decided anew because somebody else changed the object (its spec, mostly) meanwhile."""
CLAIMED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Refresh:
    """Write what stands in memory again: what people see of a group changed, or its object was made anew."""

    group: GroupId


@dataclass(slots=True)
class _Held:
    """What this process knows of one group's object."""

    group: GroupId
    version: str | None = None
    """The resourceVersion that the next write replaces; None: there is no object."""
    is_read: bool = False
    status: Status = field(default_factory=dict)
    """As it was read or written last."""
    epoch: Epoch = Epoch(0)
    record: GroupRecord | None = None
    ended: dict[Token, EndedLease] = field(default_factory=dict)
    waiters: dict[RequestId, WaiterRecord] = field(default_factory=dict)
    """All of them, written or not."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def read(self, group_object: Object | None) -> Kept:
        """Take over the object as it is; BadRecord: its status is not ours."""
        status = (group_object or {}).get("status") or {}
        kept = parse(self.group, status)
        self.version = group_object["metadata"]["resourceVersion"] if group_object is not None else None
        self.is_read = True
        self.status, self.epoch = status, kept.epoch
        return kept


class KubernetesStore:
    """A store that this process has opened, and leads. Made by `open`."""

    def __init__(self, api: ApiServer, lease: EpochLease, wall: Callable[[], float]) -> None:
        self._api = api
        self._lease = lease
        self._wall = wall
        self._groups: dict[GroupId, _Held] = {}
        self.show: Callable[[GroupId], Shown | None] = lambda _: None
        """What people are to see of a group besides its record; asked at each write."""

    @property
    def epoch(self) -> Epoch:
        return self._lease.epoch

    @classmethod
    async def open(
        cls, api: ApiServer, namespace: str, identity: str, wall: Callable[[], float] = time.time
    ) -> "KubernetesStore":
        """Lead: raise the epoch, then write it into every group, so that who led before can write nothing any more.

        Waits for an API server that does not answer. StoreRefused: it says no, or a status cannot be understood;
        nothing was changed then.
        """
        store = cls(api, EpochLease(api, namespace, identity, wall), wall)
        backoff = Backoff(0.2, 5.0)
        while True:
            try:
                await store._lead()
                return store
            except ApiRefused as error:
                if error.code not in (CONFLICT, 429):
                    raise StoreRefused(_advice(error)) from error
                problem: ApiError = error
            except (ApiUnreachable, ApiUnclear) as error:
                problem = error
            if backoff.is_fresh:
                say(f"cannot take the store yet: {problem}", level=logging.WARNING)
            await asyncio.sleep(backoff.next())

    async def load(self) -> Loaded:
        await self._list()
        held = [self._groups[group] for group in sorted(self._groups)]
        return Loaded(
            tuple(one.record for one in held if one.record is not None),
            tuple(one.ended[token] for one in held for token in sorted(one.ended)),
            tuple(one.waiters[request] for one in held for request in sorted(one.waiters)))

    async def read(self, group: GroupId) -> GroupRecord | None:
        held = self._of(group)
        async with held.lock:
            try:
                kept = await self._read(held)
            except ApiError as error:
                held.is_read = False
                raise StoreFailed(f"the record of group {group!r} cannot be read: {error}") from error
            except BadRecord as error:
                raise StoreFailed(str(error)) from error
            held.record = kept.record
            return kept.record

    async def write(self, writes: Sequence[Write | Refresh]) -> None:
        """As every store, with one transaction per group: where they end differently, it is unclear how."""
        by_group: dict[GroupId, list[Write | Refresh]] = {}
        for write in writes:
            by_group.setdefault(_group_of(write), []).append(write)
        results = await asyncio.gather(
            *(self._write(self._of(group), of_group) for group, of_group in by_group.items()), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if not isinstance(failure, StoreFailed):
                raise failure
        if failures and len(failures) < len(results):
            raise StoreUnclear(f"some groups were written, others not: {failures[0]}") from failures[0]
        if failures:
            raise failures[0]

    async def raise_epoch(self, above: int) -> Epoch:
        try:
            return await self._lease.raise_above(above)
        except ApiError as error:
            raise StoreFailed(f"the epoch cannot be raised: {error}") from error

    async def close(self) -> None:
        """Nothing: the next one takes over whenever it starts."""

    def has_lost(self, group_object: Object) -> bool:
        """Tell whether an object, as a watch shows it, lacks the record that this process wrote: somebody deleted the
        object, and it was made anew, or cleared its status."""
        held = self._groups.get(groups.group_of(group_object))
        return held is not None and held.record is not None and "version" not in (group_object.get("status") or {})

    # ------------------------------------------------------------ leading

    async def _lead(self) -> None:
        await self._list()
        highest = max((held.epoch for held in self._groups.values()), default=Epoch(0))
        await self._lease.take(highest)
        limit = asyncio.Semaphore(CLAIMED_AT_ONCE)

        async def claim(held: _Held) -> None:
            async with limit, held.lock:
                await self._put(held, lambda: {**held.status, "epoch": self.epoch})

        await _all(claim(held) for held in self._groups.values() if held.version is not None)

    async def _list(self) -> None:
        """Read every group. Pages are of one moment."""
        query = {"limit": "500"}
        listed: set[GroupId] = set()
        while True:
            page = await self._api.request("GET", groups.COLLECTION, query=query)
            for group_object in page["items"]:
                group = groups.group_of(group_object)
                listed.add(group)
                held = self._of(group)
                try:
                    kept = held.read(group_object)
                except BadRecord as error:
                    raise StoreRefused(
                        f"{error}; nothing was changed. Put a good status in its place, or delete the TimeSliceGroup to"
                        " start it anew: its tokens then start above what the agents know") from error
                held.record = kept.record
                held.ended = {lease.token: lease for lease in kept.ended}
                held.waiters = {waiter.request: waiter for waiter in kept.waiters}
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                break
        for group in self._groups.keys() - listed:
            del self._groups[group]

    # ------------------------------------------------------------ one group

    def _of(self, group: GroupId) -> _Held:
        return self._groups.setdefault(group, _Held(group))

    async def _write(self, held: _Held, writes: Sequence[Write | Refresh]) -> None:
        async with held.lock:
            record, ended = held.record, dict(held.ended)
            for write in writes:
                match write:
                    case Record():
                        record = write.record
                        ended |= {lease.token: lease for lease in write.ended}
                    case RecordWaiter(waiter):
                        held.waiters[waiter.request] = waiter
                    case ForgetWaiter(_, request):
                        held.waiters.pop(request, None)
                    case ForgetEnded(_, up_to):
                        ended = {token: lease for token, lease in ended.items() if token > up_to}
                    case Refresh():
                        pass
            kept = Kept(self.epoch, record, tuple(ended.values()), ())

            def status() -> Status:
                return build(
                    held.status, replace(kept, epoch=self.epoch, waiters=tuple(held.waiters.values())),
                    self.show(held.group), timestamp(self._wall()))

            is_anything = record is not None or bool(ended) or bool(held.waiters)
            try:
                await self._put(held, status, may_create=is_anything)
            except ApiUnclear as error:
                held.is_read = False
                raise StoreUnclear(f"whether group {held.group!r} was written is not known: {error}") from error
            except (ApiError, BadRecord) as error:
                raise StoreFailed(f"group {held.group!r} was not written: {error}") from error
            held.record, held.ended = record, ended

    async def _put(self, held: _Held, status: Callable[[], Status], *, may_create: bool = False) -> None:
        """Write a status over the one that was read. What others changed meanwhile is read, and `status` asked anew."""
        was_sent = False
        for _ in range(TRIES):
            try:
                if not held.is_read:
                    await self._read(held)
            except ApiError as error:
                if was_sent:  # its answer was a conflict, which a repeated request of the connection may explain too
                    raise ApiUnclear(str(error)) from error
                raise
            if held.version is None:
                if not may_create:
                    return
                await self._create(held)
                continue
            wanted = status()
            if wanted == held.status:
                return
            try:
                was_sent = True
                held.read(await self._api.request("PUT", f"{groups.object_path(held.group)}/status", {
                    "apiVersion": groups.API_VERSION, "kind": groups.KIND,
                    "metadata": {"name": groups.object_name(held.group), "resourceVersion": held.version},
                    "status": wanted}))
                return
            except ApiRefused as error:
                held.is_read = False
                if error.code not in (CONFLICT, NOT_FOUND, INVALID):
                    raise
                refusal = error
                if error.code == INVALID:
                    # The API server compares epochs and tokens itself; only a higher epoch is explained by a reading.
                    await self._read(held)
                    raise
        raise refusal

    async def _read(self, held: _Held) -> Kept:
        """Read one object as it is now; Deposed: somebody else has written it since."""
        group_object: Object | None
        try:
            group_object = await self._api.request("GET", groups.object_path(held.group))
        except ApiRefused as error:
            if error.code != NOT_FOUND:
                raise
            group_object = None
        kept = held.read(group_object)
        if kept.epoch > self.epoch:
            raise Deposed(self.epoch, kept.epoch)
        return kept

    async def _create(self, held: _Held) -> None:
        """Make the object of a group that has none; somebody else may have been quicker."""
        await self._lease.check()
        held.is_read = False
        try:
            await self._api.request(
                "POST", groups.COLLECTION, groups.manifest(held.group), query={"fieldManager": groups.FIELD_MANAGER})
        except ApiRefused as error:
            if error.code != CONFLICT:
                raise


def _group_of(write: Write | Refresh) -> GroupId:
    match write:
        case Record(record):
            return record.group
        case RecordWaiter(waiter):
            return waiter.group
        case ForgetWaiter(group) | ForgetEnded(group) | Refresh(group):
            return group


async def _all(work: Any) -> None:
    """Do all of it; if something fails, wait for the rest and raise the first failure."""
    async def one(coroutine: Coroutine[Any, Any, None]) -> None:
        await coroutine

    for result in await asyncio.gather(*map(one, work), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _advice(error: ApiRefused) -> str:
    if error.code == NOT_FOUND:
        return f"{error}; apply the CustomResourceDefinition timeslicegroups.timeslice.io first"
    if error.code in (401, 403):
        return f"{error}; give the orchestrator's ServiceAccount its ClusterRole and Role"
    return str(error)
