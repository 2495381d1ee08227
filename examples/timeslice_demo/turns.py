"""How a job gets the devices of a pool for a phase: by taking turns through the orchestrator, or because they are its
own.
"""

from collections.abc import Mapping
from typing import Protocol

from timeslice import TimeSliceOrchestratorClient
from timeslice.snapshot_agent import register_workload
from timeslice_demo.recorded import Pool

GROUPS: Mapping[Pool, str] = {pool: pool.value for pool in Pool}
"""What the pools are called at the demo's own orchestrator."""


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
    """Turns by the orchestrator. This is all that a job has to add to its code to share its devices."""

    def __init__(self, client: TimeSliceOrchestratorClient, groups: Mapping[Pool, str]) -> None:
        self._client, self._groups = client, groups

    def acquire(self, pool: Pool) -> None:
        self._client.acquire(group_id=self._groups[pool])

    def give_back(self, pool: Pool) -> None:
        self._client.release(group_id=self._groups[pool])

    def close(self) -> None:
        self._client.close()


class RegisteredTurns(OrchestratedTurns):
    """Where there are no pods whose labels say it, the agent is told which of the job's processes use which pool."""

    def __init__(self, job_id: str, orchestrator: str, agent: str, pids: Mapping[Pool, int]) -> None:
        super().__init__(TimeSliceOrchestratorClient(orchestrator, job_id=job_id), GROUPS)
        self._handles = [register_workload(agent, job_id, group=GROUPS[pool], pids=[pid]) for pool, pid in pids.items()]

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        super().close()
