"""`timeslice watch`: the table, the lines, and the feed that outlives its orchestrator."""

import io
import json
import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fake_event_log import EPOCH_STEP, TellingOrchestrator
from live import Running
from terminal import OnTerminal
from timeslice.cli.errors import CommandError
from timeslice.cli.group_data import condition_line
from timeslice.cli.watch import watch
from timeslice.cli.watch_board import Board, Cells, age, duration, event_words
from timeslice.cli.watch_feed import Back, Event, Feed, Lost, Refused
from timeslice.cli.watch_lines import json_line, text_line
from timeslice.cli.watch_table import column_widths, screen, table
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

NOW_S = 1_700_000_000.0


def status(state: str = "IDLE", holder: str | None = None, waiters: tuple[str, ...] = (), **more) -> dict:
    return {
        "state": state, "since": NOW_S - 75, "holder": holder, "waiter_queue_depth": len(waiters),
        "waiters": [{"job": job} for job in waiters], "conditions": [], "fencing_token": 5 if holder else None, **more,
    }  # fmt: skip


def event(kind: str = "state", group: str = "trainers", status: dict | None = None, **more) -> Event:
    given = {"sequence": 7, "at_s": NOW_S, "job": "", "node": "", "duration_ms": 0, "detail": "", **more}
    return Event(kind=kind, group=group, status=status, **given)


BLOCKED = {"type": "Blocked", "reason": "job 'a': 20 bytes are missing", "jobs": ["a"], "advice": "End that job."}


# What is shown.


def test_row_shows_who_holds_who_waits_and_what_happened_last():
    board = Board()
    board.hear(event(status=status()))
    board.hear(event("granted", job="b3", duration_ms=1234, status=status("LOCKED", "b3", ("a", "c", "d", "e"))))
    assert board.cells(NOW_S) == [
        Cells("trainers", "LOCKED", "b3", "1 min", "a, c, d +1", "-", "granted b3 (1.2 s)")
    ]
    assert board.problems() == []


def test_job_that_a_switch_is_under_way_to_is_no_holder_yet():
    board = Board()
    board.hear(event(status=status("SWITCHING", "b", fencing_token=None)))
    assert board.cells(NOW_S)[0].holder == "-> b"
    board.hear(event(status=status("SWITCHING", "b", fencing_token=6)))
    assert board.cells(NOW_S)[0].holder == "b"


def test_event_without_a_status_leaves_the_state_as_it_was():
    """The log remembers what happened, not how the group stood."""
    board = Board()
    board.hear(event(status=status("LOCKED", "a")))
    board.hear(event("queued", job="b"))
    [cells] = board.cells(NOW_S)
    assert (cells.state, cells.holder, cells.last) == ("LOCKED", "a", "queued b")


def test_group_that_only_the_log_knows_is_shown_as_unknown():
    board = Board()
    board.hear(event("queued", job="b"))
    assert board.cells(NOW_S) == [Cells("trainers", "?", "-", "-", "-", "-", "queued b")]


def test_conditions_are_named_in_the_row_and_explained_below():
    board = Board()
    board.hear(event(status=status(conditions=[BLOCKED, BLOCKED, {**BLOCKED, "type": "Starved"}])))
    assert board.cells(NOW_S)[0].condition == "Blocked, Starved"
    assert board.problems()[0] == "trainers: Blocked: job 'a': 20 bytes are missing (a); End that job."


def test_advice_names_the_command_for_an_action_of_the_wire():
    advice = "Restart the job's processes, or evict with ACTION_CLEAR_FAULT."
    assert condition_line("pool", {**BLOCKED, "advice": advice}).endswith(
        "; Restart the job's processes, or evict with `timeslice evict clear-fault`."
    )


