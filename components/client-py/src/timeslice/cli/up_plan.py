"""What `timeslice up` is asked to start: arguments and environment in, a plan out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timeslice._processes import node_name
from timeslice._settings import check_address, runtime_dir, state_dir
from timeslice.cli.errors import BAD_INPUT, CommandError

POLICIES = ("wait", "kill")
_NAME = re.compile(r"[^\s=,:+\x00-\x1f\x7f]{1,253}")
_GPU = re.compile(r"\d{1,4}|(GPU|MIG)-[0-9A-Za-z-]+")


@dataclass(frozen=True)
class Plan:
    """What is to be started."""

    groups: Mapping[str, Sequence[str]]
    """GPUs by group; empty: each GPU is a group."""
    node: str
    runtime_dir: Path
    state_dir: Path
    listen: str | None
    insecure_listen: bool
    on_unsaveable: Sequence[str]
    """What the orchestrator is told, as it was given: "POLICY" or "GROUP=POLICY"."""
    kill_grace_s: float | None


def plan(given: Any, env: Mapping[str, str]) -> Plan:
    """What the arguments of the command line (`given`, with their names there) and the environment ask for.

    Raises:
        CommandError, SettingsError: that cannot be; the text says why.
    """
    listen: str | None = given.listen
    if listen is not None:
        check_address(listen, "--listen")
        if listen.startswith("unix:"):
            raise CommandError(f"--listen {listen} is not HOST:PORT; a unix socket is served anyway", BAD_INPUT)
    if given.insecure_listen and listen is None:
        raise CommandError("--insecure-listen says nothing without --listen HOST:PORT", BAD_INPUT)
    name = given.node or node_name(env)
    if not _NAME.fullmatch(name):
        raise CommandError(f"node name {name!r} cannot be used; choose one without = , : + or spaces", BAD_INPUT)
    groups = _parse_groups(given.group)
    for spec in given.on_unsaveable:
        _check_policy(spec, groups)
    if given.kill_grace is not None and not given.kill_grace > 0:
        raise CommandError(f"--kill-grace {given.kill_grace:g} must be above 0 seconds", BAD_INPUT)
    return Plan(
        groups=groups,
        node=name,
        runtime_dir=runtime_dir(env),
        state_dir=Path(given.state_dir) if given.state_dir else state_dir(env),
        listen=listen,
        insecure_listen=given.insecure_listen,
        on_unsaveable=given.on_unsaveable,
        kill_grace_s=given.kill_grace,
    )


def _check_policy(spec: str, groups: Mapping[str, Sequence[str]]) -> None:
    group, equals, policy = spec.rpartition("=")
    if policy not in POLICIES or (equals and not _NAME.fullmatch(group)):
        raise CommandError(
            f"--on-unsaveable {spec!r} is neither {' nor '.join(POLICIES)}, alone or as GROUP=POLICY", BAD_INPUT
        )
    if equals and groups and group not in groups:
        raise CommandError(f"--on-unsaveable {spec}: there is no --group {group}", BAD_INPUT)


def _parse_groups(specs: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for spec in specs:
        name, equals, listed = spec.partition("=")
        gpus = listed.split(",")
        if not equals or not _NAME.fullmatch(name) or not all(_GPU.fullmatch(gpu) for gpu in gpus):
            raise CommandError(
                f"--group {spec!r} is not NAME=GPU[,GPU...]; for example --group trainers=0,1 (a GPU is an index or a"
                " UUID; a name has no = , : + or spaces)",
                BAD_INPUT,
            )
        if name in groups:
            raise CommandError(f"--group {name} is given twice; name all its GPUs in one", BAD_INPUT)
        for gpu in gpus:
            if gpu in owner:
                raise CommandError(
                    f"GPU {gpu} is in group {owner[gpu]} and again in {name}; it can be in one group only", BAD_INPUT
                )
            owner[gpu] = name
        groups[name] = gpus
    return groups


