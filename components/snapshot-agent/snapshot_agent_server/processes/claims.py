"""A pid that somebody names, checked against /proc."""

from __future__ import annotations

import os
from collections.abc import Set

from snapshot_agent_server.core.ids import ProcessId
from snapshot_agent_server.core.refusals import Refusal, RefusalKind
from snapshot_agent_server.processes import proc


def claimed(pid: int, own_pids: Set[int]) -> ProcessId | Refusal:
    """The living process of the agent's user that has this pid now, or why it cannot belong to a context.

    An agent that runs as root takes every user's processes.
    """
    found = proc.facts(pid)
    owner = proc.owner(pid)
    if found is None or owner is None or found.has_ended:
        return Refusal(RefusalKind.BAD_PROCESS, f"pids: no process {pid} lives on this node")
    uid, leader = owner
    if leader != pid:
        return Refusal(RefusalKind.BAD_PROCESS, f"pids: {pid} is a thread; name its process, {leader}")
    if pid == os.getpid() or pid in own_pids:
        return Refusal(RefusalKind.BAD_PROCESS, f"pids: process {pid} is the agent's own")
    if os.geteuid() not in (0, uid):
        text = f"pids: process {pid} belongs to user {uid}, the agent runs as {os.geteuid()}; run both as the same user"
        return Refusal(RefusalKind.WRONG_USER, text)
    return found.id
