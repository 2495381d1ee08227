"""The pytest side: a node of mock GPUs, and processes on it that make driver calls as unmodified programs do.

    with MockNode("1x1MiB") as node:
        process = node.process(device=0)            # a new process with a current context
        pointer = process.ok.cuMemAlloc(4096)       # must succeed; the value alone
        assert process.code.cuMemFree(1) == CUresult.CUDA_ERROR_INVALID_VALUE
        blocked = process.thread("other").begin("cuCtxSynchronize")

What a driver call returns is held against the codes that its documentation names (MockNode.undocumented).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from cuda.bindings.driver import CUresult

from mock_actor import Struct

SHT_DYNSYM, STT_FUNC = 11, 2  # ELF
REPLY_TIMEOUT_S = 30.0  # far above any call here that is not blocked on purpose
DOCUMENTED_FOR_ALL_CALLS = {
    CUresult.CUDA_SUCCESS,
    CUresult.CUDA_ERROR_NOT_SUPPORTED,  # what the mock does not know
    CUresult.CUDA_ERROR_NOT_INITIALIZED,
    CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,  # "may also return error codes from previous, asynchronous launches"
    CUresult.CUDA_ERROR_INVALID_HANDLE,  # "a resource handle passed to the API call was not valid"
    CUresult.CUDA_ERROR_INVALID_IMAGE,  # "the device kernel image is invalid"
    CUresult.CUDA_ERROR_NO_DEVICE,  # "no CUDA-capable devices were detected by the installed CUDA driver"
    CUresult.CUDA_ERROR_OPERATING_SYSTEM,  # "an OS call failed"
}
"""What the text of the enum says of any call, in the documentation of CUresult."""
KNOWN_BEYOND_THE_DOCUMENTATION = {
    ("cuCheckpointProcessRestore", CUresult.CUDA_ERROR_OUT_OF_MEMORY),  # public reports of restores without room
    ("cuInit", CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE),  # "device busy or unavailable": the mock has no more places
    ("cuCheckpointProcessCheckpoint", CUresult.CUDA_ERROR_OUT_OF_MEMORY),  # no host memory for the pages: a guess
}


def library_folder() -> Path:
    """The folder with libcuda.so.1, libnvidia-ml.so.1 and gpu-mock."""
    named = os.environ.get("GPU_MOCK_LIB_DIR")
    if not named:
        raise RuntimeError("GPU_MOCK_LIB_DIR is not set: the folder with libcuda.so.1, libnvidia-ml.so.1, gpu-mock")
    return Path(named).absolute()


def sanitizer_environment() -> dict[str, str]:
    """What a program must be started with to load libraries that were built under the address sanitizer."""
    runtime = re.search(rb"libasan\.so\.\d+", (library_folder() / "libcuda.so.1").read_bytes())
    if not runtime:
        return {}
    # Leaks are Python's; SIGSEGV is for handlers of the program.
    return {"LD_PRELOAD": runtime[0].decode(), "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0"}


def exported_names(library: str) -> list[str]:
    """The functions that a 64-bit ELF library defines for others."""
    image = (library_folder() / library).read_bytes()
    table, size, count = *struct.unpack_from("<Q", image, 40), *struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + size * number) for number in range(count)]
    names: list[str] = []
    for section in sections:
        if section[1] != SHT_DYNSYM:
            continue
        texts = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], section[9]):
            name, info, _, defined = struct.unpack_from("<IBBH", image, at)
            if defined and info & 15 == STT_FUNC:
                names.append(image[texts + name : image.index(b"\0", texts + name)].decode())
    return sorted(names)


def documented_codes(name: str) -> set[CUresult]:
    """The results that the documentation of a driver call names."""
    text = getattr(driver, name).__doc__ or ""
    returns = re.split(r"Returns\n *-------\n", text)[-1].split("\n\n")[0]
    return {getattr(CUresult, found) for found in re.findall(r"CUDA_(?:SUCCESS|ERROR_\w+)", returns)}


class ProcessEnded(Exception):
    """The process died before it answered."""


class StillBlocked(Exception):
    """No answer in time."""


class ForkServer:
    """The warm process that actors are forked from; it starts with the mock on its loader path, as users' programs."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library_folder())}
        environment |= sanitizer_environment()
        actor_program = Path(sys.modules["mock_actor"].__file__ or "").absolute()
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(actor_program), str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=environment)  # fmt: skip
        theirs.close()
        self._control = ours

    def ask(self, *request: Any, send: int | None = None) -> Any:
        message = pickle.dumps(request)
        if send is None:
            self._control.sendall(message)
        else:
            socket.send_fds(self._control, [message], [send])
        answer = self._control.recv(1 << 20)
        if not answer:
            raise ProcessEnded(f"the fork server is gone (exit status {self._process.wait()})")
        return pickle.loads(answer)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


