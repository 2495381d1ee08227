"""`timeslice watch`: the groups while they change, until Ctrl-C."""

from __future__ import annotations

import contextlib
import importlib.util
import queue
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from timeslice.cli.errors import CommandError
from timeslice.cli.watch_board import Board
from timeslice.cli.watch_feed import Event, Feed, Message, Refused
from timeslice.cli.watch_lines import connection_text, json_line, text_line
from timeslice.orchestrator.client import TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorError

TIMEOUT_S = 10.0
REDRAW_S = 0.1
"""Between two drawings: a group that changes a hundred times a second is still drawn only so often."""
TICK_S = 1.0
"""Ages grow without any event; and a signal is seen at the latest now."""

Messages = queue.SimpleQueue[Message | None]
"""None: only draw again, the terminal has another size."""


def watch(target: str | None, groups: Sequence[str], after_sequence: int, as_json: bool, plain: bool) -> int:
    """Show the groups until Ctrl-C, which comes out as KeyboardInterrupt with the terminal as it was before.

    Raises:
        CommandError: no orchestrator answers at first, it knows no such group, or it does not push events.
        SettingsError: the address is none.
    """
    with TimeSliceOrchestratorClient(target) as client:
        try:
            known = client.list_groups(TIMEOUT_S)
        except OrchestratorError as err:
            raise CommandError(str(err)) from err
        address = client.target
    for group in groups:
        if group not in known:
            raise CommandError(f"there is no group {group!r}; there are: {', '.join(sorted(known)) or 'none'}")
    if not known:
        raise CommandError("there are no groups; start with: timeslice up --group NAME=GPU")
    messages: Messages = queue.SimpleQueue()
    with Feed(address, groups, after_sequence, messages.put):
        if as_json or plain or not sys.stdout.isatty():
            return _write_lines(messages, address, as_json)
        if importlib.util.find_spec("rich") is None:
            print("for a live table install rich: pip install 'timeslice-rl[cli]'", file=sys.stderr)
            return _write_lines(messages, address, as_json)
        return _draw(messages, address)


def _write_lines(messages: Messages, target: str, as_json: bool) -> int:
    while True:
        try:
            # Not for ever: a Ctrl-C in the instant before the wait begins would be seen only with the next event.
            message = messages.get(timeout=TICK_S)
        except queue.Empty:
            continue
        if isinstance(message, Refused):
            raise CommandError(message.text)
        if message is None:
            continue
        if as_json:
            print(json_line(message), flush=True)
        elif isinstance(message, Event):
            print(text_line(message), flush=True)
        else:
            print(f"timeslice watch: {connection_text(message, target)}", file=sys.stderr, flush=True)


def _draw(messages: Messages, target: str) -> int:
    from rich.live import Live

    from timeslice.cli.watch_table import console, screen, table

    terminal = console()
    if terminal is None:
        return _write_lines(messages, target, False)
    board = Board()
    try:
        with (
            _signals(messages),
            Live(console=terminal, screen=True, auto_refresh=False, redirect_stderr=False) as live,
        ):
            while True:
                live.update(screen(board, target, time.time(), terminal.width, terminal.height), refresh=True)
                drawn_at = time.monotonic()
                _hear(board, messages, TICK_S)
                while (rest_s := drawn_at + REDRAW_S - time.monotonic()) > 0:
                    _hear(board, messages, rest_s)
    finally:
        terminal.print(table(board, time.time(), terminal.width))  # The other screen is gone: leave the last state.


def _hear(board: Board, messages: Messages, timeout_s: float) -> None:
    with contextlib.suppress(queue.Empty):
        message = messages.get(timeout=timeout_s)
        if isinstance(message, Refused):
            raise CommandError(message.text)
        if message is not None:
            board.hear(message)


@contextlib.contextmanager
def _signals(messages: Messages) -> Iterator[None]:
    """SIGTERM and SIGHUP leave by an exception, so that the terminal is restored; a new size is drawn at once."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    handlers = {
        signal.SIGTERM: leave,
        signal.SIGHUP: leave,
        signal.SIGWINCH: lambda *_: messages.put(None),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
