"""The contract below number 100, as peers have compiled it, is contained in ours, byte for byte compatible."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

import llmd_stubs
from snapshot_agent.v1alpha1 import snapshot_agent_pb2
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2

OURS = {
    "snapshot_agent/v1alpha1/snapshot_agent.proto": snapshot_agent_pb2.DESCRIPTOR,
    "timeslice_orchestrator/v1alpha1/orchestrator.proto": orchestrator_pb2.DESCRIPTOR,
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    out = tmp_path_factory.mktemp("contract") / "set"
    llmd_stubs.protoc(f"--descriptor_set_out={out}")
    files = FileDescriptorSet.FromString(Path(out).read_bytes()).file
    return {file.name: file for file in files if file.name in OURS}


@pytest.mark.parametrize("name", OURS)
def test_every_message_and_field_of_the_contract_is_ours_too(theirs: dict[str, FileDescriptorProto], name: str) -> None:
    ours = FileDescriptorProto()
    OURS[name].CopyToProto(ours)
    problems: list[str] = []
    compare(theirs[name], ours, problems)
    assert problems == []
    assert ours.package == theirs[name].package
    their_rpcs = {rpc.name: rpc for rpc in theirs[name].service[0].method}
    our_rpcs = {rpc.name: rpc for rpc in ours.service[0].method}
    assert {name: our_rpcs.get(name) for name in their_rpcs} == their_rpcs


def compare(theirs: FileDescriptorProto | DescriptorProto, ours: FileDescriptorProto | DescriptorProto,
            problems: list[str]) -> None:
    """Note what differs, except that ours may have more: fields from 100 on, and types of its own."""
    for enum in theirs.enum_type:
        same = [other for other in ours.enum_type if other.name == enum.name and list(other.value) == list(enum.value)]
        if not same:
            problems.append(f"enum {enum.name}")
    messages = theirs.message_type if isinstance(theirs, FileDescriptorProto) else theirs.nested_type
    our_messages = ours.message_type if isinstance(ours, FileDescriptorProto) else ours.nested_type
    for message in messages:
        other = next((other for other in our_messages if other.name == message.name), None)
        if other is None:
            problems.append(f"message {message.name}")
            continue
        for field in message.field:
            field.ClearField("json_name")  # protoc states it, Python's own descriptors leave it out
        fields = {field.number: field for field in message.field}
        our_fields = {field.number: field for field in other.field}
        for number in fields.keys() | our_fields.keys():
            if number < 100 and fields.get(number) != our_fields.get(number):
                problems.append(f"{message.name}, field {number}")
        problems += [f"{message.name}, field {number}" for number in fields if number >= 100]
        compare(message, other, problems)
