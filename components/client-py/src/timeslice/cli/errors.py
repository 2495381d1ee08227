"""What ends a command: one line for the user, and the exit code."""

from __future__ import annotations

BAD_INPUT = 2
FAILED = 1


class CommandError(Exception):
    """The command cannot go on. The text says what happened and what to do, in one line."""

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(" ".join(text.split()))
        self.exit_code = exit_code
