"""How the doctor says it."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence

from timeslice.cli.doctor.findings import Finding, Grade

_INDENT = " " * 8


def as_json(findings: Sequence[Finding]) -> str:
    """`ok`: nothing fails."""
    listed = [
        {"area": f.area, "check": f.check, "grade": f.grade.value, "text": f.text, "advice": f.advice or None}
        for f in findings
    ]
    return json.dumps({"ok": passes(findings), "findings": listed}, indent=2)


def as_text(findings: Sequence[Finding], width: int | None = None) -> list[str]:
    """Lines for people, at most `width` columns wide (None: the terminal's, if there is one)."""
    columns = max(40, width or shutil.get_terminal_size((100, 24)).columns)
    lines: list[str] = []
    area = None
    for finding in findings:
        if finding.area != area:
            lines += [*([""] if lines else []), finding.area]
            area = finding.area
        head = f"  {finding.grade.value:<4}  {finding.check}: "
        lines += _wrapped(head + finding.text, columns, "", _INDENT)
        if finding.advice:
            lines += _wrapped(finding.advice, columns, f"{_INDENT}-> ", f"{_INDENT}   ")
    return [*lines, "", summary(findings)]


def _wrapped(text: str, columns: int, first: str, further: str) -> list[str]:
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def passes(findings: Sequence[Finding]) -> bool:
    return all(finding.grade is not Grade.FAIL for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    count = Counter(finding.grade for finding in findings)
    parts = [f"{count[Grade.OK]} fine"]
    if count[Grade.WARN]:
        parts.append(f"{count[Grade.WARN]} to look at")
    parts.append(f"{count[Grade.FAIL]} must be mended" if count[Grade.FAIL] else "nothing fails")
    return ", ".join(parts)
