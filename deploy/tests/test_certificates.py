"""Certificates and the Secrets that hold them: made once, kept while they are good, and never shown."""

from __future__ import annotations

import base64
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from timeslice_deploy import secrets
from timeslice_deploy.certificates import (
    CLIENT,
    SERVER,
    Signed,
    belongs_together,
    is_signed_by,
    issue,
    new_authority,
    not_after,
    now,
)
from timeslice_deploy.names import AGENT, AGENT_SECRET, CA_SECRET, ORCHESTRATOR, ORCHESTRATOR_SECRET

NOW = now()


def written(plan: secrets.Plan) -> dict[str, Any]:
    return {secret["metadata"]["name"]: secret for secret in plan.write}


def after(existing: dict[str, Any], plan: secrets.Plan) -> dict[str, Any]:
    """The cluster's Secrets once the plan is carried out."""
    return {**existing, **written(plan)}


def data(secret: Any, key: str) -> bytes:
    return base64.b64decode(secret["data"][key])


@pytest.fixture
def installed() -> dict[str, Any]:
    return written(secrets.plan({}, NOW))


def test_the_first_time_makes_an_authority_and_both_certificates(installed: dict[str, Any]) -> None:
    assert set(installed) == {CA_SECRET, ORCHESTRATOR_SECRET, AGENT_SECRET}
    authority = data(installed[CA_SECRET], "tls.crt")
    for name, purpose, secret in ((ORCHESTRATOR, CLIENT, ORCHESTRATOR_SECRET), (AGENT, SERVER, AGENT_SECRET)):
        certificate = data(installed[secret], "tls.crt")
        assert data(installed[secret], "ca.crt") == authority
        assert is_signed_by(certificate, authority)
        assert belongs_together(Signed(certificate, data(installed[secret], "tls.key")))
        parsed = x509.load_pem_x509_certificate(certificate)
        dns = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert f"{name}.timeslice-system" in dns.get_values_for_type(x509.DNSName)
        assert list(parsed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert not_after(certificate) == NOW + timedelta(days=365)


def test_the_authoritys_key_is_in_no_secret_that_a_pod_mounts(installed: dict[str, Any]) -> None:
    key = installed[CA_SECRET]["data"]["tls.key"]
    assert all(key not in str(installed[name]) for name in (ORCHESTRATOR_SECRET, AGENT_SECRET))


def test_a_later_run_changes_nothing(installed: dict[str, Any]) -> None:
    first = secrets.plan(installed, NOW)
    later = secrets.plan(installed, NOW + timedelta(days=300))
    assert (first.write, later.write, later.warnings) == ((), (), ())
    assert first.digests == later.digests
    assert later.says == ("certificates are kept",)


def test_the_end_is_announced_before_it_comes_and_does_not_come_by_itself(installed: dict[str, Any]) -> None:
    plan = secrets.plan(installed, NOW + timedelta(days=340))
    assert plan.write == ()
    assert [warning.split(" ends in ")[1] for warning in plan.warnings] == ["25 days; renew it with --rotate-certs"] * 2
    ended = secrets.plan(installed, NOW + timedelta(days=366))
    assert set(written(ended)) == {ORCHESTRATOR_SECRET, AGENT_SECRET}


def test_rotating_keeps_the_authority_so_that_old_and_new_get_on(installed: dict[str, Any]) -> None:
    before = secrets.plan(installed, NOW)
    plan = secrets.plan(installed, NOW, rotate=True)
    assert set(written(plan)) == {ORCHESTRATOR_SECRET, AGENT_SECRET}
    for name, secret in written(plan).items():
        assert data(secret, "ca.crt") == data(installed[CA_SECRET], "tls.crt")
        assert data(secret, "tls.key") != data(installed[name], "tls.key")
    assert all(plan.digests[name] != before.digests[name] for name in (ORCHESTRATOR, AGENT)), "pods must restart"
    assert secrets.plan(after(installed, plan), NOW).write == ()


def test_a_new_authority_makes_all_anew_and_the_old_one_is_not_believed(installed: dict[str, Any]) -> None:
    plan = secrets.plan(installed, NOW, rotate=True, new_ca=True)
    assert set(written(plan)) == {CA_SECRET, ORCHESTRATOR_SECRET, AGENT_SECRET}
    old = data(installed[CA_SECRET], "tls.crt")
    assert all(old not in data(secret, "ca.crt") for secret in written(plan).values())


def test_an_authority_at_its_end_is_replaced_and_all_that_it_signed(installed: dict[str, Any]) -> None:
    assert set(written(secrets.plan(installed, NOW + timedelta(days=3630)))) == set(installed)


@pytest.mark.parametrize("lost", [CA_SECRET, ORCHESTRATOR_SECRET, AGENT_SECRET])
def test_what_is_missing_or_damaged_is_made_again(installed: dict[str, Any], lost: str) -> None:
    made_again = set(installed) if lost == CA_SECRET else {lost}
    missing = {name: secret for name, secret in installed.items() if name != lost}
    assert set(written(secrets.plan(missing, NOW))) == made_again
    good = installed[lost]["data"]
    other_key = base64.b64encode(new_authority(NOW).key).decode()
    for damage in ({}, {**good, "tls.crt": "?"}, {**good, "tls.crt": "AAAA"}, {**good, "tls.key": other_key}, None):
        damaged = {**installed, lost: {**installed[lost], "data": damage}}
        assert set(written(secrets.plan(damaged, NOW))) == made_again


def test_a_certificate_of_another_authority_is_not_kept(installed: dict[str, Any]) -> None:
    other = written(secrets.plan({}, NOW))
    mixed = {**installed, AGENT_SECRET: other[AGENT_SECRET]}
    assert set(written(secrets.plan(mixed, NOW))) == {AGENT_SECRET}


def test_keys_do_not_show_in_what_is_said(installed: dict[str, Any]) -> None:
    plan = secrets.plan({}, NOW)
    assert "PRIVATE" not in "".join(plan.says + plan.warnings)
    assert "PRIVATE" not in repr(new_authority(NOW))


def test_a_certificate_never_outlives_its_authority() -> None:
    authority = new_authority(NOW - timedelta(days=3600))
    assert not_after(issue(authority, ["x"], [SERVER], NOW).certificate) == not_after(authority.certificate)


def test_a_name_alone_does_not_make_an_authority() -> None:
    real, pretender = new_authority(NOW, "same"), new_authority(NOW, "same")
    forged = issue(pretender, ["timesliceorchestrator.timeslice-system"], [CLIENT], NOW)
    assert not is_signed_by(forged.certificate, real.certificate)


def test_certificates_hold_by_the_strict_rules(tmp_path: Path) -> None:
    """Python 3.13 and others ask for what RFC 5280 asks: key identifiers, critical constraints."""
    authority = new_authority(NOW)
    own = issue(authority, ["snapshot-agent.timeslice-system"], [SERVER], NOW)
    (tmp_path / "c").write_bytes(own.certificate)
    (tmp_path / "k").write_bytes(own.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "c", tmp_path / "k")
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = client.wrap_bio(back, there, server_hostname="snapshot-agent.timeslice-system")
    listening = server.wrap_bio(there, back, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        calling.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        listening.do_handshake()
    calling.do_handshake()
    assert calling.getpeercert()
