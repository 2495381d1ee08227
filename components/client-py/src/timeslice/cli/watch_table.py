"""The live table of `timeslice watch`, drawn with rich. Import it only where rich is installed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from timeslice.cli.watch_board import Board, Cells, event_words
from timeslice.cli.watch_feed import Event

_STATE_STYLES = {
    "LOCKED": "bold green",
    "SWITCHING": "bold cyan",
    "IDLE": "dim",
    "IDLE_YIELDED": "dim",
    "UNKNOWN": "bold yellow",
}
_HEADINGS = {
    "group": "GROUP",
    "state": "STATE",
    "holder": "HOLDER",
    "since": "SINCE",
    "queue": "QUEUE",
    "condition": "CONDITION",
    "last": "LAST EVENT",
}
"""By the name of the cell, in the order in which they stand."""
_SHORTEST = {"group": 8, "holder": 8, "queue": 8, "condition": 9, "last": 14}
"""What names and sentences may be cut to, in columns of the terminal; state and age are never cut."""
_FIRST_TO_GO = ("last", "condition", "queue", "since", "holder")
"""Where not even that fits. What is wrong, and what happened, stands below the table too."""
_GAP = 2


def screen(board: Board, target: str, now_s: float, width: int, height: int) -> RenderableType:
    """The whole screen; `now_s` in seconds since 1970."""
    head = Text(f"timeslice watch  {target}", style="bold", no_wrap=True, overflow="ellipsis")
    if board.lost is not None:
        lost = f"the orchestrator does not answer, trying again; what follows is old ({board.lost})"
        head = Text(lost, style="bold red", no_wrap=True, overflow="ellipsis")
    parts: list[RenderableType] = [head, Text(), table(board, now_s, width)]
    taken = 2 + 1 + len(board.rows)
    problems = [Text(problem, style="yellow") for problem in board.problems()]
    if problems:
        parts += [Text(), *problems]
        taken += 1 + sum(-(-len(problem) // width) for problem in problems)
    room = height - taken - 2
    if room > 0 and board.events:
        parts += [Text(), *(_event_line(event) for event in list(board.events)[-room:])]
    return Group(*parts)


def table(board: Board, now_s: float, width: int) -> Table:
    """The groups, with as many columns as the terminal has room for."""
    rows = board.cells(now_s)
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    widths = column_widths(rows, width)
    for name, columns in widths.items():
        drawn.add_column(_HEADINGS[name], no_wrap=True, overflow="ellipsis", width=columns)
    for cells in rows:
        drawn.add_row(*(Text(getattr(cells, name), style=_style(cells, name)) for name in widths))
    return drawn


def column_widths(rows: Sequence[Cells], width: int) -> dict[str, int]:
    """The columns that fit, with their widths: first the longest names are cut, then whole columns are left out."""
    widths = {
        name: max(len(heading), *(cell_len(getattr(cells, name)) for cells in rows), 0)
        for name, heading in _HEADINGS.items()
    }
    going = list(_FIRST_TO_GO)
    while (excess := sum(widths.values()) + _GAP * (len(widths) - 1) - width) > 0:
        spare = {name: widths[name] - least for name, least in _SHORTEST.items() if name in widths}
        if sum(max(0, columns) for columns in spare.values()) >= excess:
            widths[max(spare, key=lambda name: (spare[name] > 0, widths[name]))] -= 1
        elif going:
            del widths[going.pop(0)]
        else:
            break
    return widths


def console() -> Console | None:
    """Where to draw; None: stdout is no terminal that can be drawn on."""
    found = Console(highlight=False)
    return found if found.is_terminal and not found.is_dumb_terminal else None


def _style(cells: Cells, name: str) -> str:
    if name == "state":
        return _STATE_STYLES.get(cells.state, "")
    if name == "condition" and cells.condition != "-":
        return "bold yellow"
    return ""


def _event_line(event: Event) -> Text:
    at = datetime.fromtimestamp(event.at_s).strftime("%H:%M:%S")
    detail = f": {event.detail}" if event.detail else ""
    return Text(f"{at}  {event.group}  {event_words(event)}{detail}", style="dim", no_wrap=True, overflow="ellipsis")
