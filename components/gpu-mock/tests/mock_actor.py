"""The child side of mock_node: a warm server process that forks actors, processes that make driver calls on request.

The server has imported cuda-bindings and nvidia-ml-py and has loaded neither of the mock's libraries: an actor is a new
process in a few milliseconds, which loads and initialises the mock by itself, in an environment of its own.

An actor runs each request on a named thread (contexts are current to threads): a blocked call does not block the next.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import queue
import resource
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pynvml
from cuda.bindings import driver

CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000


class Struct:
    """A driver struct by name and fields, built in the actor: Struct("CUcheckpointLockArgs", timeoutMs=5)."""

    def __init__(self, kind: str, **fields: Any) -> None:
        self.kind = kind
        self.fields = fields

    def build(self) -> Any:
        made = getattr(driver, self.kind)()
        if "raw" in self.fields:  # the whole of it, as bytes
            ctypes.memmove(made.getPtr(), self.fields["raw"], len(self.fields["raw"]))
            return made
        for name, value in self.fields.items():
            setattr(made, name, to_driver(value))
        return made


def to_driver(value: Any) -> Any:
    """Turn what travelled over the wire into what cuda-bindings takes."""
    if isinstance(value, Struct):
        return value.build()
    if isinstance(value, list):
        return [to_driver(item) for item in value]
    return value


def to_wire(value: Any) -> Any:
    """Turn a result into plain data: handles become numbers, structs dictionaries, UUIDs bytes."""
    if value is None or isinstance(value, (int, float, str, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(to_wire(item) for item in value)
    if isinstance(value, ctypes.Structure):
        return {field[0]: to_wire(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, driver.CUuuid):
        return bytes(value.bytes)
    if hasattr(value, "__int__"):
        return int(value)
    if hasattr(value, "__dict__") and vars(value):
        return {name: to_wire(item) for name, item in vars(value).items()}
    if hasattr(value, "getPtr"):
        names = [name for name in dir(value) if not name.startswith("_") and name != "getPtr"]
        return {name: to_wire(getattr(value, name)) for name in names}
    return repr(value)


class Actor:
    """Makes the calls that are asked for, each on the thread that is named with it."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._threads: dict[str, queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]]] = {}
        self._host: dict[int, Any] = {}
        self._nvml: dict[int, Any] = {}

    def serve(self) -> None:
        while True:
            try:
                number, thread, name, arguments = self._channel.recv()
            except EOFError:
                os._exit(0)
            if thread not in self._threads:
                self._threads[thread] = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._threads[thread],), name=thread, daemon=True).start()
            self._threads[thread].put((number, name, arguments))

    def _run(self, requests: queue.SimpleQueue[tuple[int, str, tuple[Any, ...]]]) -> None:
        while True:
            number, name, arguments = requests.get()
            try:
                reply = (number, True, self.perform(name, arguments))
            except Exception as error:
                reply = (number, False, error)
            with self._sending:
                try:
                    self._channel.send(reply)
                except (pickle.PicklingError, TypeError, AttributeError):
                    self._channel.send((number, False, RuntimeError(repr(reply[2]))))

    def perform(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name.startswith("nvml"):
            return self._nvml_call(name, arguments)
        if name.startswith("cu"):
            return to_wire(getattr(driver, name)(*[to_driver(argument) for argument in arguments]))
        special: dict[str, Callable[..., Any]] = {
            "host": self._new_host, "peek": ctypes.string_at, "poke": self._poke, "fork": self._fork, "raw": self._raw,
            "thread_id": threading.get_native_id, "own_pid": os.getpid, "loaded": self._loaded, "entry": self._entry,
            "callback": self._callback, "per_thread": self._per_thread, "repeat": self._repeat,
            "map_file": self._map_file, "limit_file_size": self._limit_file_size,
            "limit_memory": self._limit_memory, "become": self._become,
        }  # fmt: skip
        return special[name](*arguments)

    def _new_host(self, content: bytes | int) -> int:
        """Ordinary (pageable) host memory that lives as long as the process; returns its address."""
        held = ctypes.create_string_buffer(content) if isinstance(content, int) else bytearray(content)
        view = held if isinstance(held, ctypes.Array) else (ctypes.c_char * len(held)).from_buffer(held)
        self._host[ctypes.addressof(view)] = view
        return ctypes.addressof(view)

    @staticmethod
    def _limit_file_size(size: int) -> None:
        """Writes of this process beyond `size` of any file fail from now on; -1: no limit."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    @staticmethod
    def _limit_memory(more: int) -> None:
        """Let this process map at most `more` bytes beyond what it has; -1: no limit."""
        with open("/proc/self/statm") as sizes:
            mapped = int(sizes.read().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (-1 if more < 0 else mapped + more, resource.RLIM_INFINITY))

    def _become(self, command: list[str]) -> None:
        """Replace this process by another program."""
        os.set_inheritable(self._channel.fileno(), False)
        os.execvp(command[0], command)

    @staticmethod
    def _poke(address: int, content: bytes) -> None:
        ctypes.memmove(address, content, len(content))

    def _callback(self, counter: int, value: int) -> int:
        """The address of a host function that stores `value` at `counter`, whatever it is called with."""
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
            lambda *_: ctypes.memmove(counter, bytes([value]), 1) and None)  # fmt: skip
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        self._host[address] = function
        return address

    def _map_file(self, path: str) -> int:
        """Map a file shared; returns the address."""
        with open(path, "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        view = ctypes.c_char.from_buffer(mapped)
        self._host[ctypes.addressof(view)] = view
        return ctypes.addressof(view)

    def _fork(self, calls: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Make the calls in a forked child of this very process; return their results in order."""
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            results: list[Any] = []
            for name, arguments in calls:
                try:
                    results.append(self.perform(name, arguments))
                except Exception as error:
                    results.append(repr(error))
            os.write(write_end, pickle.dumps(results))
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as answers:
            got = answers.read()
        os.waitpid(child, 0)
        return pickle.loads(got) if got else ["the forked child died"]

    @staticmethod
    def _raw(library: str, name: str, *arguments: Any) -> int:
        """Call an exported function by its C name, past the bindings; numbers above 32 bits are addresses."""
        wide = [ctypes.c_void_p(item) if isinstance(item, int) and item >> 32 else item for item in arguments]
        return int(getattr(ctypes.CDLL(library), name)(*wide))

    @staticmethod
    def _entry(symbol: str, version: int, flags: int) -> tuple[int, int, int, str]:
        """cuGetProcAddress_v2 itself: (code, address, symbol status, name of the exported function at that address)."""
        library = ctypes.CDLL("libcuda.so.1")
        found, status = ctypes.c_void_p(), ctypes.c_int(-1)
        code = library.cuGetProcAddress_v2(
            symbol.encode(), ctypes.byref(found), ctypes.c_int(version), ctypes.c_uint64(flags), ctypes.byref(status))
        return code, found.value or 0, status.value, symbol_at(found.value or 0)

    def _per_thread(self, symbol: str, *arguments: int) -> driver.CUresult:
        """Call the per-thread variant (flags 2) of a driver call; all arguments are numbers or addresses."""
        code, address, _, name = self._entry(symbol, 13000, 2)
        if code or not name.endswith(("_ptds", "_ptsz")):
            raise LookupError(f"{symbol} has no per-thread variant: {code}, {name!r}")
        function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(arguments))(address)
        return driver.CUresult(function(*arguments))

    @staticmethod
    def _loaded() -> list[str]:
        """The mock's libraries that this process has mapped."""
        with open("/proc/self/maps") as maps:
            files = {os.path.basename(line.split()[-1]) for line in maps if len(line.split()) > 5}
        return sorted(name for name in files if name.startswith(("libcuda.so", "libnvidia-ml.so")))

    def _repeat(self, times: int, calls: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Make the calls `times` times in a row; return the distinct results of each."""
        seen: list[list[Any]] = [[] for _ in calls]
        for _ in range(times):
            for results, (name, arguments) in zip(seen, calls, strict=True):
                result = self.perform(name, arguments)
                if result not in results:
                    results.append(result)
        return seen

    def _nvml_call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Handles of NVML stay here; the caller knows each by the address that the library gave."""
        known = [self._nvml.get(item, item) if isinstance(item, int) else item for item in arguments]
        result = getattr(pynvml, name)(*known)
        if isinstance(result, ctypes._Pointer):
            address = ctypes.cast(result, ctypes.c_void_p).value or 0
            self._nvml[address] = result
            return address
        return to_wire(result)


class _DlInfo(ctypes.Structure):
    _fields_ = [
        ("fname", ctypes.c_char_p), ("fbase", ctypes.c_void_p), ("sname", ctypes.c_char_p), ("saddr", ctypes.c_void_p),
    ]  # fmt: skip


def symbol_at(address: int) -> str:
    """The name of the exported function that starts at this address, or ''."""
    found = _DlInfo()
    dladdr = ctypes.CDLL(None).dladdr
    if not address or not dladdr(ctypes.c_void_p(address), ctypes.byref(found)) or found.saddr != address:
        return ""
    return (found.sname or b"").decode()


def become_actor(channel: int, environment: dict[str, str], uid: int | None) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if uid is not None:
        import cuda.pathfinder  # noqa: F401  (the new user may not read the folder it comes from)

        ctypes.CDLL("libcuda.so.1")
        ctypes.CDLL("libnvidia-ml.so.1")
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    Actor(Connection(channel)).serve()


def fork_actor(channel: int, environment: dict[str, str], in_new_namespace: bool, uid: int | None) -> tuple[int, int]:
    """Fork an actor; return (its pid, the pid to reap: another one where a namespace came between)."""
    if not in_new_namespace:
        pid = os.fork()
        if pid == 0:
            become_actor(channel, environment, uid)
        return pid, pid
    read_end, write_end = os.pipe()
    between = os.fork()
    if between == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWPID):
            if libc.unshare(CLONE_NEWUSER | CLONE_NEWPID):
                os.write(write_end, b"%d" % -ctypes.get_errno())
                os._exit(1)
            uid = None  # without rights outside, a namespace of its own knows no other user
        inner = os.fork()
        if inner == 0:
            os.close(read_end)
            os.close(write_end)
            become_actor(channel, environment, uid)
        os.write(write_end, b"%d" % inner)
        os.close(channel)
        os.close(write_end)
        _, status = os.waitpid(inner, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        pid = int(answer.read() or b"-1")
    return pid, between


def run_server(control: socket.socket) -> None:
    """Serve ("spawn", ...), with the actor's end of a channel attached, and ("reap", pid, wait) until the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 1)
        if not message:
            return
        request = pickle.loads(message)
        if request[0] == "spawn":
            reply: Any = fork_actor(descriptors[0], *request[1:])
            os.close(descriptors[0])
        else:
            pid, status = os.waitpid(request[1], 0 if request[2] else os.WNOHANG)
            reply = os.waitstatus_to_exitcode(status) if pid else None
        control.sendall(pickle.dumps(reply))


if __name__ == "__main__":
    import mock_actor  # under its own name: what is pickled on the other side names it so

    with socket.socket(fileno=int(sys.argv[1])) as control:
        mock_actor.run_server(control)
