"""Variables that decide whether a job survives what timeslice does to it. They count where the job starts."""

from __future__ import annotations

from collections.abc import Iterator

from timeslice.cli.doctor.facts import Facts
from timeslice.cli.doctor.findings import Finding, Grade
from timeslice.cli.watchdogs import COLLECTIVE_TIMEOUT_S, HEARTBEAT, MONITORING, heartbeat_limit

AREA = "environment of jobs"
FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
ENOUGH_S = 6 * 3600.0
"""Nobody should wait longer than that for the next turn."""


def findings(facts: Facts) -> Iterator[Finding]:
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
