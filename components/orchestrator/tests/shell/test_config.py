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


def test_the_policy_for_unsaveable_jobs_is_a_word() -> None:
    assert parse([], {}).config.on_unsaveable is OnUnsaveable.WAIT
    assert parse([], {"TIMESLICE_ORCH_ON_UNSAVEABLE": "kill"}).config.on_unsaveable is OnUnsaveable.KILL
    with pytest.raises(BadConfig, match="--on-unsaveable is 'shoot'; give wait or kill"):
        parse(["--on-unsaveable", "shoot"], {})
    with pytest.raises(BadConfig, match="TIMESLICE_ORCH_ON_UNSAVEABLE is ''; give wait or kill"):
        parse([], {"TIMESLICE_ORCH_ON_UNSAVEABLE": ""})


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
