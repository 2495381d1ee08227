"""Calls in progress: what the core answers, by the number that the call was given."""

import asyncio
import itertools
from typing import Any

from orchestrator.api.outbox import Outbox
from orchestrator.core.types import CallId, Refusal

SESSION_OUTBOX_LIMIT = 256


class Calls:
    """Numbers calls and streams, and brings the core's answers to them. An answer to a call that is over is dropped."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[CallId, asyncio.Future[Any]] = {}
        self._streams: dict[CallId, Outbox[Any]] = {}

    def open(self) -> tuple[CallId, asyncio.Future[Any]]:
        """A call that waits for one answer: a message, or a Refusal."""
        call = CallId(next(self._numbers))
        answer = self._answers[call] = asyncio.get_running_loop().create_future()
        return call, answer

    def open_stream(self) -> tuple[CallId, Outbox[Any]]:
        """A stream to which messages, or a last Refusal, are sent."""
        stream = CallId(next(self._numbers))
        outbox = self._streams[stream] = Outbox(SESSION_OUTBOX_LIMIT)
        return stream, outbox

    def close(self, call: CallId) -> None:
        self._answers.pop(call, None)
        self._streams.pop(call, None)

    def answer(self, call: CallId, message: Any) -> None:
        """Answer a call, or send on a stream."""
        waiting = self._answers.get(call)
        if waiting is not None:
            if not waiting.done():
                waiting.set_result(message)
        elif call in self._streams:
            self._streams[call].put(message)

    def end_all(self, refusal: Refusal) -> None:
        """End everything in progress with this error."""
        for call in [*self._answers, *self._streams]:
            self.answer(call, refusal)
