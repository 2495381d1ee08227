"""What to do next on one node: a pure function of what is observed there and of where the switch is going."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from orchestrator.core.types import ContextState, ContextView, JobId


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock a context in place."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Save:
    """Take a context off the device."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Bring:
    """Bring a context back, locked; with `after`, as soon as that job's snapshot is complete."""

    job: JobId
    after: JobId | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A context is between two states: nothing else may happen to it, or in its place, before it is out of them."""

    job: JobId


Step = Lock | Save | Bring | Wait


def barrier_steps(
    contexts: Mapping[JobId, ContextView], jobs: Collection[JobId], unseen: Collection[JobId] = ()
) -> list[Step]:
    """Return what is left to do until none of `jobs` can touch this node's accelerators.

    `unseen` jobs may use them although they are said to have nothing there: a lock makes the agent look.
    """
    steps: list[Step] = []
    for job in jobs:
        context = contexts.get(job)
        if context is None:
            continue
        if context.state is ContextState.TRANSITIONING:
            steps.append(Wait(job))
        elif (context.state is ContextState.RUNNING and not context.locked and context.can_be_locked) or (
            context.state is ContextState.IDLE and job in unseen
        ):
            steps.append(Lock(job))
    return steps


def forward_steps(
    unsaved: Mapping[JobId, ContextView],
    target: JobId | None,
    own: ContextView | None,
    staying: Collection[JobId],
    unseen: Collection[JobId] = (),
) -> list[Step]:
    """Return what is left to do until `target` is in place (or absent) and all others are saved, or locked if
    `staying`. Empty: nothing, this node is ready.

    `unsaved` are the contexts that are not saved, `own` is the target's, whatever its state.

    `unseen` jobs may have come onto the device since their context was last looked at: they are saved although they
    are said to have nothing there, which makes the agent look.
    """
    steps: list[Step] = []
    for job, context in unsaved.items():
        if job == target:
            continue
        if context.state is ContextState.TRANSITIONING:
            steps.append(Wait(job))
        elif context.state is ContextState.RUNNING:
            if job not in staying:
                steps.append(Save(job))
            elif not context.locked:
                steps.append(Lock(job))
        elif context.state is ContextState.IDLE and job in unseen:
            steps.append(Save(job))
    if own is None or target is None:
        return steps
    if own.state is ContextState.TRANSITIONING:
        steps.append(Wait(target))
    elif own.state is ContextState.SAVED:
        match steps:
            case []:
                steps.append(Bring(target))
            case [Save(job)]:
                steps.append(Bring(target, after=job))
            case _:
                pass  # several contexts have to go first: brought when they have
    return steps


def repair_steps(contexts: Mapping[JobId, ContextView], torn: JobId, in_the_way: Collection[JobId]) -> list[Step]:
    """Return what is left to do until `torn` is on the device, locked; `in_the_way` is saved for it first."""
    context = contexts.get(torn)
    if context is None:
        return []
    match context.state:
        case ContextState.TRANSITIONING:
            return [Wait(torn)]
        case ContextState.RUNNING:
            return [] if context.locked or not context.can_be_locked else [Lock(torn)]
        case ContextState.IDLE | ContextState.FAULTED:
            return []
        case ContextState.SAVED:
            steps: list[Step] = []
            for job in in_the_way:
                other = contexts.get(job)
                if other is not None and other.state is ContextState.TRANSITIONING:
                    steps.append(Wait(job))
                elif other is not None and other.state is ContextState.RUNNING:
                    steps.append(Save(job))
            return steps or [Bring(torn)]
