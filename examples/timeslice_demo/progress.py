"""What one sees while the demo runs: on a terminal one line that is drawn anew, elsewhere a line per finished step."""

import sys
import time
from typing import TextIO

from timeslice_demo.job_events import EventKind, JobEvent

_SHORT = {"generate": "generating", "train": "training", "sync": "syncing weights"}


class Progress:
    """Listens to the jobs' events; call `headline` when a new part begins and `end` before anything else is printed."""

    def __init__(self, steps: int, out: TextIO = sys.stdout) -> None:
        self._steps, self._out = steps, out
        self._is_live = out.isatty()
        self._began = time.monotonic()
        self._doing: dict[str, str] = {}
        self._drawn = ""

    def headline(self, text: str) -> None:
        self.end()
        print(f"[{self._elapsed():5.1f} s] {text}", file=self._out, flush=True)

    def event(self, job: str, event: JobEvent) -> None:
        details = event.details
        match event.kind:
            case EventKind.ASKED:
                self._doing[job] = f"waits for the {details['pool']} pool"
            case EventKind.PHASE_BEGAN:
                self._doing[job] = f"{_SHORT[details['phase']]} (step {details['step'] + 1})"
            case EventKind.REWARD:
                self._step(job, details["step"], details["reward"])
            case EventKind.MEMORY_CHANGED:
                self._line(f"{job}: the {details['pool']}'s device memory has changed: {', '.join(details['arrays'])}")
            case EventKind.FINISHED:
                self._doing[job] = "done"
                self._line(f"{job}: done")
        self._draw()

    def end(self) -> None:
        """Clear the live line."""
        if self._drawn:
            print("\r" + " " * len(self._drawn) + "\r", end="", file=self._out, flush=True)
            self._drawn = ""

    def _step(self, job: str, step: int, reward: float) -> None:
        bar = "#" * round(reward * 20)
        self._line(f"{job}: step {step + 1}/{self._steps}  reward {reward:.3f} {bar}")

    def _line(self, text: str) -> None:
        self.end()
        print(f"[{self._elapsed():5.1f} s]   {text}", file=self._out, flush=True)

    def _draw(self) -> None:
        if not self._is_live:
            return
        text = " | ".join(f"{job}: {doing}" for job, doing in sorted(self._doing.items()))[:110]
        if text == self._drawn:
            return
        self.end()
        self._drawn = text
        print(text, end="", file=self._out, flush=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
