"""What counts against whom in a soak: of that alone depends whether it can fail."""

from __future__ import annotations

import json
from typing import Any

from soak_leases import Told, leases, lives, united, unshared

from timeslice_demo.ground_truth import LOCK, JournalLine, judge
from timeslice_demo.process_id import ProcessId
from timeslice_demo.recorded import Pool

NAMESPACES = {"a": 1, "a2": 2, "b": 3}
"""Two pods of job a, one of b."""


def process(pod: str) -> ProcessId:
    return ProcessId(NAMESPACES[pod], 7, 1)


def diary(pod: str, *notes: tuple[str, int]) -> str:
    began: dict[str, Any] = {"what": "began", "at_ns": 0, "job": pod[0], "group": "samplers"}
    lines = [began | {"process": [NAMESPACES[pod], 7, 1]}, *({"what": what, "at_ns": at} for what, at in notes)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def turn(*at: int) -> list[tuple[str, int]]:
    return list(zip(("acquired", "releasing", "released"), at, strict=False))


def line(kind: str, pod: str, begin: int, end: int) -> JournalLine:
    return JournalLine(kind, "", process(pod), 0, begin, end, 0, 0)


def told(text: str, *journal: JournalLine) -> list[Told]:
    return leases(lives(text), list(journal))


def spans(told: list[Told], which: str) -> list[tuple[str, int, int]]:
    found = [getattr(one, which) for one in told]
    return [(lease.job, lease.begin_ns, lease.end_ns) for lease in found]


def test_a_turn_ends_when_it_is_given_back() -> None:
    found = told(diary("a", *turn(10, 20, 25), *turn(40, 50, 52)))
    assert spans(found, "certain") == spans(found, "held") == [("a", 10, 20), ("a", 40, 50)]
    assert spans(found, "possible") == [("a", 10, 25), ("a", 40, 52)]


def test_a_killed_holder_may_have_held_until_another_job_did() -> None:
    text = diary("a", *turn(10)) + diary("a2", *turn(30, 40, 41)) + diary("b", *turn(60, 70, 71))
    found = told(text, line("kernel", "a", 12, 15), line(LOCK, "a", 20, 21))
    assert spans(found[:1], "certain") == [("a", 10, 15)]
    assert spans(found[:1], "held") == spans(found[:1], "possible") == [("a", 10, 60)]


def test_a_lease_that_two_pods_of_a_job_had_is_left_out() -> None:
    """The second came before the release of the first was answered."""
    text = diary("a", *turn(10, 20, 30)) + diary("a2", *turn(25, 50, 51)) + diary("b", *turn(40, 45, 46))
    assert spans(unshared(told(text)), "held") == [("b", 40, 45)]


def test_leases_of_a_job_that_overlap_are_one() -> None:
    text = diary("a", *turn(10, 20, 21)) + diary("a2", *turn(15, 30, 31), *turn(40, 50, 51)) + diary("b", *turn(33, 35))
    assert spans(told(text), "held") == [("a", 10, 20), ("a", 15, 30), ("b", 33, 35), ("a", 40, 50)]
    assert [(lease.job, lease.begin_ns, lease.end_ns) for lease in united([one.held for one in told(text)])] == [
        ("a", 10, 30), ("a", 40, 50), ("b", 33, 35)
    ]  # fmt: skip


def test_a_lock_of_who_holds_and_work_of_who_does_not_are_seen() -> None:
    text = diary("a", *turn(10, 20, 21)) + diary("b", *turn(30, 40, 41))
    journal = [line(LOCK, "a", 15, 16), line("kernel", "b", 25, 35)]
    found = leases(lives(text), journal)
    owners = {process("a"): ("a", Pool.SAMPLER), process("b"): ("b", Pool.SAMPLER)}
    assert judge(journal, [one.certain for one in unshared(found)], owners, {Pool.SAMPLER: 0}).locks_during_lease == 1
    verdict = judge(journal, united([one.held for one in found]), owners, {Pool.SAMPLER: 0})
    assert round(verdict.device_s_without_lease * 1e9) == 5
