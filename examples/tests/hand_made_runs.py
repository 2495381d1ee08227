"""Runs written down by hand, small enough to check every figure with a pencil. Times in milliseconds."""

from collections.abc import Sequence

from timeslice_demo.ground_truth import JournalLine
from timeslice_demo.job_events import EventKind, JobEvent
from timeslice_demo.jobs import JobHistory
from timeslice_demo.lease_log import GroupLogEntry
from timeslice_demo.nvml_samples import Sample
from timeslice_demo.process_id import ProcessId
from timeslice_demo.recorded import Plan, Pool, Step, Swap
from timeslice_demo.run_log import RunLog

MS = 1_000_000
HERE = 4026531836
"""The PID namespace of all."""
ORDINALS = {Pool.SAMPLER: 0, Pool.TRAINER: 1}
PIDS = {"job-a": {"sampler": 10, "trainer": 11}, "job-b": {"sampler": 20, "trainer": 21}}
PLAN = Plan(
    {job: (Step(0.1, 0.1, 0.01),) for job in PIDS},
    {Pool.SAMPLER: Swap(0.02, 0.01), Pool.TRAINER: Swap(0.008, 0.004)},
)
SETTINGS = {"jobs": 2, "steps": 1, "seed": 0, "scale": 1.0, "sample_period_s": 0.01}


def history(job: str, turns: Sequence[tuple[str, int, int, int]], reward: float, sha: str) -> JobHistory:
    """A job of one step from its turns: (pool, asked, granted, given back), in the order generate, train, sync."""
    (
        (pool, asked, granted, back),
        (_, train_asked, train_granted, train_back),
        (_, sync_asked, sync_granted, sync_back),
    ) = turns
    assert pool == "sampler"
    moments = [
        (0, EventKind.STARTED, {"processes": {pool: (HERE, pid, 1) for pool, pid in PIDS[job].items()}}),
        (asked, EventKind.ASKED, {"pool": "sampler"}),
        (granted, EventKind.GRANTED, {"pool": "sampler"}),
        (granted, EventKind.PHASE_BEGAN, {"step": 0, "phase": "generate"}),
        (back, EventKind.PHASE_ENDED, {"step": 0, "phase": "generate"}),
        (back, EventKind.REWARD, {"step": 0, "reward": reward}),
        (back, EventKind.YIELDING, {"pool": "sampler"}),
        (back + 1, EventKind.YIELDED, {"pool": "sampler"}),
        (train_asked, EventKind.ASKED, {"pool": "trainer"}),
        (train_granted, EventKind.GRANTED, {"pool": "trainer"}),
        (train_granted, EventKind.PHASE_BEGAN, {"step": 0, "phase": "train"}),
        (sync_asked, EventKind.PHASE_ENDED, {"step": 0, "phase": "train"}),
        (sync_asked, EventKind.ASKED, {"pool": "sampler"}),
        (sync_granted, EventKind.GRANTED, {"pool": "sampler"}),
        (sync_granted, EventKind.PHASE_BEGAN, {"step": 0, "phase": "sync"}),
        (sync_back, EventKind.PHASE_ENDED, {"step": 0, "phase": "sync"}),
        (sync_back, EventKind.YIELDING, {"pool": "sampler"}),
        (sync_back + 1, EventKind.YIELDED, {"pool": "sampler"}),
        (train_back, EventKind.YIELDING, {"pool": "trainer"}),
        (train_back + 1, EventKind.YIELDED, {"pool": "trainer"}),
        (train_back + 2, EventKind.FINISHED, {"weights_sha256": sha, "accuracy": 0.9}),
    ]
    return JobHistory([JobEvent(kind, t * MS, t / 1000, details) for t, kind, details in moments])


def kernel(pid: int, device: int, begin: int, end: int) -> JournalLine:
    return JournalLine("kernel", "busy", ProcessId(HERE, pid, 1), device, begin * MS, end * MS, 0, 0)


def driver(kind: str, pid: int, device: int, begin: int, end: int) -> JournalLine:
    return JournalLine(kind, "", ProcessId(HERE, pid, 1), device, begin * MS, end * MS, 1, 0)


