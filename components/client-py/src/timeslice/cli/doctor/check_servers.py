"""Whether orchestrator and agent can be reached, and whether they fit this user."""

from __future__ import annotations

from collections.abc import Iterator

from timeslice.cli.doctor.facts import Facts, Folder, Server
from timeslice.cli.doctor.findings import Finding, Grade

AREA = "servers and folders"
START = "start them with: timeslice up"
IN_CLUSTER = "see whether it runs: kubectl -n timeslice-system get pods"


def findings(facts: Facts) -> Iterator[Finding]:
    for problem in facts.settings_problems:
        yield Finding(AREA, "settings", Grade.FAIL, problem, "correct the variable or argument that it names")
    if facts.orchestrator is not None:
        yield _orchestrator(facts.orchestrator, IN_CLUSTER if facts.is_pod else START)
    if facts.agent is not None:
        yield _agent(facts.agent, facts.is_remote)
        yield from _same_user(facts.agent, facts.uid)
    for check, folder in (("folder of sockets", facts.runtime_folder), ("folder of state", facts.state_folder)):
        if folder is not None:
            yield _folder(check, folder)


def _orchestrator(server: Server, start: str) -> Finding:
    check = "orchestrator"
    if (problem := _silent(check, server, f"{start}, or correct TIMESLICE_ORCH_ADDR or --target")) is not None:
        return problem
    groups = ", ".join(sorted(server.groups)) or "none"
    if not server.groups:
        return Finding(
            AREA, check, Grade.WARN, f"{server.address} answers and has no groups",
            "give it some: timeslice up --group NAME=GPU, or --agent NODE=ADDRESS,group=NAME of the orchestrator",
        )  # fmt: skip
    if not server.has_extensions:
        return Finding(
            AREA,
            check,
            Grade.WARN,
            f"{server.address} answers (groups: {groups}), but is not ours: no sessions, no events that are pushed",
            "jobs work, but a killed holder is not noticed, and timeslice watch and evict do not work: use ours",
        )
    return Finding(AREA, check, Grade.OK, f"{server.address} answers; groups: {groups}")


def _agent(server: Server, is_remote: bool) -> Finding:
    check = "snapshot agent"
    if is_remote and not server.is_chosen and (server.socket is None or not server.socket.exists):
        return Finding(AREA, check, Grade.OK, "none on this machine; the orchestrator is on another one")
    if (problem := _silent(check, server, f"{START}, or correct TIMESLICE_AGENT_ADDR or --agent")) is not None:
        return problem
    text = f"{server.address} answers; {server.accelerators} GPUs, groups: {', '.join(sorted(server.groups)) or 'none'}"
    if server.accelerators and not server.has_extensions:
        return Finding(
            AREA, check, Grade.WARN, f"{text}; it is not ours: it is polled, and cannot lock processes",
            "use ours: timeslice up, or the snapshot-agent command",
        )  # fmt: skip
    return Finding(AREA, check, Grade.OK, text)


def _silent(check: str, server: Server, advice: str) -> Finding | None:
    """Why there is no answer; None: there is one."""
    if server.error is None:
        return None
    if not server.is_chosen and server.socket is not None and not server.socket.exists:
        return Finding(AREA, check, Grade.WARN, f"none runs: there is no {server.socket.path}", START)
    if server.socket is not None and server.socket.exists and server.socket.listener_pid is None:
        advice = f"nobody listens behind the socket any more, or it is another user's; {advice}"
    return Finding(AREA, check, Grade.FAIL, f"{server.address} does not answer ({server.error})", advice)


def _same_user(agent: Server, uid: int) -> Iterator[Finding]:
    """An agent takes processes of its own user only, unless it is root's."""
    if agent.socket is None or agent.socket.listener_uid is None:
        return
    owner = agent.socket.listener_uid
    if owner in (0, uid):
        whose = "root: it saves processes of every user" if owner == 0 else f"user {owner}, as you"
        yield Finding(AREA, "user of the agent", Grade.OK, whose)
    else:
        yield Finding(
            AREA,
            "user of the agent",
            Grade.FAIL,
            f"the agent runs as user {owner} and you are {uid}: it refuses your processes",
            "run both as the same user, or the agent as root",
        )


def _folder(check: str, folder: Folder) -> Finding:
    if folder.problem is not None:
        return Finding(AREA, check, Grade.FAIL, f"{folder.path} cannot be used", folder.problem)
    return Finding(AREA, check, Grade.OK, folder.path if folder.exists else f"{folder.path}: made by timeslice up")
