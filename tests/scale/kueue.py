"""Kueue beside a local control plane: its own manifests, its webhooks on loopback, and what it counts of workloads.

Owns how it is installed without a pod: the API server calls webhooks by URL, since no Service leads to this machine, and the
certificates are created beforehand, in the form that Kueue's rotator recognises as its own and keeps.
"""

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from draco_local.cluster import ports
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.programs import binaries
from tests.requests import RefusedError, call
from tests.scale import daemons, programs

NAMESPACE: Final = "kueue-system"
KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
_SERVICE: Final = "kueue-webhook-service"
_SECRET: Final = "kueue-webhook-server-cert"
_LOOPBACK: Final = "127.0.0.1"
_RESOURCES: Final = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "Secret": f"/api/v1/namespaces/{NAMESPACE}/secrets",
}
"""The kinds of its manifests that a program needs when it runs outside the cluster as administrator."""
_GROUPS: Final = {"kueue.x-k8s.io", "batch", ""}
"""API groups whose webhooks are kept; the others belong to job controllers that are not installed."""
_READY_WITHIN_S: Final = 120.0
_DAY: Final = timedelta(days=1)


@contextmanager
def kueue(plane: ControlPlane, folder: Path, mappings: Mapping[str, Sequence[str]]) -> Iterator[daemons.Daemon]:
    """Run Kueue during the block; `mappings` maps each resource name that it counts to its DeviceClasses."""
    found = programs.find("kueue")
    taken: set[int] = set()
    for _ in range(3):
        taken.add(ports.pick(_LOOPBACK, taken=frozenset(taken)))
    webhook, probe, metrics = sorted(taken)
    certificates = _certificates()
    for name, content in certificates.items():
        (folder / name).write_bytes(content)
    made = []
    call(plane, "PATCH", f"/api/v1/namespaces/{NAMESPACE}?fieldManager=tests", _namespace())
    try:
        for document in _documents(found / programs.FILES, certificates, f"https://{_LOOPBACK}:{webhook}"):
            path = f"{_RESOURCES[document['kind']]}/{document['metadata']['name']}"
            call(plane, "PATCH", f"{path}?fieldManager=tests&force=true", document)
            made.append(path)
        config = folder / "config.yaml"
        config.write_text(json.dumps(_configuration(folder, webhook, probe, metrics, mappings)))
        environ = os.environ | {"KUBECONFIG": str(plane.kubeconfig)}
        with daemons.running(found / "kueue", ["--config", str(config)], environ=environ, folder=folder) as daemon:
            _until_ready(daemon, f"http://{_LOOPBACK}:{probe}/readyz")
            yield daemon
    finally:
        for path in reversed(made):
            call(plane, "DELETE", path)


def _until_ready(daemon: daemons.Daemon, url: str) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while True:
        daemon.check()
        try:
            if urllib3.request("GET", url, retries=False, timeout=5).status == 200:
                return
        except urllib3.exceptions.HTTPError:
            pass
        assert time.monotonic() < deadline, f"Kueue is not ready:\n{daemon.said()}"
        time.sleep(0.1)


def make(plane: ControlPlane, kind: str, document: dict[str, Any], *, namespace: str = "", within_s: float = 30) -> str:
    """Create one of Kueue's objects, once its webhook answers; return its path."""
    where = f"{KUEUE}/namespaces/{namespace}/{kind}" if namespace else f"{KUEUE}/{kind}"
    deadline = time.monotonic() + within_s
    while True:
        try:
            made = call(plane, "POST", where, document)
        except RefusedError as error:
            if error.code < 500 or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return f"{where}/{made['metadata']['name']}"


def _namespace() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _documents(files: Path, certificates: Mapping[str, bytes], server: str) -> Iterator[dict[str, Any]]:
    """The manifests of Kueue that are needed, with webhooks that are called at `server`."""
    kubectl = binaries.find("kubectl")["kubectl"]
    built = subprocess.run(
        [kubectl, "kustomize", files / "config" / "default"], capture_output=True, text=True, check=True
    )
    authority = base64.b64encode(certificates["ca.crt"]).decode()

    def by_url(config: dict[str, Any]) -> dict[str, Any]:
        return {"url": server + config["service"]["path"], "caBundle": authority}

    for document in yaml.load_all(built.stdout, yaml.CSafeLoader):
        if document["kind"] not in _RESOURCES:
            continue
        if document["kind"] == "Secret":
            document["data"] = {name: base64.b64encode(text).decode() for name, text in certificates.items()}
        if conversion := document.get("spec", {}).get("conversion", {}).get("webhook"):
            conversion["clientConfig"] = by_url(conversion["clientConfig"])
        if "webhooks" in document:
            document["webhooks"] = [
                hook | {"clientConfig": by_url(hook["clientConfig"])}
                for hook in document["webhooks"]
                if all(set(rule["apiGroups"]) <= _GROUPS for rule in hook["rules"])
            ]
        yield document


def _configuration(
    folder: Path, webhook: int, probe: int, metrics: int, mappings: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"{_LOOPBACK}:{probe}"},
        "metrics": {"bindAddress": f"{_LOOPBACK}:{metrics}"},
        "webhook": {"host": _LOOPBACK, "port": webhook, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookServiceName": _SERVICE, "webhookSecretName": _SECRET},
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "featureGates": {"DynamicResourceAllocation": True, "VisibilityOnDemand": False},
        "resources": {
            "deviceClassMappings": [
                {"name": name, "deviceClassNames": list(classes)} for name, classes in mappings.items()
            ]
        },
    }


def _certificates() -> dict[str, bytes]:
    """A certificate authority and a server certificate, by the file names that Kueue reads.

    Kueue's rotator keeps an authority whose only alternative name is its own name, with a key in PKCS#1, and a server certificate
    for the Service's name. The API server calls an IP address, so the certificate includes that as well.
    """
    authority_key, server_key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    names = [
        x509.NameAttribute(NameOID.COMMON_NAME, "kueue-ca"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kueue"),
    ]
    issuer = x509.Name(names)
    authority = (
        _builder(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("kueue-ca")]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    service = f"{_SERVICE}.{NAMESPACE}.svc"
    alternatives = [x509.DNSName(service), x509.IPAddress(IPv4Address(_LOOPBACK))]
    server = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, service)]), issuer, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return {
        "ca.crt": authority.public_bytes(serialization.Encoding.PEM),
        "ca.key": _pkcs1(authority_key),
        "tls.crt": server.public_bytes(serialization.Encoding.PEM),
        "tls.key": _pkcs1(server_key),
    }


def _builder(subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 3650 * _DAY)  # the rotator replaces certificates that expire within months
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pkcs1(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
