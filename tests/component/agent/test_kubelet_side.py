"""What kubelet can rely on: sockets that come back, errors per claim, and prepared claims that survive the agent."""

import asyncio
import errno
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs

from draco.agent.claims import cdi
from draco.agent.errors import AnotherPlugin, SettingsError
from draco.agent.files import Files
from draco.agent.plugin import wire
from draco.agent.plugin.api import registration_pb2
from draco.agent.plugin.registration import sockets
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.gpu_state import GpuProcess
from tests.agents import SimulatedNode, eventually
from tests.builders import a_claim
from tests.doubles.faultproxy import FaultProxy, answer
from tests.doubles.files import FullDisk

# Sockets


async def test_a_stale_socket_is_replaced(node: SimulatedNode) -> None:
    for path in (node.registration_socket, node.service_socket):
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    async with node.running():
        assert (await node.register()).name == "gpu.nvidia.com"


async def test_a_registry_that_was_wiped_gets_its_socket_back(node: SimulatedNode) -> None:
    async with node.running(socket_check_s=0.05):
        await node.register()
        node.registration_socket.unlink()
        await eventually(node.answers)
        node.service_socket.unlink()
        await eventually(node.service_socket.exists)
        claim = await node.claim("gpu-0")

        async def served() -> bool:
            with suppress(Exception):
                return bool((await node.prepare(claim))[claim.metadata.uid].error == "")
            return False

        await eventually(served)


def test_a_path_too_long_for_a_socket_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match=r"has 1\d\d bytes, but Linux allows 107; use a shorter kubelet directory"):
        sockets(Path("/" + "x" * 80), "gpu.nvidia.com")


async def test_clients_that_send_the_sockets_path_as_authority_are_answered(node: SimulatedNode) -> None:
    """Older Go clients do, and strict servers reset such calls (kubernetes/kubernetes 112597)."""
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", str(node.registration_socket)))
    async with (
        node.running(),
        grpc.aio.insecure_channel(f"unix:{node.registration_socket}", options=options) as channel,
    ):
        info = await wire.unary(channel, wire.REGISTRATION, "GetInfo")(registration_pb2.InfoRequest(), timeout=30)
    assert info.name == "gpu.nvidia.com"


async def test_a_second_agent_of_the_driver_refuses_and_names_the_first(node: SimulatedNode) -> None:
    async with node.running():
        await node.register()
        with pytest.raises(AnotherPlugin, match=r"gpu.nvidia.com-reg.sock \(serving .*dra.sock, process \d+ "):
            await node.run(state_dir=node.folder / "other")
        assert node.registration_socket.exists(), "the refused agent took the first one's socket away"

    [event] = await eventually(lambda: node.events("AnotherPlugin"))
    assert "already served on this node" in event.message


async def test_a_second_agent_on_the_state_folder_names_the_first_process(node: SimulatedNode) -> None:
    async with node.running():
        with pytest.raises(AnotherPlugin, match=rf"Another Draco agent \(process {os.getpid()}\)"):
            await node.run()


async def test_a_plugin_of_another_driver_is_no_reason_to_refuse(node: SimulatedNode) -> None:
    async with node.running(), node.running(driver="gpu.example.com", state_dir=node.folder / "other"):
        await eventually((node.folder / "plugins_registry" / "gpu.example.com-reg.sock").exists)


# Claims


async def test_each_claim_of_a_call_gets_its_own_answer(node: SimulatedNode) -> None:
    good = await node.claim("gpu-0")
    same = await node.claim("gpu-0")
    unknown = await node.claim("gpu-7")
    pending = await node.claim()
    gone = a_claim("gone", namespace=node.namespace)
    async with node.running():
        assert not (await node.prepare(good))[good.metadata.uid].error
        answers = await node.prepare(good, same, unknown, pending, gone)
        errors = {one.metadata.name: answers[one.metadata.uid].error for one in (good, same, unknown, pending, gone)}
    assert errors[good.metadata.name] == ""
    assert "still prepared for claim" in errors[same.metadata.name]
    assert "gpu-7, which this node does not have" in errors[unknown.metadata.name]
    assert "is not allocated" in errors[pending.metadata.name]
    assert "does not exist any more" in errors["gone"]