class Pending:
    """A call that has been sent; its result may be waited for."""

    def __init__(self, process: MockProcess, number: int, name: str) -> None:
        self._process, self._number, self.name = process, number, name

    def result(self, timeout_s: float = REPLY_TIMEOUT_S) -> Any:
        """What the call returned (or raised).

        Raises:
            StillBlocked: no answer in time. ProcessEnded: there will be none.
        """
        return self._process.receive(self._number, self.name, timeout_s)

    def is_blocked_for(self, seconds: float) -> bool:
        """Whether no answer comes within that time: only ever used for calls that must not answer."""
        try:
            self._process.wait_for(self._number, self.name, seconds)
        except StillBlocked:
            return True
        return False


class _Calls:
    """process.ok.cuX(...), process.code.cuX(...): the same calls, with the result looked at."""

    def __init__(self, thread: MockThread, judge: Callable[[str, Any], Any]) -> None:
        self._thread, self._judge = thread, judge

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._judge(name, self._thread.begin(name, *arguments).result())


def _must_succeed(name: str, result: Any) -> Any:
    if result[0] != CUresult.CUDA_SUCCESS:
        raise AssertionError(f"{name}: {result[0]!r}, expected success")
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]


class MockThread:
    """A named thread of a process. cuX and nvmlX are the bindings' calls, others those of mock_actor.Actor.perform."""

    def __init__(self, process: MockProcess, thread: str) -> None:
        self._process, self._thread = process, thread
        self.ok = _Calls(self, _must_succeed)
        self.code = _Calls(self, lambda name, result: result[0])

    def begin(self, name: str, *arguments: Any) -> Pending:
        return self._process.send(self._thread, name, arguments)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self.begin(name, *arguments).result()


