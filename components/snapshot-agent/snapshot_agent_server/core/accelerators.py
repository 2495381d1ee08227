"""Samples applied: what is on each accelerator, and what contexts have there."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from snapshot_agent_server.core.effects import Effect, PublishAccelerator, RecordProcess
from snapshot_agent_server.core.ids import AcceleratorId, ContextKey, ProcessId
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.registry import Registry
from snapshot_agent_server.core.samples import AcceleratorView, DeviceSample, Sample

UTILIZATION_STEP = 0.05
UTILIZATION_PERIOD_S = 1.0
"""A change of utilisation alone is pushed if it is larger than this, and at most this often."""


class Accelerators:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._views: dict[AcceleratorId, AcceleratorView] = {}
        self._published: dict[AcceleratorId, tuple[AcceleratorView, float]] = {}

    def views(self) -> list[AcceleratorView]:
        return list(self._views.values())

    def sampled(self, sample: Sample, busy: Set[ContextKey], now: float) -> list[Effect]:
        """Take over a sample. Contexts in `busy`, and processes that changed since it was taken, are left alone."""
        effects: list[Effect] = []
        for device in sorted(sample.devices, key=lambda device: device.index):
            effects += self._device(device, now)
        for key, context in self._registry.contexts.items():
            if key in busy:
                continue
            for pid, process in context.processes.items():
                if process.changed_at >= sample.taken_at:
                    continue
                before = dict(process.usage)
                state = sample.states.get(pid)
                if state is not None and state is not process.state:
                    process.settle(state, now)
                if process.state is not DriverState.CHECKPOINTED:
                    self._usage(process.id, sample)
                if before != process.usage:
                    usage, saved = dict(process.usage), dict(process.saved)
                    effects.append(RecordProcess(process.id, key, usage, saved, is_lazy=True))
        return effects

    def _is_unmanaged(self, pid: int) -> bool:
        return self._registry.key_of(pid) is None and not self._registry.is_server(pid)

    def _usage(self, process: ProcessId, sample: Sample) -> None:
        record = self._registry.record(process)
        if record is None:
            return
        listed = {d.accelerator: d.processes[process.pid] for d in sample.devices if process.pid in d.processes}
        if not listed and record.state is not DriverState.NONE:
            return  # NVML may list nobody: that says nothing
        record.seen_on = frozenset(listed)
        usage = {a: size if size is not None else record.usage.get(a, 0) for a, size in listed.items()}
        if usage != record.usage:
            record.usage = usage

    def _device(self, device: DeviceSample, now: float) -> list[Effect]:
        view = AcceleratorView(
            accelerator=device.accelerator,
            name=device.name,
            total=device.total,
            used=device.used,
            utilization=device.utilization,
            groups=self._registry.groups.claiming(device.accelerator),
            unmanaged_pids=tuple(sorted(filter(self._is_unmanaged, device.processes))),
        )
        self._views[device.accelerator] = view
        last = self._published.get(device.accelerator)
        if last is not None:
            is_same = replace(view, utilization=0.0) == replace(last[0], utilization=0.0)
            step = abs(view.utilization - last[0].utilization)
            if is_same and (step < UTILIZATION_STEP or now - last[1] < UTILIZATION_PERIOD_S):
                return []
        self._published[device.accelerator] = (view, now)
        return [PublishAccelerator(view)]
