"""Certificates of the orchestrator and the agents: one authority of our own, and what it signs.

P-256 keys, PEM throughout. A certificate says what it is for: an agent's serves, the orchestrator's calls; a key that
was stolen from a node can therefore not give orders to other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH

AUTHORITY_LIFETIME = timedelta(days=3650)
LIFETIME = timedelta(days=365)
"""Certificates are renewed by hand: once a year is often enough to be remembered, and seldom enough to be borne."""

CLOCK_SKEW = timedelta(minutes=10)
"""Valid from this long ago: nodes' clocks differ from the one here."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its private key, PEM. The key never shows in a repr, and so in no log or traceback."""

    certificate: bytes
    key: bytes = field(repr=False)


def new_authority(now: datetime, name: str = "timeslice") -> Signed:
    """A new authority, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} CA {now:%Y-%m-%d}")])
    certificate = (
        _unsigned(subject, subject, key.public_key(), now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _signed(certificate, key)


def issue(
    authority: Signed,
    names: Sequence[str],
    purposes: Sequence[x509.ObjectIdentifier],
    now: datetime,
    lifetime: timedelta = LIFETIME,
) -> Signed:
    """A new key, and a certificate for it that carries `names` as DNS names; it never outlives the authority's."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey), "new_authority makes no other"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    lifetime = min(lifetime, signer.not_valid_after_utc - now)
    identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _unsigned(subject, signer.subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(list(purposes)), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(signing_key, hashes.SHA256())
    )
    return _signed(certificate, key)


def not_after(certificate: bytes) -> datetime:
    """When the first certificate of a PEM text ends. Raises: ValueError if there is none."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether the certificate is one of this authority's. Raises: ValueError if either is none."""
    signed, signer = x509.load_pem_x509_certificate(certificate), x509.load_pem_x509_certificate(authority)
    try:
        signed.verify_directly_issued_by(signer)
    except (InvalidSignature, ValueError, TypeError):  # the last two: other names, another kind of key
        return False
    return True


def belongs_together(signed: Signed) -> bool:
    """Whether the key is the certificate's. Raises: ValueError if either is none."""
    key = serialization.load_pem_private_key(signed.key, password=None)
    return key.public_key() == x509.load_pem_x509_certificate(signed.certificate).public_key()


def now() -> datetime:
    """Certificates hold whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _usage(**used: bool) -> x509.KeyUsage:
    kinds = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{kind: used.get(kind, False) for kind in kinds})


def _signed(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Signed:
    return Signed(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
