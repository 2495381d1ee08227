"""What a device says of itself, through the CUDA part; test_nvml.py holds it against the NVML part."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings.driver import CUdevice_attribute, CUresult

from mock_node import MockNode, MockProcess

INVALID_DEVICE = CUresult.CUDA_ERROR_INVALID_DEVICE
INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE


@pytest.fixture
def two(new_node: Callable[..., MockNode]) -> MockProcess:
    process = new_node("2x64MiB").process(device=None)
    process.ok.cuInit(0)
    return process


def test_ordinals(two: MockProcess) -> None:
    assert [two.ok.cuDeviceGet(ordinal) for ordinal in (0, 1)] == [0, 1]
    assert two.code.cuDeviceGet(2) == INVALID_DEVICE
    assert two.code.cuDeviceGet(-1) == INVALID_DEVICE


def test_name_is_cut_to_the_room_given(two: MockProcess) -> None:
    name = two.ok.cuDeviceGetName(128, 0).split(b"\0")[0]
    assert name.startswith(b"Mock ")
    assert two.ok.cuDeviceGetName(6, 0).split(b"\0")[0] == name[:5]
    assert two.code.cuDeviceGetName(64, 5) == INVALID_DEVICE


def test_memory_size_is_the_specs(two: MockProcess) -> None:
    assert two.ok.cuDeviceTotalMem(0) == 64 << 20
    assert two.code.cuDeviceTotalMem(2) == INVALID_DEVICE


def test_uuids_differ_and_are_the_same_in_every_process(new_node: Callable[..., MockNode]) -> None:
    node = new_node("2x64MiB")
    first, second = node.process(), node.process()
    assert first.ok.cuDeviceGetUuid(0) == second.ok.cuDeviceGetUuid(0)
    assert first.ok.cuDeviceGetUuid(0) != first.ok.cuDeviceGetUuid(1)
    assert len(first.ok.cuDeviceGetUuid(0)) == 16
    assert first.code.cuDeviceGetUuid(2) == INVALID_DEVICE


def test_pci_bus_ids_lead_back_to_their_device(two: MockProcess) -> None:
    for device in (0, 1):
        bus_id = two.ok.cuDeviceGetPCIBusId(32, device).split(b"\0")[0]
        assert two.ok.cuDeviceGetByPCIBusId(bus_id) == device
    assert two.code.cuDeviceGetByPCIBusId(b"0000:7f:00.0") == INVALID_DEVICE
    assert two.code.cuDeviceGetByPCIBusId(b"nonsense") == INVALID_VALUE


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        (CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
        (CUdevice_attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1),
    ],
)
def test_attributes(two: MockProcess, attribute: CUdevice_attribute, value: int) -> None:
    assert two.ok.cuDeviceGetAttribute(attribute, 0) == value
    assert two.code.cuDeviceGetAttribute(attribute, 2) == INVALID_DEVICE


def test_older_capability_query_agrees(two: MockProcess) -> None:
    assert two.ok.cuDeviceComputeCapability(0) == (9, 0)
