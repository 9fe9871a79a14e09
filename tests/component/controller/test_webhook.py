"""The webhook as the real API server calls it: warnings to authors of claims, gates for new pods, and no blocked request."""

import asyncio
import base64
import json
import socket
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from draco.controller.app import Operator
from draco.controller.webhook.claim_advice import AdmissionMode
from draco.controller.webhook.server import OWN_PATH, PATH, WebhookSettings
from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    DEVICE_MAINTENANCES,
    HEALTH_POLICIES,
    MAINTENANCE_BUDGETS,
    MIG_POLICIES,
    PODS,
    SLICES,
    Kind,
)
from draco.resources.names import SCHEDULING_GATE
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.pki import Authority, Credential
from tests.builders import a_device, a_slice
from tests.component.chart.webhook import GATING, gating
from tests.component.controller.replicas import an_operator, settings_for_test, until
from tests.component.controller.test_pending_claims import as_json

pytestmark = pytest.mark.usefixtures("crds")

CONFIGURATIONS: Kind[Any] = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    False,
    dict,
)


class Answer:
    """The API server's answer to one write."""

    def __init__(self, status: int, warnings: list[str], body: dict[str, Any]) -> None:
        self.status, self.warnings, self.body = status, warnings, body


class Lab:
    """A class of devices, one without published memory, and a registered webhook."""

    def __init__(self, served: ControlPlane, client: Client, namespace: str, folder: Path) -> None:
        self.served, self.client, self.namespace, self.folder = served, client, namespace, folder
        name = uuid.uuid4().hex[:8]
        self.driver = f"{name}.example.com"
        self.name = f"webhook-{name}"
        self.authority = Authority.create("webhook")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.show(self.authority.issue("webhook", hosts=["127.0.0.1"]))

    def show(self, credential: Credential) -> None:
        (self.folder / "tls.crt").write_bytes(credential.certificate)
        (self.folder / "tls.key").write_bytes(credential.key)

    async def set_up(self) -> None:
        expression = f"device.driver == '{self.driver}'"
        await self.client.create(
            DEVICE_CLASSES,
            {"metadata": {"name": self.name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}},
        )
        plain = a_device("gpu-1", capacity={})
        spec = a_slice("node", [a_device("gpu-0"), plain], driver=self.driver, pool=self.name).spec
        described = as_json(spec)
        described["devices"][0]["attributes"]["numa"] = {"int": 0}
        await self.client.create(SLICES, {"metadata": {"name": self.name}, "spec": described})
        rule = {
            "apiGroups": ["resource.k8s.io"],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["resourceclaims", "resourceclaimtemplates"],
        }
        webhook: dict[str, Any] = {
            "name": "claims.draco.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "url": f"https://127.0.0.1:{self.port}{PATH}",
                "caBundle": base64.b64encode(self.authority.certificate).decode(),
            },
            "rules": [rule],
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "timeoutSeconds": 2,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
        }
        kinds = ["devicelimits", "devicemaintenances", "healthpolicies", "maintenancebudgets", "migpolicies"]
        own = webhook | {
            "name": "draco.draco.dev",
            "clientConfig": webhook["clientConfig"] | {"url": f"https://127.0.0.1:{self.port}{OWN_PATH}"},
            "rules": [rule | {"apiGroups": ["draco.dev"], "apiVersions": ["v1alpha1"], "resources": kinds}],
        }
        del own["namespaceSelector"]
        await self.client.create(CONFIGURATIONS, {"metadata": {"name": self.name}, "webhooks": [webhook, own]})

    async def clean(self) -> None:
        for kind in (CONFIGURATIONS, SLICES, DEVICE_CLASSES):
            await self.client.delete(kind, ObjectKey("", self.name))

    def spec(self, *selectors: str) -> dict[str, Any]:
        exactly = {
            "deviceClassName": self.name,
            "selectors": [{"cel": {"expression": expression}} for expression in selectors],
        }
        return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}

    async def write(self, kind: Kind[Any], name: str, spec: dict[str, Any], *, method: str = "POST") -> Answer:
        meta = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}
        path = kind.path(namespace=self.namespace) if method == "POST" else kind.path(ObjectKey(self.namespace, name))
        return await asyncio.to_thread(self._write, method, path, body)

    def _write(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        context = ssl.create_default_context(cafile=str(self.served.pki / "ca.crt"))
        context.load_cert_chain(self.served.pki / "admin.crt", self.served.pki / "admin.key")
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        headers = {"Content-Type": "application/json" if method == "POST" else "application/merge-patch+json"}
        request = urllib.request.Request(
            self.served.server + path, method=method, data=json.dumps(body).encode(), headers=headers
        )
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=30) as response:
                return Answer(response.status, response.headers.get_all("Warning") or [], json.load(response))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers.get_all("Warning") or [], json.load(error))

    async def warned(self, selector: str, *, kind: Kind[Any] = CLAIMS, text: str = "") -> Answer:
        """The first answer with warnings: the API server learns of a webhook a moment late."""
        spec = self.spec(selector) if kind is CLAIMS else {"spec": self.spec(selector)}

        async def look() -> Answer | None:
            answer = await self.write(kind, f"claim-{uuid.uuid4().hex[:8]}", spec)
            return answer if any(text in warning for warning in answer.warnings) else None

        return await until(look, what="a warning")


