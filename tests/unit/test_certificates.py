"""The certificate of an endpoint: what is served while its files change."""

import ssl
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from draco.certificates import Certificate, CertificateMetrics, CertificateProblem, CertificateUnusable, Validity
from draco_local.cluster.pki import Authority, Credential
from tests.doubles.clock import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def issued() -> tuple[Credential, Credential]:
    authority = Authority.create("webhook", now=NOW)
    first, second = (authority.issue("webhook", hosts=["127.0.0.1"], now=NOW) for _ in range(2))
    return first, second


def problem(certificate: Certificate) -> CertificateProblem | None:
    found = certificate.finding(NOW)
    return found.problem if found else None


def shown(certificate: Certificate) -> bytes:
    """The certificate that a client gets, without a network."""
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


def test_a_certificate_without_its_key_does_not_spoil_the_one_that_is_shown(
    tmp_path: Path, issued: tuple[Credential, Credential]
) -> None:
    old, new = issued
    (tmp_path / "tls.crt").write_bytes(old.certificate)
    (tmp_path / "tls.key").write_bytes(old.key)
    certificate = Certificate(tmp_path, use="webhook")
    certificate.load()
    before = shown(certificate)
    certificate.reload()
    assert certificate.finding(NOW) is None, "nothing has changed"
    (tmp_path / "tls.crt").write_bytes(new.certificate)
    for _ in range(3):
        certificate.reload()
        assert shown(certificate) == before
        assert problem(certificate) is CertificateProblem.UNUSABLE
    (tmp_path / "tls.key").write_bytes(new.key)
    certificate.reload()
    certificate.reload()
    assert problem(certificate) is None
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


def put(folder: Path, credential: Credential) -> None:
    (folder / "tls.crt").write_bytes(credential.certificate)
    (folder / "tls.key").write_bytes(credential.key)


class Lab:
    """An endpoint's certificate as time passes; clients ask for draco.svc."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.registry = folder, ManualClock(NOW), CollectorRegistry()
        self.certificate = Certificate(folder, use="metrics", name="draco.svc")

    def put(self, *, name: str = "draco.svc", made: datetime = NOW) -> None:
        put(self.folder, Authority.create("lab", now=made).issue("metrics", hosts=[name], now=made))

    @asynccontextmanager
    async def looked_at(self) -> AsyncIterator[list[MutableMapping[str, Any]]]:
        """Keep the certificate fresh; yields the log."""
        metrics = CertificateMetrics(self.registry)
        with capture_logs() as logs:
            async with self.certificate.kept_fresh(metrics, sleep=self.clock.sleep, now=self.clock.now):
                yield logs

    def problems(self) -> set[str]:
        """The exported problems."""
        exported = {
            each: self.registry.get_sample_value("draco_certificate_problem", {"use": "metrics", "problem": each.value})
            for each in CertificateProblem
        }
        assert None not in exported.values()
        return {each.value for each, value in exported.items() if value}


async def test_a_certificate_that_comes_late_is_shown_once_it_is_there_and_said_once_before(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    async with lab.looked_at() as logs:
        await lab.clock.advance(10)
        assert lab.problems() == {"Unusable"}
        lab.put()
        await lab.clock.advance(2)
        assert lab.problems() == set()
    assert [(each["event"], each["use"]) for each in logs] == [
        ("certificate.unfit", "metrics"),
        ("certificate.loaded", "metrics"),
    ]
    assert shown(lab.certificate) == ssl.PEM_cert_to_DER_cert((tmp_path / "tls.crt").read_text())


async def test_the_end_of_a_certificate_is_said_before_and_when_it_comes_each_day_until_there_is_another(
    tmp_path: Path,
) -> None:
    lab, day = Lab(tmp_path), 86_400.0
    lab.put(made=NOW - timedelta(days=365 - 15))
    async with lab.looked_at() as logs:
        await lab.clock.advance(1)
        assert lab.problems() == set()
        expires = lab.registry.get_sample_value("draco_certificate_expiration_timestamp_seconds", {"use": "metrics"})
        assert expires == (NOW + timedelta(days=15)).timestamp()
        lab.clock.pass_without_a_turn(day)
        await lab.clock.advance(1)
        assert lab.problems() == {"Expiring"}
        for _ in range(16):
            lab.clock.pass_without_a_turn(day)
            await lab.clock.advance(1)
        assert lab.problems() == {"Expired"}
        lab.put(made=lab.clock.now())
        await lab.clock.advance(2)
        assert lab.problems() == set()
    said = [(each["problem"], each["error"]) for each in logs if each["event"] == "certificate.unfit"]
    assert [problem for problem, _ in said] == ["Expiring"] * 14 + ["Expired"] * 3
    assert said[-1][1] == (
        f"{tmp_path}/tls.crt expired at 2026-01-16 00:00 UTC; renew it: if cert-manager issues it, its Certificate says what "
        "failed; if the chart made it, delete its Secret and run `helm upgrade`"
    )


@pytest.mark.parametrize(
    ("name", "made", "problem", "said"),
    [
        ("draco.svc", NOW, None, ""),
        ("other.svc", NOW, "OtherName", "is not valid for draco.svc, the name that clients use"),
        (
            "draco.svc",
            NOW + timedelta(days=1),
            "NotYetValid",
            "is valid only from 2026-01-01 23:00 UTC on; set this node's",
        ),
        ("other.svc", NOW - timedelta(days=366), "Expired", "expired at 2025-12-31 00:00 UTC"),
    ],
)
async def test_what_clients_refuse_is_said_with_what_to_do(
    tmp_path: Path, name: str, made: datetime, problem: str | None, said: str
) -> None:
    lab = Lab(tmp_path)
    lab.put(name=name, made=made)
    async with lab.looked_at() as logs:
        await lab.clock.advance(5)
        assert lab.problems() == ({problem} if problem else set())
    found = [each["error"] for each in logs if each["event"] == "certificate.unfit"]
    assert [said in each for each in found] == ([True] if problem else [])


async def test_a_short_life_is_not_called_at_its_end_from_the_start(tmp_path: Path) -> None:
    """An authority may issue certificates for a day, and renew them in time."""
    life = Validity(tmp_path, NOW, NOW + timedelta(hours=24), None)
    assert life.finding(NOW + timedelta(hours=21)) is None
    late = life.finding(NOW + timedelta(hours=22))
    assert late is not None
    assert late.problem is CertificateProblem.EXPIRING
