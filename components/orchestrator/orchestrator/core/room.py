"""How much of a node's accelerators a context needs, and whether it fits beside what stays there."""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.core.nodes import Node
from orchestrator.core.types import AcceleratorId, AcceleratorView, ContextState, ContextView, GroupId, JobId


def shortage(node: Node, group: GroupId, job: JobId, staying: Collection[JobId], margin_bytes: int | None) -> int:
    """Return by how many bytes a saved context of `job` does not fit, once all contexts but `staying` are saved.

    0: it fits, or there is nothing to bring back (a job that has nothing saved there takes what it finds). Where the
    agent gives no figures it does not fit: nothing is tried on a guess.
    """
    context = node.context(group, job)
    if context is None or context.state is not ContextState.SAVED:
        return 0
    accelerators = node.accelerators_of(group)
    needs = _bytes_by_accelerator(context, accelerators, is_saved=True)
    if not needs or any(not view.total_bytes for view in accelerators):
        return 1
    worst = 0
    for view in accelerators:
        if view.accelerator not in needs:
            continue
        freed = sum(
            _bytes_by_accelerator(other, accelerators, is_saved=False).get(view.accelerator, 0)
            for name, other in node.unsaved(group).items()
            if name != job and name not in staying
        )
        free = view.total_bytes - view.used_bytes + freed
        worst = max(worst, needs[view.accelerator] + _margin(view, margin_bytes) - free)
    return worst


def _margin(view: AcceleratorView, margin_bytes: int | None) -> int:
    return min(512 << 20, view.total_bytes // 16) if margin_bytes is None else margin_bytes


def _bytes_by_accelerator(
    context: ContextView, accelerators: list[AcceleratorView], *, is_saved: bool
) -> dict[AcceleratorId, int]:
    if context.usage:
        return {use.accelerator: use.saved_bytes if is_saved else use.device_bytes for use in context.usage}
    total = context.host_bytes if is_saved else context.device_bytes
    if len(accelerators) == 1 and total:
        return {accelerators[0].accelerator: total}
    return {}
