"""The connection of a pod."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from draco.kube.connect.incluster import connect_in_cluster
from draco.kube.errors import KubeconfigError

ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def a_certificate() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now).not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text(a_certificate())
    (tmp_path / "namespace").write_text("draco-system")
    return tmp_path


async def test_a_pod_connects_with_its_mounted_account(mount: Path) -> None:
    async with connect_in_cluster(ENVIRON, mount=mount) as connection:
        assert connection.server == "https://10.96.0.1:443"
        assert await connection._credentials.authorization() == "Bearer first"


async def test_an_ipv6_service_address_is_bracketed(mount: Path) -> None:
    async with connect_in_cluster({**ENVIRON, "KUBERNETES_SERVICE_HOST": "fd00::1"}, mount=mount) as connection:
        assert connection.server == "https://[fd00::1]:443"


async def test_the_token_is_read_again_when_kubelet_replaced_it(mount: Path) -> None:
    async with connect_in_cluster(ENVIRON, mount=mount) as connection:
        credentials = connection._credentials
        assert await credentials.authorization() == "Bearer first"
        replacement = mount / "replacement"
        replacement.write_text("second")
        replacement.rename(mount / "token")
        assert await credentials.authorization() == "Bearer second"


async def test_a_token_file_that_is_gone_for_a_moment_does_no_harm(mount: Path) -> None:
    async with connect_in_cluster(ENVIRON, mount=mount) as connection:
        credentials = connection._credentials
        await credentials.authorization()
        (mount / "token").unlink()
        assert await credentials.authorization() == "Bearer first"


async def test_after_a_refusal_the_token_is_read_even_if_the_file_looks_the_same(mount: Path) -> None:
    token = mount / "token"
    async with connect_in_cluster(ENVIRON, mount=mount) as connection:
        credentials = connection._credentials
        await credentials.authorization()
        before = token.stat()
        token.write_text("other\n")  # the same length as "first"
        os.utime(token, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert await credentials.authorization() == "Bearer first"
        assert await credentials.renew("Bearer first") == "Bearer other"


def test_outside_a_pod_the_sentence_says_what_to_do(mount: Path) -> None:
    with pytest.raises(
        KubeconfigError, match=r"does not run in a pod .*--kubeconfig, or start a cluster with `draco cluster up`"
    ):
        connect_in_cluster({}, mount=mount)


def test_a_pod_without_an_account_is_told_so(mount: Path) -> None:
    (mount / "token").unlink()
    with pytest.raises(KubeconfigError, match="automountServiceAccountToken"):
        connect_in_cluster(ENVIRON, mount=mount)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff"])
def test_a_file_without_an_authority_is_named_and_the_systems_are_not_trusted_instead(
    mount: Path, content: bytes
) -> None:
    (mount / "ca.crt").write_bytes(content)
    with pytest.raises(KubeconfigError, match=r"certificate authority at .*/ca\.crt \(.*ConfigMap kube-root-ca\.crt"):
        connect_in_cluster(ENVIRON, mount=mount)
