"""Why a call was refused. Nothing was changed then, unless the kind says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RefusalKind(StrEnum):
    STALE = "stale"
    UNKNOWN_GROUP = "unknown group"
    UNKNOWN_CONTEXT = "unknown context"
    UNKNOWN_OPERATION = "unknown operation"
    OTHER_OPERATION = "the operation id names something else"
    REPLACED = "another one took its place"
    UNSUPPORTED = "this context cannot be saved that way"
    BAD_PROCESS = "bad process"
    PROCESS_TAKEN = "process taken"
    WRONG_USER = "wrong user"
    TIMED_OUT = "timed out, rolled back"
    NOT_DONE = "not done, rolled back"
    INDETERMINATE = "the driver did not say"
    CLOSING = "the agent is closing"


@dataclass(frozen=True, slots=True)
class Refusal:
    kind: RefusalKind
    text: str
    """What happened, to what, what to do next."""
