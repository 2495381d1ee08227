"""`timeslice status`: what the groups are doing now, for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from timeslice._core import wire
from timeslice.cli.errors import CommandError
from timeslice.cli.group_data import condition_line, group_data, holding, waiting
from timeslice.cli.sizes import size_text
from timeslice.orchestrator.client import TimeSliceOrchestratorClient
from timeslice.orchestrator.exceptions import OrchestratorError
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb2

TIMEOUT_S = 10.0


def show_status(target: str | None, as_json: bool) -> int:
    """Print the groups.

    Raises:
        CommandError: no orchestrator answers, or it refuses.
        SettingsError: the address is none.
    """
    with TimeSliceOrchestratorClient(target) as client:
        try:
            groups = [as_data(client.group_reply(group, TIMEOUT_S)) for group in client.list_groups(TIMEOUT_S)]
        except OrchestratorError as err:
            raise CommandError(str(err)) from err
        if as_json:
            print(json.dumps({"orchestrator": client.target, "groups": groups}, indent=2))
        else:
            print("\n".join(as_text(groups)))
    return 0


def as_data(reply: pb2.GetGroupStatusResponse) -> dict[str, Any]:
    """A group and the contexts of its jobs as plain data; the names are those of the wire."""
    return {
        **group_data(reply.group),
        "contexts": [
            {
                "node": context.agent,
                "job": context.job_id,
                "state": wire.agent_job_state(context.job_state).value,
                "reason": context.reason or None,
                "device_bytes": context.device_bytes,
                "host_bytes": context.host_bytes,
            }
            for context in reply.agent_job_states
        ],
    }


def as_text(groups: Sequence[dict[str, Any]]) -> list[str]:
    """The lines that people read: groups, then contexts, then what needs attention."""
    if not groups:
        return ["there are no groups; start with: timeslice up --group NAME=GPU"]
    lines = _table(
        ["GROUP", "STATE", "HOLDER", "WAITING", "HELD", "HANDOFFS", "ACCELERATORS"],
        [
            [
                g["group"],
                g["state"],
                holding(g),
                waiting(g),
                f"{g['held_share']:.0%}",
                str(g["handoffs_total"]),
                str(len(g["accelerators"])),
            ]
            for g in groups
        ],
    )
    contexts = [
        [g["group"], c["node"], c["job"], c["state"], _size(c["device_bytes"]), _size(c["host_bytes"])]
        for g in groups
        for c in g["contexts"]
    ]
    if contexts:
        lines += ["", *_table(["GROUP", "NODE", "JOB", "CONTEXT", "ON DEVICE", "ON HOST"], contexts)]
    problems = [condition_line(g["group"], c) for g in groups for c in g["conditions"]]
    faults = [
        f"{g['group']}: job {c['job']} on {c['node']} is faulted: {c['reason']}"
        for g in groups
        for c in g["contexts"]
        if c["state"] == "FAULTED" and c["reason"]
    ]
    return lines + ([""] if problems or faults else []) + problems + faults


def _size(size_bytes: int) -> str:
    return size_text(size_bytes) if size_bytes else "-"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [head, *rows])
    return ["  ".join(row).rstrip() for row in padded]