async def test_a_claim_made_anew_under_its_name_is_not_taken_for_the_old_one(node: SimulatedNode) -> None:
    old = await node.claim("gpu-0", name="reused")
    await node.client.delete(CLAIMS, old.metadata.key)
    await node.claim("gpu-0", name="reused")
    async with node.running():
        assert "was replaced: kubelet asks for uid" in (await node.prepare(old))[old.metadata.uid].error


async def test_two_claims_that_race_for_one_device_never_both_get_it(node: SimulatedNode) -> None:
    claims = [await node.claim("gpu-0") for _ in range(6)]
    async with node.running():
        calls = await asyncio.gather(*(node.prepare(one) for one in claims))
        errors = [answer[one.metadata.uid].error for answer, one in zip(calls, claims, strict=True)]
    assert sum(not error for error in errors) == 1


async def test_admin_access_is_prepared_beside_the_holder(node: SimulatedNode) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await node.client.connection.request(
        "PATCH",
        f"/api/v1/namespaces/{node.namespace}",
        body=json.dumps(label).encode(),
        content_type="application/merge-patch+json",
    )
    holder = await node.claim("gpu-0")
    admin = await node.claim("gpu-0", admin=True)
    async with node.running():
        answers = await node.prepare(holder, admin)
        assert [answers[one.metadata.uid].error for one in (holder, admin)] == ["", ""]


