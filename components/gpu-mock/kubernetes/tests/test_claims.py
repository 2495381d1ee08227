"""Which devices a claim gives: the same, however often it is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mock_kubernetes.claims import DRIVER, CannotPrepare, PreparedDevice, prepare
from gpu_mock_kubernetes.mock import MockDevice

DEVICES = [
    MockDevice(0, "GPU-aaa", "Mock", 1 << 30, False),
    MockDevice(1, "GPU-bbb", "Mock", 1 << 30, False),
    MockDevice(2, "GPU-ccc", "Mock", 1 << 30, True),
]


def result(device: str, driver: str = DRIVER, pool: str = "node-1", request: str = "gpu") -> dict[str, str]:
    return {"request": request, "driver": driver, "pool": pool, "device": device}


def claim(*results: dict[str, str], uid: str = "u1") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "jobs", "name": "shared", "uid": uid},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


def test_a_device_is_named_as_the_cdi_file_names_it() -> None:
    assert prepare(claim(result("gpu-1")), "u1", "node-1", DEVICES) == [
        PreparedDevice("gpu", "node-1", "gpu-1", "nvidia.com/gpu=GPU-bbb")
    ]


@pytest.mark.parametrize(
    ("given_claim", "words"),
    [
        (claim(result("gpu-0"), uid="u2"), "made anew: its uid is u2, not u1"),
        ({"metadata": {"namespace": "jobs", "name": "shared", "uid": "u1"}}, "jobs/shared is not allocated"),
        ({"metadata": {"namespace": "jobs", "name": "shared", "uid": "u1"}, "status": {}}, "is not allocated"),
        (claim(result("gpu-7")), "has gpu-7 of pool node-1, not of this node"),
        (claim(result("gpu-0", pool="node-2")), "has gpu-0 of pool node-2, not of this node"),
        (claim(result("gpu-2")), "gpu-2, which is lost"),
    ],
)
def test_what_cannot_be_prepared_says_why(given_claim: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotPrepare, match=words):
        prepare(given_claim, "u1", "node-1", DEVICES)


RESULTS = st.lists(
    st.builds(
        result,
        st.sampled_from(["gpu-0", "gpu-1"]),
        st.sampled_from([DRIVER, "other.example.com"]),
        st.just("node-1"),
        st.sampled_from(["gpu", "second"]),
    ),
    max_size=5,
)


@given(RESULTS)
def test_each_result_of_ours_is_answered_once_in_order_and_others_never(results: list[dict[str, str]]) -> None:
    prepared = prepare(claim(*results), "u1", "node-1", DEVICES)
    ours = [one for one in results if one["driver"] == DRIVER]
    assert [(one.request, one.pool, one.device) for one in prepared] == [
        (one["request"], one["pool"], one["device"]) for one in ours
    ]
    uuids = {"gpu-0": "GPU-aaa", "gpu-1": "GPU-bbb"}
    assert [one.cdi_name for one in prepared] == [f"nvidia.com/gpu={uuids[one['device']]}" for one in ours]
    assert prepare(claim(*results), "u1", "node-1", DEVICES) == prepared
