"""What the doctor thinks: facts in, findings out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timeslice.cli.doctor.facts import Facts


class Grade(Enum):
    OK = "OK"
    WARN = "WARN"
    """It may work, or will not in a case that is named."""
    FAIL = "FAIL"
    """It cannot work."""


@dataclass(frozen=True)
class Finding:
    area: str
    check: str
    grade: Grade
    text: str
    """What was found."""
    advice: str = ""
    """What to do about it; never empty for WARN and FAIL."""


def examine(facts: Facts) -> list[Finding]:
    """All findings, area by area."""
    from timeslice.cli.doctor import check_environment, check_installation, check_machine, check_servers

    return [
        *check_installation.findings(facts),
        *check_machine.findings(facts),
        *check_servers.findings(facts),
        *check_environment.findings(facts),
    ]
