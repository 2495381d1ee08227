"""All that the doctor knows of a machine, as data. None means that it could not be found out, or that there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from timeslice._settings import in_pod


@dataclass(frozen=True)
class Device:
    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    persistence: bool | None = None
    compute_mode: int | None = None
    """NVML's number: 0 default, 2 prohibited, 3 one process at a time."""


@dataclass(frozen=True)
class DriverFacts:
    """What a child process found when it loaded and started the driver."""

    cuda_library: str | None = None
    """The file that was loaded as libcuda.so.1."""
    cuda_error: str | None = None
    """Why CUDA cannot be used: the library does not load, or cuInit refuses."""
    cuda_version: int | None = None
    """The newest CUDA that the driver speaks: 12080 is 12.8."""
    missing_calls: tuple[str, ...] = ()
    """Of the checkpoint calls that the agent makes, those that the library lacks."""
    nvml_error: str | None = None
    version: str | None = None
    """The driver's own version, as "580.82.07"."""
    devices: tuple[Device, ...] = ()
    stuck_in: str | None = None
    """The step that had not ended by the deadline."""
    deadline_s: float = 0.0
    crash: str | None = None
    """How the child ended, if not as it should."""


@dataclass(frozen=True)
class Provider:
    """A distribution that brings a package named `timeslice`."""

    distribution: str
    version: str
    files: int
    """Of that package, Python only."""
    replaced: tuple[str, ...]
    """Those that are not, or no more, what this distribution brought."""


@dataclass(frozen=True)
class Socket:
    """A unix socket's file, and who listens behind it."""

    path: str
    exists: bool
    listener_uid: int | None = None
    listener_pid: int | None = None


@dataclass(frozen=True)
class Server:
    """How an orchestrator or an agent answered."""

    address: str
    is_chosen: bool
    """A person or the environment named this address; else it is where `timeslice up` would listen."""
    socket: Socket | None = None
    error: str | None = None
    """Why it gave no answer; None: it did."""
    groups: tuple[str, ...] = ()
    accelerators: int = 0
    has_extensions: bool = False
    """It knows what we added to the public contract: events that are pushed, and more in its answers."""


@dataclass(frozen=True)
class Folder:
    path: str
    exists: bool
    problem: str | None = None
    """Why it cannot be used, with what to do."""


@dataclass(frozen=True)
class CgroupRoom:
    path: str
    free_bytes: int


@dataclass(frozen=True)
class Facts:
    env: Mapping[str, str] = field(default_factory=dict)
    uid: int = 0
    has_ptrace_capability: bool = False
    ptrace_scope: int | None = None
    """Yama's, from /proc/sys/kernel/yama/ptrace_scope."""
    python: tuple[int, int, int] = (3, 11, 0)
    versions: Mapping[str, str] = field(default_factory=dict)
    """By distribution, of those that are installed."""
    has_server_packages: bool = False
    """Orchestrator and agent can be imported by this Python."""
    providers: tuple[Provider, ...] = ()
    import_problem: str | None = None
    """Why grpc, or the code generated for it, cannot be imported."""
    imported_from: str = ""
    """The folder of the package `timeslice` that this Python imports."""
    driver: DriverFacts = field(default_factory=DriverFacts)
    orchestrator: Server | None = None
    agent: Server | None = None
    settings_problems: tuple[str, ...] = ()
    """Addresses and the like that cannot be, in words that say what to do."""
    runtime_folder: Folder | None = None
    state_folder: Folder | None = None
    memory_available_bytes: int | None = None
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """What the downward API tells; empty: it tells nothing, or this is no pod."""
    cgroup_room: CgroupRoom | None = None
    """The tightest limit on host memory above this process."""

    @property
    def is_remote(self) -> bool:
        """The orchestrator is on another machine: this one need have no GPU."""
        return self.orchestrator is not None and self.orchestrator.socket is None

    @property
    def is_pod(self) -> bool:
        return in_pod(self.env)

    @property
    def is_mock(self) -> bool:
        return any(device.name.startswith("Mock ") for device in self.driver.devices)
