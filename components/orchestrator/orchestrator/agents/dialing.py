"""Channels to agents: plain, or mutual TLS where this orchestrator has a certificate for them."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

AGENT_NAME = "snapshot-agent.timeslice-system"
"""What the certificate of every agent says, whatever its address: pods' addresses change."""

CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]

_MAX_ROUNDS = 10
"""A handshake takes two."""


class BadCredentials(ValueError):
    """The files cannot be used. The text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    ca: Path
    """Who signs the certificates of agents, and ours."""
    cert: Path
    key: Path


class Dialer:
    """Makes channels to agents. Without `files` all are plain; with them TCP takes mutual TLS, and unix sockets, which
    do not leave the machine, stay plain."""

    def __init__(self, files: TlsFiles | None = None) -> None:
        """BadCredentials: files that cannot be used, or that agents would refuse."""
        self._credentials: grpc.ChannelCredentials | None = None
        self.not_after_s: float | None = None
        """When our certificate ends, seconds since 1970; None without one."""
        if files is not None:
            ca, cert, key = (
                _read("--agent-ca", files.ca), _read("--agent-cert", files.cert), _read("--agent-key", files.key))
            self.not_after_s = _check(files, ca)
            self._credentials = grpc.ssl_channel_credentials(ca, key, cert)

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel that has not connected yet."""
        if self._credentials is None or address.startswith("unix:"):
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", AGENT_NAME)]
        return grpc.aio.secure_channel(address, self._credentials, options=options)


PLAIN = Dialer()


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCredentials(f"{flag} {path}: cannot read it ({error.strerror})") from error


def _check(files: TlsFiles, ca: bytes) -> float:
    """Go through a handshake with ourselves, as an agent's side will check it; when our certificate ends."""
    agent, caller = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        agent.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise BadCredentials(f"--agent-ca {files.ca}: it holds no certificate in PEM") from error
    try:
        for side in (agent, caller):
            side.load_cert_chain(files.cert, files.key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCredentials(
                f"--agent-key {files.key} is not the key of --agent-cert {files.cert}; give those that belong together"
            ) from error
        raise BadCredentials(
            f"--agent-cert {files.cert}, --agent-key {files.key}: not a certificate and an unencrypted key in PEM"
            f" ({error.reason or error})") from error
    agent.verify_mode = ssl.CERT_REQUIRED
    caller.check_hostname, caller.verify_mode = False, ssl.CERT_NONE  # its certificate is ours, not an agent's
    try:
        peer = _handshake(agent, caller)
    except ssl.SSLCertVerificationError as error:
        raise BadCredentials(
            f"--agent-cert {files.cert}: agents would refuse it: {error.verify_message.rstrip('.')}. It must be valid"
            f" now, be signed by --agent-ca {files.ca}, and be for a client; in a cluster `//deploy:apply"
            " --rotate-certs` makes new ones") from error
    return float(ssl.cert_time_to_seconds(str(peer["notAfter"])))


def _handshake(agent: ssl.SSLContext, caller: ssl.SSLContext) -> dict[str, object]:
    """In memory; the caller's certificate as the agent sees it. Raises: ssl.SSLCertVerificationError."""
    to_agent, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = caller.wrap_bio(to_caller, to_agent)
    listening = agent.wrap_bio(to_agent, to_caller, server_side=True)
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
    peer = listening.getpeercert()
    assert peer, "an agent that verifies has seen a certificate"
    return dict(peer)
