"""A whole installation for tests: orchestrator, one agent per node, GPU mocks, jobs' processes; all real processes.

Every node has a mock of its own (a folder), so that several "nodes" stand on this machine. Nothing here sleeps to
wait for a state: processes are awaited by the line that says that they serve, states by the event streams.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc

from timeslice import TimeSliceOrchestratorClient
from timeslice.snapshot_agent import WorkloadHandle, register_workload
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2, orchestrator_pb2_grpc

START_S = 30.0
"""A server that has not said that it is ready by then has failed; they take about a second."""

LOOK_AGAIN_S = 0.05

HERE = Path(__file__).parent


class Server:
    """A server process, its log lines, and the line that says that it is ready."""

    def __init__(self, arguments: list[str], env: dict[str, str], log: Path, ready: str) -> None:
        self._arguments = arguments
        self._env = env
        self.log = log
        self._ready = ready
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *self._arguments], env=self._env, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        ready = threading.Event()
        threading.Thread(target=self._read, args=(self.process, ready), daemon=True).start()
        deadline = time.monotonic() + START_S
        while not ready.wait(0.2):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self._arguments} did not become ready:\n{self.log.read_text()[-4000:]}")

    def replace_argument(self, old: str, new: str) -> None:
        """The next start is given `new` in place of `old`."""
        self._arguments = [new if argument == old else argument for argument in self._arguments]

    def _read(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stdout is not None
        with self.log.open("a") as log, process.stdout:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if self._ready in line:
                    ready.set()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit status; the test fails if it does not end."""
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.process.wait(timeout=START_S)


