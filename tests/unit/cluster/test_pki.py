"""Certificates that strict verifiers accept, and kubeconfigs that only their owner can read."""

import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID

from draco_local.cluster import kubeconfig
from draco_local.cluster.pki import Authority, Credential, private_key_pem, signing_key

IDENTIFIERS = (ExtensionOID.SUBJECT_KEY_IDENTIFIER, ExtensionOID.AUTHORITY_KEY_IDENTIFIER)


def handshake(authority: Authority, server: Credential, client: Credential, folder: Path, host: str) -> None:
    """A TLS handshake over memory, both sides verifying strictly."""
    for name, credential in (("server", server), ("client", client)):
        (folder / f"{name}.pem").write_bytes(credential.certificate + credential.key)
    roots = authority.certificate.decode()
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=roots)
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(folder / "server.pem")
    asking = ssl.create_default_context(cadata=roots)
    asking.load_cert_chain(folder / "client.pem")
    for context in (serving, asking):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        asking.wrap_bio(to_client, to_server, server_hostname=host),
        serving.wrap_bio(to_server, to_client, server_side=True),
    ]
    left = list(ends)
    for _ in range(10):
        for end in list(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not left


@pytest.mark.parametrize("host", ["127.0.0.1", "kubernetes.default.svc"])
def test_strict_verifiers_accept_server_and_client(tmp_path: Path, host: str) -> None:
    authority = Authority.create("ca")
    server = authority.issue("kube-apiserver", hosts=["127.0.0.1", "kubernetes.default.svc"])
    handshake(authority, server, authority.issue("admin"), tmp_path, host)


def test_a_server_under_another_name_is_refused(tmp_path: Path) -> None:
    authority = Authority.create("ca")
    server = authority.issue("kube-apiserver", hosts=["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(authority, server, authority.issue("admin"), tmp_path, "10.0.0.1")


def test_a_client_certificate_does_not_serve(tmp_path: Path) -> None:
    authority = Authority.create("ca")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(authority, authority.issue("admin"), authority.issue("admin"), tmp_path, "127.0.0.1")


def test_an_authority_that_was_written_down_goes_on_issuing(tmp_path: Path) -> None:
    first = Authority.create("ca")
    second = Authority.load(first.certificate, first.key)
    server = first.issue("kube-apiserver", hosts=["127.0.0.1"])
    handshake(first, server, second.issue("admin"), tmp_path, "127.0.0.1")


def test_an_authority_of_an_earlier_version_with_a_key_on_an_elliptic_curve_goes_on_issuing(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = x509.load_pem_x509_certificate(Authority.create("ca").certificate)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = x509.CertificateBuilder(
        certificate.subject,
        certificate.subject,
        key.public_key(),
        certificate.serial_number,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        [each for each in certificate.extensions if each.oid not in IDENTIFIERS],
    ).add_extension(identifier, critical=False)
    written = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    earlier = Authority.load(written, private_key_pem(key))
    server = earlier.issue("kube-apiserver", hosts=["127.0.0.1"])
    handshake(earlier, server, earlier.issue("admin"), tmp_path, "127.0.0.1")


def test_who_a_client_is_stands_in_its_certificate() -> None:
    credential = Authority.create("ca").issue("system:node:a", organizations=["system:nodes"])
    subject = x509.load_pem_x509_certificate(credential.certificate).subject
    assert subject.rfc4514_string() == "CN=system:node:a,O=system:nodes"


def test_certificates_are_valid_from_before_now_for_a_year() -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    certificate = x509.load_pem_x509_certificate(Authority.create("ca", now=now).certificate)
    assert certificate.not_valid_before_utc < now - timedelta(minutes=30)
    assert certificate.not_valid_after_utc == now + timedelta(days=365)


def test_the_signing_key_is_a_pair() -> None:
    key = signing_key()
    assert b"PRIVATE KEY" in key.private
    assert b"PUBLIC KEY" in key.public


def test_a_kubeconfig_embeds_all_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    kubeconfig.write(
        path, name="c", server="https://127.0.0.1:1", authority=b"ca", credential=Credential(b"crt", b"key")
    )
    assert path.stat().st_mode & 0o777 == 0o600
    document = yaml.safe_load(path.read_text())
    assert document["clusters"][0]["cluster"] == {"server": "https://127.0.0.1:1", "certificate-authority-data": "Y2E="}
    assert document["users"][0]["user"] == {"client-certificate-data": "Y3J0", "client-key-data": "a2V5"}


@pytest.mark.exhaustive
def test_readers_never_see_half_a_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    stop = threading.Event()

    def write() -> None:
        for turn in range(50):
            credential = Credential(b"c" * (1 + turn % 50) * 100, b"key")
            kubeconfig.write(path, name="c", server="https://127.0.0.1:1", authority=b"ca", credential=credential)
        stop.set()

    write_once = threading.Thread(target=write)
    write_once.start()
    try:
        while not stop.is_set():
            if path.exists():
                assert yaml.load(path.read_text(), yaml.CSafeLoader)["current-context"] == "c"
    finally:
        write_once.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["kubeconfig"]
