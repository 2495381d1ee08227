"""The product as the demo runs it: one orchestrator and one snapshot agent, as `timeslice up` starts them."""

import json
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from timeslice_demo.child_processes import Family, python_command
from timeslice_demo.recorded import Pool

NODE = "demo"
READY_LIMIT_S = 30.0


class ServiceFailed(Exception):
    """The orchestrator or the agent did not come up; the text has its own last words."""


class Services:
    """Orchestrator and agent on sockets in `folder`, each group one device; both are ready when the constructor
    returns.

    Args:
        environment: with the mock's loader path: the agent drives the devices.
        ordinals: which device is each pool's.
    """

    def __init__(
        self, family: Family, folder: Path, environment: Mapping[str, str], ordinals: Mapping[Pool, int]
    ) -> None:
        self.orchestrator = f"unix:{folder}/orchestrator.sock"
        self.agent = f"unix:{folder}/agent.sock"
        groups = [f"--group={pool}={ordinal}" for pool, ordinal in ordinals.items()]
        of_node = ",".join([f"{NODE}={self.agent}", *(f"group={pool}:{ordinal}" for pool, ordinal in ordinals.items())])
        commands = {
            "agent": python_command(
                "snapshot_agent_server",
                "--listen",
                self.agent,
                "--node",
                NODE,
                *groups,
                "--state-dir",
                str(folder / "agent"),
            ),
            "orchestrator": python_command(
                "orchestrator",
                "--listen",
                self.orchestrator,
                "--agent",
                of_node,
                "--state-dir",
                str(folder / "orchestrator"),
            ),
        }
        self._ready = {name: threading.Event() for name in commands}
        errors: dict[str, Path] = {}
        processes: dict[str, subprocess.Popen[str]] = {}
        for name, command in commands.items():
            errors[name] = folder / f"{name}.stderr"
            with errors[name].open("w", encoding="utf-8") as stderr:
                process = processes[name] = family.start(command, environment, stderr)
            log = folder / f"{name}.log"
            threading.Thread(target=self._follow, args=(name, process, log), name=f"{name}'s log", daemon=True).start()
        for name, ready in self._ready.items():
            if not ready.wait(READY_LIMIT_S) or processes[name].poll() is not None:
                words = errors[name].read_text(encoding="utf-8").strip()
                raise ServiceFailed(f"the {name} did not start: {words or 'it said nothing'}")

    def _follow(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        """Keep the process's log lines, and notice the one that says that it serves, or its end."""
        assert process.stdout is not None
        with log.open("w", encoding="utf-8") as kept:
            for line in process.stdout:
                kept.write(line)
                try:
                    message = str(json.loads(line).get("msg", ""))
                except ValueError:
                    continue
                if message.endswith("ready"):
                    self._ready[name].set()
        process.wait()
        self._ready[name].set()
