"""Progress for people, on stderr: what is being done, and how long each step took."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator


def say(text: str) -> None:
    """One line, with the time of day, so that a log tells what took long."""
    print(f"{time.strftime('%H:%M:%S')} kind: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Say what begins and, unless it fails, how long it took."""
    say(f"{text} ...")
    began = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - began:.0f} s")