@pytest.fixture
async def lab(served: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(served, client, namespace, tmp_path)
    await made.set_up()
    yield made
    await made.clean()


@asynccontextmanager
async def a_webhook(lab: Lab, mode: AdmissionMode = AdmissionMode.WARN) -> AsyncIterator[Operator]:
    settings = WebhookSettings(host="127.0.0.1", port=lab.port, certificates=lab.folder, mode=mode)
    async with an_operator(lab.served, settings_for_test(webhook=settings)) as (operator, _):
        yield operator


def failing(lab: Lab) -> str:
    """A selector that fails on the device without this attribute."""
    return f"device.attributes['{lab.driver}'].numa == 0"


async def test_a_selector_that_fails_on_a_published_device_is_warned_of_and_stored(lab: Lab) -> None:
    async with a_webhook(lab) as operator:
        answer = await lab.warned(failing(lab), text="fails on 1 device")
        assert answer.status == 201
        what, remedy = answer.warnings
        assert what.startswith('299 - "')
        assert "fails on 1 device, for example" in what
        assert "no such key: numa" in what
        assert "has(device.attributes" in remedy
        clean = await lab.write(CLAIMS, "clean", lab.spec(f"device.driver == '{lab.driver}'"))
        assert (clean.status, clean.warnings) == (201, [])
        sample = operator.metrics.registry.get_sample_value
        assert sample("draco_admission_reviews_total", {"outcome": "warned"}) == 1
        assert sample("draco_admission_reviews_total", {"outcome": "clean"}) == 1


async def test_what_nobody_publishes_is_warned_of_in_a_template_too(lab: Lab) -> None:
    selector = f"device.attributes['{lab.driver}'].?productNme.orValue('') == 'H100'"
    async with a_webhook(lab):
        answer = await lab.warned(selector, kind=CLAIM_TEMPLATES)
        assert answer.status == 201
        assert "productNme" in " ".join(answer.warnings)


async def test_what_is_wrong_with_one_of_our_own_kinds_is_said_to_who_writes_it(lab: Lab) -> None:
    device = {"driver": lab.driver, "pool": lab.name, "device": "gpu-0"}
    windows = [{"start": "22:00", "duration": "2h", "timeZone": "Europe/Atlantis"}]
    rule = {"name": "mild", "condition": "fault.xid == '13'", "effect": "Record"}
    wrong: list[tuple[Kind[Any], dict[str, Any], str]] = [
        (DEVICE_MAINTENANCES, {"deviceSelector": device, "schedule": {"windows": windows}}, "Europe/Atlantis"),
        (HEALTH_POLICIES, {"rules": [rule], "dryRun": True}, "rule mild is invalid"),
        (MAINTENANCE_BUDGETS, {"maxDevices": 0, "deviceClassName": lab.name}, "set spec.paused instead"),
        (MIG_POLICIES, {"mode": "Dynamic", "reset": {"windows": windows}}, "Europe/Atlantis"),
    ]
    async with a_webhook(lab):
        for kind, spec, text in wrong:

            async def look(kind: Kind[Any] = kind, spec: dict[str, Any] = spec, text: str = text) -> Answer | None:
                name = f"advised-{uuid.uuid4().hex[:8]}"
                answer = await lab.write(kind, name, spec)
                await lab.client.delete(kind, ObjectKey("", name))
                assert answer.status == 201, answer.body
                return answer if any(text in warning for warning in answer.warnings) else None

            await until(look, what=f"a warning about {kind.kind}")


async def test_where_that_is_asked_for_a_selector_that_fails_is_denied_and_nothing_else(lab: Lab) -> None:
    async with a_webhook(lab, AdmissionMode.ENFORCE):

        async def denied() -> Answer | None:
            answer = await lab.write(CLAIMS, f"claim-{uuid.uuid4().hex[:8]}", lab.spec(failing(lab)))
            return answer if answer.status != 201 else None

        answer = await until(denied, what="a denial")
        assert answer.status == 422
        assert "numa" in answer.body["message"]
        unpublished = f"device.attributes['{lab.driver}'].?productNme.orValue('') == 'H100'"
        answer = await lab.write(CLAIMS, "unpublished", lab.spec(unpublished))
        assert (answer.status, bool(answer.warnings)) == (201, True)


async def test_a_claim_that_is_there_already_may_always_change_what_is_not_its_spec(lab: Lab) -> None:
    spec = lab.spec(failing(lab))
    await lab.client.create(CLAIMS, {"metadata": {"name": "old", "namespace": lab.namespace}, "spec": spec})
    async with a_webhook(lab, AdmissionMode.ENFORCE):
        await lab.warned(f"device.attributes['{lab.driver}'].?productNme.orValue('') == 'H100'")
        written = await lab.client.patch(
            CLAIMS, ObjectKey(lab.namespace, "old"), {"metadata": {"finalizers": ["example.com/held"]}}
        )
        assert written.metadata.finalizers == ["example.com/held"]
        await lab.client.patch(CLAIMS, ObjectKey(lab.namespace, "old"), {"metadata": {"finalizers": None}})


async def test_claims_are_written_as_ever_when_no_operator_runs(lab: Lab) -> None:
    async with a_webhook(lab):
        await lab.warned(failing(lab))
    answer = await lab.write(CLAIMS, "alone", lab.spec(failing(lab)))
    assert (answer.status, answer.warnings) == (201, [])


async def test_a_certificate_that_was_rotated_is_shown_without_a_restart(lab: Lab) -> None:
    async with a_webhook(lab):
        await lab.warned(failing(lab))
        lab.show(Authority.create("other").issue("webhook", hosts=["127.0.0.1"]))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

        async def shown() -> bytes:
            _, writer = await asyncio.open_connection("127.0.0.1", lab.port, ssl=context)
            certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return certificate

        expected = ssl.PEM_cert_to_DER_cert((lab.folder / "tls.crt").read_text())

        async def renewed() -> bool:
            return await shown() == expected

        await until(renewed, what="the new certificate")


async def test_with_an_expired_certificate_claims_are_stored_without_advice_and_the_operator_says_why(lab: Lab) -> None:
    lab.show(lab.authority.issue("webhook", hosts=["127.0.0.1"], now=datetime.now(UTC) - timedelta(days=400)))
    async with a_webhook(lab) as operator:
        expired = {"use": "webhook", "problem": "Expired"}

        async def said() -> bool:
            return operator.metrics.registry.get_sample_value("draco_certificate_problem", expired) == 1

        await until(said, what="the expiry in the metrics")
        stored = await lab.write(CLAIMS, "stored", lab.spec(failing(lab)))
        assert (stored.status, stored.warnings) == (201, [])
        lab.show(lab.authority.issue("webhook", hosts=["127.0.0.1"]))
        await lab.warned(failing(lab))
        assert not await said()


async def test_where_an_authority_is_given_nobody_is_answered_without_its_certificate(lab: Lab, tmp_path: Path) -> None:
    clients, others = Authority.create("clients"), Authority.create("others")
    authority = tmp_path / "ca.crt"
    authority.write_bytes(clients.certificate)
    settings = WebhookSettings(host="127.0.0.1", port=lab.port, certificates=lab.folder, client_ca=authority)
    async with an_operator(lab.served, settings_for_test(webhook=settings)):

        async def asked(credential: Credential | None) -> int:
            """The status of the answer; 0 where the connection is refused."""
            return await asyncio.to_thread(_post, lab, tmp_path, credential)

        async def answered() -> bool:
            return await asked(clients.issue("api-server")) == 400

        await until(answered, what="an answer to who shows a certificate")
        assert await asked(None) == 0
        assert await asked(others.issue("api-server")) == 0
        stored = await lab.write(CLAIMS, "stored", lab.spec(failing(lab)))
        assert (stored.status, stored.warnings) == (201, []), (
            "this API server shows no certificate, and claims are stored"
        )


def _post(lab: Lab, folder: Path, credential: Credential | None) -> int:
    context = ssl.create_default_context(cadata=lab.authority.certificate.decode())
    if credential is not None:
        (folder / "client.crt").write_bytes(credential.certificate)
        (folder / "client.key").write_bytes(credential.key)
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    request = urllib.request.Request(f"https://127.0.0.1:{lab.port}{PATH}", data=b"{}", method="POST")
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


async def gates_of_pod(lab: Lab, template: str, *gates: str) -> list[str]:
    """The scheduling gates that a new pod with a claim from the template has."""
    spec = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}] if template else [],
        "schedulingGates": [{"name": each} for each in gates],
    }
    answer = await lab.write(PODS, f"pod-{uuid.uuid4().hex[:8]}", spec)
    assert answer.status == 201, answer.body
    return [each["name"] for each in answer.body["spec"].get("schedulingGates", [])]


