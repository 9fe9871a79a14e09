"""The certificate of an endpoint: what is shown while files change under it."""

import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from draco.certificates import Certificate, CertificateUnusable
from draco_local.cluster.pki import Authority, Credential


@pytest.fixture(scope="module")
def issued() -> tuple[Credential, Credential]:
    authority = Authority.create("webhook")
    return authority.issue("webhook", hosts=["127.0.0.1"]), authority.issue("webhook", hosts=["127.0.0.1"])


def shown(certificate: Certificate) -> bytes:
    """What a client is shown, found out without a network."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_bio(to_client, to_server)
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_certificate_without_its_key_does_not_spoil_the_one_that_is_shown_and_is_said_once(
    tmp_path: Path, issued: tuple[Credential, Credential]
) -> None:
    old, new = issued
    (tmp_path / "tls.crt").write_bytes(old.certificate)
    (tmp_path / "tls.key").write_bytes(old.key)
    certificate = Certificate(tmp_path, use="webhook")
    certificate.load()
    before = shown(certificate)
    with capture_logs() as logs:
        certificate.reload()
        assert logs == [], "nothing has changed"
        (tmp_path / "tls.crt").write_bytes(new.certificate)
        for _ in range(3):
            certificate.reload()
            assert shown(certificate) == before
        (tmp_path / "tls.key").write_bytes(new.key)
        certificate.reload()
        certificate.reload()
    assert [each["event"] for each in logs] == ["certificate.unusable", "certificate.loaded"]
    assert shown(certificate) == ssl.PEM_cert_to_DER_cert(new.certificate.decode())


def test_a_certificate_that_is_gone_is_shown_until_another_is_there(
    tmp_path: Path, issued: tuple[Credential, Credential]
) -> None:
    old, new = issued
    for name, text in (("tls.crt", old.certificate), ("tls.key", old.key)):
        (tmp_path / name).write_bytes(text)
    certificate = Certificate(tmp_path, use="webhook")
    certificate.load()
    before = shown(certificate)
    (tmp_path / "tls.crt").unlink()
    certificate.reload()
    assert shown(certificate) == before
    for name, text in (("tls.crt", new.certificate), ("tls.key", new.key)):
        (tmp_path / name).write_bytes(text)
    certificate.reload()
    assert shown(certificate) != before


def test_a_missing_certificate_is_one_sentence_that_says_where_to_put_one(tmp_path: Path) -> None:
    with pytest.raises(CertificateUnusable, match=r"tls\.crt .*put a certificate and its private key there"):
        Certificate(tmp_path, use="webhook").load()


def test_a_certificate_that_comes_late_is_shown_once_it_is_there(
    tmp_path: Path, issued: tuple[Credential, Credential]
) -> None:
    certificate = Certificate(tmp_path, use="metrics")
    with capture_logs() as logs:
        certificate.reload()
        certificate.reload()
        for name, text in (("tls.crt", issued[0].certificate), ("tls.key", issued[0].key)):
            (tmp_path / name).write_bytes(text)
        certificate.reload()
    assert [(each["event"], each["use"]) for each in logs] == [
        ("certificate.unusable", "metrics"),
        ("certificate.loaded", "metrics"),
    ]
    assert shown(certificate) == ssl.PEM_cert_to_DER_cert(issued[0].certificate.decode())
