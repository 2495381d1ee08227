"""What an agent without memory says of a context, held against what it said before.

Such an agent shows every job as idle when it has started anew, whatever stands on the device or in host memory. Being
idle is believed only where that can be true.
"""

from dataclasses import replace

from orchestrator.core.nodes import UNEXPLAINED
from orchestrator.core.types import ContextState, ContextView, GroupId, JobId

Context = tuple[JobId, GroupId]

DOUBT_S = 3.0
"""How long a context that was on the device must be shown as idle until that is believed. An agent that starts anew
finds out who uses the device by sampling, llm-d's once a second."""


class Doubts:
    """One agent's contexts. Times are seconds of a monotonic clock."""

    def __init__(self, doubt_s: float = DOUBT_S) -> None:
        self._doubt_s = doubt_s
        self._before: dict[Context, ContextState] = {}
        self._idle_since: dict[Context, float] = {}
        self._in_the_dark: set[Context] = set()

    def operation_lost(self, context: Context) -> None:
        """An operation on it was begun, and nobody can tell how it ended: it may be saved."""
        self._in_the_dark.add(context)

    def gone(self, context: Context) -> None:
        """The agent does not know it any more."""
        self._forget(context)
        self._in_the_dark.discard(context)

    def judge(self, view: ContextView, now: float) -> ContextView:
        """Return what is to be believed of a context of which the agent says this.

        One that may be saved is unexplained: the core keeps it so until something explains it.
        """
        context = (view.job, view.group)
        if view.state is not ContextState.IDLE:
            self._before[context] = view.state
            self._idle_since.pop(context, None)
            if view.state is not ContextState.TRANSITIONING:
                self._in_the_dark.discard(context)
            return view
        if context in self._in_the_dark:
            self._in_the_dark.discard(context)
            self._forget(context)
            return replace(view, state=ContextState.TRANSITIONING, reason=UNEXPLAINED)
        if self._before.get(context) in (ContextState.RUNNING, ContextState.TRANSITIONING):
            since_s = self._idle_since.setdefault(context, now)
            if now - since_s < self._doubt_s:
                reason = "its agent shows it as idle of a sudden: it may have started anew, and is asked again"
                return replace(view, state=ContextState.TRANSITIONING, reason=reason)
        self._forget(context)
        return view

    def _forget(self, context: Context) -> None:
        self._before.pop(context, None)
        self._idle_since.pop(context, None)
