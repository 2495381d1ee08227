"""What the mock's journal says of who used a device, held against who held the group."""

from __future__ import annotations

from typing import Any

WORK = {"kernel", "copy", "memset", "alloc", "free"}
"""Journal kinds that touch the device; state changes are the agent's own."""


def overlaps_of_unlocked_work(journal: list[dict[str, Any]], held: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Records of work outside the intervals in which their process's job held the group.

    `held`: (pid, begin_ns, end_ns) on CLOCK_MONOTONIC, the clock of the journal.
    """
    work = [record for record in journal if record["kind"] in WORK]
    assert work, "the journal is empty: this would prove nothing"
    return [
        record
        for record in work
        if not any(
            pid == record["pid"] and begin <= record["begin_ns"] and (record["end_ns"] or begin) <= end
            for pid, begin, end in held
        )
    ]
