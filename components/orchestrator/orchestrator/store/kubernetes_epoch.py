"""The leader's epoch: an annotation of a Lease object, raised at each start.

Leader election will use the same object's holder and times; the epoch rises with every holder either way.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.types import Epoch
from orchestrator.kube.api import ApiRefused, ApiServer, ApiUnclear, Object
from orchestrator.store.interface import Deposed, StoreRefused

NAME = "timesliceorchestrator"
EPOCH = "timeslice.io/epoch"
CONFLICT, NOT_FOUND = 409, 404


class EpochLease:
    """The Lease of one namespace, for one process. `identity` must be another for each process."""

    def __init__(self, api: ApiServer, namespace: str, identity: str, wall: Callable[[], float]) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._wall = wall
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.epoch = Epoch(0)

    async def take(self, at_least: int) -> Epoch:
        """Lead, whoever led before, with an epoch above theirs and above `at_least`."""
        while True:
            lease = await self._get()
            try:
                await self._write(lease, max(at_least, _epoch(lease)) + 1)
                return self.epoch
            except ApiRefused as error:
                if error.code != CONFLICT:
                    raise

    async def raise_above(self, above: int) -> Epoch:
        """Raise our own epoch; Deposed: somebody else has taken the Lease."""
        while True:
            lease = await self.check()
            try:
                await self._write(lease, max(above, self.epoch) + 1)
                return self.epoch
            except ApiRefused as error:
                if error.code != CONFLICT:
                    raise

    async def check(self) -> Object | None:
        """Return the Lease; Deposed: it is somebody else's. One that was deleted is still ours."""
        lease = await self._get()
        if _epoch(lease) > self.epoch or (lease is not None and _holder(lease) != self._identity):
            raise Deposed(self.epoch, _epoch(lease))
        return lease

    async def _get(self) -> Object | None:
        try:
            return await self._api.request("GET", f"{self._collection}/{NAME}")
        except ApiRefused as error:
            if error.code != NOT_FOUND:
                raise
            return None

    async def _write(self, lease: Object | None, epoch: int) -> None:
        wanted = manifest(lease, self._namespace, self._identity, epoch, self._wall())
        try:
            if lease is None:
                await self._api.request("POST", self._collection, wanted)
            else:
                await self._api.request("PUT", f"{self._collection}/{NAME}", wanted)
        except ApiUnclear:
            found = await self._get()
            if found is None or _holder(found) != self._identity or _epoch(found) != epoch:
                raise
        self.epoch = Epoch(epoch)


def manifest(lease: Object | None, namespace: str, identity: str, epoch: int, now_s: float) -> Object:
    """The Lease for a new epoch, over the one that stands (None: there is none)."""
    metadata: dict[str, Any] = dict((lease or {}).get("metadata", {"name": NAME, "namespace": namespace}))
    spec: dict[str, Any] = dict((lease or {}).get("spec") or {})
    metadata["annotations"] = {**metadata.get("annotations", {}), EPOCH: str(epoch)}
    metadata.pop("managedFields", None)
    spec["acquireTime"] = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + (spec.get("holderIdentity") not in (None, identity))
    spec["holderIdentity"] = identity
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _holder(lease: Object) -> str | None:
    holder: str | None = (lease.get("spec") or {}).get("holderIdentity")
    return holder


def _epoch(lease: Object | None) -> int:
    if lease is None:
        return 0
    text = lease["metadata"].get("annotations", {}).get(EPOCH, "0")
    try:
        return int(text)
    except ValueError:
        raise StoreRefused(
            f"Lease {NAME} has {text!r} as annotation {EPOCH}, which is no number; delete the Lease: the epoch then"
            " starts above those of the groups") from None
