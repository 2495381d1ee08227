"""Mutual TLS to agents: who is believed to be an agent, and files that cannot work are found at the start."""

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from link_inbox import N1, linked, lock
from orchestrator.agents.dialing import AGENT_NAME, BadCredentials, Dialer, TlsFiles
from orchestrator.agents.fake import FakeAgent
from orchestrator.agents.pool import highest_epoch
from orchestrator.agents.target import AgentTarget
from orchestrator.core.events import Locked, NodeDisconnected, NodeObserved
from timeslice_deploy.certificates import CLIENT, SERVER, Signed, issue, new_authority, not_after, now

TCP = "127.0.0.1:0"
ORCHESTRATOR = "timesliceorchestrator.timeslice-system"


def files(folder: Path, ca: bytes, own: Signed) -> TlsFiles:
    made = TlsFiles(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
    made.ca.write_bytes(ca)
    made.cert.write_bytes(own.certificate)
    made.key.write_bytes(own.key)
    return made


def serving(authority: Signed, own: Signed) -> grpc.ServerCredentials:
    """As an agent serves."""
    return grpc.ssl_server_credentials(
        [(own.key, own.certificate)], root_certificates=authority.certificate, require_client_auth=True)


def agent() -> FakeAgent:
    return FakeAgent({"GPU-0": ["g"]})


async def test_orders_reach_an_agent_that_has_the_agents_name(tmp_path: Path) -> None:
    authority = new_authority(now())
    dialer = Dialer(files(tmp_path, authority.certificate, issue(authority, [ORCHESTRATOR], [CLIENT], now())))
    node = agent()
    node.put("a", "g")
    node.epoch = 4
    credentials = serving(authority, issue(authority, [AGENT_NAME], [SERVER], now()))
    async with linked(node, tmp_path, credentials=credentials, dialer=dialer, listen=TCP) as (pool, inbox):
        await inbox.next_of(NodeObserved)
        pool.perform(lock("a"))
        await inbox.next_of(Locked, operation="lock-1")
        assert await highest_epoch([AgentTarget(N1, f"127.0.0.1:{node.port}", ())], 5.0, dialer) == 5


@pytest.mark.parametrize("stranger", ["job", "other authority", "plain"])
async def test_whoever_is_no_agent_of_ours_is_told_nothing(tmp_path: Path, stranger: str) -> None:
    authority, other = new_authority(now(), "ours"), new_authority(now(), "theirs")
    dialer = Dialer(files(tmp_path, authority.certificate, issue(authority, [ORCHESTRATOR], [CLIENT], now())))
    served: dict[str, grpc.ServerCredentials | None] = {
        "job": serving(authority, issue(authority, ["job.timeslice-system"], [SERVER], now())),
        "other authority": serving(authority, issue(other, [AGENT_NAME], [SERVER], now())),
        "plain": None,
    }
    node = agent()
    async with linked(node, tmp_path, credentials=served[stranger], dialer=dialer, listen=TCP) as (_, inbox):
        await inbox.next_of(NodeDisconnected)
        assert node.calls == []


async def test_unix_sockets_stay_plain(tmp_path: Path) -> None:
    authority = new_authority(now())
    dialer = Dialer(files(tmp_path, authority.certificate, issue(authority, [ORCHESTRATOR], [CLIENT], now())))
    async with linked(agent(), tmp_path, dialer=dialer) as (_, inbox):
        await inbox.next_of(NodeObserved)


def test_good_files_say_when_they_end(tmp_path: Path) -> None:
    authority = new_authority(now())
    own = issue(authority, [ORCHESTRATOR], [CLIENT], now())
    assert Dialer(files(tmp_path, authority.certificate, own)).not_after_s == not_after(own.certificate).timestamp()
    assert Dialer().not_after_s is None


def long_ago() -> tuple[Signed, Signed]:
    then = now() - timedelta(days=400)
    authority = new_authority(then)
    return authority, issue(authority, [ORCHESTRATOR], [CLIENT], then)


def signed_by_another() -> tuple[Signed, Signed]:
    return new_authority(now(), "ours"), issue(new_authority(now(), "theirs"), [ORCHESTRATOR], [CLIENT], now())


def for_(purposes: Sequence[object]) -> tuple[Signed, Signed]:
    authority = new_authority(now())
    return authority, issue(authority, [ORCHESTRATOR], purposes, now())  # type: ignore[arg-type]


def test_a_certificate_that_agents_would_refuse_is_refused_at_the_start(tmp_path: Path) -> None:
    for (authority, own), text in (
        (long_ago(), "expired"), (signed_by_another(), "local issuer certificate"), (for_([SERVER]), "purpose"),
    ):
        with pytest.raises(BadCredentials, match=text) as caught:
            Dialer(files(tmp_path, authority.certificate, own))
        assert f"--agent-cert {tmp_path / 'tls.crt'}" in str(caught.value)
        assert "--rotate-certs" in str(caught.value)


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    authority, own = for_([CLIENT])
    other = issue(authority, [ORCHESTRATOR], [CLIENT], now())
    with pytest.raises(BadCredentials, match="is not the key of --agent-cert"):
        Dialer(files(tmp_path, authority.certificate, Signed(own.certificate, other.key)))


def test_files_that_are_not_there_or_are_something_else_are_named(tmp_path: Path) -> None:
    authority, own = for_([CLIENT])
    for name, flag in (("ca.crt", "--agent-ca"), ("tls.crt", "--agent-cert"), ("tls.key", "--agent-key")):
        made = files(tmp_path, authority.certificate, own)
        (tmp_path / name).write_bytes(b"garbage")
        with pytest.raises(BadCredentials, match=f"{flag} {tmp_path / name}.*PEM"):
            Dialer(made)
        os.unlink(tmp_path / name)
        with pytest.raises(BadCredentials, match=f"{flag} {tmp_path / name}: cannot read it .No such file"):
            Dialer(made)


async def test_a_link_with_certificates_comes_back_too(tmp_path: Path) -> None:
    authority, own = for_([CLIENT])
    dialer = Dialer(files(tmp_path, authority.certificate, own))
    credentials = serving(authority, issue(authority, [AGENT_NAME], [SERVER], now()))
    node = agent()
    async with linked(node, tmp_path, credentials=credentials, dialer=dialer, listen=TCP) as (_, inbox):
        await inbox.next_of(NodeObserved)
        await node.stop()
        await inbox.next_of(NodeDisconnected)
        await node.start(f"127.0.0.1:{node.port}", credentials)
        await inbox.next_of(NodeObserved)
