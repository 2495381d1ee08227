"""The judge: it must find any use of a device that no lease covers, however short."""

import json

import pytest

from timeslice_demo.ground_truth import JournalLine, Lease, judge, read_journal
from timeslice_demo.process_id import ProcessId
from timeslice_demo.recorded import Pool

ORDINALS = {Pool.SAMPLER: 0, Pool.TRAINER: 1}
HERE, ELSEWHERE = 4026531836, 4026532999
OWNERS = {
    ProcessId(HERE, 11, 1): ("a", Pool.SAMPLER),
    ProcessId(HERE, 12, 1): ("a", Pool.TRAINER),
    ProcessId(HERE, 21, 1): ("b", Pool.SAMPLER),
}
LEASES = [Lease("a", Pool.SAMPLER, 100, 200), Lease("b", Pool.SAMPLER, 250, 300), Lease("a", Pool.SAMPLER, 400, 500)]


def line(
    kind: str = "kernel",
    pid: int = 11,
    device: int = 0,
    begin: int = 100,
    end: int | None = 200,
    pid_namespace: int = HERE,
    start_time: int = 1,
) -> JournalLine:
    return JournalLine(kind, "busy", ProcessId(pid_namespace, pid, start_time), device, begin, end, 0, 0)


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([line()], 0),
        ([line(begin=150, end=160), line(begin=410, end=499)], 0),
        ([line(end=201)], 1e-9),
        ([line(begin=99)], 1e-9),
        ([line(begin=150, end=450)], 200e-9),
        ([line(pid=21, begin=150, end=160)], 10e-9),  # during another job's lease
        ([line(pid=12, device=1)], 100e-9),  # a pool that it never had
        ([line(device=1)], 100e-9),  # the other pool's device
        ([line(pid=99, begin=150, end=160)], 10e-9),  # a process that nobody knows
        ([line(pid_namespace=ELSEWHERE)], 100e-9),  # a number as another one has it in another container
        ([line(start_time=2)], 100e-9),  # ... or in the container that had this one's namespace before
        ([line(kind="copy", begin=200, end=205)], 5e-9),
        ([line(begin=190, end=None), line(pid=21, begin=250, end=260)], 60e-9),  # killed amid it: counts to the end
        ([line(kind="checkpoint", begin=200, end=250), line(kind="restore", begin=300, end=400)], 0),
    ],
)
def test_time_without_a_lease_is_counted_to_the_nanosecond(lines: list[JournalLine], seconds: float) -> None:
    verdict = judge(lines, LEASES, OWNERS, ORDINALS)
    assert verdict.device_s_without_lease == pytest.approx(seconds, rel=1e-9, abs=0)
    assert bool(verdict.examples) == (seconds > 0)


def test_a_moment_without_a_lease_is_counted() -> None:
    lines = [line(kind="alloc", begin=100, end=100), line(kind="alloc", begin=225, end=225), line(kind="free", pid=21)]
    verdict = judge(lines, LEASES, OWNERS, ORDINALS)
    assert verdict.touches_without_lease == 2
    assert verdict.device_s_without_lease == 0


def test_a_lock_during_the_own_lease_is_counted() -> None:
    lines = [line(kind="lock", begin=150, end=160), line(kind="lock", begin=200, end=210), line(kind="lock", pid=99)]
    assert judge(lines, LEASES, OWNERS, ORDINALS).locks_during_lease == 1


def test_journal_lines_are_read() -> None:
    said = {"kind": "kernel", "name": "busy", "device": None, "begin_ns": 3, "end_ns": None, "bytes": 4, "result": 700}
    who = {"pid": 7, "inner_pid": 5, "pid_namespace": HERE, "start_time": 9}
    text = json.dumps(said | who | {"stream": 1, "state": "running"})
    assert read_journal(text + "\n") == [JournalLine("kernel", "busy", ProcessId(HERE, 5, 9), None, 3, None, 4, 700)]
