"""cuGetProcAddress: which variant of a call is found under which version and flags.

Documented in the CUDA driver API, "Driver Entry Point Access": base names without suffix, the newest variant not
above the version asked for, nothing above the driver's own version, per-thread variants with flag 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cuda.bindings.driver import CUresult

from mock_node import MockNode

FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT = 0, 1, 2
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2
SUCCESS, INVALID_VALUE = int(CUresult.CUDA_SUCCESS), int(CUresult.CUDA_ERROR_INVALID_VALUE)


@pytest.mark.parametrize(
    ("symbol", "version", "flags", "exported"),
    [
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuCtxCreate", 3020, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
        ("cuEventElapsedTime", 2000, 0, "cuEventElapsedTime"),
        ("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2"),
        ("cuDeviceGetUuid", 11040, 0, "cuDeviceGetUuid_v2"),
        ("cuCheckpointProcessLock", 12080, 0, "cuCheckpointProcessLock"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuMemcpyHtoD", 3020, LEGACY_STREAM, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoD", 13000, PER_THREAD_STREAM, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoDAsync", 13000, PER_THREAD_STREAM, "cuMemcpyHtoDAsync_v2_ptsz"),
        ("cuLaunchKernel", 13000, PER_THREAD_STREAM, "cuLaunchKernel_ptsz"),
        ("cuMemAlloc", 13000, PER_THREAD_STREAM, "cuMemAlloc_v2"),  # no per-thread variant exists: the ordinary one
    ],
)
def test_newest_variant_not_above_the_asked_version_is_found(
    node: MockNode, symbol: str, version: int, flags: int, exported: str
) -> None:
    code, address, status, name = node.process(device=None).entry(symbol, version, flags)
    assert (code, status, name) == (SUCCESS, FOUND, exported)
    assert address


@pytest.mark.parametrize(
    ("symbol", "version", "status"),
    [
        ("cuNoSuchCall", 13000, SYMBOL_NOT_FOUND),
        ("cuMemAlloc_v2", 13000, SYMBOL_NOT_FOUND),
        ("cuMemcpyHtoD_v2_ptds", 13000, SYMBOL_NOT_FOUND),
        ("", 13000, SYMBOL_NOT_FOUND),
        ("cuCheckpointProcessLock", 12070, VERSION_NOT_SUFFICIENT),
        ("cuMemHostAlloc", 2010, VERSION_NOT_SUFFICIENT),
    ],
)
def test_what_is_not_there_is_null_with_the_reason(node: MockNode, symbol: str, version: int, status: int) -> None:
    assert node.process(device=None).entry(symbol, version, 0) == (SUCCESS, 0, status, "")


def test_versions_above_the_drivers_are_refused(new_node: Callable[..., MockNode]) -> None:
    process = new_node("1x1MiB").process(device=None)
    assert process.entry("cuMemAlloc", 13010, 0)[:2] == (INVALID_VALUE, 0)


def test_unknown_flags_are_refused(node: MockNode) -> None:
    assert node.process(device=None).entry("cuMemAlloc", 13000, 4)[:2] == (INVALID_VALUE, 0)


def test_every_lookup_of_cuda_bindings_gets_the_right_variant_or_nothing(node: MockNode) -> None:
    process = node.process(device=None)
    driver_version = 13000
    lines = (Path(__file__).parent / "data" / "cuda_bindings_lookups.tsv").read_text().splitlines()
    lookups = [(line.split("\t")[0], int(line.split("\t")[1])) for line in lines if not line.startswith("#")]
    assert len(lookups) == 526
    found = 0
    for symbol, version in lookups:
        code, address, status, name = process.entry(symbol, version, 0)
        if version > driver_version:
            assert (code, address) == (INVALID_VALUE, 0), symbol
        elif address:
            assert (code, status) == (SUCCESS, FOUND), symbol
            assert re.fullmatch(re.escape(symbol) + r"(_v\d)?|", name), (symbol, name)
            found += name != ""  # without a name: known, and not supported
        else:
            assert (code, name) == (SUCCESS, ""), symbol
            assert status in (SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT), symbol
    assert found > 90


def test_per_thread_variants_differ_only_in_their_suffix(node: MockNode) -> None:
    process = node.process(device=None)
    for symbol in ("cuMemcpyDtoH", "cuMemsetD8", "cuMemsetD8Async", "cuStreamSynchronize", "cuEventRecord"):
        _, _, _, legacy = process.entry(symbol, 13000, LEGACY_STREAM)
        _, _, _, per_thread = process.entry(symbol, 13000, PER_THREAD_STREAM)
        assert per_thread in (legacy + "_ptds", legacy + "_ptsz"), symbol


def test_cuda_bindings_says_so_where_a_call_is_missing(node: MockNode) -> None:
    with pytest.raises(RuntimeError, match='cuGraphGetId is not found'):  # newer than the mock's driver
        node.process(device=None).cuGraphGetId(0)


def test_call_that_is_known_and_not_imitated_says_so(node: MockNode) -> None:
    process = node.process()
    assert process.cuGraphCreate(0)[0] == CUresult.CUDA_ERROR_NOT_SUPPORTED
    assert process.cuMemPoolTrimTo(0, 0)[0] == CUresult.CUDA_ERROR_NOT_SUPPORTED


def test_cuda_bindings_own_lookup_returns_the_same(node: MockNode) -> None:
    code, address, status = node.process(device=None).cuGetProcAddress(b"cuMemAlloc", 13000, 0)
    assert (code, int(status)) == (CUresult.CUDA_SUCCESS, FOUND)
    assert address


def test_older_driver_knows_less(new_node: Callable[..., MockNode]) -> None:
    """Driver 12.4: no checkpoint calls (12.8), and none of what 13.0 brought, whatever version is asked for."""
    node = new_node()
    node.control("reset", "--all")
    node.control("create", "1x1MiB", "--cuda", "12040")
    process = node.process()
    assert process.ok.cuDriverGetVersion() == 12040
    assert process.entry("cuCheckpointProcessLock", 12080, 0)[:2] == (INVALID_VALUE, 0)
    assert process.entry("cuCheckpointProcessLock", 12040, 0) == (SUCCESS, 0, SYMBOL_NOT_FOUND, "")
    assert process.entry("cuCtxCreate", 12040, 0)[3] == "cuCtxCreate_v3"
    with pytest.raises(RuntimeError, match="cuCheckpointProcessLock is not found"):
        process.cuCheckpointProcessLock(process.pid, None)
    process.ok.cuMemFree(process.ok.cuMemAlloc(16))
    monitor = node.process(device=None)
    monitor.nvmlInit()
    assert monitor.nvmlSystemGetCudaDriverVersion() == 12040