async def test_a_claim_survives_a_restart_and_is_given_up_without_the_api_server(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        first = (await node.prepare(claim))[claim.metadata.uid]
    await node.client.delete(CLAIMS, claim.metadata.key)
    async with node.running():
        assert len(node.specs()) == 1
        assert (await node.unprepare(claim))[claim.metadata.uid].error == ""
        assert node.specs() == []
    assert [one.device_name for one in first.devices] == ["gpu-0"]


async def test_a_full_disk_is_an_error_of_that_claim_and_passes(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    files = FullDisk()
    async with node.running(files=files):
        files.refused.add("/cdi/")
        assert "No space left on device" in (await node.prepare(claim))[claim.metadata.uid].error
        assert node.specs() == []
        files.refused.clear()
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""


async def test_a_damaged_record_is_rebuilt_from_the_api_server(node: SimulatedNode) -> None:
    held = await node.claim("gpu-0")
    rival = await node.claim("gpu-0")
    async with node.running():
        await node.prepare(held)
    node.checkpoint.write_bytes(b'{"version":1,"che')
    async with node.running():
        assert "still prepared for claim" in (await node.prepare(rival))[rival.metadata.uid].error
        assert [one.device_name for one in (await node.prepare(held))[held.metadata.uid].devices] == ["gpu-0"]
    assert node.checkpoint.with_name("checkpoint.json.corrupt-1").exists()

    await eventually(lambda: node.events("CheckpointDamaged"))


async def test_the_record_of_a_newer_agent_is_set_aside_and_what_it_holds_is_kept(node: SimulatedNode) -> None:
    """As after a rollback across a change of format: no claim is unprepared or prepared twice."""
    held, rival = await node.claim("gpu-0"), await node.claim("gpu-0")
    async with node.running():
        await node.prepare(held)
    specs = node.specs()
    newer = node.checkpoint.read_bytes().replace(b'"version":3', b'"version":4')
    node.checkpoint.write_bytes(newer)
    async with node.running():
        assert node.specs() == specs
        assert "still prepared for claim" in (await node.prepare(rival))[rival.metadata.uid].error
        assert (await node.unprepare(held))[held.metadata.uid].error == ""
        [event] = await eventually(lambda: node.events("CheckpointDamaged"))
    assert "has version 4, but this agent reads only version 3" in event.message
    assert node.checkpoint.with_name("checkpoint.json.corrupt-1").read_bytes() == newer


async def test_a_spec_of_a_newer_agent_stays_until_its_claim_is_given_up(node: SimulatedNode) -> None:
    """As after a rollback: the container's spec still exists when it is restarted."""
    held = await node.claim("gpu-0")
    async with node.running():
        await node.prepare(held)
    [name] = node.specs()
    newer = json.loads((node.cdi / name).read_text())
    newer["annotations"][cdi.FORMAT] = str(cdi.FORMAT_VERSION + 1)
    newer["containerEdits"]["netDevices"] = [{"hostInterfaceName": "ib0", "name": "ib0"}]
    (node.cdi / name).write_text(json.dumps(newer))
    async with node.running():
        assert [one.device_name for one in (await node.prepare(held))[held.metadata.uid].devices] == ["gpu-0"]
        assert json.loads((node.cdi / name).read_text()) == newer
        assert (await node.unprepare(held))[held.metadata.uid].error == ""
        assert node.specs() == []


async def test_a_claim_whose_container_runs_is_known_again_without_record_and_without_the_claim(
    node: SimulatedNode,
) -> None:
    """The pod was deleted by force: the claim is gone, its container is not, and then the record is lost."""
    held, rival = await node.claim("gpu-0"), await node.claim("gpu-0")
    async with node.running():
        await node.prepare(held)
    await node.client.delete(CLAIMS, held.metadata.key)
    for lose in (lambda: node.checkpoint.write_bytes(b"\0" * 100), node.checkpoint.unlink):
        lose()
        async with node.running():
            assert len(node.specs()) == 1
            refusal = (await node.prepare(rival))[rival.metadata.uid].error
            assert f"still prepared for claim {held.metadata.key}" in refusal
    async with node.running():
        assert (await node.unprepare(held))[held.metadata.uid].error == ""
        assert (await node.prepare(rival))[rival.metadata.uid].error == ""


def in_a_container(pid: int, pod: str = "a") -> GpuProcess:
    return GpuProcess(pid, cgroup=f"/kubepods/besteffort/pod{uuid.uuid4()}/{'ab' * 32}", hostname=pod, name="train")


async def test_a_gpu_that_was_given_up_under_a_running_process_goes_to_nobody_else_and_back_to_its_claim(
    node: SimulatedNode,
) -> None:
    held, rival = await node.claim("gpu-0"), await node.claim("gpu-0")
    await node.reserve(held, "a")
    with capture_logs() as logs:
        async with node.running():
            await node.prepare(held)
            faults.hold(node.gpus, 0, in_a_container(4711))
            assert (await node.unprepare(held))[held.metadata.uid].error == ""
            refusal = (await node.prepare(rival))[rival.metadata.uid].error
            assert (
                "process 4711 of an earlier user still runs on it (train, in container abababababab of pod a" in refusal
            )
            await eventually(lambda: [one for one in logs if one["event"] == "claim.given_up_in_use"])
            assert [one.device_name for one in (await node.prepare(held))[held.metadata.uid].devices] == ["gpu-0"]
            assert (await node.unprepare(held))[held.metadata.uid].error == ""
    async with node.running():
        assert "process 4711" in (await node.prepare(rival))[rival.metadata.uid].error
        faults.release(node.gpus, 4711)
        assert (await node.prepare(rival))[rival.metadata.uid].error == ""
    said = [one for one in logs if one["event"] == "claim.given_up_in_use"]
    assert next((one["claim"], one["reserved_for"]) for one in said) == (str(held.metadata.key), ["a"])


@pytest.mark.usefixtures("crds")
async def test_a_claim_that_is_gone_is_given_up_by_itself_when_its_process_has_ended(
    node: SimulatedNode,
) -> None:
    """Its pod was deleted by force, and kubelet never gives it up. The agent that finds out has just been started."""
    held, rival = await node.claim("gpu-0"), await node.claim("gpu-0")
    async with node.running():
        await node.prepare(held)
    faults.hold(node.gpus, 0, in_a_container(4711))
    await node.client.delete(CLAIMS, held.metadata.key)

    async def said() -> bool:
        found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
        return any(
            f"{held.metadata.key} is gone; it stays prepared while" in one.message for one in found.status.conditions
        )

    async with node.running(confirm_gone_s=0.2):
        await eventually(said)
        refusal = (await node.prepare(rival))[rival.metadata.uid].error
        assert f"(uid {held.metadata.uid}); claim {held.metadata.key} is gone; it stays prepared" in refusal
        assert "process 4711 (train) in container abababababab of pod a" in refusal
        await eventually(lambda: node.events("ClaimGone"))
        assert len(node.specs()) == 1
        faults.release(node.gpus, 4711)

        async def prepared() -> bool:
            return not (await node.prepare(rival))[rival.metadata.uid].error

        await eventually(prepared)
        found = await eventually(lambda: node.client.get(GPU_NODES, ObjectKey("", node.name)))
        await eventually(lambda: not_said(said))
        assert found.status.prepared_claims <= 1


async def not_said(said: Callable[[], Awaitable[bool]]) -> bool:
    return not await said()


class Refusing(Files):
    """A node on which CDI specs cannot be written, for the given reason."""

    def __init__(self, folder: Path, code: int) -> None:
        self.error: OSError | None = OSError(code, os.strerror(code), str(folder))
        self.folder = folder

    def hindrance(self, folder: Path) -> OSError | None:
        return self.error if folder == self.folder else super().hindrance(folder)

    def write_volatile(self, path: Path, content: bytes) -> None:
        if self.error and path.is_relative_to(self.folder):
            raise self.error
        super().write_volatile(path, content)


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EROFS, r"Read-only file system \(\S+/cdi\); mount it writable on the node"),
        (
            errno.EACCES,
            r"Permission denied \(\S+/cdi\); (the agent is root, so SELinux, AppArmor|run the agent as root)",
        ),
    ],
)
async def test_a_cdi_folder_that_refuses_is_told_before_and_when_a_claim_comes_and_is_used_once_it_does_not(
    node: SimulatedNode, code: int, remedy: str
) -> None:
    files, claim = Refusing(node.settings().cdi_dir, code), await node.claim("gpu-0")

    async def writable(status: str) -> str:
        found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
        [message] = [one.message or "yes" for one in found.status.conditions if one.type == "Writable"] or [""]
        return message if ("Writable", status) in {(one.type, one.status) for one in found.status.conditions} else ""

    async with node.running(files=files):
        await node.register()
        assert re.search(remedy, await eventually(lambda: writable("False")))
        assert re.search(remedy, (await node.prepare(claim))[claim.metadata.uid].error)
        files.error = None
        assert (await node.prepare(claim))[claim.metadata.uid].error == ""
        await eventually(lambda: writable("True"))


