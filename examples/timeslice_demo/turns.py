"""How a job gets the devices of a pool for a phase: by taking turns through the orchestrator, or because they are its
own.
"""

from collections.abc import Mapping
from typing import Protocol

from timeslice import TimeSliceOrchestratorClient
from timeslice.snapshot_agent import register_workload
from timeslice_demo.recorded import Pool


class Turns(Protocol):
    def acquire(self, pool: Pool) -> None:
        """Wait until the pool is the job's, with the job's device memory in place."""

    def give_back(self, pool: Pool) -> None:
        """Let another job have the pool."""

    def close(self) -> None: ...


class OwnDevices:
    """The devices are this job's alone: nothing to wait for. This is how jobs run without time-slicing."""

    def acquire(self, pool: Pool) -> None:
        pass

    def give_back(self, pool: Pool) -> None:
        pass

    def close(self) -> None:
        pass


class OrchestratedTurns:
    """Turns by the orchestrator; the agent is told which of the job's processes use which pool.

    This is all that a job has to add to its code to share its devices.
    """

    def __init__(self, job_id: str, orchestrator: str, agent: str, pids: Mapping[Pool, int]) -> None:
        self._client = TimeSliceOrchestratorClient(orchestrator, job_id=job_id)
        self._handles = [register_workload(agent, job_id, group=pool, pids=[pid]) for pool, pid in pids.items()]

    def acquire(self, pool: Pool) -> None:
        self._client.acquire(group_id=pool)

    def give_back(self, pool: Pool) -> None:
        self._client.release(group_id=pool)

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        self._client.close()
