"""Fuzz targets for what machines write to each other: files, sockets, drivers and servers, each with the law it must keep.

Each character of a text stands for one byte, so that invalid UTF-8 is tried as well.
"""

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import click
import msgspec
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from draco.agent.claims import cdi
from draco.agent.containers.edits import ContainerEdits
from draco.agent.files import Files
from draco.agent.hardware.capabilities import TABLE, Capabilities, CapabilityUnknown
from draco.agent.hardware.fault_record import FaultRecord
from draco.agent.hardware.faults import health
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import NvmlError
from draco.agent.metrics import AgentMetrics
from draco.agent.mig.holders import Holders
from draco.agent.plugin.api import dra_v1_pb2
from draco.agent.plugin.dra_service import DraService
from draco.agent.publish import slices
from draco.agent.record import checkpoint
from draco.agent.state.node import NodeState
from draco.cli.agent import command as agent_command
from draco.cli.operator import command as operator_command
from draco.controller.webhook.admission_review import NotAReview
from draco.controller.webhook.own_kind_advice import OwnKindAdvice
from draco.controller.workers.messages import (
    AskQuestions,
    Changes,
    CheckClaim,
    ClaimProblems,
    Failed,
    FrameReader,
    NotAMessage,
    OutOfMemory,
    PutObject,
    Remove,
    Reply,
    frame,
    inward,
    outward,
)
from draco.controller.workers.places import Answered
from draco.endpoints import http_app, serving
from draco.kube.clock import SystemClock
from draco.kube.connect.client import decode_page, token_of
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import ApiError, KubeconfigError, NotFound, from_response
from draco.kube.watch import watching
from draco.kube.watch.watching import StreamBroken
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, SLICES
from draco_local.simulator.gpus import state
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.builders import a_claim, a_gpu, a_slice
from tests.fuzz.run import Target
from tests.unit.agent.record.test_journal import a_prepared_claim, a_record
from tests.unit.controller.webhook.test_admission import Lab, a_request

DEEP = ["[" * 900, '{"a":' * 900, "[" * 20_000]
JSON = ["null", "true", "[]", "{}", '""', "0", "-1", "1e400", ",", ":", "\\ud800", "\xff", "\xc3", "\0", *DEEP]
NVML_TEXTS = ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion")


def raw(text: str) -> bytes:
    """The bytes that a text stands for."""
    return text.encode("latin-1", errors="replace")


def text_of(written: bytes) -> str:
    return written.decode("latin-1")


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="draco-fuzz-"))


def sentence(error: Exception) -> str:
    said = str(error)
    assert said.strip()
    assert "Traceback" not in said
    return f"{type(error).__name__} {said[:40]}"


def record(text: str) -> str:
    """An agent's record is read, or reported as damaged."""
    try:
        return f"{len(checkpoint.read(raw(text)).claims)} claims"
    except checkpoint.CheckpointDamaged as damaged:
        return sentence(damaged)


def spec(text: str) -> str:
    """A CDI spec says which claim it was written for, or nothing."""
    said = cdi.annotated(raw(text))
    return "nothing" if said is None else str(said.claim)


def faults(text: str) -> str:
    """The file of faults is read, or discarded with a warning."""
    path = folder() / "faults.json"
    path.write_bytes(raw(text))
    with capture_logs() as logs:
        [gpu] = FaultRecord(path, Files(), boot_id="boot", driver_load=lambda: "1", now=SystemClock().now).judge(
            [a_gpu(0)]
        )
    return f"{health(gpu)[0]} {[each['event'] for each in logs]}"


def page(text: str) -> str:
    """A page of a list is decoded, without the objects in it that cannot be read, or fails with one kind of error."""
    try:
        token_of(raw(text))
        read = decode_page(CLAIMS, raw(text))
    except msgspec.DecodeError as error:
        return sentence(error)
    return f"{len(read.items)} {len(read.undecodable)}"


def event(text: str) -> str:
    """A line of a watch is an event, an error of the server, or a reason to list again."""
    try:
        return type(watching._step(SLICES, raw(text)).event).__name__
    except (ApiError, StreamBroken) as error:
        return sentence(error)


def refusal(text: str) -> str:
    """Any answer instead of the API server's is an error with a sentence, and with a bounded Retry-After if it has one."""
    after, _, body = text.partition("\n")
    error = from_response(503, {"Retry-After": after}, raw(body))
    assert error.retry_after_s is None or 0 <= error.retry_after_s < 10**7
    return sentence(error)


class _Reviews(Lab):
    """Reviews of claims in any namespace, with workers that find no problems."""

    def may_ask(self, namespace: str) -> bool:
        return not namespace.startswith("x")

    async def ask_within(self, *_: object) -> Answered:
        return Answered(ClaimProblems([]), self.followed.version, 0.0)


