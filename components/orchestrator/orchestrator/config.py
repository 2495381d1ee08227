"""All that an orchestrator can be told, in one place: flags, then environment variables, then the defaults here."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from orchestrator.policies import WAIT_EVERYWHERE, UnsaveablePolicies

ENV_PREFIX = "TIMESLICE_ORCH_"


class BadConfig(ValueError):
    """A setting that cannot work. The text names the setting and what it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorConfig:
    """Tunables of one orchestrator process. Built once in main.py and handed down.

    Each can be set by the environment variable TIMESLICE_ORCH_ + its name in capitals, or by --name-with-dashes.
    """

    session_ttl_s: float = 30.0
    """Silence after which a client's leases end: longer than a long GC pause, shorter than a user's patience.

    What a client asks for is cut to this."""

    start_grace_s: float = 600.0
    """How long a holder without a session may take to start its first process, once its connection is closed."""

    lock_timeout_s: float = 10.0
    """Deadline of a Lock: kernels in flight must end in it, else the switch is tried again."""

    operation_timeout_s: float = 120.0
    """Deadline of a snapshot or restore, after which the agent rolls back or calls it indeterminate."""

    call_timeout_s: float = 5.0
    """Deadline of a call to an agent that only starts or asks something. A local call takes a millisecond."""

    unreachable_after_s: float = 10.0
    """Silence after which a node counts as unreachable and its groups show UNKNOWN."""

    reattach_s: float = 2.0
    """After a start, how long groups wait for recorded waiters to come back before they grant in the old order."""

    claims_wait_s: float = 10.0
    """After a store was lost, how long nobody is granted, so that holders can come back and say that they are: longer
    than a client's attempt to connect, which is 5 s."""

    detached_grace_s: float = 10.0
    """How long a waiter without a session keeps its place with no call attached."""

    outcome_kept_s: float = 3600.0
    """How long the outcome of a request id is kept, so that a late retry gets ABORTED and not a second lease."""

    restore_margin_bytes: int | None = None
    """Memory that stays free on each accelerator beside what is restored. None: 512 MiB, at most a 16th of the device,
    which is the agents' own default."""

    max_tries: int = 3
    """Attempts to save a context before it counts as unsaveable."""

    backoff_s: float = 0.25
    """Pause before the second attempt; it doubles with each further one."""

    on_unsaveable: UnsaveablePolicies = WAIT_EVERYWHERE
    """What happens to a job that cannot be saved and beside which the next one does not fit: wait (the group is
    Blocked, and says who must be ended) or kill (its processes are killed after kill_grace_s). GROUP=wait or GROUP=kill
    says it for one group; the flag may be given several times, the variable takes several with commas."""

    kill_grace_s: float = 30.0
    """How long a group is Blocked before that job is killed, where on_unsaveable is kill."""

    blocked_retry_s: float = 15.0
    """How often a Blocked group looks again, besides whenever something changes."""

    answer_margin_s: float = 10.0
    """Added to a deadline that the agent keeps by itself, before the agent counts as not answering."""

    poll_first_s: float = 0.02
    """First pause between two questions to an agent without Watch: a quick operation costs little more than itself."""

    poll_last_s: float = 1.0
    """Longest pause between two questions to an agent without Watch."""

    event_log_size: int = 10_000
    """Events that WatchGroups can replay; about 5 MB."""

    watch_queue_size: int = 1_000
    """Events that a WatchGroups client may lag behind before its stream ends with RESOURCE_EXHAUSTED."""

    max_message_bytes: int = 16 << 20
    """Largest request that is read at all: large enough to answer a 10 MB id with the field's name."""

    stop_grace_s: float = 10.0
    """After SIGTERM, how long a switch under way may take to end."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not value > 0:
                raise BadConfig(f"{field.name} is {value}; set {env_name(field.name)} to a number above 0")
        if self.poll_first_s > self.poll_last_s:
            raise BadConfig(f"poll_first_s is above poll_last_s; lower {env_name('poll_first_s')}")

    @classmethod
    def from_settings(cls, env: Mapping[str, str], flags: Mapping[str, str | None]) -> "OrchestratorConfig":
        """The settings that `flags` names (None: not given), else `env`, else the defaults."""
        chosen: dict[str, float | int | UnsaveablePolicies] = {}
        for field in fields(cls):
            given = flags.get(field.name)
            source = "--" + field.name.replace("_", "-")
            if given is None:
                given, source = env.get(env_name(field.name)), env_name(field.name)
            if given is None:
                continue
            if field.type is UnsaveablePolicies:
                try:
                    chosen[field.name] = UnsaveablePolicies.parse(given)
                except ValueError as error:
                    raise BadConfig(f"{source} {error}") from None
                continue
            try:
                chosen[field.name] = int(given) if field.type in (int, int | None) else float(given)
            except ValueError:
                raise BadConfig(f"{source} is {given!r}; give a number") from None
        return cls(**chosen)  # type: ignore[arg-type]


def env_name(setting: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + setting.upper()


def default_state_dir(env: Mapping[str, str]) -> Path:
    """$TIMESLICE_STATE_DIR, else $XDG_STATE_HOME/timeslice, else ~/.local/state/timeslice."""
    if env.get("TIMESLICE_STATE_DIR"):
        return Path(env["TIMESLICE_STATE_DIR"])
    if env.get("XDG_STATE_HOME"):
        return Path(env["XDG_STATE_HOME"]) / "timeslice"
    return Path.home() / ".local" / "state" / "timeslice"


def default_listen(env: Mapping[str, str]) -> str:
    """unix:RUNTIME/orchestrator.sock; RUNTIME: $TIMESLICE_RUNTIME_DIR, else below $XDG_RUNTIME_DIR, else in /tmp."""
    if env.get("TIMESLICE_RUNTIME_DIR"):
        runtime = Path(env["TIMESLICE_RUNTIME_DIR"])
    elif env.get("XDG_RUNTIME_DIR"):
        runtime = Path(env["XDG_RUNTIME_DIR"]) / "timeslice"
    else:
        runtime = Path(f"/tmp/timeslice-{os.getuid()}")
    return f"unix:{runtime / 'orchestrator.sock'}"
