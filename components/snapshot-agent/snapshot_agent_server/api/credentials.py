"""Mutual TLS on the agent's TCP listeners: the files, and whether an orchestrator would accept them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

NAME = "snapshot-agent.timeslice-system"
"""What every agent's certificate says, whatever its address: orchestrators ask for it."""

_MAX_ROUNDS = 10
"""A handshake takes two."""


class BadCredentials(Exception):
    """The files cannot be used. The text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    ca: Path
    """Who signs the certificates of callers, and our own."""
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Credentials:
    server: grpc.ServerCredentials
    not_after_s: float
    """When our certificate ends, seconds since 1970."""


def load(files: TlsFiles) -> Credentials:
    """What the listeners need. Raises: BadCredentials, also for files that callers would refuse later on."""
    ca, cert, key = _read("--tls-ca", files.ca), _read("--tls-cert", files.cert), _read("--tls-key", files.key)
    not_after_s = _check(files, ca)
    server = grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)
    return Credentials(server, not_after_s)


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCredentials(f"{flag} {path}: cannot read it ({error.strerror})") from error


def _check(files: TlsFiles, ca: bytes) -> float:
    """Go through a handshake with ourselves, as a caller's side will check it; when the certificate ends."""
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        caller.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise BadCredentials(f"--tls-ca {files.ca}: it holds no certificate in PEM") from error
    listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        listener.load_cert_chain(files.cert, files.key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            text = f"--tls-key {files.key} is not the key of --tls-cert {files.cert}; give those that belong together"
        else:
            text = (
                f"--tls-cert {files.cert}, --tls-key {files.key}: not a certificate and an unencrypted key in PEM"
                f" ({error.reason or error})"
            )
        raise BadCredentials(text) from error
    try:
        peer = _handshake(listener, caller)
    except ssl.SSLCertVerificationError as error:
        raise BadCredentials(
            f"--tls-cert {files.cert}: orchestrators would refuse it: {error.verify_message.rstrip('.')}. It must be"
            f" valid now, be signed by --tls-ca {files.ca}, and carry the DNS name {NAME!r}; in a cluster"
            " `//deploy:apply --rotate-certs` makes new ones"
        ) from error
    return float(ssl.cert_time_to_seconds(str(peer["notAfter"])))


def _handshake(listener: ssl.SSLContext, caller: ssl.SSLContext) -> dict[str, object]:
    """In memory; the listener's certificate as the caller sees it. Raises: ssl.SSLCertVerificationError."""
    to_listener, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = caller.wrap_bio(to_caller, to_listener, server_hostname=NAME)
    listening = listener.wrap_bio(to_listener, to_caller, server_side=True)
    for _ in range(_MAX_ROUNDS):
        done = 0
        for side in (calling, listening):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
        if done == 2:
            break
    peer = calling.getpeercert()
    assert peer, "a caller that verifies has seen a certificate"
    return dict(peer)
