"""The mock GPUs that two pools of jobs share: how fast they are, what NVML says of them, what they wrote down."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace

from job_pod import pod
from kube import Kube
from system_pods import gpu_mock

from timeslice_demo.ground_truth import JournalLine, read_journal
from timeslice_demo.nvml_samples import Sample
from timeslice_demo.recorded import Pool, Swap
from timeslice_demo.runs import ORDINALS
from timeslice_demo.samples_process import NvmlSampling

FOREIGN = 1000
"""Added to the number of a device that is not the pool's."""


class PoolGpu:
    """The device of one pool's claim, seen from a pod that shares the claim and runs nothing on it, as monitors do.

    The claim has its device for as long as such a pod is there.
    """

    def __init__(self, kube: Kube, namespace: str, pool: Pool, node: str) -> None:
        self.pool, self._kube, self._namespace, self._node = pool, kube, namespace, node
        self.monitor = f"{pool}-monitor"
        made = pod(namespace, self.monitor, None, f"{pool}s", f"{pool}-gpu")
        del made["metadata"]["labels"]
        kube.apply(made)

    def wait(self) -> None:
        self._kube.wait("pod", self.monitor, "condition=Ready", self._namespace)
        program = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"
        uuid = self._kube.exec(self.monitor, self._namespace, "python3", "-c", program).strip()
        devices = json.loads(self._gpu_mock("show", "--json"))["devices"]
        [self._index] = [one["index"] for one in devices if one["uuid"] == uuid]

    def boot_id(self) -> str:
        """Of the machine that the node is on. What has the same has one CLOCK_MONOTONIC."""
        return self._kube.exec(self.monitor, self._namespace, "cat", "/proc/sys/kernel/random/boot_id")

    @contextlib.contextmanager
    def tuned(self, swap: Swap, window_s: float) -> Iterator[None]:
        """Saves and restores that take so long, and a utilisation that looks back so far, for the block."""
        self._tune(swap, round(window_s * 1000))
        try:
            yield
        finally:
            self._tune(Swap(0, 0), 167)

    def start_sampling(self, period_s: float) -> NvmlSampling:
        command = [
            self._kube.kubectl, "--context", self._kube.context,
            "exec", "-i", self.monitor, "-n", self._namespace, "--",
            "python3", "-m", "timeslice_demo.nvml_samples", str(period_s),
        ]  # fmt: skip
        return NvmlSampling(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def journal(self) -> list[JournalLine]:
        """All that the node's mocks wrote down, with the devices' numbers as the demo has them."""
        lines = read_journal(self._gpu_mock("journal", "--json"))

        def number(device: int | None) -> int | None:
            if device is None:
                return None
            return ORDINALS[self.pool] if device == self._index else FOREIGN + device

        return [replace(line, device=number(line.device)) for line in lines]

    def _tune(self, swap: Swap, window_ms: int) -> None:
        of_swap = (f"checkpoint={swap.save_s:.6f}", f"restore={swap.restore_s:.6f}")
        self._gpu_mock("inject", "slow", f"device={self._index}", *of_swap)
        self._gpu_mock("inject", "set", f"util-window-ms={window_ms}")

    def _gpu_mock(self, *arguments: str) -> str:
        return gpu_mock(self._kube, self._node, *arguments)


class Observation:
    """What NVML and the journals of both pools say of a stretch of time."""

    def __init__(self, gpus: Mapping[Pool, PoolGpu], period_s: float) -> None:
        self._gpus = gpus
        self._sampling = {pool: gpu.start_sampling(period_s) for pool, gpu in gpus.items()}
        self.samples: tuple[Sample, ...] = ()
        self.journal: tuple[JournalLine, ...] = ()

    def stop(self) -> None:
        """Fills `samples` and `journal`, from the first sample on."""
        self.samples = tuple(
            replace(sample, device=ORDINALS[pool])
            for pool, sampling in self._sampling.items()
            for sample in sampling.stop()
        )
        begin_ns = min(sample.monotonic_ns for sample in self.samples)
        self.journal = tuple(
            line
            for gpu in self._gpus.values()
            for line in gpu.journal()
            if line.end_ns is None or line.end_ns >= begin_ns
        )
