"""Driver, GPUs, host memory, and whether this user may save processes."""

from __future__ import annotations

from collections.abc import Iterator

from timeslice.cli.doctor.facts import DriverFacts, Facts
from timeslice.cli.doctor.findings import Finding, Grade
from timeslice.cli.sizes import size_text

AREA = "this machine"
USE_THE_MOCK = "to try timeslice without a GPU: timeslice up --mock 2x80GiB"
OLDEST_CUDA, OLDEST_DRIVER = 12_080, 570
"""The driver's own checkpoint calls came with CUDA 12.8, whose driver is 570: the first one, too, that saves processes
which use NVML, as PyTorch does (reports in checkpoint-restore/criu and NVIDIA/cuda-checkpoint)."""
RECOMMENDED_DRIVER = 575
"""Reports of "operation not supported" for PyTorch with 570 ended with it (NVIDIA/cuda-checkpoint issue 34)."""
_PROHIBITED, _EXCLUSIVE = 2, 3


def findings(facts: Facts) -> Iterator[Finding]:
    # A client's machine needs no GPU; the agent's does.
    missing = Grade.WARN if facts.is_remote else Grade.FAIL
    if facts.driver.stuck_in is not None or facts.driver.crash is not None:
        yield _no_answer(facts.driver, missing)
    yield from _cuda(facts, missing)
    yield from _nvml(facts, missing)
    if facts.driver.devices:
        yield from _permissions(facts)
        yield from _host_memory(facts)


def _no_answer(driver: DriverFacts, missing: Grade) -> Finding:
    if driver.stuck_in is not None:
        text = f"no answer within {driver.deadline_s:g} s: stuck in {driver.stuck_in}"
    else:
        text = f"the program that asked it ended with {driver.crash}"
    advice = "see nvidia-smi and dmesg (Xid errors); a GPU may need a reset, the machine a reboot"
    return Finding(AREA, "driver", missing, text, advice)


def _cuda(facts: Facts, missing: Grade) -> Iterator[Finding]:
    driver = facts.driver
    if driver.cuda_error is not None:
        advice = f"install the NVIDIA driver {RECOMMENDED_DRIVER} or newer; {USE_THE_MOCK}"
        if driver.cuda_library is not None:
            advice = f"see nvidia-smi; {USE_THE_MOCK}"
        yield Finding(AREA, "CUDA driver", missing, driver.cuda_error, advice)
    if driver.cuda_library is None:
        return
    speaks = f", CUDA {_cuda_text(driver.cuda_version)}" if driver.cuda_version is not None else ""
    number = f", driver {driver.version}" if driver.version is not None else ""
    mock = "; the GPUs are mock ones" if facts.is_mock else ""
    if driver.cuda_error is None:
        yield Finding(AREA, "CUDA driver", Grade.OK, f"{driver.cuda_library}{speaks}{number}{mock}")
    yield _checkpoint_calls(driver)


def _checkpoint_calls(driver: DriverFacts) -> Finding:
    check = "checkpoint calls"
    newer = f"install the NVIDIA driver {RECOMMENDED_DRIVER} or newer"
    if driver.missing_calls:
        return Finding(AREA, check, Grade.FAIL, f"the driver has no {', '.join(driver.missing_calls)}", newer)
    if driver.cuda_version is not None and driver.cuda_version < OLDEST_CUDA:
        text = f"CUDA {_cuda_text(driver.cuda_version)} has none; {_cuda_text(OLDEST_CUDA)} is the first that has them"
        return Finding(AREA, check, Grade.FAIL, text, newer)
    major = _major(driver.version)
    if major is not None and major < RECOMMENDED_DRIVER:
        text = f"there, but driver {driver.version} was seen to refuse some PyTorch programs"
        return Finding(AREA, check, Grade.WARN, text, newer)
    return Finding(AREA, check, Grade.OK, "the driver can save and restore processes")


def _nvml(facts: Facts, missing: Grade) -> Iterator[Finding]:
    driver = facts.driver
    if driver.nvml_error is not None:
        advice = "it comes with the driver: see nvidia-smi" if driver.cuda_library else "it comes with the driver"
        yield Finding(AREA, "NVML", missing, driver.nvml_error, advice)
        return
    if not driver.devices:
        if driver.stuck_in is None and driver.crash is None:
            yield Finding(AREA, "GPUs", missing, "none", f"see nvidia-smi; {USE_THE_MOCK}")
        return
    sizes = [f"{d.index}: {d.name or d.uuid} {size_text(d.memory_total_bytes)}" for d in driver.devices]
    yield Finding(AREA, "GPUs", Grade.OK, ", ".join(sizes))
    for mode, what in ((_PROHIBITED, "no process may use it"), (_EXCLUSIVE, "one process at a time may use it")):
        there = [str(d.index) for d in driver.devices if d.compute_mode == mode]
        if there:
            yield Finding(
                AREA,
                "compute mode",
                Grade.FAIL,
                f"GPU {', '.join(there)}: {what}, so jobs cannot take turns",
                f"as root: nvidia-smi -i {','.join(there)} -c DEFAULT",
            )
    unkept = [str(d.index) for d in driver.devices if d.persistence is False]
    if unkept:
        yield Finding(
            AREA,
            "persistence mode",
            Grade.WARN,
            f"off for GPU {', '.join(unkept)}: the driver unloads with its last user, and saving was seen to fail then",
            "as root: nvidia-smi -pm 1, or run nvidia-persistenced",
        )


def _permissions(facts: Facts) -> Iterator[Finding]:
    check = "saving processes"
    if facts.is_mock:
        yield Finding(AREA, check, Grade.OK, "the mock saves every process of this user")
        return
    if facts.uid == 0 or facts.has_ptrace_capability:
        yield Finding(AREA, check, Grade.OK, "root, or CAP_SYS_PTRACE: may look into other processes")
        return
    scope = f", and Yama's ptrace_scope is {facts.ptrace_scope}" if facts.ptrace_scope else ""
    yield Finding(
        AREA,
        check,
        Grade.WARN,
        f'user {facts.uid} has no CAP_SYS_PTRACE{scope}; drivers were seen to answer "operation not permitted" then',
        "if saving fails with that, run timeslice up as root, or give its Python CAP_SYS_PTRACE",
    )


def _host_memory(facts: Facts) -> Iterator[Finding]:
    """A job may use all GPUs of the machine, and fill them: then all of that must fit in host memory beside it."""
    needed = sum(device.memory_total_bytes for device in facts.driver.devices)
    rooms = []
    if facts.memory_available_bytes is not None:
        rooms.append((facts.memory_available_bytes, "MemAvailable"))
    if facts.cgroup_room is not None:
        rooms.append((facts.cgroup_room.free_bytes, f"the limit of {facts.cgroup_room.path}"))
    if not rooms or not needed:
        return
    room, what = min(rooms)
    text = f"{size_text(room)} free ({what}); a job that fills all GPUs has {size_text(needed)} to be saved"
    if room < needed:
        yield Finding(
            AREA,
            "host memory",
            Grade.WARN,
            text,
            "a job with more than that on its GPUs cannot be saved, and the next one waits: add memory, raise the limit"
            " or let jobs use less of the GPUs",
        )
    else:
        yield Finding(AREA, "host memory", Grade.OK, text)


def _cuda_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _major(version: str | None) -> int | None:
    number = (version or "").partition(".")[0]
    return int(number) if number.isdecimal() else None
