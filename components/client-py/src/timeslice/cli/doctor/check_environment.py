"""Variables that decide whether a job survives what timeslice does to it. They count where the job starts."""

from __future__ import annotations

from collections.abc import Iterator

from timeslice._settings import GROUP_LABEL, JOB_LABEL, POD_LABELS
from timeslice.cli.doctor.facts import Facts
from timeslice.cli.doctor.findings import Finding, Grade
from timeslice.cli.watchdogs import COLLECTIVE_TIMEOUT_S, HEARTBEAT, MONITORING, heartbeat_limit

AREA = "environment of jobs"
FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
ENOUGH_S = 6 * 3600.0
"""Nobody should wait longer than that for the next turn."""


def findings(facts: Facts) -> Iterator[Finding]:
    if facts.is_pod:
        yield _pod(facts)
    yield _fork_support(facts)
    yield _heartbeat(facts)
    if "torch" in facts.versions:
        yield Finding(
            AREA,
            "NCCL collectives",
            Grade.OK,
            f"the time for which a job is saved counts in a collective that is under way: their limit is"
            f" init_process_group(timeout=...), {COLLECTIVE_TIMEOUT_S:g} s unless the program says otherwise",
        )


def _pod(facts: Facts) -> Finding:
    """Where a client in this pod finds its job and group, and the orchestrator's agent the processes of the job."""
    job = facts.env.get("TIMESLICE_JOB_ID") or facts.pod_labels.get(JOB_LABEL)
    group = facts.env.get("TIMESLICE_GROUP_ID") or facts.pod_labels.get(GROUP_LABEL)
    text = f"job {job or 'not said'}, group {group or 'not said'}"
    if facts.pod_labels and facts.env.get("TIMESLICE_JOB_ID") not in (None, "", facts.pod_labels.get(JOB_LABEL)):
        return Finding(
            AREA,
            "pod",
            Grade.WARN,
            f"{text}, but the pod's label {JOB_LABEL} is {facts.pod_labels.get(JOB_LABEL) or 'not set'}: the agent"
            " takes this pod's processes for that job's",
            f"give TIMESLICE_JOB_ID and the label {JOB_LABEL} the same value",
        )
    if job is None:
        return Finding(
            AREA,
            "pod",
            Grade.WARN,
            f"{text}: neither TIMESLICE_JOB_ID nor a label that the pod can see",
            f"set TIMESLICE_JOB_ID, or mount the pod's labels at {POD_LABELS.parent} (downward API, metadata.labels);"
            f" the label {JOB_LABEL} the agent needs in any case",
        )
    return Finding(AREA, "pod", Grade.OK, text)


def _fork_support(facts: Facts) -> Finding:
    value = facts.env.get(FORK_SUPPORT)
    if value is None:
        return Finding(
            AREA, "forks", Grade.OK, f"{FORK_SUPPORT} is not set; the client sets it, unless grpc was imported before"
        )
    if value.strip().lower() in ("0", "false", "no", "off", ""):
        return Finding(
            AREA,
            "forks",
            Grade.WARN,
            f"{FORK_SUPPORT}={value}: what a job forks (data loaders, multiprocessing) may hang or crash in grpc",
            f"unset {FORK_SUPPORT}, or set it to 1",
        )
    return Finding(AREA, "forks", Grade.OK, f"{FORK_SUPPORT}={value}")


def _heartbeat(facts: Facts) -> Finding:
    check = "PyTorch watchdog"
    if "torch" not in facts.versions and not facts.env.keys() & {HEARTBEAT, MONITORING}:
        return Finding(AREA, check, Grade.OK, "this Python has no PyTorch")
    advice = (
        f"for jobs that use torch.distributed with NCCL: export {MONITORING}=0, or {HEARTBEAT}=N with N seconds above"
        " the longest time for which other jobs hold the group"
    )
    try:
        limit = heartbeat_limit(facts.env)
    except ValueError as err:
        return Finding(AREA, check, Grade.WARN, str(err), advice)
    if limit.seconds is None:
        return Finding(AREA, check, Grade.OK, f"its heartbeat monitor is off ({limit.source})")
    text = f"its heartbeat monitor aborts a job that is saved for longer than {limit.seconds:g} s ({limit.source})"
    if limit.seconds >= ENOUGH_S:
        return Finding(AREA, check, Grade.OK, text)
    return Finding(AREA, check, Grade.WARN, text, advice)