def test_clock_that_is_behind_the_orchestrators_shows_no_negative_age():
    board = Board()
    board.hear(event(status=status()))
    assert board.cells(NOW_S - 3600)[0].since == "0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0421, "42 ms"), (0.9996, "1000 ms"), (3.14, "3.1 s"), (59.4, "59 s"), (61, "1 min"), (7500, "2 h 5 min"),
     (7200, "2 h"), (200_000, "2 d")],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_age_counts_whole_seconds():
    assert [age(s) for s in (-1, 0.9, 59.9, 60)] == ["0 s", "0 s", "59 s", "1 min"]


def test_words_of_an_event():
    assert event_words(event("snapshot_finished", job="a", node="n1", duration_ms=20)) == (
        "snapshot finished a on n1 (20 ms)"
    )
    assert event_words(event("node_lost", node="n1")) == "node lost on n1"


def test_text_line_is_fit_for_grep():
    line = text_line(event("granted", job="b 3", duration_ms=42, status=status("LOCKED", "b 3", ("a", "c"))))
    assert line == (
        '2023-11-14T22:13:20.000Z trainers granted job="b 3" took=42ms state=LOCKED holder="b 3" queue=a,c'
    )
    line = text_line(event("blocked", detail='no "room"', status=status(conditions=[BLOCKED])))
    assert line.endswith(
        'state=IDLE holder=- queue=- condition="Blocked: job \'a\': 20 bytes are missing" detail="no \\"room\\""'
    )


def test_json_line_has_everything():
    data = json.loads(json_line(event("granted", job="a", duration_ms=4, status=status("LOCKED", "a"))))
    assert data["time"] == "2023-11-14T22:13:20.000Z"
    assert (data["sequence"], data["kind"], data["group"], data["job"]) == (7, "granted", "trainers", "a")
    assert (data["node"], data["duration_ms"], data["status"]["holder"]) == (None, 4, "a")
    assert json.loads(json_line(Lost("refused")))["kind"] == "connection_lost"
    assert json.loads(json_line(Back(1.5)))["duration_ms"] == 1500


def drawn(renderable, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.file.getvalue().splitlines()


def full_board() -> Board:
    board = Board()
    board.hear(event(status=status("IDLE_YIELDED", conditions=[BLOCKED])))
    board.hear(event("granted", "samplers-of-a-long-name", job="run-2026-11-30-b", duration_ms=42,
                     status=status("SWITCHING", "run-2026-11-30-b", ("run-2026-11-30-a", "c"))))  # fmt: skip
    return board


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_table_fits_any_terminal(width):
    lines = drawn(table(full_board(), NOW_S, width), width)
    assert len(lines) == 3, lines  # No cell wraps.
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:2] == ["GROUP", "STATE"]
    if width >= 22:
        assert "IDLE_YIELDED" in lines[1]


def test_columns_are_cut_before_they_are_left_out():
    rows = full_board().cells(NOW_S)
    natural = column_widths(rows, 300)
    total = sum(natural.values()) + 2 * 6
    assert column_widths(rows, total) == natural
    longest = max(natural, key=lambda name: natural[name])
    assert column_widths(rows, total - 3) == {**natural, longest: natural[longest] - 3}
    assert list(column_widths(rows, 76)) == list(natural)
    for width in range(22, 200):
        widths = column_widths(rows, width)
        assert sum(widths.values()) + 2 * (len(widths) - 1) <= width
        assert widths["state"] == len("IDLE_YIELDED")
    assert list(column_widths(rows, 75)) == ["group", "state", "holder", "since", "queue", "condition"]
    assert list(column_widths(rows, 22)) == ["group", "state"]


def test_wide_characters_count_twice():
    board = Board()
    board.hear(event("granted", "訓練用", job="a", status=status()))
    assert column_widths(board.cells(NOW_S), 100)["group"] == 6