def review(text: str) -> str:
    """An admission review is answered, or is not one."""
    try:
        with capture_logs():
            answer, outcome = asyncio.run(_Reviews().admission.review(raw(text)))
            asyncio.run(OwnKindAdvice(dict, clock=SystemClock()).review(raw(text)))
    except NotAReview as error:
        return sentence(error)
    assert isinstance(json.loads(answer)["response"]["allowed"], bool)
    return str(outcome)


def kubeconfig(text: str) -> str:
    """A kubeconfig connects, or one sentence names the file and the mistake."""
    path = folder() / "config"
    path.write_bytes(raw(text.replace("exec", "").replace("auth-provider", "")))  # do not run programs

    async def connected() -> str:
        connection = await connect(path)
        await connection.close()
        return "connected"

    try:
        return asyncio.run(connected())
    except KubeconfigError as error:
        return sentence(error)


class _NoServer:
    """An API server without claims, and an agent that holds none."""

    async def get(self, *_: object, **__: object) -> None:
        raise NotFound(404, "NotFound", "there is none")

    async def unprepare(self, _uid: str) -> None:
        return None

    def on_record(self, _uid: str) -> None:
        return None


def kubelet(text: str) -> str:
    """A message from kubelet is malformed, or each of its claims is answered."""
    request = dra_v1_pb2.NodePrepareResourcesRequest()
    try:
        request.ParseFromString(raw(text))
    except DecodeError:
        return "none"
    opened = asyncio.Event()
    opened.set()
    service = DraService(
        _NoServer(),  # type: ignore[arg-type]
        NodeState(SystemClock()),
        _NoServer(),  # type: ignore[arg-type]
        driver="gpu.nvidia.com",
        opened=opened,
        metrics=AgentMetrics(),
        clock=SystemClock(),
    )

    async def asked() -> list[str]:
        calls = service.behaviours()
        given = dra_v1_pb2.NodeUnprepareResourcesRequest.FromString(request.SerializeToString())
        answer = await calls["NodePrepareResources"](request, None)
        await calls["NodeUnprepareResources"](given, None)
        assert set(answer.claims) == {claim.uid for claim in request.claims}
        return [each.error for each in answer.claims.values()]

    with capture_logs():
        errors = asyncio.run(asked())
    assert not [each for each in errors if "does not exist any more" not in each]
    return f"{len(errors)} claims"


class _Strange:
    """NVML whose strings are these lines."""

    def __init__(self, lines: list[bytes]) -> None:
        self._nvml = _nvml()
        self._lines = lines

    def __getattr__(self, name: str) -> Any:
        if name in NVML_TEXTS:
            line = self._lines[NVML_TEXTS.index(name) % len(self._lines)]
            return lambda *_: line.partition(b"\0")[0].decode()  # as pynvml does
        return getattr(self._nvml, name)


@cache
def _nvml() -> SimulatedNvml:
    state.create(folder() / "gpus.json", gpus=1, node_name="node")
    return SimulatedNvml(folder() / "gpus.json")


def nvml(text: str) -> str:
    """The names that NVML reports are published within the API's limits, or one sentence says what is wrong."""
    session = Nvml(_Strange(raw(text).split(b"\n")))
    try:
        session.open()
        driver = session.driver()
        published = [slices.device(gpu, driver) for gpu in session.gpus()]
    except NvmlError as error:
        return sentence(error)
    finally:
        session.close()
    for device in published:
        for attribute in device.attributes.values():
            assert len((attribute.string or "").encode()) <= slices.STRING_LIMIT
    return f"{len(published)} published, {[each.message[:30] for each in session.unidentified()]}"


def processes(text: str) -> str:
    """What processes say about themselves is printed on one line, without terminal control characters."""
    parts = raw(text).split(b"\n\n")
    process = folder() / "proc" / "7"
    process.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("comm", "cgroup", "environ"), [*parts, b"", b"", b""], strict=False):
        (process / name).write_bytes(part)
    [told] = Holders(folder() / "proc").named([7])
    assert str(told).isprintable()
    return str(told)


def capabilities(text: str) -> str:
    """The driver's table of device nodes names the instance's, or a sentence says that it does not."""
    table = folder() / "caps" / TABLE
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_bytes(raw(text))
    try:
        return str(Capabilities(folder() / "caps", folder()).paths(0, 1, 0))
    except CapabilityUnknown as error:
        return sentence(error)


