"""Certificates of a local cluster.

Owns the certificate authority, the leaf certificates and the service-account key. Python 3.13 and newer verify strictly, so
the authority carries critical basicConstraints and keyUsage, and leaves carry key identifiers and an extended usage.

The authority's key is RSA: the API server verifies a client's certificate for each request, and a small request then costs 0.6 ms
of CPU instead of 0.8 ms with an elliptic curve. Leaves have elliptic-curve keys, which are fast to make and to sign with.
"""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCK_SKEW = timedelta(hours=1)
_VALID_FOR = timedelta(days=365)
_RSA_EXPONENT, _RSA_BITS = 65537, 2048

AuthorityKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
"""An RSA key, or the elliptic-curve key of a cluster that an earlier version made."""


class Credential(NamedTuple):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority in memory; `certificate` and `key` are PEM, for storing it."""

    def __init__(self, certificate: x509.Certificate, key: AuthorityKey) -> None:
        self._certificate = certificate
        self._key = key
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        self.key = private_key_pem(key)

    @classmethod
    def create(cls, name: str, *, now: datetime | None = None) -> Self:
        """Create a new self-signed authority, valid for a year."""
        key = rsa.generate_private_key(_RSA_EXPONENT, _RSA_BITS)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = (
            _builder(subject, issuer=subject, key=key.public_key(), now=now or datetime.now(UTC))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Self:
        """Load an authority from its stored PEM certificate and key."""
        loaded = serialization.load_pem_private_key(key, None, unsafe_skip_rsa_key_validation=True)  # Draco made it
        if not isinstance(loaded, AuthorityKey):
            raise TypeError("the key of a cluster's certificate authority is an RSA or elliptic-curve key")
        return cls(x509.load_pem_x509_certificate(certificate), loaded)

    def issue(
        self,
        common_name: str,
        *,
        organizations: Iterable[str] = (),
        hosts: Iterable[str] = (),
        now: datetime | None = None,
    ) -> Credential:
        """Issue a leaf for a client, and for a server too when `hosts` (names or IP addresses) are given."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        alternative_names = [_alternative_name(host) for host in hosts]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if alternative_names:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        issuer_identifier = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(subject, issuer=self._certificate.subject, key=key.public_key(), now=now or datetime.now(UTC))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_identifier), critical=False
            )
        )
        if alternative_names:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Credential(signed.public_bytes(serialization.Encoding.PEM), private_key_pem(key))


class SigningKey(NamedTuple):
    """The key pair with which service-account tokens are signed and checked, both PEM."""

    private: bytes
    public: bytes


def signing_key() -> SigningKey:
    """Create a new key pair for service-account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return SigningKey(private_key_pem(key), public)


def private_key_pem(key: AuthorityKey) -> bytes:
    """Return the unencrypted PEM form that Kubernetes' components read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _builder(
    subject: x509.Name, *, issuer: x509.Name, key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID_FOR)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
