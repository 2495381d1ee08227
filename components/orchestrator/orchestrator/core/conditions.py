"""What an operator or a user should know about a group: computed when somebody asks, told when it begins and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.nodes import UNEXPLAINED, is_unexplained
from orchestrator.core.sessions import Sessions
from orchestrator.core.site import Site
from orchestrator.core.types import Condition, ConditionKind, ContextState, JobId, NodeId

if TYPE_CHECKING:
    from orchestrator.core.group import Group

TOLD = {
    ConditionKind.STARVED: ("starved", "starvation_ended"),
    ConditionKind.UNEXPLAINED: ("unexplained", "explained"),
    ConditionKind.STORE_UNAVAILABLE: ("store_failed", "store_recovered"),
    ConditionKind.OVERLAP: ("overlapped", "overlap_ended"),
    ConditionKind.MISCONFIGURED: ("misconfigured", "configured"),
}
"""By which words of the event log these begin and end. The others come with what the group does."""


@dataclass(frozen=True, slots=True)
class Sign:
    """That a condition stands, as it is told: of which job, on which node, and which of several of its kind it is."""

    kind: ConditionKind
    job: JobId | None = None
    node: NodeId | None = None
    subject: str = ""


class Standing:
    """The conditions of one group that come and go by themselves: told when they begin, and when they end."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._present: dict[Sign, str] = {}
        self._unreachable: set[NodeId] = set()
        self.mismatch: str | None = None
        """How the configured accelerators differ from what the agents say; None: not at all."""

    def update(self, present: dict[Sign, str]) -> None:
        """Tell what is new and what is over; `present` gives each its words."""
        if present == self._present:
            return
        for sign in present:
            if sign not in self._present:
                self._site.publish(TOLD[sign.kind][0], sign.job, sign.node, detail=present[sign])
        for sign in self._present:
            if sign not in present:
                self._site.publish(TOLD[sign.kind][1], sign.job, sign.node, detail=sign.subject)
        self._present = present

    def tell_silence(self, now: float) -> None:
        """Say once that a node has become unreachable: status shows it, and whoever watches should not have to ask."""
        silent = {node.id for node in self._site.nodes if self._site.silence_since(node, now) is not None}
        for node in sorted(silent - self._unreachable):
            self._site.publish("node_unreachable", node=node)
        for node in sorted(self._unreachable - silent):
            self._site.publish("node_reachable", node=node)
        self._unreachable = silent

    def watch_unheard_nodes(self, now: float) -> None:
        """A node that was never heard becomes unreachable, too."""
        for node in self._site.nodes:
            due_s = node.since_s + self._site.settings.unreachable_after_s
            if not node.is_connected and due_s > now:
                self._site.look_at(due_s, f"silence/{node.id}")

    def compare_accelerators(self) -> None:
        """Note how the configured accelerators differ from what the agents say, once all have said it."""
        site = self._site
        configured = {f"{node}/{accelerator}" for node, accelerator in site.config.accelerators}
        choosing = {node for node, _ in site.config.accelerators}
        # A node for which none is named gives all that it has.
        told = [
            f"{node.id}/{view.accelerator}"
            for node in site.nodes if node.id in choosing
            for view in node.accelerators_of(site.group)]
        self.mismatch = None
        if not site.nodes:
            self.mismatch = "no node is in the group"
        elif configured and site.is_known and configured != set(told):
            self.mismatch = (
                f"configured are {', '.join(sorted(configured))}; the agents say {', '.join(told) or 'none'}"
            )


def standing(group: Group, sessions: Sessions, now: float) -> dict[Sign, str]:
    """Return the conditions that nothing else tells of. Called after every event of the group, so it does not look at
    every context."""
    present: dict[Sign, str] = {}
    if group.overlap is not None:
        present[Sign(ConditionKind.OVERLAP)] = group.overlap
    if group.standing.mismatch is not None:
        present[Sign(ConditionKind.MISCONFIGURED)] = group.standing.mismatch
    if group.ledger.failure is not None:
        present[Sign(ConditionKind.STORE_UNAVAILABLE)] = group.ledger.failure
    for node, job in group.site.unexplained:
        present[Sign(ConditionKind.UNEXPLAINED, job, node)] = UNEXPLAINED
    holding = group.holding
    for session in holding.lease.holders if holding is not None else ():
        if holding is not None and session is not None and sessions.starved_since(session, now) is not None:
            words = f"session {session!r} is not renewed; its lease stands"
            present[Sign(ConditionKind.STARVED, holding.lease.job, subject=f"session {session!r}")] = words
    return present