def http(text: str) -> str:
    """Anything sent to a port gets an HTTP answer or none, and the next request is answered."""

    async def asked() -> bytes:
        app = http_app(CollectorRegistry, alive=list, ready=list)
        async with serving(app, "127.0.0.1", 0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw(text))
            if len(text) % 2:
                writer.write_eof()
            try:
                async with asyncio.timeout(0.05):  # the server waits for the rest of an unfinished request
                    answer = await reader.read(1 << 16)
            except (ConnectionError, TimeoutError):
                answer = b""
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in await reader.read(100)
            writer.close()
        return answer

    said: list[logging.LogRecord] = []
    with capture_logs(), _logged(said):
        answer = asyncio.run(asked())
    assert not [each.getMessage() for each in said], "who sends nonsense must not fill the log"
    head = answer.partition(b"\r\n")[0].decode()
    assert not answer or (head.startswith("HTTP/") and " 500 " not in head), head
    return head


def frames(text: str) -> str:
    """Bytes from a worker's pipe decode to the same messages however they are cut, or to an error; the buffer stays bounded."""
    sent = raw(text)
    whole, cut = _messages_in([sent]), _messages_in([sent[at : at + 7] for at in range(0, len(sent), 7)])
    assert whole == cut
    return whole


def _messages_in(pieces: list[bytes]) -> str:
    reader = FrameReader(most=1 << 12)
    said: list[str] = []
    for piece in pieces:
        try:
            said.extend(map(_kind_of, reader.feed(piece)))
        except NotAMessage as error:
            return f"{said} {sentence(error)}"
        assert len(reader._buffer) <= (1 << 12) + 4
    return str(said)


def _kind_of(body: bytes) -> str:
    kinds = []
    for read in (inward, outward):
        with suppress(NotAMessage):
            kinds.append(type(read(body)).__name__)
    return " or ".join(kinds)


def options(text: str) -> str:
    """Options and environment variables give settings that work, or one sentence says what is wrong."""
    lines = [line for line in text.replace("\0", "").split("\n") if line]
    arguments = [line for line in lines if "=" not in line or line.startswith("-")]
    given = dict(line.split("=", 1) for line in lines if line not in arguments)
    command = operator_command if "operator" in given else agent_command
    environment = {name: value for name, value in given.items() if name.startswith("DRACO_")}
    with mock.patch.dict(os.environ, environment, clear=True):
        try:
            with command.make_context("draco", arguments) as context:
                found = context.params
        except click.exceptions.Exit:
            return "help"
        except click.ClickException as error:
            said = error.format_message()
            assert said.strip()
            return said[:60]
    for value in found.values():
        assert not isinstance(value, float) or 0 <= value < 10**8
        if isinstance(value, tuple):
            assert 0 <= value[1] < 1 << 16
            value[0].encode("idna")
    return str(sorted(name for name, value in found.items() if value is not None))[:200]


@contextmanager
def _logged(said: list[logging.LogRecord]) -> Iterator[None]:
    handler = logging.Handler(logging.WARNING)
    handler.emit = said.append  # type: ignore[assignment]
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _records() -> list[str]:
    path = folder() / "checkpoint"
    a_record(path)
    return [text_of(path.read_bytes().rstrip())]


def _specs() -> list[str]:
    made = cdi.spec(a_prepared_claim("claim"), "gpu.nvidia.com", Capabilities(), ContainerEdits(), boot_id="boot")
    return [text_of(msgspec.json.encode(made))]


def _listed(*objects: Any) -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": "7", "continue": "next"}, "items": list(objects)})


def _messages() -> list[str]:
    claims = [dra_v1_pb2.Claim(uid=f"uid-{number}", name="claim", namespace="default") for number in range(3)]
    asked = [dra_v1_pb2.NodePrepareResourcesRequest(claims=claims[:count]) for count in range(4)]
    return [text_of(each.SerializeToString()) for each in asked]


def _frames() -> list[str]:
    asked = AskQuestions([(1, CheckClaim(a_claim("a")))], 2, 0.5, 5.0, False)
    changes = Changes([PutObject("Node", b"\x80"), Remove("Node", ObjectKey("", "n"))], 3)
    replies = [Reply(1, each, 2, 0.1) for each in (ClaimProblems([]), OutOfMemory(), Failed("it ended"))]
    return [text_of(frame(asked)), text_of(frame(changes)), text_of(b"".join(map(frame, replies)))]