class BrieflyReadOnly(Files):
    """A disk that at first refuses hard links."""

    refusals = 1

    def keep_as(self, path: Path, target: Path) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        super().keep_as(path, target)


async def test_a_damaged_record_that_cannot_be_set_aside_is_tried_again(node: SimulatedNode) -> None:
    node.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    node.checkpoint.write_bytes(b"half a rec")
    async with node.running(files=BrieflyReadOnly()):
        assert node.checkpoint.with_name("checkpoint.json.corrupt-1").read_bytes() == b"half a rec"


async def test_an_api_server_that_fails_is_named_in_the_answer(node: SimulatedNode, proxy: FaultProxy) -> None:
    claim = await node.claim("gpu-0")
    proxy.fault(lambda request: "/resourceclaims/" in request.path, answer(500), times=100)
    async with Client(Connection(proxy.url)) as through:
        direct, node.client = node.client, through
        async with node.running():
            node.client = direct
            assert (
                "could not be read from the API server: injected"
                in (await node.prepare(claim))[claim.metadata.uid].error
            )
            proxy.heal()
            assert (await node.prepare(claim))[claim.metadata.uid].error == ""


async def test_without_nvml_a_claim_is_refused_with_the_reason(node: SimulatedNode) -> None:
    faults.break_driver(node.gpus)
    claim = await node.claim("gpu-0")
    async with node.running():
        assert "the kernel module is not loaded" in (await node.prepare(claim))[claim.metadata.uid].error


