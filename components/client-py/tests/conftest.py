import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faces import AioFace, SyncFace
from fake_orchestrator import FakeOrchestrator


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of whoever runs the tests reaches them."""
    for name in ("ORCH_ADDR", "AGENT_ADDR", "JOB_ID", "GROUP_ID", "RUNTIME_DIR", "STATE_DIR", "NODE"):
        monkeypatch.delenv(f"TIMESLICE_{name}", raising=False)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path leaves room for sockets; pytest's own are too deep under Bazel."""
    folder = Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def orchestrator(short_dir: Path) -> Iterator[FakeOrchestrator]:
    """Serves the groups `trainers` and `samplers`."""
    server = FakeOrchestrator(f"unix:{short_dir}/o.sock", "trainers", "samplers")
    server.start()
    yield server
    if server._server is not None:
        server.stop()


@pytest.fixture(params=[SyncFace, AioFace], ids=["sync", "aio"])
def face(request: pytest.FixtureRequest) -> Iterator[SyncFace | AioFace]:
    """The client's face that the test runs on."""
    face = request.param()
    yield face
    face.close()


@pytest.fixture
def connect(orchestrator: FakeOrchestrator, face: SyncFace | AioFace) -> Iterator[Callable[..., Any]]:
    """Makes clients of the fake, closed at the end."""
    clients: list[Any] = []

    def connect(job_id: str | None = "a", group_id: str | None = "trainers", **kwargs: object) -> Any:
        client = face.orchestrator(orchestrator.address, job_id, group_id, **kwargs)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


class Background:
    """A call in a thread of its own; `result` gives what it returned, or raises what it raised."""

    def __init__(self, function: Callable[..., object], *args: object, **kwargs: object) -> None:
        self._outcome: list[object] = []
        self._error: list[BaseException] = []

        def run() -> None:
            try:
                self._outcome.append(function(*args, **kwargs))
            except BaseException as err:
                self._error.append(err)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self, timeout_s: float = 15.0) -> object:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the call did not end"
        if self._error:
            raise self._error[0]
        return self._outcome[0]

    def is_running(self) -> bool:
        return self._thread.is_alive()


@pytest.fixture
def background() -> type[Background]:
    return Background