def conditions(group: Group, sessions: Sessions, now: float) -> tuple[Condition, ...]:
    """Return what an operator or a user should know about a group now."""
    site = group.site
    found: list[Condition] = []
    if group.overlap is not None:
        found.append(Condition(ConditionKind.OVERLAP, group.overlap, group.first_seen_s, (),
                               "Give each accelerator to one group."))
    blocked = group.switch.blocked if group.switch is not None else None
    if blocked is not None:
        found.append(
            Condition(
                ConditionKind.BLOCKED,
                f"job {blocked.job!r}: {blocked.reason}"
                + (f"; {blocked.missing_bytes} bytes are missing" if blocked.missing_bytes else ""),
                site.blocked_since.get(blocked.job, now),
                (blocked.job,),
                "Yield and end that job, or evict it with ACTION_KILL; its next turn is not affected by waiting.",
            )
        )
    for job, since_s in sorted(group.intruders.items()):
        reason, advice = f"job {job!r} uses the device without the lease; it is locked", ""
        if not site.is_enforced(job):
            reason = f"job {job!r} registered as being on the device without the lease; nothing but itself can lock it"
            advice = " It is taken off before another job is granted. Let it register within its first turn."
        found.append(Condition(ConditionKind.INTRUDER, reason, since_s, (job,),
                               f"Let the job acquire the group before it touches the device.{advice}"))
    for job, reason in sorted(site.faults.items()):
        found.append(Condition(ConditionKind.FAULTED, f"job {job!r}: {reason}", since(group), (job,),
                               "End its processes and start them anew, or evict with ACTION_CLEAR_FAULT."))
    for node in site.nodes:
        silent_s = group.site.silence_since(node, now)
        if silent_s is not None:
            reason = node.disconnect_reason if not node.is_connected else "its agent leaves calls unanswered"
            found.append(Condition(ConditionKind.UNREACHABLE, f"node {node.id!r}: {reason}", silent_s, (),
                                   "Look at the agent there; if the node is gone for good, ACTION_FORGET_NODE."))
        for job, context in sorted(node.contexts(group.id).items()):
            if is_unexplained(context):
                found.append(Condition(ConditionKind.UNEXPLAINED, f"node {node.id!r}, job {job!r}: {context.reason}",
                                       node.since_s, (job,),
                                       "Restart the job's processes, or evict with ACTION_CLEAR_FAULT."))
            elif context.state is ContextState.TRANSITIONING and (node.id, job) in site.indeterminate:
                error = site.indeterminate[(node.id, job)]
                found.append(Condition(ConditionKind.INDETERMINATE, f"node {node.id!r}, job {job!r}: {error}",
                                       since(group), (job,),
                                       "Nothing can be done before the driver answers, except to end the processes."))
    for (killed_on, job), (since_s, error) in sorted(site.kill_failures.items()):
        found.append(Condition(ConditionKind.KILL_FAILED,
                               f"job {job!r} was to be killed on node {killed_on!r} and was not: {error}",
                               since_s, (job,), "End its processes on that node by hand."))
    if group.ledger.failure is not None:
        found.append(Condition(ConditionKind.STORE_UNAVAILABLE, group.ledger.failure, since(group), (),
                               "No new lease before the store takes records again; it is tried all the time."))
    holding = group.holding
    for session in holding.lease.holders if holding is not None else ():
        starved_s = sessions.starved_since(session, now) if session is not None else None
        if holding is not None and starved_s is not None:
            found.append(Condition(ConditionKind.STARVED, f"session {session!r} is not renewed", starved_s,
                                   (holding.lease.job,), "The client's threads get no time; its lease stands."))
    if group.standing.mismatch is not None:
        found.append(Condition(ConditionKind.MISCONFIGURED, group.standing.mismatch, group.first_seen_s, (),
                               "Correct the group's nodes and accelerators: --agent here and --group at the agent; in a"
                               " cluster, labels of nodes and the TimeSliceGroup's spec."))
    return tuple(found)


def since(group: Group) -> float:
    """Return when a lease was last granted, put in place or ended, or a switch last begun or ended."""
    return max(group.leases.changed_s, group.switched_s)