def test_wide_terminal_shows_everything_in_full():
    lines = drawn(table(full_board(), NOW_S, 200), 200)
    assert lines[0].split() == ["GROUP", "STATE", "HOLDER", "SINCE", "QUEUE", "CONDITION", "LAST", "EVENT"]
    for text in ("samplers-of-a-long-name", "run-2026-11-30-a, c", "granted run-2026-11-30-b (42 ms)", "Blocked"):
        assert text in "\n".join(lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (30, 8)])
def test_screen_has_problems_and_the_newest_events_and_not_more_lines_than_fit(width, height):
    board = full_board()
    for number in range(300):
        board.hear(event("queued", job=f"j{number}"))
    lines = drawn(screen(board, "unix:/tmp/o.sock", NOW_S, width, height), width)
    assert any("Blocked" in line for line in lines[:height])
    if height > 8:  # A screen that is smaller than that shows the first lines.
        assert len(lines) <= height
        assert "j299" in lines[-1]


def test_screen_says_that_the_orchestrator_is_gone():
    board = full_board()
    board.hear(Lost("Connection refused"))
    assert "does not answer" in drawn(screen(board, "there", NOW_S, 80, 24), 80)[0]
    board.hear(Back(3.0))
    assert "there" in drawn(screen(board, "there", NOW_S, 80, 24), 80)[0]


# The feed.


@pytest.fixture
def orchestrator(short_dir: Path) -> Iterator[TellingOrchestrator]:
    server = TellingOrchestrator(f"unix:{short_dir}/o.sock", "trainers", "samplers")
    server.start()
    yield server
    if server._server is not None:
        server.stop()


class Listener:
    """Follows groups; `next` gives what was heard, in order."""

    def __init__(self, orchestrator: TellingOrchestrator, *groups: str, after: int = 0) -> None:
        self._heard: queue.SimpleQueue = queue.SimpleQueue()
        self.feed = Feed(orchestrator.address, groups, after, self._heard.put)

    def next(self):
        return self._heard.get(timeout=20)

    def next_of(self, kind: type):
        while not isinstance(message := self.next(), kind):
            pass
        return message


def test_state_comes_first_then_what_happens(orchestrator):
    listener = Listener(orchestrator, "trainers")
    with listener.feed:
        assert (first := listener.next()).kind == "state"
        assert (first.status["state"], first.status["since"]) == ("IDLE", 1_700_000_000.0)
        orchestrator.hold("trainers", "a")
        orchestrator.tell("samplers", "queued", "x")
        orchestrator.tell("trainers", "granted", "a", duration_ms=42)
        granted = listener.next()
        assert (granted.kind, granted.job, granted.duration_ms) == ("granted", "a", 42)
        assert (granted.status["state"], granted.status["holder"]) == ("LOCKED", "a")
    orchestrator.wait_until(lambda: orchestrator.watchers == 0)


def test_orchestrator_that_restarts_is_waited_for_and_nothing_is_missed(orchestrator):
    listener = Listener(orchestrator, "trainers")
    with listener.feed:
        listener.next()
        last = orchestrator.tell("trainers", "queued", "b").sequence
        assert listener.next().job == "b"
        orchestrator.stop()
        assert isinstance(listener.next(), Lost)
        orchestrator.start()
        missed = orchestrator.tell("trainers", "granted", "b")
        assert isinstance(listener.next(), Back)
        heard = [listener.next()]
        while heard[-1].kind != "granted":
            heard.append(listener.next())
        assert heard[-1].sequence == missed.sequence == 2 * EPOCH_STEP + 1
        assert orchestrator.seen("WatchGroups")[-1].after_sequence == last


def test_long_outage_is_said_once(orchestrator):
    listener = Listener(orchestrator, "trainers")
    with listener.feed:
        listener.next()
        asked = len(orchestrator.seen("WatchGroups"))
        for _ in range(4):
            orchestrator.fail_next("WatchGroups", "UNAVAILABLE")
        orchestrator.stop()
        orchestrator.start()
        heard = [listener.next_of(Lost)]
        while not isinstance(heard[-1], Back):
            heard.append(listener.next())
        assert [type(m) for m in heard] == [Lost, Back]
        assert len(orchestrator.seen("WatchGroups")) >= asked + 5


