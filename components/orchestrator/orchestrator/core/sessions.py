"""Which clients are alive: their streams, their renewals, and what agents attest of their processes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from orchestrator.core.events import SessionRenewed
from orchestrator.core.nodes import Node
from orchestrator.core.timers import Timer, Timers
from orchestrator.core.types import (
    CallId,
    CoreSettings,
    GroupId,
    JobId,
    NodeId,
    ProcessRef,
    Refusal,
    RefusalCode,
    SessionId,
)

SHORTEST_TTL_S = 1.0
STARVED = "starved"
"""Purpose of the timer that is due when a session should have been renewed."""


@dataclass(slots=True)
class Session:
    """One client process."""

    id: SessionId
    job: JobId
    ttl_s: float
    processes: tuple[ProcessRef, ...] = ()
    stream: CallId | None = None
    renewed_s: float = 0.0
    alone_since_s: float | None = None
    """Since when neither stream nor agent speaks for it; None: one does."""
    seen: dict[ProcessRef, NodeId] = field(default_factory=dict)
    """The processes that an agent has attested at some time, and of which node it is."""
    groups: set[GroupId] = field(default_factory=set)
    """Where it may have leases and waiters."""


class Sessions:
    """All sessions. Every method that can end one returns the ended; the caller ends their leases and waiters."""

    def __init__(self, settings: CoreSettings, nodes: dict[NodeId, Node], timers: Timers) -> None:
        self._settings = settings
        self._nodes = nodes
        self._timers = timers
        self._sessions: dict[SessionId, Session] = {}
        self._by_stream: dict[CallId, SessionId] = {}
        self._by_job: dict[JobId, set[SessionId]] = {}
        self._ended: OrderedDict[SessionId, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session: SessionId) -> Session | None:
        """Return a session that is alive; None: it never was, or is over."""
        return self._sessions.get(session)

    def has_ended(self, session: SessionId) -> bool:
        """Tell whether a session is over, as far back as that is remembered."""
        return session in self._ended

    def restore(
        self, session: SessionId, job: JobId, ttl_s: float, processes: tuple[ProcessRef, ...], now: float
    ) -> Session:
        """Take over a session that a record names: it has one whole time to live to come back."""
        known = self._sessions.get(session)
        if known is None:
            known = Session(session, job, ttl_s, renewed_s=now, alone_since_s=now)
            self._sessions[session] = known
            self._by_job.setdefault(job, set()).add(session)
            self._set_processes(known, processes)
            self._watch(known, now)
            self._timers.set(Timer(None, STARVED, session), now + ttl_s)
        return known

    def renew(self, event: SessionRenewed, now: float) -> Session | Refusal:
        """Open, resume or renew a session."""
        if event.session in self._ended:
            return Refusal(
                RefusalCode.FAILED_PRECONDITION,
                f"session {event.session!r} is over, and its leases with it. Open a new session under a new id.",
            )
        session = self._sessions.get(event.session)
        if session is None:
            session = Session(event.session, event.job, self._settings.session_ttl_s)
            self._sessions[event.session] = session
            self._by_job.setdefault(event.job, set()).add(event.session)
        elif session.job != event.job:
            return Refusal(
                RefusalCode.PERMISSION_DENIED,
                f"session {event.session!r} belongs to job {session.job!r}, not to {event.job!r}; nothing was changed."
                " Open a session of its own for each job.",
            )
        if event.ttl_s > 0:
            session.ttl_s = max(SHORTEST_TTL_S, min(event.ttl_s, self._settings.session_ttl_s))
        if session.stream != event.stream:
            if session.stream is not None:
                self._by_stream.pop(session.stream, None)
            session.stream = event.stream
            self._by_stream[event.stream] = event.session
        session.renewed_s = now
        session.alone_since_s = None
        self._set_processes(session, event.processes)
        self._watch(session, now)
        self._timers.set(Timer(None, STARVED, session.id), now + session.ttl_s)
        return session

    def lose_stream(self, stream: CallId, now: float) -> list[Session]:
        """A stream broke; one that was replaced by a newer means nothing."""
        session = self._of_stream(stream)
        if session is None:
            return []
        session.stream = None
        return self._judge([session], now)

    def close(self, stream: CallId, now: float) -> list[Session]:
        """A client ended its stream by itself."""
        session = self._of_stream(stream)
        if session is None:
            return []
        session.stream = None
        return [self._end(session, now)]

    def context_changed(self, job: JobId, now: float) -> list[Session]:
        """An agent's view of a job's processes changed."""
        return self._judge([self._sessions[name] for name in sorted(self._by_job.get(job, ()))], now)

    def node_changed(self, node: NodeId, now: float) -> list[Session]:
        """An agent is heard again, or not any more."""
        known = self._nodes.get(node)
        jobs = known.jobs() if known is not None else ()
        concerned = [s for s in self._sessions.values() if s.job in jobs or node in s.seen.values()]
        return self._judge(sorted(concerned, key=lambda session: session.id), now)

    def wake(self, session: SessionId, now: float) -> list[Session]:
        """A session's timer is due."""
        known = self._sessions.get(session)
        return self._judge([known], now) if known is not None else []

    def starved_since(self, session: SessionId, now: float) -> float | None:
        """Return since when a living session should have been renewed; None: its time to live is not over."""
        known = self._sessions.get(session)
        due_s = known.renewed_s + known.ttl_s if known is not None else now + 1.0
        return due_s if now >= due_s else None

    # ------------------------------------------------------------ helpers

    def _of_stream(self, stream: CallId) -> Session | None:
        session = self._by_stream.pop(stream, None)
        return self._sessions.get(session) if session is not None else None

    def _set_processes(self, session: Session, processes: tuple[ProcessRef, ...]) -> None:
        session.processes = processes
        self._attest(session)

    def _attest(self, session: Session) -> bool:
        """Note which of a session's processes agents see now; tell whether there is one."""
        is_attested = False
        for process in session.processes:
            node = self._node_of(session, process)
            if node is not None:
                session.seen[process] = node
                is_attested = True
        return is_attested

    def _node_of(self, session: Session, process: ProcessRef) -> NodeId | None:
        """Return the node whose agent attests a process of a session now; None: there is none."""
        own = self._nodes.get(process.node)
        candidates = [own] if own is not None else self._nodes.values()
        return next((node.id for node in candidates if node.has_process(session.job, process)), None)

    def _judge(self, sessions: list[Session], now: float) -> list[Session]:
        ended: list[Session] = []
        for session in sessions:
            is_attested = self._attest(session)
            if session.stream is not None or is_attested:
                session.alone_since_s = None
            elif session.alone_since_s is None:
                session.alone_since_s = now
            if session.alone_since_s is not None and now >= session.alone_since_s + self._patience_s(session):
                ended.append(self._end(session, now))
            else:
                self._watch(session, now)
        return ended

    def _patience_s(self, session: Session) -> float:
        """Return how long a session may be alone: not at all when agents are heard and see none of its processes any
        more, a moment when that is so for those that they have ever seen, else its whole time to live."""
        nodes = [self._nodes.get(node) for node in session.seen.values()]
        if not nodes or not all(node is not None and node.is_connected for node in nodes):
            return session.ttl_s
        if session.seen.keys() >= set(session.processes):
            return 0.0
        return min(session.ttl_s, self._settings.reconnect_grace_s)

    def _watch(self, session: Session, now: float) -> None:
        timer = Timer(None, "session", session.id)
        if session.alone_since_s is not None:
            self._timers.set(timer, session.alone_since_s + self._patience_s(session))
        else:
            self._timers.cancel(timer)

    def _end(self, session: Session, now: float) -> Session:
        del self._sessions[session.id]
        self._by_job[session.job].discard(session.id)
        if not self._by_job[session.job]:
            del self._by_job[session.job]
        self._timers.cancel(Timer(None, "session", session.id))
        self._timers.cancel(Timer(None, STARVED, session.id))
        self._ended[session.id] = now
        while self._ended and next(iter(self._ended.values())) < now - self._settings.outcome_kept_s:
            self._ended.popitem(last=False)
        return session