OPTIONS = [
    "--node-name\nn\n--listen\n[::1]:8080\n--rescan\n2.5\n--take-over",
    "DRACO_NODE_NAME=n\nDRACO_LISTEN=:0\nDRACO_RESCAN=10\nDRACO_DRIVER=gpu.example.com\nDRACO_TAKE_OVER=true",
    "operator=1\n--lease-duration\n15\n--renew-deadline\n10\n--webhook-mode\ndeny",
    "operator=1\nDRACO_LISTEN=0.0.0.0:8080\nDRACO_SETTLE=3\nDRACO_PENDING_AFTER=1e1\nDRACO_WEBHOOK_TIMEOUT=2",
]
WORDS = [
    "nan",
    "inf",
    "1e999",
    "-0",
    "9" * 5000,
    "\u00b2",
    "\n",
    "=",
    "--",
    "--help",
    "@",
    ":",
    "[",
    "a" * 64,
    "..",
    "\x1b[31m",
]
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: c, user: u, namespace: default}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: bm9uZQ==, tls-server-name: x}}]
users: [{name: u, user: {token: abc, client-certificate-data: bm9uZQ==, client-key-data: bm9uZQ==}}]
"""
YAML = [
    "---\n",
    "&a ",
    "*a",
    "<<: *a",
    "!!binary ",
    "!!python/object:os.system ",
    "|\n",
    "? ",
    "- ",
    "{",
    "null",
    "~",
    "\n  ",
    "\xff",
]
HEADS = [
    "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /metrics?name[]=a HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n",
    "POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 5\r\n\r\nabcde",
]
HEADERS = [
    "\r\n",
    "\n",
    " ",
    ": ",
    "Content-Length: 3",
    "Transfer-Encoding: chunked",
    "Expect: 100-continue",
    "HTTP/2.0",
    "\0",
    "\xff",
    "%00",
]
STATUS = '{"code":429,"reason":"TooManyRequests","message":"slow down","details":{"retryAfterSeconds":3,"causes":[]}}'
LINES = [text_of(msgspec.json.encode({"type": kind, "object": a_slice("node-0", [])})) for kind in ("ADDED", "DELETED")]
OTHER_LINES = [
    '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}',
    f'{{"type":"ERROR","object":{STATUS}}}',
]
NAMES = ["NVIDIA H100 80GB HBM3\nGPU-0c5f1a2e-0000-4000-8000-000000000000\n580.65.06\n13.580.65.06"]
PROCESSES = [
    f"train\n\n0::/kubepods/pod12345678-1234-1234-1234-123456789012/{'a' * 64}.scope\n\nA=b\0HOSTNAME=worker-0\0",
    "\x1b[31m\u00e9\n\n\n\n",
]

TARGETS = (
    Target("record", record, _records(), [*JSON, '"version":3', '"put"', '"last"', "\n"]),
    Target("spec", spec, _specs(), [*JSON, cdi.CLAIM, cdi.BOOT, cdi.CHECKSUM, cdi.FORMAT]),
    Target(
        "faults",
        faults,
        ['{"version":2,"ledger":{"entries":[{"gpu":"' + a_gpu(0).uuid + '","name":"Xid79","code":79}]}}'],
        JSON,
    ),
    Target("page", page, [text_of(_listed(a_claim("a"), a_claim("b"))), text_of(_listed())], JSON),
    Target("event", event, [*LINES, *OTHER_LINES], [*JSON, "ADDED", "MODIFIED", "ERROR"]),
    Target(
        "refusal",
        refusal,
        [f"3\n{STATUS}", "Wed, 21 Oct 2015 07:28:00 GMT\n<html>", f"\n{STATUS}"],
        [*JSON, "\u00b2", "9" * 400],
    ),
    Target("review", review, [text_of(msgspec.json.encode({"request": a_request()}))], [*JSON, "UPDATE", "oldObject"]),
    Target(
        "kubeconfig", kubeconfig, [KUBECONFIG], [*YAML, "tokenFile: /dev/null", "proxy-url: x", "server: ", *JSON[:8]]
    ),
    Target(
        "kubelet", kubelet, _messages(), ["\x0a", "\x12", "\x1a", "\xff\xff\xff\xff\x0f", "\0", "/../../x", "\xc3\xa9"]
    ),
    Target("nvml", nvml, NAMES, ["\n", "\0", "\xff", "\xc3\xa9" * 60, ".", "-", "GPU-", "\x1b[31m"]),
    Target("processes", processes, PROCESSES, ["\n\n", "\0", "\xff", "pod", "HOSTNAME=", "\x1b[31m", "\xe2\x80\xae"]),
    Target(
        "capabilities",
        capabilities,
        ["gpu0/gi1/access 3\ngpu0/gi1/ci0/access 4\n"],
        ["\n", " ", "9" * 400, "\xff", "gpu0/gi1/access 9\n"],
    ),
    Target("http", http, HEADS, HEADERS),
    Target("frames", frames, _frames(), ["\0\0\0\0", "\0\0\0\1", "\xff\xff\xff\xff", "\xc1", "\x91" * 900, "\xc3"]),
    Target("options", options, OPTIONS, WORDS),
)
