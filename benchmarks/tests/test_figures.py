"""What a table says must be what was measured."""

from __future__ import annotations

import json
import pathlib

import pytest

from timeslice_benchmarks.figures import Figure, of_samples, quantile, table, write_json
from timeslice_benchmarks.handoff import DRIVER, Handoff, handoffs
from timeslice_demo.ground_truth import JournalLine
from timeslice_demo.process_id import ProcessId


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0], 0.99, 1.0), (list(range(1, 101)), 0.99, 99), (list(range(1, 101)), 0.5, 50)],
)
def test_quantile_is_a_sample_that_the_share_does_not_exceed(
    samples: list[float], share: float, expected: float
) -> None:
    assert quantile(samples, share) == expected


def test_a_budget_of_both_quantiles_needs_both() -> None:
    assert Figure("x", "ms", 4.0, 19.0, budget=5.0, budget_p99=20.0).is_met
    assert not Figure("x", "ms", 4.0, 21.0, budget=5.0, budget_p99=20.0).is_met
    assert not Figure("x", "ms", 6.0, 19.0, budget=5.0, budget_p99=20.0).is_met
    assert Figure("x", "1/s", 300.0, budget=300.0, at_least=True).is_met
    assert Figure("x", "ms", 1.0).is_met is None


def test_nothing_measured_is_no_figure() -> None:
    with pytest.raises(ValueError, match="nothing was measured for: x"):
        of_samples("x", [])


def test_table_and_json_tell_a_missed_budget(tmp_path: pathlib.Path) -> None:
    figures = [of_samples("slow", [7.0, 8.0], budget=5.0, notes={"driver ms": 3.0})]
    assert "NO" in table(figures, 0.2)
    write_json(tmp_path / "f.json", "b", figures, {"cores": 2})
    [row] = json.loads((tmp_path / "f.json").read_text())["figures"]
    assert (row["what"], row["p50"], row["met"], row["notes"]) == ("slow", 7.0, False, {"driver ms": 3.0})


def test_a_handoff_is_from_release_returning_to_the_waiters_acquire_returning() -> None:
    # Job 0 releases at 30, job 1 has asked at 5; then the other way; job 0's last turn was not waited for.
    first = [[0, 1, 20, 30], [32, 70, 80, 90], [200, 210, 220, 230]]
    second = [[5, 40, 50, 60]]
    assert handoffs([first, second]) == [Handoff(60, 70)]


def test_driver_time_counts_only_within_the_handoff() -> None:
    def line(kind: str, begin_ns: int, end_ns: int | None, name: str = "") -> JournalLine:
        return JournalLine(kind, name, ProcessId(1, 1, 1), 0, begin_ns, end_ns, 0, 0)

    journal = [
        line("call", 500_000, 2_000_000, "lock"),
        line("call", 3_000_000, 4_000_000, "checkpoint"),
        line("checkpoint", 3_100_000, 3_900_000),  # what its process did meanwhile
        line("kernel", 1_000_000, 9_000_000),
        line("restore", 4_500_000, None),
        line("call", 9_500_000, 20_000_000, "unlock"),
        line("call", 0, 900_000, "lock"),
    ]
    handoff = Handoff(1_000_000, 10_000_000)
    assert handoff.ms_within(journal, DRIVER) == 1.0 + 1.0 + 0.5
    assert handoff.ms == 9.0
