"""`timeslice doctor`: checks with facts that are given, probes with what hangs or lies, and the whole command."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from fake_event_log import TellingOrchestrator
from timeslice.cli.doctor import check_installation, installation, machine
from timeslice.cli.doctor.driver import probe_driver
from timeslice.cli.doctor.facts import CgroupRoom, Device, DriverFacts, Facts, Folder, Provider, Server, Socket
from timeslice.cli.doctor.findings import Finding, Grade, examine
from timeslice.cli.doctor.report import as_json, as_text, passes
from timeslice.cli.doctor.servers import ask_agent, ask_orchestrator

GIB = 1 << 30
OK, WARN, FAIL = Grade.OK, Grade.WARN, Grade.FAIL

DRIVER = DriverFacts(
    cuda_library="/usr/lib/libcuda.so.1",
    cuda_version=13000,
    version="580.82.07",
    devices=(Device(0, "GPU-0", "NVIDIA H100 80GB HBM3", 80 * GIB, True, 0),),
)
HEALTHY = Facts(
    env={},
    uid=0,
    python=(3, 12, 1),
    versions={
        "grpcio": "1.81.0", "grpcio-health-checking": "1.81.0", "protobuf": "6.33.5", "timeslice-rl": "1.2.3",
        "timeslice-orchestrator": "1.2.3", "timeslice-snapshot-agent": "1.2.3", "cuda-bindings": "13.0.3",
        "nvidia-ml-py": "13.580.82",
    },
    has_server_packages=True,
    providers=(Provider("timeslice-rl", "1.2.3", 40, ()),),
    imported_from="/venv/timeslice",
    driver=DRIVER,
    orchestrator=Server("unix:/o", False, Socket("/o", True, 0, 7), groups=("pool",), has_extensions=True),
    agent=Server("unix:/a", False, Socket("/a", True, 0, 8), accelerators=1, has_extensions=True),
    runtime_folder=Folder("/run/timeslice", True),
    state_folder=Folder("/state", False),
    memory_available_bytes=100 * GIB,
)  # fmt: skip


def found(facts: Facts, check: str) -> Finding:
    [finding] = [f for f in examine(facts) if f.check == check]
    return finding


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
LABELS = {"timeslice.io/job-id": "run-7", "timeslice.io/group": "trainers"}


@pytest.mark.parametrize(
    ("env", "labels", "grade", "text"),
    [
        ({}, LABELS, OK, "job run-7, group trainers"),
        ({"TIMESLICE_JOB_ID": "e"}, {}, OK, "job e, group not said"),
        ({}, {}, WARN, "neither TIMESLICE_JOB_ID nor a label"),
        ({"TIMESLICE_JOB_ID": "other"}, LABELS, WARN, "job other, group trainers, but the pod's label"),
    ],
)
def test_in_a_pod_it_says_who_the_job_is(env, labels, grade, text):
    finding = found(replace(HEALTHY, env={**POD, **env}, pod_labels=labels), "pod")
    assert finding.grade is grade
    assert text in finding.text
    assert not [f for f in examine(HEALTHY) if f.check == "pod"]


def test_in_a_pod_nobody_is_told_to_start_servers_there():
    silent = Server("timesliceorchestrator.timeslice-system:50051", False, error="UNAVAILABLE")
    facts = replace(HEALTHY, env=POD, pod_labels=LABELS, orchestrator=silent)
    assert "kubectl -n timeslice-system get pods" in found(facts, "orchestrator").advice
    away = replace(facts, agent=Server("unix:/a", False, Socket("/a", False), error="UNAVAILABLE"))
    assert found(away, "snapshot agent").grade is OK


def test_healthy_machine_has_nothing_to_look_at():
    findings = examine(HEALTHY)
    assert {f.grade for f in findings} == {OK}, [f for f in findings if f.grade is not OK]
    assert all(f.text for f in findings)


def with_driver(**changes) -> Facts:
    return replace(HEALTHY, driver=replace(DRIVER, **changes))


def with_device(**changes) -> Facts:
    return with_driver(devices=(replace(DRIVER.devices[0], **changes),))


def with_versions(**changes: str | None) -> Facts:
    versions = {**HEALTHY.versions, **{name.replace("_", "-"): version for name, version in changes.items()}}
    return replace(HEALTHY, versions={name: version for name, version in versions.items() if version is not None})


def with_env(**env: str) -> Facts:
    return replace(HEALTHY, env=env)


ABSENT = {"cuda_library": None, "cuda_error": "libcuda.so.1: no such file", "nvml_error": "no file", "devices": ()}
REMOTE = Server("head:50051", True, groups=("pool",), has_extensions=True)


@pytest.mark.parametrize(
    ("facts", "check", "grade", "text", "advice"),
    [
        # Installation.
        (replace(HEALTHY, python=(3, 9, 18)), "Python", FAIL, "3.9.18", "3.10 or newer"),
        (replace(HEALTHY, python=(3, 10, 13)), "Python", OK, "timeslice up needs 3.11", ""),
        (with_versions(grpcio="1.80.0"), "grpcio", FAIL, "1.80.0, and 1.81.0 is the oldest", "grpcio>=1.81.0"),
        (with_versions(grpcio="1.9.0"), "grpcio", FAIL, "1.9.0", "grpcio>=1.81.0"),
        (with_versions(grpcio="1.100.0rc1"), "grpcio", OK, "1.100.0rc1", ""),
        (with_versions(protobuf=None), "protobuf", FAIL, "not installed", "pip install 'protobuf>=6.33.5'"),
        (with_versions(grpcio_health_checking="1.80"), "grpcio-health-checking", FAIL, "1.80", "1.81.0"),
        (with_versions(timeslice_orchestrator="1.2.2"), "servers", FAIL, "timeslice-orchestrator 1.2.2", "==1.2.3"),
        (with_versions(timeslice_orchestrator=None), "servers", FAIL, "no timeslice-orchestrator", "[local]==1.2.3"),
        (
            replace(HEALTHY, versions={"timeslice-rl": "1.2.3"}, has_server_packages=False),
            "servers", OK, "a client's only", "",
        ),
        (with_versions(cuda_bindings=None), "cuda-bindings", FAIL, "agent needs it", "pip install cuda-bindings"),
        (
            replace(HEALTHY, providers=(Provider("timeslice", "0.2.1", 19, ("timeslice/a.py",)), *HEALTHY.providers)),
            "package timeslice", FAIL, "of timeslice 0.2.1 18 of 19 files are in place, not timeslice/a.py; of"
            " timeslice-rl 1.2.3 40 of 40 files are in place; imported from /venv/timeslice",
            "pip uninstall timeslice timeslice-rl, then pip install timeslice-rl",
        ),
        (
            replace(HEALTHY, providers=(Provider("timeslice-rl", "1.2.3", 40, ("timeslice/x.py",)),)),
            "package timeslice", FAIL, "39 of 40", "--force-reinstall --no-deps timeslice-rl==1.2.3",
        ),
        (replace(HEALTHY, providers=()), "package timeslice", OK, "from source", ""),
        (replace(HEALTHY, import_problem="no grpc"), "generated code", FAIL, "no grpc", "'grpcio>=1.81.0'"),
        # Driver and GPUs.
        (with_driver(**ABSENT), "CUDA driver", FAIL, "no such file", "timeslice up --mock"),
        (with_driver(cuda_error="cuInit says CUDA_ERROR_NO_DEVICE"), "CUDA driver", FAIL, "NO_DEVICE", "nvidia-smi"),
        (replace(with_driver(**ABSENT), orchestrator=REMOTE), "CUDA driver", WARN, "no such file", "--mock"),
        (with_driver(missing_calls=("cuCheckpointProcessLock",)), "checkpoint calls", FAIL, "ProcessLock", "575"),
        (with_driver(cuda_version=12040), "checkpoint calls", FAIL, "CUDA 12.4 has none; 12.8 is the first", "575"),
        (with_driver(version="570.158.01"), "checkpoint calls", WARN, "570.158.01", "575 or newer"),
        (with_driver(nvml_error="nvmlInit says: Not Found"), "NVML", FAIL, "Not Found", "nvidia-smi"),
        (with_driver(devices=()), "GPUs", FAIL, "none", "nvidia-smi"),
        (with_device(compute_mode=3), "compute mode", FAIL, "GPU 0: one process at a time", "-i 0 -c DEFAULT"),
        (with_device(compute_mode=2), "compute mode", FAIL, "GPU 0: no process", "-c DEFAULT"),
        (with_device(persistence=False), "persistence mode", WARN, "off for GPU 0", "nvidia-smi -pm 1"),
        (with_driver(stuck_in="cuInit", deadline_s=30.0), "driver", FAIL, "within 30 s: stuck in cuInit", "dmesg"),
        (with_driver(crash="signal 11 in cuInit"), "driver", FAIL, "signal 11 in cuInit", "dmesg"),
        (with_device(name="Mock H100 80GB HBM3"), "CUDA driver", OK, "the GPUs are mock ones", ""),
        # Permissions, memory.
        (replace(HEALTHY, uid=1000, ptrace_scope=1), "saving processes", WARN, "ptrace_scope is 1", "as root"),
        (replace(HEALTHY, uid=1000, has_ptrace_capability=True), "saving processes", OK, "CAP_SYS_PTRACE", ""),
        (replace(with_device(name="Mock A"), uid=1000), "saving processes", OK, "the mock", ""),
        (replace(HEALTHY, memory_available_bytes=60 * GIB), "host memory", WARN, "60.0 GiB free (MemAvailable)", "add"),
        (
            replace(HEALTHY, cgroup_room=CgroupRoom("/sys/fs/cgroup/pod", 8 * GIB)),
            "host memory", WARN,
            "8.0 GiB free (the limit of /sys/fs/cgroup/pod); a job that fills all GPUs has 80.0 GiB", "raise the limit",
        ),
        # Servers and folders.
        (
            replace(HEALTHY, orchestrator=Server("unix:/o", False, Socket("/o", False), error="gone")),
            "orchestrator", WARN, "none runs: there is no /o", "timeslice up",
        ),
        (
            replace(HEALTHY, orchestrator=Server("unix:/o", False, Socket("/o", True), error="refused")),
            "orchestrator", FAIL, "does not answer (refused)", "nobody listens behind the socket",
        ),
        (
            replace(HEALTHY, orchestrator=Server("head:50051", True, error="no answer within 3 s")),
            "orchestrator", FAIL, "head:50051 does not answer (no answer within 3 s)", "TIMESLICE_ORCH_ADDR",
        ),
        (replace(HEALTHY, orchestrator=replace(REMOTE, groups=())), "orchestrator", WARN, "no groups", "--group"),
        (replace(HEALTHY, orchestrator=replace(REMOTE, has_extensions=False)), "orchestrator", WARN, "not ours", "use"),
        (replace(HEALTHY, agent=Server("n:1", True, error="refused")), "snapshot agent", FAIL, "n:1", "--agent"),
        (replace(HEALTHY, agent=Server("n:1", True, accelerators=2)), "snapshot agent", WARN, "is polled", "use ours"),
        (
            replace(HEALTHY, orchestrator=REMOTE, agent=Server("unix:/a", False, Socket("/a", False), error="gone")),
            "snapshot agent", OK, "on another one", "",
        ),
        (
            replace(HEALTHY, uid=1000, agent=Server("unix:/a", False, Socket("/a", True, 1001, 5))),
            "user of the agent", FAIL, "runs as user 1001 and you are 1000", "same user",
        ),
        (
            replace(HEALTHY, uid=1000, agent=Server("unix:/a", False, Socket("/a", True, 0, 5))),
            "user of the agent", OK, "every user", "",
        ),
        (
            replace(HEALTHY, runtime_folder=Folder("/run/ts", True, "others may write; run: chmod 700 /run/ts")),
            "folder of sockets", FAIL, "/run/ts", "chmod 700 /run/ts",
        ),
        (replace(HEALTHY, settings_problems=("ORCH_ADDR 'x' is none",)), "settings", FAIL, "'x'", "correct"),
        # Environment of jobs.
        (with_env(GRPC_ENABLE_FORK_SUPPORT="0"), "forks", WARN, "may hang or crash", "unset GRPC_ENABLE_FORK_SUPPORT"),
        (with_env(GRPC_ENABLE_FORK_SUPPORT="1"), "forks", OK, "GRPC_ENABLE_FORK_SUPPORT=1", ""),
        (HEALTHY, "PyTorch watchdog", OK, "no PyTorch", ""),
        (with_versions(torch="2.9"), "PyTorch watchdog", WARN, "480 s (PyTorch's default)", "MONITORING=0"),
        (
            replace(with_versions(torch="2.9.0"), env={"TORCH_NCCL_ENABLE_MONITORING": "0"}),
            "PyTorch watchdog", OK, "is off", "",
        ),
        (with_env(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="600"), "PyTorch watchdog", WARN, "longer than 600 s", "N seconds"),
        (with_env(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="86400"), "PyTorch watchdog", OK, "longer than 86400 s", ""),
        (with_env(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="1 h"), "PyTorch watchdog", WARN, "'1 h', not a whole number", "N"),
        (with_versions(torch="2.9.0"), "NCCL collectives", OK, "600 s unless the program says otherwise", ""),
    ],
)  # fmt: skip
def test_what_is_thought_of_it(facts, check, grade, text, advice):
    finding = found(facts, check)
    assert finding.grade is grade
    assert text in finding.text
    assert advice in finding.advice
    assert bool(finding.advice) == (grade is not OK)


def test_every_problem_says_what_to_do():
    broken = replace(
        HEALTHY, python=(3, 8, 0), versions={}, uid=5, driver=DriverFacts(crash="signal 11"), memory_available_bytes=1,
        orchestrator=Server("h:1", True, error="x"), agent=None, env={"GRPC_ENABLE_FORK_SUPPORT": "0"},
    )  # fmt: skip
    problems = [f for f in examine(broken) if f.grade is not OK]
    assert len(problems) > 5
    assert all(f.advice for f in problems)


def test_floors_are_those_of_the_distribution():
    pyproject = Path(__file__).parents[1] / "pyproject.toml"
    for name, floor in check_installation.FLOORS.items():
        assert f'"{name}>={floor}"' in pyproject.read_text()


# How it is told.


def test_report_fits_the_terminal_and_counts():
    findings = examine(replace(with_driver(**ABSENT), memory_available_bytes=None))
    lines = as_text(findings, 60)
    assert max(len(line) for line in lines if " -> " not in line and "/" not in line) <= 60
    assert lines[-1].endswith("2 must be mended")
    assert not passes(findings)
    assert as_text(examine(HEALTHY), 80)[-1].endswith("fine, nothing fails")


def test_json_report():
    data = json.loads(as_json(examine(with_device(persistence=False))))
    assert data["ok"] is True
    [warning] = [f for f in data["findings"] if f["grade"] == "WARN"]
    assert warning["check"] == "persistence mode"
    assert warning["advice"]


# The probes.


def test_driver_that_hangs_is_left_behind_with_the_step_named():
    child = 'import time; print(\'{"cuda_library": "/x"}\\n{"step": "cuInit"}\', flush=True); time.sleep(600)'
    facts = probe_driver(2.0, ("-c", child))
    assert (facts.cuda_library, facts.stuck_in, facts.deadline_s) == ("/x", "cuInit", 2.0)


def test_driver_that_crashes_is_told_apart():
    child = 'import os; print(\'{"step": "cuInit"}\', flush=True); os.abort()'
    assert probe_driver(60.0, ("-c", child)).crash == "signal 6 in cuInit"
    assert probe_driver(60.0, ("-c", "raise SystemExit('broken')")).crash == "exit code 1 in the end: broken"


def fake_distribution(folder: Path, name: str, files: dict[str, bytes]) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    record = ""
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
        record += f"{file},sha256={urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},\n"
    (info / "RECORD").write_text(record)


def test_two_distributions_of_one_package_show_whose_files_are_in_place(tmp_path, monkeypatch):
    fake_distribution(tmp_path, "timeslice", {"timeslice/__init__.py": b"theirs", "timeslice/only.py": b"theirs"})
    fake_distribution(tmp_path, "timeslice-rl", {"timeslice/__init__.py": b"ours", "timeslice/data.txt": b""})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"timeslice": ["timeslice", "timeslice-rl"]})
    theirs, ours = installation.providers()
    assert theirs == Provider("timeslice", "1.0", 2, ("timeslice/__init__.py",))
    assert ours == Provider("timeslice-rl", "1.0", 1, ())


def test_ptrace_capability_is_read_from_the_effective_set():
    assert machine.has_ptrace_capability("CapPrm:\t0\nCapEff:\t0000000000080000\n")
    assert not machine.has_ptrace_capability("CapEff:\t000000000007ffff\n")
    assert not machine.has_ptrace_capability("")


def test_memory_available():
    assert machine.memory_available_bytes("MemTotal:  9 kB\nMemAvailable:    1024 kB\n") == 1 << 20
    assert machine.memory_available_bytes("") is None


def test_tightest_cgroup_above_decides(tmp_path):
    inner = tmp_path / "kube" / "pod"
    inner.mkdir(parents=True)
    for folder, limit, used in ((inner, "1000", 5), (tmp_path / "kube", "100", 40)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
    assert machine.cgroup_room("0::/kube/pod\n", tmp_path) == CgroupRoom(str(tmp_path / "kube"), 60)
    assert machine.cgroup_room("5:memory:/x\n", tmp_path) is None
    (tmp_path / "kube" / "memory.max").write_text("max\n")
    assert machine.cgroup_room("0::/kube/pod\n", tmp_path) == CgroupRoom(str(inner), 995)
    (inner / "memory.max").write_text("max\n")
    assert machine.cgroup_room("0::/kube/pod\n", tmp_path) is None


def test_folders(tmp_path):
    env = {"TIMESLICE_RUNTIME_DIR": str(tmp_path / "run"), "TIMESLICE_STATE_DIR": str(tmp_path / "file" / "state")}
    assert machine.runtime_folder(env) == Folder(str(tmp_path / "run"), False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    assert "chmod 700" in (machine.runtime_folder(env).problem or "")
    (tmp_path / "run").chmod(0o700)
    assert machine.runtime_folder(env) == Folder(str(tmp_path / "run"), True)
    (tmp_path / "file").touch()
    assert "TIMESLICE_STATE_DIR" in (machine.state_folder(env).problem or "")


@pytest.fixture
def orchestrator(short_dir: Path) -> Iterator[TellingOrchestrator]:
    server = TellingOrchestrator(f"unix:{short_dir}/o.sock", "trainers", "samplers")
    server.start()
    yield server
    server.stop()


def test_orchestrator_that_answers(orchestrator):
    server = ask_orchestrator(orchestrator.address, False)
    assert (server.error, server.groups, server.has_extensions) == (None, ("trainers", "samplers"), True)
    assert server.socket is not None
    assert (server.socket.listener_uid, server.socket.listener_pid) == (os.getuid(), os.getpid())


def test_orchestrator_without_our_extensions(orchestrator):
    orchestrator.fail_next("WatchGroups", "UNIMPLEMENTED")
    assert ask_orchestrator(orchestrator.address, True).has_extensions is False


@pytest.mark.parametrize("ask", [ask_orchestrator, ask_agent])
def test_server_that_accepts_and_never_answers(short_dir, ask):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_dir / "s.sock"))
        silent.listen()
        server = ask(f"unix:{short_dir}/s.sock", True, 0.5)
    assert server.error is not None
    assert server.socket is not None
    assert server.socket.listener_pid == os.getpid()


@pytest.mark.parametrize("ask", [ask_orchestrator, ask_agent])
def test_socket_that_nobody_serves_any_more(short_dir, ask):
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(short_dir / "s.sock"))
    server = ask(f"unix:{short_dir}/s.sock", True)
    assert server.error is not None
    assert server.socket == Socket(f"{short_dir}/s.sock", True)
    assert ask(f"unix:{short_dir}/none.sock", True).socket == Socket(f"{short_dir}/none.sock", False)


# The command.


def doctor(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timeslice.cli", "doctor", *arguments]
    ours = ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_VERBOSITY")  # Set by the client that these tests have imported.
    env = {**{name: value for name, value in os.environ.items() if name not in ours}, **env}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_machine_without_a_driver(short_dir):
    done = doctor("--json", LD_LIBRARY_PATH="", TIMESLICE_RUNTIME_DIR=f"{short_dir}/run", TIMESLICE_STATE_DIR="")
    data = json.loads(done.stdout)
    assert (done.returncode, data["ok"]) == (1, False)
    grades = {f["check"]: f["grade"] for f in data["findings"]}
    assert (grades["CUDA driver"], grades["NVML"], grades["orchestrator"]) == ("FAIL", "FAIL", "WARN")
    assert not (short_dir / "run").exists()  # It changes nothing.
    assert done.stderr == ""


def test_python_without_grpc_is_a_finding_and_not_the_end(short_dir):
    without_grpc = "import sys; sys.modules['grpc'] = None; from timeslice.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", without_grpc, "doctor", "--json"], capture_output=True, text=True, timeout=120,
        env={**os.environ, "TIMESLICE_RUNTIME_DIR": f"{short_dir}/run"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    findings = {f["check"]: f for f in json.loads(done.stdout)["findings"]}
    assert findings["generated code"]["grade"] == "FAIL"
    assert "grpc" in findings["generated code"]["text"]


def test_wrong_address_is_a_finding_and_not_the_end(short_dir):
    done = doctor("--target", "nowhere", TIMESLICE_RUNTIME_DIR=f"{short_dir}/run")
    assert done.returncode == 1
    assert "neither unix:PATH nor HOST:PORT" in " ".join(done.stdout.split())


def test_variables_are_those_that_were_given_not_those_that_the_client_sets(short_dir):
    done = doctor("--json", TIMESLICE_RUNTIME_DIR=f"{short_dir}/run")
    [forks] = [f for f in json.loads(done.stdout)["findings"] if f["check"] == "forks"]
    assert "is not set" in forks["text"]
