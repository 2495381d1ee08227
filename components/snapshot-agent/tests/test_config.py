"""Flags and environment: each mistake is one line that says what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshot_agent_server.api.credentials import TlsFiles
from snapshot_agent_server.config import ConfigError, from_arguments, resolve_groups
from snapshot_agent_server.core.ids import AcceleratorId
from snapshot_agent_server.core.samples import DeviceSample

DEVICES = [DeviceSample(AcceleratorId(f"GPU-{i}"), i, "GPU", 1, 0) for i in range(3)]


def test_defaults_come_from_the_environment() -> None:
    config = from_arguments([], {"TIMESLICE_NODE": "n1", "XDG_RUNTIME_DIR": "/run/user/7", "XDG_STATE_HOME": "/s"})
    assert config.node == "n1"
    assert config.listen == ("unix:/run/user/7/timeslice/agent.sock",)
    assert config.state_dir == Path("/s/timeslice")
    other = from_arguments([], {"TIMESLICE_RUNTIME_DIR": "/r", "TIMESLICE_STATE_DIR": "/t", "TIMESLICE_NODE": "n"})
    assert (other.listen, other.state_dir) == (("unix:/r/agent.sock",), Path("/t"))


def test_flags_win() -> None:
    flags = ["--node", "n2", "--listen", "unix:/a", "--listen", "127.0.0.1:0", "--state-dir", "/d"]
    flags += ["--group", "x=0,1", "--group", "y=GPU-2", "--restore-margin-mib", "3", "--sample-interval-ms", "100"]
    config = from_arguments(flags, {"TIMESLICE_NODE": "n1"})
    assert (config.node, config.listen) == ("n2", ("unix:/a", "127.0.0.1:0"))
    assert config.groups == (("x", ("0", "1")), ("y", ("GPU-2",)))
    settings = config.core_settings(DEVICES)
    assert settings.groups == {"x": ("GPU-0", "GPU-1"), "y": ("GPU-2",)}
    assert settings.restore_margin_bytes == 3 << 20
    assert config.sample_interval_s == 0.1


def test_an_agent_in_a_cluster_waits_for_the_one_before_it() -> None:
    env = {"TIMESLICE_NODE": "n"}
    assert from_arguments([], env).takeover_wait_s == 0
    assert from_arguments(["--kubernetes"], env).takeover_wait_s == 60
    assert from_arguments(["--kubernetes", "--takeover-wait-s", "3"], env).takeover_wait_s == 3


def test_without_groups_each_accelerator_is_one() -> None:
    assert resolve_groups((), DEVICES) == {"gpu0": ("GPU-0",), "gpu1": ("GPU-1",), "gpu2": ("GPU-2",)}


def test_addresses_that_leave_the_machine_need_certificates_or_a_word() -> None:
    tls = ["--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"]
    config = from_arguments(["--listen", "0.0.0.0:9001", *tls, "--orders-from", "o", "--health", "0.0.0.0:9002"], {})
    assert config.tls == TlsFiles(Path("a"), Path("b"), Path("c"))
    assert (config.orders_from, config.health) == ("o", "0.0.0.0:9002")
    assert from_arguments(["--listen", "0.0.0.0:9001", "--insecure-listen"], {}).tls is None
    for address in ("localhost:1", "127.0.0.9:1", "[::1]:1"):
        assert from_arguments(["--listen", address], {}).listen == (address,)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--nonsense"], "--nonsense"),
        (["--group", "x"], r"NAME=ACC"),
        (["--group", "=0"], r"NAME=ACC"),
        (["--group", "x="], r"NAME=ACC"),
        (["--group", "x\n=0"], "control characters"),
        (["--listen", "nowhere"], "unix:PATH nor HOST:PORT"),
        (["--listen", "host:99999"], "unix:PATH nor HOST:PORT"),
        (["--listen", "unix:"], "needs a path"),
        (["--listen", "unix:/" + "a" * 100], "shorter one with --listen"),
        (["--operation-timeout-s", "0"], "--operation-timeout-s"),
        (["--sample-interval-ms", "-1"], "--sample-interval-ms"),
        (["--restore-margin-mib", "-1"], "--restore-margin-mib"),
        (["--close-grace-s", "-1"], "--close-grace-s"),
        (["--takeover-wait-s", "-1"], "--takeover-wait-s"),
        (["--workers", "0"], "--workers"),
        (["--node", ""], "--node"),
        (["--listen", "0.0.0.0:9001"], "--tls-ca.*--insecure-listen"),
        (["--listen", "agent.example.org:9001"], "nothing checks who calls"),
        (["--tls-ca", "a", "--tls-cert", "b"], "all three or none"),
        (["--tls-key", "c"], "all three or none"),
        (["--orders-from", "x"], "--orders-from needs certificates"),
        (["--health", "9002"], "--health '9002' is neither"),
        (["--health", "unix:/a"], "not HOST:PORT"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        from_arguments(flags, {"TIMESLICE_NODE": "n"})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([("x", ["7"])], "no accelerator '7' on this node; it has 0"),
        ([("x", ["0"]), ("y", ["GPU-0"])], "in group 'x' already"),
        ([("x", ["0", "0"])], "in group 'x' already"),
        ([("x", ["0"]), ("x", ["1"])], "given twice"),
    ],
)
def test_a_wrong_group_is_one_line(groups: list[tuple[str, list[str]]], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve_groups(groups, DEVICES)
