"""Files for TLS: each mistake is found at the start, and is one line that names the file and what to do."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from snapshot_agent_server.api.credentials import NAME, BadCredentials, TlsFiles, load
from timeslice_deploy.certificates import CLIENT, SERVER, Signed, issue, new_authority, not_after, now


def files(folder: Path, ca: bytes, own: Signed) -> TlsFiles:
    made = TlsFiles(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
    made.ca.write_bytes(ca)
    made.cert.write_bytes(own.certificate)
    made.key.write_bytes(own.key)
    return made


def test_good_files_say_when_they_end(tmp_path: Path) -> None:
    authority = new_authority(now())
    own = issue(authority, [NAME], [SERVER], now())
    credentials = load(files(tmp_path, authority.certificate, own))
    assert credentials.not_after_s == not_after(own.certificate).timestamp()


def test_an_authority_among_several_is_enough(tmp_path: Path) -> None:
    old, new = new_authority(now(), "old"), new_authority(now(), "new")
    load(files(tmp_path, new.certificate + old.certificate, issue(old, [NAME], [SERVER], now())))


def test_a_certificate_that_callers_would_refuse_is_refused_at_the_start(tmp_path: Path) -> None:
    authority, other = new_authority(now(), "ours"), new_authority(now(), "theirs")
    long_ago = now() - timedelta(days=400)
    old_authority = new_authority(long_ago)
    for name, ca, own, text in (
        ("expired", old_authority, issue(old_authority, [NAME], [SERVER], long_ago), "expired"),
        ("future", authority, issue(authority, [NAME], [SERVER], now() + timedelta(days=1)), "not yet valid"),
        ("other", authority, issue(other, [NAME], [SERVER], now()), "local issuer certificate"),
        ("name", authority, issue(authority, ["a-job.default"], [SERVER], now()), "a-job.default|[Mm]ismatch"),
        ("use", authority, issue(authority, [NAME], [CLIENT], now()), "purpose"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(BadCredentials, match=text) as caught:
            load(files(tmp_path / name, ca.certificate, own))
        assert f"--tls-cert {tmp_path / name / 'tls.crt'}" in str(caught.value)
        assert "--rotate-certs" in str(caught.value)


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    authority = new_authority(now())
    own, other = (issue(authority, [NAME], [SERVER], now()) for _ in range(2))
    with pytest.raises(BadCredentials, match="is not the key of --tls-cert"):
        load(files(tmp_path, authority.certificate, Signed(own.certificate, other.key)))


def test_files_that_are_not_there_or_are_something_else_are_named(tmp_path: Path) -> None:
    authority = new_authority(now())
    own = issue(authority, [NAME], [SERVER], now())
    for name, flag in (("ca.crt", "--tls-ca"), ("tls.crt", "--tls-cert"), ("tls.key", "--tls-key")):
        made = files(tmp_path, authority.certificate, own)
        (tmp_path / name).write_bytes(b"garbage")
        with pytest.raises(BadCredentials, match=f"{flag} {tmp_path / name}.*PEM"):
            load(made)
        os.unlink(tmp_path / name)
        with pytest.raises(BadCredentials, match=f"{flag} {tmp_path / name}: cannot read it .No such file"):
            load(made)


def test_a_key_is_never_shown(tmp_path: Path) -> None:
    own = issue(new_authority(now()), [NAME], [SERVER], now())
    assert "PRIVATE" not in repr(own)