async def test_a_prepared_claim_follows_its_gpu_when_the_driver_numbers_it_anew(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.prepare(claim)
        [name] = node.specs()
        assert '"/dev/nvidia0"' in (node.cdi / name).read_text()
        faults.reboot(node.gpus, minors=[1, 0])  # to a running agent, this looks like a driver reload

        def follows() -> bool:
            try:
                return '"/dev/nvidia1"' in (node.cdi / name).read_text()
            except FileNotFoundError:
                return False  # the old one disappears before the new one appears

        await eventually(follows)


async def test_a_prepare_that_takes_too_long_is_answered_before_kubelet_gives_up(
    client: Client, node: SimulatedNode
) -> None:
    claim, written = await node.claim("gpu-0"), threading.Event()

    class Slow(FullDisk):
        def write_volatile(self, path: Path, content: bytes) -> None:
            if "/cdi/" in str(path):
                written.wait(120)
            super().write_volatile(path, content)

    async with node.running(files=Slow(), prepare_deadline_s=0.3):
        try:
            async with asyncio.timeout(20):  # well within kubelet's 45 s
                assert "was not prepared within 0.3 s" in (await node.prepare(claim))[claim.metadata.uid].error
        finally:
            written.set()

        async def finished() -> bool:
            return not (await node.prepare(claim))[claim.metadata.uid].error

        await eventually(finished)


# Health


async def test_health_is_streamed_on_change_and_again_and_again(node: SimulatedNode) -> None:
    async with node.running(health_timeout_s=1), node.health() as v1:
        first = await v1.read()
        assert [(one.device.pool_name, one.device.device_name, one.health) for one in first.devices] == [
            (node.name, "gpu-0", 1),
            (node.name, "gpu-1", 1),
        ]
        again = await asyncio.wait_for(v1.read(), 60)
        assert again.devices[0].last_updated_time >= first.devices[0].last_updated_time > 0
        assert again.devices[0].health_check_timeout_seconds == 1
        async with node.health("v1alpha1.DRAResourceHealth") as v1alpha1:
            assert len((await v1alpha1.read()).devices) == 2
            faults.make_unreadable(node.gpus, 1)

            async def unknown() -> bool:
                devices = {one.device.device_name: one for one in (await v1alpha1.read()).devices}
                return devices["gpu-1"].health == 0 and bool(devices["gpu-1"].message)

            await eventually(unknown)


async def test_a_change_of_health_reaches_the_claim(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.prepare(claim)

        async def conditions() -> dict[str, str]:
            found = await node.client.get(CLAIMS, claim.metadata.key)
            return {one.type: one.status for device in found.status.devices for one in device.conditions}

        async def is_healthy(status: str) -> bool:
            return (await conditions()).get("Healthy") == status

        await eventually(lambda: is_healthy("True"))
        faults.lose(node.gpus, 0)
        await eventually(lambda: is_healthy("False"))
        assert (await conditions())["Ready"] == "True"


async def test_an_open_stream_ends_in_good_order_with_the_agent_and_does_not_hold_it_up(node: SimulatedNode) -> None:
    async with AsyncExitStack() as stack:
        running = AsyncExitStack()
        await running.enter_async_context(node.running())
        stream = await stack.enter_async_context(node.health())
        await stream.read()
        await running.aclose()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK, "not cut off when the time to end was over"
