"""Workloads that save themselves: what the agent's commands are turned into calls of.

Every call may return an awaitable; whoever makes the call sees to it (`workload.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2

__all__ = [
    "CallbackAdapter",
    "SnapshottableAdapter",
    "VLLMAdapter",
    "WorkloadAdapter",
    "mode_from_name",
    "mode_name",
    "resolve_adapter",
]

OFFLOAD = "offload"
"""Kept in host memory, and copied back."""
DISCARD = "discard"
"""Dropped; the application fills it again after the restore."""

_MODES: dict[str, pb2.SuspendMode] = {OFFLOAD: pb2.SUSPEND_MODE_OFFLOAD, DISCARD: pb2.SUSPEND_MODE_DISCARD}
_NAMES: dict[int, str] = {number: name for name, number in _MODES.items()}

_VLLM_ENGINES = frozenset({"LLM", "AsyncLLMEngine", "AsyncLLM"})
_VLLM_LEVELS = {OFFLOAD: 1, DISCARD: 2}


def mode_from_name(name: str) -> pb2.SuspendMode:
    """The wire's SuspendMode for "offload" or "discard", in upper or lower case.

    Raises:
        ValueError: it is neither.
    """
    try:
        return _MODES[name.lower()]
    except KeyError:
        known = " or ".join(map(repr, _MODES))
        raise ValueError(f"there is no mode {name!r}; a workload is saved by {known}") from None


def mode_name(mode: int) -> str:
    """"offload" or "discard" for the wire's SuspendMode.

    Raises:
        ValueError: it is neither (SUSPEND_MODE_UNSPECIFIED, or a newer one).
    """
    try:
        return _NAMES[mode]
    except KeyError:
        raise ValueError(f"suspend mode {mode} is not known here; known are {', '.join(_NAMES.values())}") from None


class WorkloadAdapter(ABC):
    """What is asked of a workload. An exception from a call means that nothing has changed."""

    name: str = "workload"
    supported_modes: tuple[str, ...] = (OFFLOAD, DISCARD)
    default_mode: str = OFFLOAD
    tags: tuple[str, ...] = ()
    """What the workload holds, by names of its own; given with every call, unless the agent names others."""

    @abstractmethod
    def snapshot(self, mode: str, tags: Sequence[str]) -> Any:
        """Take everything off the device; once this has returned, another job may fill it."""

    @abstractmethod
    def restore(self, tags: Sequence[str]) -> Any:
        """Bring everything back onto the device."""


class CallbackAdapter(WorkloadAdapter):
    """Two functions: `on_snapshot(mode, tags)` and `on_restore(tags)`."""

    name = "callbacks"

    def __init__(self, on_snapshot: Callable[..., Any], on_restore: Callable[..., Any]) -> None:
        self._on_snapshot, self._on_restore = on_snapshot, on_restore

    def snapshot(self, mode: str, tags: Sequence[str]) -> Any:
        return self._on_snapshot(mode, list(tags))

    def restore(self, tags: Sequence[str]) -> Any:
        return self._on_restore(list(tags))


class SnapshottableAdapter(WorkloadAdapter):
    """An object with `snapshot(mode, tags)` and `restore(tags)`.

    Its own `supported_modes`, `default_mode` and `tags` count, where it has them.
    """

    name = "snapshottable"

    def __init__(self, obj: Any) -> None:
        self._workload = obj
        self.supported_modes = tuple(getattr(obj, "supported_modes", None) or self.supported_modes)
        first = OFFLOAD if OFFLOAD in self.supported_modes else self.supported_modes[0]
        self.default_mode = getattr(obj, "default_mode", None) or first
        self.tags = tuple(getattr(obj, "tags", None) or ())

    def snapshot(self, mode: str, tags: Sequence[str]) -> Any:
        return self._workload.snapshot(mode, list(tags))

    def restore(self, tags: Sequence[str]) -> Any:
        return self._workload.restore(list(tags))


class VLLMAdapter(WorkloadAdapter):
    """A vLLM engine that was made with enable_sleep_mode=True, blocking or asyncio.

    Level 1 keeps the weights in host memory, level 2 drops them; the KV cache is dropped by both.
    Source: vLLM documentation, "Sleep Mode": sleep(level), wake_up(tags) with tags "weights" and "kv_cache".
    """

    name = "vllm"
    tags = ("weights", "kv_cache")

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def snapshot(self, mode: str, tags: Sequence[str]) -> Any:
        """Sleep. The engine drops or keeps all that it has, whatever the tags."""
        return self._engine.sleep(level=_VLLM_LEVELS[mode])

    def restore(self, tags: Sequence[str]) -> Any:
        """Wake up what the tags name; everything, if they name nothing."""
        return self._engine.wake_up(tags=list(tags) or None)


def resolve_adapter(
    workload: Any = None,
    on_snapshot: Callable[..., Any] | None = None,
    on_restore: Callable[..., Any] | None = None,
) -> WorkloadAdapter:
    """How a workload is saved: by callbacks, as a vLLM engine, or by its own snapshot and restore.

    An adapter of one's own (a WorkloadAdapter) is taken as it is.

    Raises:
        ValueError: one callback without the other, or callbacks besides a workload.
        TypeError: nothing is given that could be called.
    """
    if on_snapshot is not None or on_restore is not None:
        if workload is not None:
            raise ValueError("either a workload or callbacks: with both nobody can tell which of them counts")
        if on_snapshot is None or on_restore is None:
            missing = "on_snapshot" if on_snapshot is None else "on_restore"
            raise ValueError(f"{missing} is missing: what is taken off the device must be brought back, and vice versa")
        if not callable(on_snapshot) or not callable(on_restore):
            raise TypeError("on_snapshot and on_restore must be callable")
        return CallbackAdapter(on_snapshot, on_restore)
    if isinstance(workload, WorkloadAdapter):
        return workload
    if _is_vllm_engine(workload):
        return VLLMAdapter(workload)
    if callable(getattr(workload, "snapshot", None)) and callable(getattr(workload, "restore", None)):
        return SnapshottableAdapter(workload)
    raise TypeError(
        f"{type(workload).__name__} cannot be saved by itself: it is no vLLM engine and has no snapshot(mode, tags) and"
        " restore(tags); give it these methods, or pass on_snapshot and on_restore"
    )


def _is_vllm_engine(workload: Any) -> bool:
    """By name, so that nothing of vLLM is imported; subclasses count."""
    return any(
        cls.__name__ in _VLLM_ENGINES and cls.__module__.partition(".")[0] == "vllm" for cls in type(workload).__mro__
    )
