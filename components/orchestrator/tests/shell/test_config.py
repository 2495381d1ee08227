"""Settings: flags before environment before defaults, and what cannot work is refused with the variable to change."""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from orchestrator.addresses import address_problem, leaves_machine
from orchestrator.config import BadConfig, OrchestratorConfig, default_listen, default_state_dir, env_name
from orchestrator.core.types import CoreSettings, OnUnsaveable
from orchestrator.main import BadUsage, parse
from orchestrator.serve import core_settings

NUMBERS = [field for field in fields(OrchestratorConfig) if field.name != "on_unsaveable"]


AGENT = ("--agent", "n=unix:/a,group=g,group=h")


def policies(*flags: str, env: str | None = None) -> tuple[OnUnsaveable, OnUnsaveable]:
    """What becomes of unsaveable jobs in groups g and h."""
    given = [word for flag in flags for word in ("--on-unsaveable", flag)]
    config = parse([*AGENT, *given], {} if env is None else {"TIMESLICE_ORCH_ON_UNSAVEABLE": env}).config
    return config.on_unsaveable.of("g"), config.on_unsaveable.of("h")


def test_the_policy_for_unsaveable_jobs_is_a_word_for_all_groups_and_for_each() -> None:
    wait, kill = OnUnsaveable
    assert policies() == (wait, wait)
    assert policies("kill") == (kill, kill)
    assert policies("g=kill") == (kill, wait)
    assert policies("kill", "g=wait") == (wait, kill)
    assert policies("g=wait", "kill") == (wait, kill)
    assert policies("g=kill", "h=kill") == (kill, kill)
    assert policies(env="kill") == (kill, kill)
    assert policies(env="kill,h=wait") == (kill, wait)
    assert policies("g=kill", env="kill") == (kill, wait)  # flags stand in place of the variable


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["shoot"], "--on-unsaveable is 'shoot'; give wait or kill, alone or as GROUP=POLICY"),
        (["g=shoot"], "--on-unsaveable is 'g=shoot'; give wait or kill"),
        (["=kill"], "--on-unsaveable is '=kill'; give wait or kill"),
        (["wait", "kill"], "--on-unsaveable says both wait and kill for all groups; give one"),
        (["g=wait", "g=kill"], "--on-unsaveable says both wait and kill for group 'g'; give one"),
    ],
)
def test_what_is_no_policy_is_refused(flags: list[str], problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        policies(*flags)


def test_an_empty_variable_is_no_policy() -> None:
    with pytest.raises(BadConfig, match="TIMESLICE_ORCH_ON_UNSAVEABLE is ''; give wait or kill"):
        policies(env="")


def test_a_policy_for_a_group_that_no_agent_serves_is_refused() -> None:
    with pytest.raises(BadUsage, match="--on-unsaveable names group 'i', which no --agent serves"):
        policies("i=kill")


def test_a_flag_wins_over_the_environment_and_both_over_the_default() -> None:
    env = {"TIMESLICE_ORCH_SESSION_TTL_S": "5", "TIMESLICE_ORCH_MAX_TRIES": "7", "HOME": "/h"}
    config = parse(["--session-ttl-s", "4.5"], env).config
    assert (config.session_ttl_s, config.max_tries, config.reattach_s) == (4.5, 7, OrchestratorConfig().reattach_s)


def test_every_setting_can_be_set_and_must_be_above_zero() -> None:
    for field in NUMBERS:
        value = "0.5" if field.name == "poll_first_s" else "7"
        changed = OrchestratorConfig.from_settings({env_name(field.name): value}, {})
        assert getattr(changed, field.name) != getattr(OrchestratorConfig(), field.name)
        with pytest.raises(BadConfig, match=env_name(field.name)):
            OrchestratorConfig.from_settings({env_name(field.name): "0"}, {})


@pytest.mark.parametrize("value", ["nan", "-1", "", "5s", "1.5"])
def test_what_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(BadConfig, match="TIMESLICE_ORCH_MAX_TRIES"):
        OrchestratorConfig.from_settings({"TIMESLICE_ORCH_MAX_TRIES": value}, {})


def test_pauses_between_questions_must_rise() -> None:
    with pytest.raises(BadConfig, match="poll_first_s"):
        OrchestratorConfig(poll_first_s=2.0, poll_last_s=1.0)


def test_the_core_gets_every_setting_of_the_same_name() -> None:
    chosen = {field.name: index + 100 for index, field in enumerate(NUMBERS)}
    config = OrchestratorConfig(**{**chosen, "poll_first_s": 1, "poll_last_s": 2})  # type: ignore[arg-type]
    settings = core_settings(config)
    shared = {field.name for field in fields(CoreSettings)} & chosen.keys()
    assert len(shared) > 10
    for name in shared:
        assert getattr(settings, name) == getattr(config, name), name


def test_folders_follow_the_environment() -> None:
    assert default_state_dir({"TIMESLICE_STATE_DIR": "/a"}) == Path("/a")
    assert default_state_dir({"XDG_STATE_HOME": "/b"}) == Path("/b/timeslice")
    assert default_state_dir({}) == Path.home() / ".local/state/timeslice"
    assert default_listen({"TIMESLICE_RUNTIME_DIR": "/r"}) == "unix:/r/orchestrator.sock"
    assert default_listen({"XDG_RUNTIME_DIR": "/run/u"}) == "unix:/run/u/timeslice/orchestrator.sock"
    assert default_listen({}) == f"unix:/tmp/timeslice-{os.getuid()}/orchestrator.sock"


@pytest.mark.parametrize(
    ("address", "leaves"),
    [
        ("unix:/a", False), ("127.0.0.1:1", False), ("127.8.0.1:1", False), ("localhost:1", False), ("[::1]:1", False),
        ("0.0.0.0:1", True), ("[::]:1", True), ("10.0.0.1:1", True), ("node-7:1", True), ("localhost.example:1", True),
    ],
)
def test_which_addresses_leave_the_machine(address: str, leaves: bool) -> None:
    assert address_problem(address) is None
    assert leaves_machine(address) == leaves
    if leaves:
        with pytest.raises(BadUsage, match="--insecure-listen"):
            parse(["--listen", address], {})
        assert parse(["--listen", address, "--insecure-listen"], {}).listen == (address,)


@pytest.mark.parametrize("address", ["", "unix:", "host", "host:", ":1", "host:x", "host:-1", "host:99999", "host:²"])
def test_what_is_no_address_is_refused(address: str) -> None:
    assert address_problem(address) is not None