async def test_new_pods_with_claims_of_dracos_get_its_gate_as_the_chart_has_it(lab: Lab) -> None:
    labelled = {"metadata": {"labels": {"draco.dev/allocator": "operator"}}}
    await lab.client.patch(DEVICE_CLASSES, ObjectKey("", lab.name), labelled)
    await lab.client.create(DEVICE_CLASSES, {"metadata": {"name": f"{lab.name}-theirs"}, "spec": {}})
    for name, device_class in (("ours", lab.name), ("theirs", f"{lab.name}-theirs")):
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]}}
        assert (await lab.write(CLAIM_TEMPLATES, name, {"spec": spec})).status == 201
    await lab.client.create(GATING, gating(lab.authority, lab.name, [lab.port], [lab.namespace]))
    async with a_webhook(lab) as operator:

        async def gated() -> bool:
            return await gates_of_pod(lab, "ours") == [SCHEDULING_GATE]

        await until(gated, what="a pod with the gate")
        others = "example.com/admission"
        assert await gates_of_pod(lab, "ours", others) == [others, SCHEDULING_GATE]
        assert await gates_of_pod(lab, "ours", SCHEDULING_GATE) == [SCHEDULING_GATE]
        assert await gates_of_pod(lab, "theirs") == []
        sample = operator.metrics.registry.get_sample_value
        clean = sample("draco_admission_reviews_total", {"outcome": "clean"})
        assert await gates_of_pod(lab, "") == []
        assert sample("draco_admission_reviews_total", {"outcome": "clean"}) == clean  # the webhook was not called
    assert await gates_of_pod(lab, "ours") == []  # with no operator running
