"""Records as JSON: nothing is lost, old records read, and what is no record is refused with the field's name."""

import json
from typing import Any

import pytest

from orchestrator.core.types import EndedLease, GroupId, GroupRecord, JobId, LeaseRecord, RecordId, Token, WaiterRecord
from orchestrator.store.codec import BadRecord, Codec

LEASE = LeaseRecord(group=GroupId("g"), job=JobId("j"), token=Token(3))


def test_defaults_are_left_out_so_that_old_records_read() -> None:
    record = GroupRecord(group=GroupId("g"), version=RecordId(1), lease=LEASE)
    data = Codec(GroupRecord).to_data(record)
    assert data == {"group": "g", "version": 1, "lease": {"group": "g", "job": "j", "token": 3}}
    assert Codec(GroupRecord).from_data(json.loads(json.dumps(data))) == record


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ([], "not an object"),
        ({"version": 1}, "group is missing"),
        ({"group": 1, "version": 1}, "group"),
        ({"group": "g", "version": True}, "version"),
        ({"group": "g", "version": "1"}, "version"),
        ({"group": "g", "version": 1, "colour": "red"}, "colour"),
        ({"group": "g", "version": 1, "faulted": "none"}, "faulted"),
        ({"group": "g", "version": 1, "faulted": [["a"]]}, "faulted"),
        ({"group": "g", "version": 1, "lease": {"group": "g"}}, "job is missing"),
        ({"group": "g", "version": 1, "last_yield": {
            "group": "g", "job": "j", "token": 1, "requests": [], "ending": "melted"}}, "ending"),
    ],
)
def test_what_is_no_record_is_refused(data: Any, names: str) -> None:
    with pytest.raises(BadRecord, match=names):
        Codec(GroupRecord).from_data(data)


def test_every_kind_of_record_has_a_codec() -> None:
    for kind in (GroupRecord, EndedLease, WaiterRecord):
        Codec(kind)
