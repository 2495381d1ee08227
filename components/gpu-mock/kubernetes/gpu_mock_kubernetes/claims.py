"""ResourceClaims as this driver sees them: what an allocated claim gives to a container, decided from data alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_mock_kubernetes import cdi
from gpu_mock_kubernetes.mock import MockDevice

DRIVER = "gpu.nvidia.com"


class CannotPrepare(Exception):
    """The claim cannot be prepared on this node now. The kubelet shows the text and asks again."""


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a claim, and what the container runtime is to look up for it."""

    request: str
    pool: str
    device: str
    cdi_name: str


def slice_name(index: int) -> str:
    """What a device is called in the node's ResourceSlice."""
    return f"gpu-{index}"


def prepare(
    claim: Mapping[str, Any], uid: str, pool: str, devices: Iterable[MockDevice]
) -> list[PreparedDevice]:  # fmt: skip
    """What the claim (an object of the API) gets from this node's pool.

    Nothing is kept: the same claim and devices give the same answer, however often and by whomever it is asked, so that
    nothing is left to undo when the claim is free. Results of other drivers are theirs.

    Raises:
        CannotPrepare: it is another claim of that name, is not allocated, or has a device that is not here or is lost.
    """
    metadata = claim["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    if metadata["uid"] != uid:
        raise CannotPrepare(f"claim {name} was deleted and made anew: its uid is {metadata['uid']}, not {uid}")
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise CannotPrepare(f"claim {name} is not allocated")
    here = {slice_name(one.index): one for one in devices}
    prepared: list[PreparedDevice] = []
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result["driver"] != DRIVER:
            continue
        found = here.get(result["device"]) if result["pool"] == pool else None
        if found is None:
            raise CannotPrepare(f"claim {name} has {result['device']} of pool {result['pool']}, not of this node")
        if found.is_lost:
            raise CannotPrepare(f"claim {name} has device {result['device']}, which is lost")
        prepared.append(
            PreparedDevice(result["request"], result["pool"], result["device"], cdi.device_name(found.uuid))
        )
    return prepared
