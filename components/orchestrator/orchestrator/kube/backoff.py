"""Pauses between attempts that failed: longer each time, with jitter, so that many clients do not come back at once."""

import random


class Backoff:
    """Pauses that double from `first_s` to `last_s`, each times a random number from a half to one."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s, self._last_s = first_s, last_s
        self._next_s = first_s

    @property
    def is_fresh(self) -> bool:
        """No attempt has failed since the last progress."""
        return self._next_s == self._first_s

    def next(self) -> float:
        """The next pause, in seconds."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._last_s)
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Progress was made: start over."""
        self._next_s = self._first_s