class DeviceProcess:
    """A job's process with device memory; see device_process.py."""

    def __init__(self, node: Node, ordinal: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "device_process.py")],
            env=node.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.call("open", ordinal)

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._replies.put(line)
        self._replies.put("")

    def send(self, method: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()

    def reply(self, timeout_s: float = 20.0) -> Any:
        line = self._replies.get(timeout=timeout_s)
        if not line:
            raise AssertionError(f"device process {self.pid} ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def call(self, method: str, *arguments: Any, timeout_s: float = 20.0) -> Any:
        self.send(method, *arguments)
        return self.reply(timeout_s)

    def has_replied(self) -> bool:
        return not self._replies.empty()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class Node:
    """One node: a GPU mock in a folder of its own, and the agent that serves it."""

    def __init__(self, name: str, folder: Path, gpus: str, groups: dict[str, str], agent_flags: list[str]) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True)
        library = Path(os.environ["GPU_MOCK_LIB_DIR"]).resolve()
        self._tool = library / "gpu-mock"
        self.env = dict(
            os.environ,
            LD_LIBRARY_PATH=str(library),
            PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
            TIMESLICE_GPU_MOCK=gpus,
            TIMESLICE_GPU_MOCK_DIR=str(folder / "mock"),
            TIMESLICE_NODE=name,
        )
        self.address = f"unix:{folder}/agent.sock"
        flags = [f"--group={group}={accelerators}" for group, accelerators in groups.items()]
        self.agent = Server(
            [
                "-m",
                "snapshot_agent_server",
                "--listen",
                self.address,
                "--node",
                name,
                "--state-dir",
                str(folder / "state"),
                *flags,
                *agent_flags,
            ],
            self.env,
            folder / "agent.log",
            "snapshot agent ready",
        )

    def gpu_mock(self, *arguments: str) -> str:
        return subprocess.run(
            [str(self._tool), *arguments], env=self.env, check=True, capture_output=True, text=True, timeout=30
        ).stdout

    def journal(self) -> list[dict[str, Any]]:
        """The ground truth: what ran on this node's devices, when, and of whom."""
        return [json.loads(line) for line in self.gpu_mock("journal", "--json").splitlines()]


class Installation:
    """An orchestrator and its clients; a context manager that leaves no process behind."""

    def __init__(self, folder: Path, listen: str, agents: list[str], flags: tuple[str, ...] = ()) -> None:
        """`agents`: what is given as --agent. A port of 0 in `listen` is chosen at the start."""
        self.folder = folder
        self.address = listen
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        named = [flag for agent in agents for flag in ("--agent", agent)]
        state = ["--listen", listen, "--state-dir", str(folder / "state")]
        self.orchestrator = Server(
            ["-m", "orchestrator", *state, *named, *flags], env, folder / "orchestrator.log", "orchestrator ready"
        )
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.orchestrator.start()
        self._stack.callback(self.orchestrator.stop)
        listen = self.address
        if listen.endswith(":0"):
            lines = [json.loads(line) for line in self.orchestrator.log.read_text().splitlines() if line[0] == "{"]
            [self.address] = next(line["listen"] for line in lines if line["msg"] == "orchestrator ready")
            self.orchestrator.replace_argument(listen, self.address)
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            self._show(self.orchestrator)
        self._stack.close()

    @staticmethod
    def _show(server: Server) -> None:
        print(f"--- {server.log.name}\n{server.log.read_text()[-6000:]}")

    def client(self, job: str, group: str = "g", **settings: Any) -> TimeSliceOrchestratorClient:
        client = TimeSliceOrchestratorClient(self.address, job_id=job, group_id=group, **settings)
        self._stack.callback(client.close)
        return client

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call this before the servers stop."""
        self._stack.callback(callback)

    @contextlib.contextmanager
    def stub(self) -> Iterator[orchestrator_pb2_grpc.TimeSliceOrchestratorServiceStub]:
        with grpc.insecure_channel(self.address) as channel:
            yield orchestrator_pb2_grpc.TimeSliceOrchestratorServiceStub(channel)

    def status(self, group: str = "g") -> orchestrator_pb2.GetGroupStatusResponse:
        with self.stub() as stub:
            return stub.GetGroupStatus(orchestrator_pb2.GetGroupStatusRequest(group_id=group), timeout=5)

    def sees(self, job: str, state: str, group: str = "g", timeout_s: float = 20.0) -> None:
        """Wait until status shows the job so on a node. Looked at again and again: there is no event for it."""
        wanted = orchestrator_pb2.SnapshotAgentJobState.State.Value(f"STATE_{state}")
        deadline = time.monotonic() + timeout_s
        while not any(s.job_id == job and s.job_state == wanted for s in self.status(group).agent_job_states):
            assert time.monotonic() < deadline, f"job {job} never shows as {state}: {self.status(group)}"
            time.sleep(LOOK_AGAIN_S)

    def restart(self) -> None:
        """kill -9 the orchestrator and start another one on the same state and address."""
        self.orchestrator.kill()
        self.orchestrator.start()

    def wait_for(self, condition: Any, group: str = "g", timeout_s: float = 20.0) -> orchestrator_pb2.GroupStatus:
        """The first status of the group, current or coming, that fulfils the condition; told by WatchGroups."""
        last = None
        with self.stub() as stub:
            try:
                for event in stub.WatchGroups(
                    orchestrator_pb2.WatchGroupsRequest(group_ids=[group]), timeout=timeout_s
                ):
                    last = event.group
                    if condition(event.group):
                        return event.group
            except grpc.RpcError as error:
                raise AssertionError(f"never came to pass; last status: {last}") from error
        raise AssertionError(f"the event stream ended; last status: {last}")


class Machine(Installation):
    """Orchestrator and nodes with our agents."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: dict[str, dict[str, str]] | None = None,
        gpus: str = "1x32MiB",
        agent_flags: tuple[str, ...] = (),
        orchestrator_flags: tuple[str, ...] = (),
    ) -> None:
        """`nodes`: node name -> {group: accelerators}; default one node "n0" with group "g" on its GPU 0."""
        nodes = nodes or {"n0": {"g": "0"}}
        self.nodes = {
            name: Node(name, folder / name, gpus, groups, list(agent_flags)) for name, groups in nodes.items()
        }
        agents = [
            ",".join([f"{name}={self.nodes[name].address}", *(f"group={group}" for group in groups)])
            for name, groups in nodes.items()
        ]
        super().__init__(folder, f"unix:{folder}/orch.sock", agents, orchestrator_flags)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for node in self.nodes.values():
                node.agent.start()
                stack.callback(node.agent.stop)
            self._stack = stack.pop_all()
        try:
            return super().__enter__()
        except BaseException:
            self._stack.close()
            raise

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            for node in self.nodes.values():
                self._show(node.agent)
        super().__exit__(*exception)

    @property
    def node(self) -> Node:
        """The only node."""
        [node] = self.nodes.values()
        return node

    def process(self, job: str, group: str = "g", node: str | None = None, ordinal: int = 0) -> DeviceProcess:
        """A registered process of a job. It has a context but nothing in device memory yet."""
        where = self.nodes[node] if node else self.node
        process = DeviceProcess(where, ordinal)
        self._stack.callback(process.kill)
        handle = self.register(job, group, [process.pid], node)
        self._stack.callback(handle.close)
        return process

    def register(self, job: str, group: str, pids: list[int], node: str | None = None) -> WorkloadHandle:
        where = self.nodes[node] if node else self.node
        return register_workload(where.address, job, group, pids=pids)
