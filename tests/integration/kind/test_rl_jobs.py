"""Two reinforcement-learning jobs as pods, each on two pools, alone and taking turns: nothing changes but the time.

The mocks' journals, the orchestrator's log and the jobs' own words are held against each other by the demo's code.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented import User, checkout
from installation import Installation
from job_pod import code
from rl_jobs import DOCUMENTED, JOBS, PLAN, SAMPLE_PERIOD_S, RlJobs, pool_gpus

from timeslice_demo.measure import judge_run
from timeslice_demo.outcome import make_outcome, mean_active_share
from timeslice_demo.pod_controller import SPEED, STEPS
from timeslice_demo.recorded import Pool
from timeslice_demo.report import write_report
from timeslice_demo.runs import ORDINALS
from timeslice_demo.table import table

PLACE = (
    "Each job ran as three pods on a Kubernetes cluster: a controller, a sampler on a node of the one group, a trainer"
    " on a node of the other. The nodes are containers of one machine and have simulated GPUs; the pods of both jobs"
    " share a ResourceClaim for each group. Alone, a job asks the orchestrator as well, and is alone to ask."
    " Times count from the first grant; those of both jobs together from the moment at which both had asked."
)


@pytest.fixture
def jobs(timeslice: Installation) -> Iterator[RlJobs]:
    kube = timeslice.kube
    # For a minute, a kubelet refuses a claim whose name another one of the namespace had.
    namespace = f"{DOCUMENTED}-{time.time_ns() // 1_000_000}"
    with checkout() as folder, contextlib.ExitStack() as at_end:
        user = User(kube, folder, {DOCUMENTED: namespace})
        user.types(f"kubectl create namespace {DOCUMENTED}")
        at_end.callback(kube.call, "delete", "namespace", namespace, "--timeout=60s", timeout_s=70)
        user.types(
            f'kubectl -n {DOCUMENTED} create secret generic demo-key --from-literal=key="$(openssl rand -hex 16)"'
        )
        user.types(f"kubectl -n {DOCUMENTED} apply -f examples/kubernetes/claims.yaml")
        kube.apply(code(namespace))
        gpus = pool_gpus(kube, namespace, timeslice)
        if len({gpu.boot_id() for gpu in gpus.values()}) > 1:
            pytest.skip("the nodes are different machines: their journals have clocks that cannot be compared")
        for pool, gpu in gpus.items():
            at_end.enter_context(gpu.tuned(PLAN.swaps[pool], SAMPLE_PERIOD_S))
        yield RlJobs(kube, namespace, user, gpus)


def test_two_rl_jobs_take_turns_on_two_pools_and_their_weights_are_as_alone(jobs: RlJobs) -> None:
    alone = jobs.alone()
    together = jobs.together()
    settings = {
        "jobs": len(JOBS), "steps": STEPS, "scale": SPEED, "sample_period_s": SAMPLE_PERIOD_S
    }  # fmt: skip
    outcome = make_outcome(PLAN, settings, alone, together, ORDINALS, PLACE)
    print("\n" + table(outcome))
    folder = Path(os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR") or "kind-logs") / "rl-jobs"
    print(f"\n  report: {write_report(outcome, folder.absolute())}")

    assert outcome.failures == []
    assert outcome.comparison.identical
    assert outcome.solo.weights_sha256("job-a") != outcome.solo.weights_sha256("job-b")
    for run in (alone, together):
        verdict = judge_run(run, ORDINALS)
        assert (verdict.device_s_without_lease, verdict.touches_without_lease) == (0, 0), verdict
        assert verdict.locks_during_lease == 0
        assert verdict.device_s > 0.9 * work_s(), "the journals do not have all that the jobs did"
    # They alternate: at each step both pools change hands, except around the last ones, when a job is done and gone.
    for pool in Pool:
        assert outcome.swaps[pool].saves >= STEPS
        assert outcome.swaps[pool].restores >= STEPS - 1
    assert together.wall_s < alone.wall_s
    for pool in Pool:
        assert outcome.timesliced_pools[pool].held_share > outcome.solo_pools[pool].held_share
    assert mean_active_share(outcome.timesliced_pools) > mean_active_share(outcome.solo_pools)


def work_s() -> float:
    """Device time that all phases of both jobs need; a weight sync takes both devices."""
    return sum(PLAN.load_s(pool) for pool in Pool)
