"""How a context may be saved, in names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Backend(StrEnum):
    CUDA = "cuda"
    """By the driver, process by process."""
    APP_CHANNEL = "app_channel"
    """By the job itself, which is told to over the channel that it registered on."""


class Mode(StrEnum):
    OFFLOAD = "offload"
    """Kept in host memory; the restore copies it back."""
    DISCARD = "discard"
    """Dropped; the application fills it again after the restore."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request says of how; what it leaves open, the context's registration decides."""

    backend: Backend
    mode: Mode | None = None
    tags: tuple[str, ...] = ()
