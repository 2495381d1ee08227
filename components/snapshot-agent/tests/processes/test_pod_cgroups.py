"""The lines of /proc/PID/cgroup in all their forms (row 23 of docs/design/failures.md)."""

from __future__ import annotations

import pytest

from cgroup_lines import ROWS, Row
from snapshot_agent_server.processes.pod_cgroups import Place, places


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_line_of_the_real_world(row: Row) -> None:
    assert list(places(row.lines)) == [Place(pod, container) for pod, container in row.places]


def test_lines_may_end_as_they_do_in_the_file() -> None:
    for row in ROWS:
        assert places([line + "\n" for line in row.lines]) == places(row.lines)


def test_no_row_is_there_twice() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len({tuple(row.lines) for row in ROWS}) == len(ROWS)
