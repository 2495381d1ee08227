"""`timeslice evict`: says what it would do, asks, does it, and says what was done."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Sequence
from typing import Any

import grpc

from timeslice._channel import open_channel, status_of
from timeslice.cli import evict_plans
from timeslice.cli.errors import BAD_INPUT, CommandError
from timeslice.cli.evict_plans import Plan
from timeslice.cli.status import as_data
from timeslice.orchestrator.client import TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorError, error_from_status
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb2_grpc

TIMEOUT_S = 10.0
SIGNALS_SEEN_S = 0.5
EVICT_TIMEOUT_S = 30.0
"""The end of a lease is recorded before it is answered."""


def evict(given: Any) -> int:
    """Carry out the action that was `given` (the arguments of the command line), unless a person says no.

    Raises:
        CommandError: no orchestrator answers, it refuses, there is nothing to evict, or nobody could be asked.
        SettingsError: the address is none.
    """
    with TimeSliceOrchestratorClient(given.target) as client:
        try:
            names = client.list_groups(TIMEOUT_S) if given.action == "forget-node" else [given.group]
            groups = [as_data(client.group_reply(name, TIMEOUT_S)) for name in names]
        except OrchestratorError as err:
            raise CommandError(str(err)) from err
        address = client.target
    plan = _plan(given, groups)
    if plan.costs_work and not given.yes:
        _ask(plan)
    done = _send(address, plan)
    if given.json:
        is_of_group = given.action != "forget-node"
        said = {
            "orchestrator": address,
            "action": given.action,
            "group": plan.request.group_id if is_of_group else None,
            "job": plan.request.job_id or None,
            "request": plan.request.request_id or None,
            "node": plan.request.node or None,
            "done": done,
        }
        print(json.dumps(said, indent=2))
    else:
        print("\n".join(done))
    return 0


def _plan(given: Any, groups: Sequence[dict[str, Any]]) -> Plan:
    match given.action:
        case "end-lease":
            return evict_plans.end_lease(groups[0], given.job, given.reason, time.time())
        case "drop-waiter":
            return evict_plans.drop_waiter(groups[0], given.job, given.request, given.reason)
        case "clear-fault":
            return evict_plans.clear_fault(groups[0], given.job, given.reason)
        case "kill":
            return evict_plans.kill(groups[0], given.job, given.reason)
        case _:
            return evict_plans.forget_node(groups, given.node, given.reason)


def _ask(plan: Plan) -> None:
    """Return if a person says yes. Raises: CommandError."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"this would {plan.what}. Without a terminal nobody can be asked: say --yes", BAD_INPUT)
    print(f"This would {plan.what}.\nGo on? [y/N] ", end="", file=sys.stderr, flush=True)
    # Not one endless read: a Ctrl-C in the instant before it begins would be seen only when the person types on.
    while not select.select([sys.stdin], [], [], SIGNALS_SEEN_S)[0]:
        pass
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("not confirmed; nothing was changed")


def _send(address: str, plan: Plan) -> list[str]:
    with open_channel(address, []) as channel:
        stub: Any = pb2_grpc.TimeSliceOrchestratorServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            return list(stub.Evict(plan.request, timeout=EVICT_TIMEOUT_S).actions)
        except grpc.RpcError as err:
            status = status_of(err)
            if status.code == "UNIMPLEMENTED":
                raise CommandError(f"the orchestrator at {address} knows no Evict; end the job's processes") from err
            if status.code == "DEADLINE_EXCEEDED":
                raise CommandError(
                    f"the orchestrator at {address} did not answer within {EVICT_TIMEOUT_S:g} s; it may do it yet:"
                    " see timeslice status"
                ) from err
            raise CommandError(str(error_from_status(status, address))) from err
