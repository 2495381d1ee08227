"""Log lines: one JSON object each, written soon but not on the way to an answer."""

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from orchestrator import logs


@pytest.fixture(autouse=True)
def stdout_log() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.set_up("info")
    yield
    root.handlers[:], root.level = handlers, level


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_has_its_time_its_message_and_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.say("group g: granted, 100 % sure\nof it", group="g", job=None, token=7)
    logs.say("beware", level=logging.WARNING)
    logs.LOG.debug("too much")
    first, second = lines(capsys.readouterr().out)
    assert datetime.fromisoformat(str(first.pop("t"))).utcoffset() == timedelta(0)
    assert first == {"msg": "group g: granted, 100 % sure\nof it", "group": "g", "token": 7}
    assert (second["level"], second["msg"]) == ("warning", "beware")


def test_an_exception_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logs.LOG.exception("it failed")
    [line] = lines(capsys.readouterr().out)
    assert (line["level"], line["msg"]) == ("error", "it failed")
    assert "RuntimeError: broken" in str(line["exception"])


async def test_while_a_loop_runs_lines_are_written_a_little_later_and_in_order(
    capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(3):
        logs.say(f"line {n}")
    assert capsys.readouterr().out == ""
    written = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * logs.DELAY_S, written.set)
    await written.wait()
    assert [line["msg"] for line in lines(capsys.readouterr().out)] == ["line 0", "line 1", "line 2"]
    logs.say("next to last")
    logs.say("beware", level=logging.WARNING)
    assert [line["msg"] for line in lines(capsys.readouterr().out)] == ["next to last", "beware"]
    logs.say("last")
    logs.flush()
    assert [line["msg"] for line in lines(capsys.readouterr().out)] == ["last"]


async def test_words_that_are_made_later_say_when_it_happened(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("info")  # pytest listens besides, since the fixture ran
    made: list[str] = []

    def words() -> str:
        made.append("words")
        return "it happened"

    before = datetime.now().astimezone()
    logs.say(words, group="g")
    logs.say(words, level=logging.DEBUG)
    logs.LOG.info("and a line of the library's own")
    assert made == []
    after = datetime.now().astimezone()
    logs.flush()
    first, second = lines(capsys.readouterr().out)
    assert made == ["words"]
    assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(str(first.pop("t"))) <= after
    assert first == {"msg": "it happened", "group": "g"}
    assert second["msg"] == "and a line of the library's own"


def test_whoever_listens_besides_gets_the_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logging.getLogger().addHandler(Listening())
    logs.say(lambda: "100 % of it", group="g")
    assert heard == ["100 % of it"]
    assert [line["msg"] for line in lines(capsys.readouterr().out)] == ["100 % of it"]
