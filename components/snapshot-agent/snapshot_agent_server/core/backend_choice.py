"""Which backend does what a request asks for: the one that it names, else the context's own."""

from __future__ import annotations

from collections.abc import Iterable

from snapshot_agent_server.core.contexts import Context
from snapshot_agent_server.core.ids import ContextKey
from snapshot_agent_server.core.modes import Backend, Wish
from snapshot_agent_server.core.operations import Kind
from snapshot_agent_server.core.outcomes import DriverState
from snapshot_agent_server.core.workloads import Workload, WorkloadState


def choose(
    kind: Kind, contexts: Iterable[tuple[ContextKey, Context | None]], wish: Wish | None
) -> tuple[Backend, str]:
    """The backend, and why it cannot be done (then with what to do instead), or empty."""
    chosen: dict[Backend, ContextKey] = {}
    for key, context in contexts:
        backend, objection = _of_context(kind, key, context, wish)
        if objection:
            return backend, objection
        chosen[backend] = key
    if len(chosen) > 1:
        named = " and ".join(f"{key} by {backend}" for backend, key in chosen.items())
        return Backend.CUDA, f"the job's contexts here are saved in different ways ({named}); name the group"
    return next(iter(chosen), Backend.CUDA), ""


def _of_context(kind: Kind, key: ContextKey, context: Context | None, wish: Wish | None) -> tuple[Backend, str]:
    workload = context.workload if context is not None else None
    if context is None or workload is None:
        if wish is not None and wish.backend is Backend.APP_CHANNEL:
            return Backend.APP_CHANNEL, (
                f"context {key} has no workload that saves itself; register one with callbacks"
                " (WorkloadChannel with capabilities), or leave backend_config out"
            )
        return Backend.CUDA, ""
    if kind is Kind.LOCK:
        return Backend.APP_CHANNEL, ""
    if kind is Kind.UNLOCK:
        return Backend.CUDA, ""  # if the driver has locked processes of it, the driver unlocks them
    is_saved_by_driver = DriverState.CHECKPOINTED in context.states()
    default = Backend.CUDA if is_saved_by_driver else Backend.APP_CHANNEL
    backend = wish.backend if wish is not None else default
    if backend is Backend.CUDA:
        return backend, _driver_objection(key, context, workload)
    return backend, _workload_objection(kind, context, workload, wish, is_saved_by_driver)


def _driver_objection(key: ContextKey, context: Context, workload: Workload) -> str:
    if not context.processes:
        return (
            f"context {key} has registered callbacks and no processes, so the driver can do nothing with it;"
            " leave backend_config out, or register its pids too"
        )
    if workload.state is WorkloadState.SAVED or workload.command is not None:
        return f"context {key} was saved by its own callbacks (app_channel), and only they can restore it"
    return ""


def _workload_objection(
    kind: Kind, context: Context, workload: Workload, wish: Wish | None, is_saved_by_driver: bool
) -> str:
    key = context.key
    if is_saved_by_driver:
        return f"context {key} was saved by the driver (cuda), and only it can restore it"
    if DriverState.LOCKED in context.states():
        return f"processes of context {key} are locked by the driver, so its callbacks would hang; unlock it first"
    mode = wish.mode if wish is not None else None
    if kind is Kind.SNAPSHOT and mode is not None and mode not in workload.modes:
        supported = ", ".join(workload.modes)
        return f"the workload of context {key} cannot be suspended by mode {mode}; it supports {supported}"
    return ""