def test_reader_that_fell_behind_goes_on_after_what_it_has_seen(orchestrator):
    """The stream ends with RESOURCE_EXHAUSTED; that is no outage."""
    listener = Listener(orchestrator, "trainers", after=5)
    orchestrator.fail_next("WatchGroups", "RESOURCE_EXHAUSTED")
    with listener.feed:
        assert listener.next().kind == "state"
        assert [r.after_sequence for r in orchestrator.seen("WatchGroups")] == [5, 5]


@pytest.mark.parametrize(
    ("code", "text"), [("NOT_FOUND", "no such group"), ("UNIMPLEMENTED", "use timeslice status")]
)
def test_refusal_ends_the_feed(orchestrator, code, text):
    orchestrator.fail_next("WatchGroups", code, "no such group")
    listener = Listener(orchestrator)
    with listener.feed:
        refused = listener.next()
        assert isinstance(refused, Refused)
        assert text in refused.text
    assert len(orchestrator.seen("WatchGroups")) == 1


# The command.


def test_unknown_group_is_refused_with_the_known_ones(orchestrator):
    with pytest.raises(CommandError, match=r"no group 'nowhere'; there are: samplers, trainers"):
        watch(orchestrator.address, ["nowhere"], 0, True, False)


def test_without_an_orchestrator_it_says_where_it_looked(short_dir):
    with pytest.raises(CommandError, match=r"no orchestrator answers at unix:.*/none.sock"):
        watch(f"unix:{short_dir}/none.sock", [], 0, True, False)


@pytest.fixture
def start(orchestrator):
    """Starts `timeslice watch` of the fake, output read through a pipe."""
    started: list[Running] = []

    def start(*arguments: str) -> Running:
        command = ["-m", "timeslice.cli", "watch", "--target", orchestrator.address, *arguments]
        started.append(Running(command, dict(os.environ)))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.end()


def test_lines_through_a_pipe_until_ctrl_c(orchestrator, start):
    command = start("trainers")
    command.wait_for("trainers state state=IDLE")
    orchestrator.tell("trainers", "queued", "b")
    assert "queued job=b state=IDLE" in command.wait_for("queued")
    command.interrupt()
    assert command.end() == 130
    assert command.errors == []


def test_lines_survive_a_restart_and_say_so_on_stderr(orchestrator, start):
    command = start()
    command.wait_for("samplers state")
    orchestrator.stop()
    orchestrator.start()
    command.wait_for("samplers state")
    orchestrator.tell("samplers", "granted", "z")
    command.wait_for("granted job=z")
    command.interrupt()
    assert command.end() == 130
    assert len(command.errors) == 2, command.errors
    lost, back = command.errors
    assert "does not answer" in lost
    assert "answers again" in back
    assert not any("answer" in line for line in command.seen)


def test_json_lines_are_objects_one_each(orchestrator, start):
    command = start("--json")
    for _ in range(2):
        assert json.loads(command.wait_for("{"))["kind"] == "state"
    orchestrator.conditions["trainers"] = [pb2.Condition(type="Blocked", reason="no room")]
    orchestrator.tell("trainers", "blocked", "a", detail="no room")
    blocked = json.loads(command.wait_for("{"))
    assert blocked["status"]["conditions"][0]["type"] == "Blocked"
    orchestrator.stop()
    assert json.loads(command.wait_for("{"))["kind"] == "connection_lost"
    orchestrator.start()
    assert json.loads(command.wait_for("{"))["kind"] == "connection_back"
    command.interrupt()
    assert command.end() == 130
    assert command.errors == []


