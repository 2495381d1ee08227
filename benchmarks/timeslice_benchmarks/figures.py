"""Figures: what was measured, the budget it is held against, and the table and the JSON that show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One row.

    Attributes:
        what: in words.
        unit: of `p50` and `p99` and the budgets.
        p50: the figure itself where there is only one value.
        p99: None where there is only one value.
        budget: `p50` must not be above it (`at_least`: not below); None: a figure for comparison.
        budget_p99: the same for `p99`.
        notes: further figures of the same run, by name: what a reader needs to judge the row.
    """

    what: str
    unit: str
    p50: float
    p99: float | None = None
    budget: float | None = None
    budget_p99: float | None = None
    at_least: bool = False
    samples: int = 1
    notes: dict[str, float | str] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        """Whether the budget holds; None: there is none."""
        if self.budget is None:
            return None
        if self.at_least:
            return self.p50 >= self.budget
        is_slow_at_times = self.budget_p99 is not None and self.p99 is not None and self.p99 > self.budget_p99
        return self.p50 <= self.budget and not is_slow_at_times


def of_samples(
    what: str, samples: Sequence[float], *, unit: str = "ms", budget: float | None = None,
    budget_p99: float | None = None, notes: Mapping[str, float | str] | None = None,
) -> Figure:
    """A row from measured values.

    Raises:
        ValueError: there are none.
    """
    if not samples:
        raise ValueError(f"nothing was measured for: {what}")
    return Figure(
        what, unit, quantile(samples, 0.5), quantile(samples, 0.99), budget, budget_p99, samples=len(samples),
        notes=dict(notes or {}))


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the samples does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def table(figures: Sequence[Figure], fsync_ms: float) -> str:
    """The rows as text for people; `fsync_ms` stands beside each."""
    head = ("what", "p50", "p99", "unit", "budget", "met", "n", "fsync ms")
    rows = [head] + [
        (
            figure.what,
            _number(figure.p50),
            "" if figure.p99 is None else _number(figure.p99),
            figure.unit,
            _budget(figure),
            {None: "", True: "yes", False: "NO"}[figure.is_met],
            str(figure.samples),
            f"{fsync_ms:.2f}",
        )
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for figure in figures:
        if figure.notes:
            told = ", ".join(f"{name} {_number(v) if isinstance(v, float) else v}" for name, v in figure.notes.items())
            lines.append(f"  {figure.what}: {told}")
    return "\n".join(lines)


def write_json(path: Path, benchmark: str, figures: Sequence[Figure], machine: dict[str, Any]) -> None:
    """The same for programs."""
    rows = [
        {
            "what": figure.what,
            "unit": figure.unit,
            "p50": figure.p50,
            "p99": figure.p99,
            "budget": figure.budget,
            "budget_p99": figure.budget_p99,
            "at_least": figure.at_least,
            "met": figure.is_met,
            "samples": figure.samples,
            "notes": figure.notes,
        }
        for figure in figures
    ]
    path.write_text(json.dumps({"benchmark": benchmark, "machine": machine, "figures": rows}, indent=1) + "\n")


def _budget(figure: Figure) -> str:
    if figure.budget is None:
        return ""
    sign = ">=" if figure.at_least else "<="
    p99 = "" if figure.budget_p99 is None else f", p99 <= {figure.budget_p99:g}"
    return f"{sign} {figure.budget:g}{p99}"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
