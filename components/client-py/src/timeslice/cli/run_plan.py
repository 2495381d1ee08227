"""What `timeslice run` will do: names, addresses and the command's environment, from arguments and environment."""

from __future__ import annotations

import itertools
import os
import pwd
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timeslice import _settings
from timeslice.cli.errors import BAD_INPUT, CommandError
from timeslice.cli.watchdogs import HEARTBEAT, heartbeat_limit

MARKER_VARIABLE = "TIMESLICE_TREE"
"""By its value the agent knows the command's processes where nothing else tells whose they are."""
HEARTBEAT_S = 86_400
"""A day: far above any time that a job is saved for, and a process that hangs still ends."""
MAX_ID = 253


@dataclass(frozen=True)
class RunPlan:
    """What is run, for whom, and how."""

    words: Sequence[str]
    env: Mapping[str, str]
    """The command's."""
    job: str
    group: str
    target: str
    agent: str
    holds: bool
    """The group is held around the command."""
    timeout_s: float | None
    """For the acquire."""
    verbose: bool
    notes: Sequence[str]
    """What was set in the environment, and what may go wrong, for --verbose."""

    @property
    def marker(self) -> str:
        return self.env[MARKER_VARIABLE]


def plan(
    words: Sequence[str],
    env: Mapping[str, str],
    *,
    group: str | None,
    job: str | None,
    target: str | None,
    agent: str | None,
    holds: bool,
    timeout_s: float | None,
    verbose: bool,
) -> RunPlan:
    """What the arguments and the environment ask for.

    Raises:
        CommandError, SettingsError: that cannot be; the text says why.
    """
    group_id = _settings.group_id(group, env)
    if not group_id:
        raise CommandError("--group is missing, and TIMESLICE_GROUP_ID is not set; see timeslice status", BAD_INPUT)
    job_id = _settings.job_id(job, env) or default_job_id(words, _user(), os.getpid())
    for name, value in (("--job", job_id), ("--group", group_id)):
        if len(value) > MAX_ID or not value.isprintable():
            raise CommandError(f"{name} must be printable and have at most {MAX_ID} characters", BAD_INPUT)
    where = {
        "TIMESLICE_ORCH_ADDR": _anywhere(_settings.orchestrator_address(target, env)),
        "TIMESLICE_AGENT_ADDR": _anywhere(_settings.agent_address(agent, env)),
    }
    watchdogs, notes = watchdog_settings(env)
    given = {"TIMESLICE_JOB_ID": job_id, "TIMESLICE_GROUP_ID": group_id, MARKER_VARIABLE: uuid.uuid4().hex, **where}
    return RunPlan(
        words=words,
        env={**env, **watchdogs, **given},
        job=job_id,
        group=group_id,
        target=where["TIMESLICE_ORCH_ADDR"],
        agent=where["TIMESLICE_AGENT_ADDR"],
        holds=holds,
        timeout_s=timeout_s,
        verbose=verbose,
        notes=notes,
    )


def default_job_id(words: Sequence[str], user: str, pid: int) -> str:
    """USER-COMMAND-PID; for an interpreter COMMAND is its script or module."""
    name = Path(words[0]).name
    if re.fullmatch(r"python[0-9.]*|torchrun|accelerate|deepspeed", name):
        module = next((b for a, b in itertools.pairwise(words) if a == "-m"), None)
        script = next((word for word in words[1:] if word.endswith(".py")), None)
        name = Path(script or module or name).name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{user}-{name}-{pid}")[-MAX_ID:]


def watchdog_settings(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What to set so that a job's own watchdog does not end it while it is saved, and what to say of it.

    What the user set stays as it is.
    """
    try:
        limit = heartbeat_limit(env)
    except ValueError as err:
        return {}, [f"{err}; PyTorch will refuse it"]
    if limit.seconds is None:
        return {}, [f"PyTorch's heartbeat monitor is off ({limit.source})"]
    if env.get(HEARTBEAT):
        return {}, [f"{limit.source} stays: a job that is saved for longer is ended by its own heartbeat monitor"]
    return {HEARTBEAT: str(HEARTBEAT_S)}, [
        f"{HEARTBEAT}={HEARTBEAT_S} is set, so that PyTorch does not end the job while it is saved"
        f" ({limit.source}: {limit.seconds:g} s)"
    ]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _anywhere(address: str) -> str:
    """The same address for a program that changes its folder."""
    path = address.removeprefix("unix:")
    return address if path == address or path.startswith("/") else f"unix:{Path(path).absolute()}"
