"""What `timeslice watch` writes where there is no terminal: one line an event, for grep or for programs."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from timeslice.cli.watch_feed import Back, Event, Lost, Refused


def json_line(message: Event | Lost | Back) -> str:
    """One object. Events have the names of the wire; the connection's own are `connection_lost` and `_back`."""
    data: dict[str, object]
    match message:
        case Event():
            data = {
                "time": utc(message.at_s),
                "sequence": message.sequence,
                "kind": message.kind,
                "group": message.group,
                "job": message.job or None,
                "node": message.node or None,
                "duration_ms": message.duration_ms,
                "detail": message.detail or None,
                "status": message.status,
            }
        case Lost(reason):
            data = {"kind": "connection_lost", "group": None, "detail": reason}
        case Back(after_s):
            data = {"kind": "connection_back", "group": None, "duration_ms": round(after_s * 1000)}
    return json.dumps(data)


def text_line(event: Event) -> str:
    """TIME GROUP KIND, then key=value for all that there is to say."""
    words = [utc(event.at_s), _word(event.group), event.kind]
    if event.job:
        words.append(f"job={_word(event.job)}")
    if event.node:
        words.append(f"node={_word(event.node)}")
    if event.duration_ms:
        words.append(f"took={event.duration_ms}ms")
    if event.status is not None:
        waiters = ",".join(_word(waiter["job"]) for waiter in event.status["waiters"])
        holder = _word(event.status["holder"] or "-")
        words += [f"state={event.status['state']}", f"holder={holder}", f"queue={waiters or '-'}"]
        words += [f"condition={_quoted(c['type'] + ': ' + c['reason'])}" for c in event.status["conditions"]]
    if event.detail:
        words.append(f"detail={_quoted(event.detail)}")
    return " ".join(words)


def connection_text(message: Lost | Back | Refused, target: str) -> str:
    """For people: what became of the connection to the orchestrator."""
    match message:
        case Lost(reason):
            return f"the orchestrator at {target} does not answer ({reason}); trying again until it does"
        case Back(after_s):
            return f"the orchestrator at {target} answers again after {after_s:.1f} s"
        case Refused(text):
            return text


def utc(at_s: float) -> str:
    """As in the servers' logs: 2026-05-04T10:11:12.345Z."""
    stamp = datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")


def _word(name: str) -> str:
    """An id, quoted if it would be taken for two words."""
    return _quoted(name) if not name or set(name) & set(' ,="') else name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
