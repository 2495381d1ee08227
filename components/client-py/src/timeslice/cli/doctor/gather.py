"""Collects the facts. Nothing here takes longer than its deadline, nothing changes anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from timeslice._settings import POD_LABELS, SettingsError, agent_address, orchestrator_address, pod_labels
from timeslice.cli.doctor import installation, machine
from timeslice.cli.doctor.driver import probe_driver
from timeslice.cli.doctor.facts import Facts, Server

Question = Callable[[str, bool], Server]


def gather(target: str | None, agent: str | None, env: Mapping[str, str]) -> Facts:
    """All facts of this machine; `target` and `agent` are addresses, else the environment's."""
    problems: list[str] = []
    with ThreadPoolExecutor(3) as threads:  # The driver may take half a minute, silent servers some seconds each.
        driver = threads.submit(probe_driver)
        ask_orchestrator, ask_agent, import_problem = _questions()
        orchestrator = threads.submit(
            _server, target, "TIMESLICE_ORCH_ADDR", orchestrator_address, ask_orchestrator, env, problems
        )
        node_agent = threads.submit(
            _server, agent, "TIMESLICE_AGENT_ADDR", agent_address, ask_agent, env, problems
        )
        return Facts(
            import_problem=import_problem,
            env=env,
            uid=os.getuid(),
            has_ptrace_capability=machine.has_ptrace_capability(Path("/proc/self/status").read_text()),
            ptrace_scope=machine.ptrace_scope(),
            python=sys.version_info[:3],
            versions=installation.installed(),
            has_server_packages=all(map(installation.has_module, ("orchestrator", "snapshot_agent_server"))),
            providers=installation.providers(),
            imported_from=installation.imported_from(),
            runtime_folder=machine.runtime_folder(env),
            state_folder=machine.state_folder(env),
            memory_available_bytes=machine.memory_available_bytes(Path("/proc/meminfo").read_text()),
            cgroup_room=machine.cgroup_room(Path("/proc/self/cgroup").read_text()),
            driver=driver.result(),
            orchestrator=orchestrator.result(),
            agent=node_agent.result(),
            pod_labels=pod_labels(POD_LABELS),
            settings_problems=tuple(dict.fromkeys(problems)),
        )


def _questions() -> tuple[Question | None, Question | None, str | None]:
    """How orchestrator and agent are asked, or why they cannot be: grpc is missing, or older than generated code."""
    try:
        from timeslice.cli.doctor.servers import ask_agent, ask_orchestrator
    except Exception as err:  # Each library has its own way of saying that a version does not fit.
        return None, None, f"{type(err).__name__}: {' '.join(str(err).split())}"
    return ask_orchestrator, ask_agent, None


def _server(
    given: str | None,
    variable: str,
    address_of: Callable[[str | None, Mapping[str, str]], str],
    ask: Question | None,
    env: Mapping[str, str],
    problems: list[str],
) -> Server | None:
    try:
        address = address_of(given, env)
    except SettingsError as err:
        problems.append(str(err))
        return None
    return None if ask is None else ask(address, bool(given or env.get(variable)))