def samples(journal: Sequence[JournalLine], until: int) -> tuple[Sample, ...]:
    """What NVML would say every 10 ms: the share of the last 10 ms in which a kernel ran."""
    found = []
    for t in range(10, until + 1, 10):
        for device in (0, 1):
            busy_ns = sum(
                max(0, min(t * MS, line.end_ns or 0) - max((t - 10) * MS, line.begin_ns))
                for line in journal
                if line.kind == "kernel" and line.device == device
            )
            found.append(Sample(t * MS, device, busy_ns / (10 * MS), 0))
    return tuple(found)


def solo() -> RunLog:
    """Each job: generate 100, train 100, sync 10. The second begins at 300."""
    journal = []
    histories = {}
    for job, at, reward in (("job-a", 0, 0.5), ("job-b", 300, 0.6)):
        turns = [
            ("sampler", at, at, at + 100),
            ("trainer", at + 101, at + 101, at + 211),
            ("sampler", at + 201, at + 201, at + 211),
        ]
        histories[job] = history(job, turns, reward, f"{job}-sha")
        own = PIDS[job]
        journal += [
            kernel(own["sampler"], 0, at, at + 100),
            kernel(own["trainer"], 1, at + 101, at + 201),
            kernel(own["sampler"], 0, at + 201, at + 211),
            kernel(own["trainer"], 1, at + 201, at + 211),
        ]
    return RunLog(((0, 212 * MS), (300 * MS, 512 * MS)), histories, samples(journal, 520), tuple(journal), ())


def timesliced(weights: str = "job-b-sha", extra: Sequence[JournalLine] = ()) -> RunLog:
    """Both jobs in turn. `weights` are the second job's; `extra` happens besides."""
    turns_a = [("sampler", 0, 0, 100), ("trainer", 101, 102, 271), ("sampler", 202, 261, 271)]
    turns_b = [("sampler", 1, 125, 225), ("trainer", 226, 290, 440), ("sampler", 390, 430, 440)]
    journal = [
        kernel(10, 0, 0, 100),
        driver("checkpoint", 10, 0, 101, 121),  # the yield returned at 101, b is granted at 125: 4 ms of overhead
        kernel(20, 0, 125, 225),
        kernel(11, 1, 102, 202),
        driver("checkpoint", 20, 0, 227, 247),  # the yield returned at 226, a is granted at 261: 5 ms of overhead
        driver("restore", 10, 0, 247, 257),
        kernel(10, 0, 261, 271),
        kernel(11, 1, 261, 271),
        driver("checkpoint", 11, 1, 274, 282),  # the yield returned at 272, b is granted at 290: 10 ms of overhead
        kernel(21, 1, 290, 390),
        driver("checkpoint", 10, 0, 391, 411),  # b asked at 390, is granted at 430: 10 ms of overhead
        driver("restore", 20, 0, 411, 421),
        kernel(20, 0, 430, 440),
        kernel(21, 1, 430, 440),
    ]
    histories = {
        "job-a": history("job-a", turns_a, 0.5, "job-a-sha"),
        "job-b": history("job-b", turns_b, 0.6, weights),
    }
    return RunLog(((0, 441 * MS),), histories, samples(journal, 440), (*journal, *extra), group_log())


def group_log() -> tuple[GroupLogEntry, ...]:
    """What the orchestrator would say of that run."""
    said = [
        ("state", "sampler", ""),
        ("queued", "sampler", "job-b"),
        ("granted", "sampler", "job-a"),
        ("yielded", "sampler", "job-a"),
        ("granted", "trainer", "job-a"),
        ("granted", "sampler", "job-b"),
        ("yielded", "sampler", "job-b"),
        ("queued", "trainer", "job-b"),
        ("granted", "sampler", "job-a"),
        ("yielded", "sampler", "job-a"),
        ("yielded", "trainer", "job-a"),
        ("granted", "trainer", "job-b"),
        ("granted", "sampler", "job-b"),
        ("yielded", "sampler", "job-b"),
        ("yielded", "trainer", "job-b"),
    ]
    return tuple(
        GroupLogEntry(number, 0.0, kind, Pool(pool), job, 0, 0, "") for number, (kind, pool, job) in enumerate(said)
    )