def test_reader_that_closes_the_pipe_ends_it_in_peace(orchestrator, start):
    command = start("--json")
    command.wait_for("trainers")
    assert command.process.stdout is not None
    # As `| head` does: the reading end is closed, the next line finds nobody.
    os.dup2(os.open(os.devnull, os.O_RDONLY), command.process.stdout.fileno())
    while command.process.poll() is None and orchestrator.watchers:
        orchestrator.tell("trainers", "queued", "b")
    assert command.end() == 0
    assert command.errors == []


SHOWS_CURSOR, LEAVES_SCREEN, ENTERS_SCREEN = "\x1b[?25h", "\x1b[?1049l", "\x1b[?1049h"


@pytest.fixture
def terminal(orchestrator):
    """Starts `timeslice watch` of the fake on a terminal."""
    started: list[OnTerminal] = []

    def start(columns: int = 100, rows: int = 30, *arguments: str) -> OnTerminal:
        command = ["-m", "timeslice.cli", "watch", "--target", orchestrator.address, *arguments]
        started.append(OnTerminal(command, dict(os.environ), columns, rows))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.kill()
            command.end()


def restored(command: OnTerminal) -> bool:
    return (
        command.raw.rindex(SHOWS_CURSOR) > command.raw.rindex("\x1b[?25l")
        and command.raw.rindex(LEAVES_SCREEN) > command.raw.rindex(ENTERS_SCREEN)
        and command.after == command.before
    )


def test_ctrl_c_restores_the_terminal_and_leaves_the_last_state(orchestrator, terminal):
    command = terminal()
    command.wait_for("samplers")
    orchestrator.hold("trainers", "job-a")
    orchestrator.tell("trainers", "granted", "job-a", duration_ms=42)
    command.wait_for("granted job-a (42 ms)")
    command.type("\x03")
    assert command.end() == 130
    assert restored(command)
    left = command.raw[command.raw.rindex(LEAVES_SCREEN) :]
    assert "LOCKED" in left
    assert "Traceback" not in command.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_ends_restore_the_terminal_too(terminal, number):
    command = terminal()
    command.wait_for("samplers")
    command.process.send_signal(number)
    assert command.end() == 128 + number
    assert restored(command)


def test_table_follows_the_size_of_the_terminal(terminal):
    command = terminal(120)
    at = command.wait_for("LAST EVENT")
    command.resize(60, 20)
    at = command.wait_for("QUEUE", at)
    command.type("\x03")
    assert command.end() == 130
    assert "LAST EVENT" not in command.text[at:]


def test_table_says_that_the_orchestrator_is_gone_and_back(orchestrator, terminal):
    command = terminal()
    command.wait_for("samplers")
    orchestrator.stop()
    at = command.wait_for("does not answer")
    orchestrator.start()
    command.wait_for("timeslice watch", at)
    command.type("\x03")
    assert command.end() == 130


def test_refusal_on_a_terminal_restores_it_and_is_one_line(orchestrator, terminal):
    orchestrator.fail_next("WatchGroups", "PERMISSION_DENIED", "not for you")
    command = terminal()
    assert command.end() == 1
    assert restored(command)
    assert "timeslice watch: not for you" in command.text


def test_plain_lines_on_a_terminal(terminal):
    command = terminal(100, 30, "--plain")
    command.wait_for("samplers state state=IDLE")
    command.type("\x03")
    assert command.end() == 130
    assert ENTERS_SCREEN not in command.raw


def test_without_rich_there_are_lines_and_a_hint(orchestrator):
    without_rich = "import sys; sys.modules['rich'] = None; from timeslice.cli.main import run; run()"
    command = OnTerminal(["-c", without_rich, "watch", "--target", orchestrator.address], dict(os.environ))
    try:
        command.wait_for("pip install 'timeslice-rl[cli]'")
        command.wait_for("samplers state state=IDLE")
        command.type("\x03")
        assert command.end() == 130
        assert ENTERS_SCREEN not in command.raw
    finally:
        command.kill()
