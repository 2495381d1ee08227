"""Which Secrets the cluster should have, given those that it has: decided here, without a cluster."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from timeslice_deploy.certificates import (
    CLIENT,
    SERVER,
    Signed,
    belongs_together,
    is_signed_by,
    issue,
    new_authority,
    not_after,
)
from timeslice_deploy.names import AGENT, AGENT_SECRET, CA_SECRET, NAMESPACE, ORCHESTRATOR, ORCHESTRATOR_SECRET

RENEW_BEFORE = timedelta(days=30)
"""Less than this left is worth a word."""

_OWN = {ORCHESTRATOR_SECRET: (ORCHESTRATOR, CLIENT), AGENT_SECRET: (AGENT, SERVER)}
"""Each with who it is for, and what its certificate is for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, what to say, and what pods will have."""

    write: tuple[dict[str, Any], ...]
    """Secrets that are new or changed, keys inside: never printed."""
    says: tuple[str, ...]
    warnings: tuple[str, ...]
    digests: Mapping[str, str]
    """By workload: a digest of its certificate and of the authorities that it believes."""


def plan(existing: Mapping[str, Any], now: datetime, *, rotate: bool = False, new_ca: bool = False) -> Plan:
    """Keep what is there and good; make what is missing, ended, or to be rotated.

    `existing`: Secrets by name, as the API server gives them. With `rotate` both certificates are new; with `new_ca`
    the authority is too, and nobody believes the old one any more.
    """
    write: list[dict[str, Any]] = []
    says: list[str] = []
    warnings: list[str] = []
    authority = None if new_ca else _authority(existing.get(CA_SECRET))
    if authority is not None and not_after(authority.certificate) <= now + RENEW_BEFORE:
        says.append(f"the authority ends on {not_after(authority.certificate):%Y-%m-%d}: a new one is made")
        authority = None
    if authority is None:
        authority = new_authority(now)
        write.append(_secret(CA_SECRET, authority, authority.certificate))
        says.append(
            f"made a certificate authority (Secret {CA_SECRET}, until {not_after(authority.certificate):%Y-%m-%d})"
        )
    digests: dict[str, str] = {}
    for secret, (name, purpose) in _OWN.items():
        kept = None if rotate else _kept(existing.get(secret), authority, now)
        if kept is None:
            kept = issue(authority, [f"{name}.{NAMESPACE}", f"{name}.{NAMESPACE}.svc", name], [purpose], now)
            write.append(_secret(secret, kept, authority.certificate))
            says.append(
                f"made a certificate for {name} (Secret {secret}, until {not_after(kept.certificate):%Y-%m-%d})"
            )
        elif not_after(kept.certificate) <= now + RENEW_BEFORE:
            left = (not_after(kept.certificate) - now).days
            warnings.append(f"the certificate of {name} ends in {left} days; renew it with --rotate-certs")
        digests[name] = hashlib.sha256(kept.certificate + authority.certificate).hexdigest()[:16]
    if not says:
        says.append("certificates are kept")
    return Plan(tuple(write), tuple(says), tuple(warnings), digests)


def expiry(secret: Any) -> datetime | None:
    """When the certificate of a Secret ends; None if it holds none."""
    try:
        return not_after(_data(secret, "tls.crt"))
    except (KeyError, TypeError, ValueError):
        return None


def _authority(secret: Any) -> Signed | None:
    found = _signed(secret)
    return found if found is not None and is_signed_by(found.certificate, found.certificate) else None


def _kept(secret: Any, authority: Signed, now: datetime) -> Signed | None:
    """The certificate of a Secret if pods can go on using it."""
    found = _signed(secret)
    if found is None or not is_signed_by(found.certificate, authority.certificate):
        return None
    if not_after(found.certificate) <= now or _data(secret, "ca.crt") != authority.certificate:
        return None
    return found


def _signed(secret: Any) -> Signed | None:
    try:
        found = Signed(_data(secret, "tls.crt"), _data(secret, "tls.key"))
        return found if belongs_together(found) else None
    except (KeyError, TypeError, ValueError):
        return None


def _data(secret: Any, key: str) -> bytes:
    try:
        return base64.b64decode(secret["data"][key], validate=True)
    except binascii.Error as error:
        raise ValueError(f"{key} is not base64") from error


def _secret(name: str, own: Signed, ca: bytes) -> dict[str, Any]:
    data = {"ca.crt": ca, "tls.crt": own.certificate, "tls.key": own.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/part-of": "timeslice"},
        },
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
