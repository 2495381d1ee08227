"""Which GPUs a command may see: its group's. A process on others besides cannot be saved for this group alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
BY_BUS = "PCI_BUS_ID"
"""The order of NVML, in which the agent lists them; CUDA's own puts the fastest first."""


def visible_devices(
    accelerators: Sequence[pb2.AcceleratorStatus], group: str, env: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """What to set so that the command sees its group's GPUs only, and what to say of it.

    `accelerators`: all of this node, in NVML's order. What the user set stays; nothing is set where the group has all.
    """
    own = [index for index, accelerator in enumerate(accelerators) if group in accelerator.groups]
    if VISIBLE in env:
        return {}, [f"{VISIBLE}={env[VISIBLE]} stays; the group's GPUs are {_words(own)}"] if own else []
    if not own or len(own) == len(accelerators):
        return {}, []
    if env.get(ORDER, BY_BUS) == BY_BUS:
        # Not by UUID: programs that read the variable expect numbers.
        given = {VISIBLE: ",".join(map(str, own)), ORDER: BY_BUS}
    else:
        given = {VISIBLE: ",".join(accelerators[index].id for index in own)}
    return given, [f"{name}={value} is set: the GPUs of group {group}" for name, value in given.items()]


def _words(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))
