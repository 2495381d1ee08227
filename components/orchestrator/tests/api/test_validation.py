"""Row 34: input of the wrong form is refused with a text that names the field, and nobody behind the edge sees it."""

from typing import Any

import grpc
import pytest

from orchestrator.api.validation import RULES, problem_of
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb

INVALID, UNIMPLEMENTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED
Session, Process, Held = pb.SessionRequest, pb.ProcessRef, pb.HeldLease


@pytest.mark.parametrize(
    "request_",
    [
        pb.AcquireRequest(job_id="j", group_id="g" * 253),
        pb.AcquireRequest(job_id="ns/j", group_id="g", request_id="r", session_id="s", priority=-3, participants=1),
        pb.AcquireRequest(job_id="тренер 1", group_id="g", participant="rank-3", owner="o", wait_ms=1),
        pb.YieldRequest(job_id="j", group_id="g", fencing_token=7, final=True),
        pb.GetGroupStatusRequest(group_id="g"),
        pb.ListGroupsRequest(),
        pb.WatchGroupsRequest(group_ids=["a", "b"], after_sequence=3),
        pb.WatchGroupsRequest(),
        Session(session_id="s", job_id="j", processes=[Process(node="n", pid=1, start_time=5)]),
        pb.EvictRequest(group_id="g", job_id="j", reason="because", action=pb.EvictRequest.ACTION_END_LEASE),
    ],
)
def test_requests_of_good_form_pass(request_: Any) -> None:
    assert problem_of(request_) is None


@pytest.mark.parametrize(
    ("request_", "field", "code"),
    [
        (pb.AcquireRequest(group_id="g"), "job_id", INVALID),
        (pb.AcquireRequest(job_id="j"), "group_id", INVALID),
        (pb.AcquireRequest(job_id="j" * 10_000_000, group_id="g"), "job_id", INVALID),
        (pb.AcquireRequest(job_id="j", group_id="g" * 254), "group_id", INVALID),
        (pb.AcquireRequest(job_id="j\n", group_id="g"), "job_id", INVALID),
        (pb.AcquireRequest(job_id="j", group_id="\0"), "group_id", INVALID),
        (pb.AcquireRequest(job_id="j\x7f", group_id="g"), "job_id", INVALID),
        (pb.AcquireRequest(job_id="j", group_id="g", request_id="\x1b[0m"), "request_id", INVALID),
        (pb.AcquireRequest(job_id="j", group_id="g", session_id="s" * 254), "session_id", INVALID),
        (pb.AcquireRequest(job_id="j", group_id="g", wait_ms=-1), "wait_ms", INVALID),
        (pb.AcquireRequest(job_id="j", group_id="g", expected_hold_ms=-1), "expected_hold_ms", INVALID),
        (pb.AcquireRequest(job_id="j", group_id="g", participants=-1), "participants", INVALID),
        (pb.AcquireRequest(job_id="j", group_id="g", participants=2), "participants", UNIMPLEMENTED),
        (pb.AcquireRequest(job_id="j", group_id="g", additional_group_ids="h"), "additional_group_ids", UNIMPLEMENTED),
        (pb.YieldRequest(group_id="g"), "job_id", INVALID),
        (pb.YieldRequest(job_id="j", group_id="g", fencing_token=-1), "fencing_token", INVALID),
        (pb.YieldRequest(job_id="j", group_id="g", expected_idle_ms=-1), "expected_idle_ms", INVALID),
        (pb.YieldRequest(job_id="j", group_id="g", accelerators=["n/0"]), "accelerators", UNIMPLEMENTED),
        (pb.GetGroupStatusRequest(), "group_id", INVALID),
        (pb.WatchGroupsRequest(group_ids=["a", ""]), "group_ids[1]", INVALID),
        (pb.WatchGroupsRequest(group_ids=["a"] * 5000), "group_ids", INVALID),
        (pb.WatchGroupsRequest(after_sequence=-1), "after_sequence", INVALID),
        (pb.SessionRequest(job_id="j"), "session_id", INVALID),
        (pb.SessionRequest(session_id="s"), "job_id", INVALID),
        (pb.SessionRequest(session_id="s", job_id="j", ttl_ms=-1), "ttl_ms", INVALID),
        (Session(session_id="s", job_id="j", processes=[Process(pid=1)]), "processes[0].node", INVALID),
        (Session(session_id="s", job_id="j", processes=[Process(node="n")]), "processes[0].pid", INVALID),
        (Session(session_id="s", job_id="j", held=[Held(fencing_token=1)]), "held[0].group_id", INVALID),
        (Session(session_id="s", job_id="j", held=[Held(group_id="g")]), "held[0].fencing_token", INVALID),
        (Session(session_id="s", job_id="j", held=[Held(group_id="g")] * 5000), "held", INVALID),
        (pb.EvictRequest(group_id="g", job_id="j", reason="r" * 1025), "reason", INVALID),
        (pb.EvictRequest(group_id="g", job_id="j\t"), "job_id", INVALID),
    ],
)
def test_the_refusal_names_the_field_and_stays_short(request_: Any, field: str, code: grpc.StatusCode) -> None:
    problem = problem_of(request_)
    assert problem is not None
    assert problem.code is code
    assert problem.text.startswith(field + " ")
    assert len(problem.text) < 300
    assert problem.text.isprintable()


def test_every_request_of_the_contract_and_every_text_in_it_has_a_rule() -> None:
    service = pb.DESCRIPTOR.services_by_name["TimeSliceOrchestratorService"]
    assert {method.input_type.name for method in service.methods} == {request.DESCRIPTOR.name for request in RULES}
    for request, rules in RULES.items():
        texts = {field.name for field in request.DESCRIPTOR.fields if field.type == field.TYPE_STRING}
        assert texts <= set(rules)