class MockProcess(MockThread):
    """A process on the node; used as a thread it is its first one."""

    def __init__(self, node: MockNode, pid: int, reap_pid: int, channel: Connection) -> None:
        super().__init__(self, "main")
        self.pid = pid
        self._node, self._reap_pid, self._channel = node, reap_pid, channel
        self._next_number = 0
        self._answers: dict[int, tuple[bool, Any]] = {}
        self._ended = False

    def thread(self, name: str) -> MockThread:
        return MockThread(self, name)

    def send(self, thread: str, name: str, arguments: tuple[Any, ...]) -> Pending:
        self._next_number += 1
        try:
            self._channel.send((self._next_number, thread, name, arguments))
        except BrokenPipeError:
            raise ProcessEnded(f"process {self.pid} is gone before {name}") from None
        return Pending(self, self._next_number, name)

    def wait_for(self, number: int, name: str, timeout_s: float) -> None:
        """Wait until the answer is there, and leave it."""
        deadline = time.monotonic() + timeout_s
        while number not in self._answers:
            if self._channel.closed:
                raise ProcessEnded(f"process {self.pid} was killed during {name}")
            if not self._channel.poll(max(0.0, deadline - time.monotonic())):
                raise StillBlocked(f"{name} in process {self.pid} has not returned within {timeout_s} s")
            try:
                answered, good, value = self._channel.recv()
            except (EOFError, ConnectionResetError):
                raise ProcessEnded(f"process {self.pid} ended during {name}") from None
            self._answers[answered] = (good, value)

    def receive(self, number: int, name: str, timeout_s: float) -> Any:
        self.wait_for(number, name, timeout_s)
        good, value = self._answers.pop(number)
        if not good:
            raise value
        self._node.note_result(name, value)
        return value

    def signal(self, number: signal.Signals) -> None:
        """Send it; after a SIGSTOP, return when all threads have stopped (one that has not may still serve a call)."""
        os.kill(self.pid, number)
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while number == signal.SIGSTOP and not self._is_stopped():
            assert time.monotonic() < deadline, "does not stop"

    def _is_stopped(self) -> bool:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def kill(self, reap: bool = True) -> None:
        """SIGKILL; without `reap` the process stays a zombie until the node is closed."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):  # it may have died by itself
                os.kill(self.pid, signal.SIGKILL)
            self._ended = True
            if reap:
                self._node.reap(self._reap_pid)
            else:
                self._node.leave_zombie(self._reap_pid)
            self._channel.close()

    def end(self) -> None:
        """Let the process exit by itself (its channel closes) and wait for that."""
        if not self._ended:
            self._ended = True
            self._channel.close()
            self._node.reap(self._reap_pid)


class MockNode:
    """One folder of mock GPUs, removed at the end with all processes on it."""

    def __init__(self, server: ForkServer, spec: str, environment: dict[str, str] | None = None) -> None:
        self._server = server
        self._parent = Path(tempfile.mkdtemp(prefix="gpu-mock-test-", dir="/dev/shm"))
        self._parent.chmod(0o755)
        self.folder = self._parent / "node"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TIMESLICE_")},
            "LD_LIBRARY_PATH": str(library_folder()),
            "TIMESLICE_GPU_MOCK_DIR": str(self.folder),
            "TIMESLICE_GPU_MOCK": spec,
            **(environment or {}),
        }
        self._processes: list[MockProcess] = []
        self._zombies: list[int] = []
        self.undocumented: list[str] = []
        """Results that the documentation of the call does not name."""
        self.has_faults = False
        self.control("create")

    def __enter__(self) -> MockNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def control(self, *arguments: str, timeout_s: float = 30.0) -> str:
        """Run the gpu-mock command; return what it printed.

        Raises:
            subprocess.CalledProcessError: it failed; .stderr has its words.
        """
        done = subprocess.run(
            [str(library_folder() / "gpu-mock"), *arguments], env=self.environment, capture_output=True, text=True,
            timeout=timeout_s, check=False)  # fmt: skip
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        return done.stdout

    def inject(self, *words: str) -> str:
        """Inject a fault; returns its number, for `clear`. From now on calls may return any code."""
        self.has_faults = True
        return self.control("inject", *words).strip()

    def clear(self, *number: str) -> None:
        """Remove a fault, or all."""
        self.control("inject", "--clear", *number)

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.control("journal", "--json").splitlines()]

    def process(
        self, device: int | None = 0, *, in_new_namespace: bool = False, uid: int | None = None,
        environment: dict[str, str] | None = None,
    ) -> MockProcess:  # fmt: skip
        """Start a process; with a device, initialise the driver and make that device's primary context current."""
        ours, theirs = socket.socketpair()
        pid, reap_pid = self._server.ask(
            "spawn", {**self.environment, **(environment or {})}, in_new_namespace, uid,
            send=theirs.fileno())  # fmt: skip
        theirs.close()
        if pid <= 0:
            raise OSError(-pid, "no new PID namespace here; run the tests as root or allow user namespaces")
        process = MockProcess(self, pid, reap_pid, Connection(ours.detach()))
        self._processes.append(process)
        if device is not None:
            process.ok.cuInit(0)
            process.ok.cuCtxSetCurrent(process.ok.cuDevicePrimaryCtxRetain(device))
        return process

    def reap(self, pid: int) -> None:
        self._server.ask("reap", pid, True)

    def wait_until_running(self, process: MockProcess) -> None:
        """Wait until a kernel of the process occupies its device; nothing tells when it starts."""
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        running = ("kernel", process.pid, None)
        while running not in ((line["kind"], line["pid"], line["end_ns"]) for line in self.journal()):
            assert time.monotonic() < deadline, f"no kernel of process {process.pid} is running"

    @staticmethod
    def wait_until_gone(process: MockProcess) -> None:
        """Wait until the kernel has ended the process, reaped or not."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return
        try:
            assert select.select([descriptor], [], [], REPLY_TIMEOUT_S)[0], f"process {process.pid} did not end"
        finally:
            os.close(descriptor)

    def leave_zombie(self, pid: int) -> None:
        self._zombies.append(pid)

    def note_result(self, name: str, value: Any) -> None:
        code = value[0] if name.startswith("cu") and isinstance(value, tuple) else None
        if not isinstance(code, CUresult) or self.has_faults or code in DOCUMENTED_FOR_ALL_CALLS:
            return
        if code not in documented_codes(name) and (name, code) not in KNOWN_BEYOND_THE_DOCUMENTATION:
            self.undocumented.append(f"{name}: {code!r}")

    def check(self) -> None:
        """Ask the mock whether its shared state is consistent."""
        self.control("show", "--check")

    def close(self) -> None:
        try:
            for process in self._processes:
                process.kill()
            for pid in self._zombies:
                self.reap(pid)
        finally:
            shutil.rmtree(self._parent)




def state_of(asker: MockThread, pid: int) -> driver.CUprocessState:
    """What the driver says of a process."""
    return driver.CUprocessState(int(asker.ok.cuCheckpointProcessGetState(pid)))


def lock_args(timeout_ms: int) -> Struct:
    return Struct("CUcheckpointLockArgs", timeoutMs=timeout_ms)
