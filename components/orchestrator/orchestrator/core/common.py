"""What all groups of one core share."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.effects import Effect
from orchestrator.core.identifiers import Identifiers
from orchestrator.core.nodes import Node
from orchestrator.core.sessions import Session, Sessions
from orchestrator.core.timers import Timers
from orchestrator.core.types import CallId, CoreSettings, Epoch, GroupId, JobId, NodeId, ProcessRef, SessionId
from orchestrator.core.wait_graph import WaitGraph


@dataclass(slots=True)
class Common:
    """Handed to every group; `out` collects the effects of the event that is being handled."""

    settings: CoreSettings
    ids: Identifiers
    epoch: Epoch
    timers: Timers
    out: list[Effect]
    nodes: dict[NodeId, Node]
    sessions: Sessions
    graph: WaitGraph
    calls: dict[CallId, GroupId]
    """Acquire calls in progress, or answered by a lease that still stands, by their group."""

    is_draining: bool = False
    """No switch begins any more."""

    def session(self, session: SessionId | None) -> Session | None:
        """Return a session that is alive; None: there is none of that name, or none was named."""
        return self.sessions.get(session) if session is not None else None

    def restore_session(
        self, group: GroupId, session: SessionId, job: JobId, ttl_s: float, refs: tuple[ProcessRef, ...], now: float
    ) -> None:
        """Take over a session that a group's record names."""
        self.sessions.restore(session, job, ttl_s, refs, now).groups.add(group)
