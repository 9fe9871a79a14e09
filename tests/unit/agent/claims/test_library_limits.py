"""Claims that a library in their containers holds to a memory limit: the file, their specs, and what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.agent.claims import cdi
from draco.agent.claims.memory_limits import Holding, PublishedShares, unlimitable
from draco.agent.claims.plan import plan_prepare
from draco.agent.containers.common_edits import CommonEdits
from draco.agent.containers.limit_library import LimitLibrary
from draco.agent.errors import PrepareError
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.record.contents import PreparedDevice, ShareLimit
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.sharing import Enforcement
from draco.resources.names import NVIDIA_DRIVER, GpuUuid
from tests.builders import a_claim, a_gpu, as_shares
from tests.doubles.dying import Fuse, Killed, KilledFiles
from tests.unit.agent.claims import test_containers
from tests.unit.agent.claims.test_claims import GPUS
from tests.unit.agent.claims.test_containers import a_folder
from tests.unit.agent.claims.test_memory_limits import a_share, having
from tests.unit.agent.driver_on_disk import A_LIBRARY
from tests.unit.agent.mig_node import MigNode, build

no_toolkit, root = test_containers.no_toolkit, test_containers.root
PATH = "/opt/libvgpu.so"


def held(gpu: int = 0, mib: int = 10240, **fields: Any) -> PreparedDevice:
    limit = ShareLimit(by=MemoryLimitBy.LIBRARY, mib=mib, library=PATH)
    return a_share(gpu, 0, soft_limit=limit, **fields)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    file = tmp_path / "libvgpu.so"
    file.write_bytes(A_LIBRARY)
    file.chmod(0o644)
    return file


def problem(path: str | Path) -> str:
    return LimitLibrary(path=str(path)).problem()


def test_a_file_that_containers_cannot_load_is_none(library: Path) -> None:
    assert problem(library) == ""
    assert "chart value agent.limitLibrary" in problem("")
    assert problem(library.with_name("none.so")).startswith("there is no file ")
    assert problem(library.parent).startswith("there is no file ")
    loop = library.with_name("loop.so")
    loop.symlink_to(loop)
    assert problem(loop).startswith("there is no file ")
    assert "l" * 300 in problem(library.with_name("l" * 300)), "no name of a file, and no reason to fail"
    library.chmod(0o600)
    assert "not readable for the users of containers" in problem(library)
    for wrong in (b"", b"#!/bin/sh\n", A_LIBRARY[:16] + b"\2" + A_LIBRARY[17:], A_LIBRARY[:18] + b"\1\0"):
        library.write_bytes(wrong)
        assert "is not a shared library for" in problem(library), wrong


def test_it_is_looked_for_on_the_node(tmp_path: Path, library: Path) -> None:
    node = tmp_path / "node"
    (node / "opt").mkdir(parents=True)
    named = LimitLibrary(path="/opt/hami.so", root=DriverRoot(Path("/"), node))
    assert named.problem() == "there is no file /opt/hami.so on the node"
    (node / "opt/hami.so").symlink_to("/opt/v1.so")  # of the node, not of the agent's image
    assert named.problem() == "there is no file /opt/hami.so on the node"
    library.rename(node / "opt/v1.so")
    assert named.problem() == ""


def test_each_share_brings_the_library_with_the_sum_of_the_claims_limits(root: DriverRoot, tmp_path: Path) -> None:
    claim = having(held(share_id="a"), held(mib=2048, share_id="b"))
    folder = a_folder(root, tmp_path)
    folder.write(claim)
    assert folder.is_current(claim)
    spec = json.loads(folder.path(claim.uid).read_text())
    assert len(spec["devices"]) == 2
    preload = tmp_path / "ld.so.preload"
    for device in spec["devices"]:
        edits = device["containerEdits"]
        assert edits["env"] == ["DRACO_DEVICE_GPU_0=GPU-0", "CUDA_DEVICE_MEMORY_LIMIT=12288m"]
        assert {each["hostPath"]: each["containerPath"] for each in edits["mounts"]} == {
            PATH: "/usr/local/vgpu/libvgpu.so",
            str(preload): "/etc/ld.so.preload",
        }
        assert all("ro" in each["options"] for each in edits["mounts"])
    assert preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"
    preload.unlink()
    assert folder.is_current(claim)
    assert preload.exists(), "lost with the agent's folder, and made again"


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([held(), held(1)], ""),
        ([held(share_id="a"), held(share_id="b"), held(1, 20480)], ""),
        (
            [held(), held(1, 2048)],
            "its memory limits differ (2048 MiB, 10240 MiB), and the library that holds them takes one",
        ),
        ([held(), a_share(1, 0)], "would limit gpu-1, too; ask for one of them in another claim"),
        ([held(), a_share(1, 0, admin=True)], "would limit gpu-1, too"),
        ([held(), a_share(1)], "would limit gpu-1, too"),
    ],
)
def test_one_limit_for_all_gpus_of_a_container_is_all_there_is(devices: list[PreparedDevice], why: str) -> None:
    gpus = {GpuUuid(f"GPU-{n}"): a_gpu(n, memory_limits=True) for n in range(2)}
    said = unlimitable(having(*devices), gpus)
    assert (why in said) if why else said == ""


def planned(claim: Any, library: Path | str) -> list[PreparedDevice]:
    holding = Holding(
        lambda _: PublishedShares(Enforcement.LIBRARY),
        CommonEdits(None, hook_folder=Path(), library=str(library)).library,
    )
    return plan_prepare(claim, {}, driver=NVIDIA_DRIVER, pool="node-0", gpus=GPUS, holding=holding).claim.devices


def test_prepare_needs_the_library_and_records_it(library: Path) -> None:
    share = as_shares(a_claim(on=["node-0/gpu-0"]), "one", memory="10Gi")
    [device] = planned(share, library)
    assert device.limit == ShareLimit(by=MemoryLimitBy.LIBRARY, mib=10240, library=str(library))
    library.unlink()
    with pytest.raises(
        PrepareError, match=r"to hold its share of gpu-0 to its memory, and there is no file .*libvgpu.so on the node"
    ):
        planned(share, library)
    [alone] = planned(a_claim(on=["node-0/gpu-0"]), library)
    assert alone.limit is None


def test_the_driver_is_not_asked_for_a_limit_of_the_library() -> None:
    claim = having(held())
    gpus = {GpuUuid("GPU-0"): msgspec.structs.replace(GPUS["gpu-0"], memory_limits=False)}
    assert unlimitable(claim, gpus) == ""


def test_an_agent_that_knows_no_such_limits_leaves_the_spec_as_it_is(root: DriverRoot, tmp_path: Path) -> None:
    """It reads record and annotations without them; a restarted container of the pod is limited as before."""
    folder, without = a_folder(root, tmp_path), having(a_share(0, 0))
    folder.write(without)
    read = json.loads(folder.path(without.uid).read_text())
    folder.write(having(held()))
    limited = json.loads(folder.path(without.uid).read_text())
    limited["annotations"] = {**read["annotations"], cdi.FORMAT: str(cdi.FORMAT_VERSION + 1)}
    folder.path(without.uid).write_text(json.dumps(limited))
    assert folder.is_current(without)


def course(folder: Path, at: int) -> bool:
    """Two shares, of which one ends, with an agent that dies at a point; whether it has died."""
    path = build(folder, gpus=2, mig=False)
    library = folder / "libvgpu.so"
    library.write_bytes(A_LIBRARY)
    library.chmod(0o644)
    (folder / "cdi").mkdir()
    holding = Holding(lambda _: PublishedShares(Enforcement.LIBRARY), LimitLibrary(path=str(library)))
    shares = [as_shares(a_claim(name, on=["node-0/gpu-0"]), name, memory="10Gi") for name in ("one", "two")]
    fuse, died = Fuse(0), False
    try:
        node = MigNode(path.parent, step=fuse, files=KilledFiles(fuse), holding=holding)
        fuse.left = at
        for each in shares:
            node.prepare(each)
        node.unprepare(shares[0])
    except Killed:
        died = True
    after = MigNode(folder)  # which is given no library any more
    assert {*after.specs()} == {*after.record.claims}, at
    for text in after.specs().values():
        assert "CUDA_DEVICE_MEMORY_LIMIT=10240m" in text
        assert str(library) in text
    for each in shares:
        after.unprepare(each)
    assert not after.specs()
    return died


def test_an_agent_that_dies_at_any_step_leaves_a_share_with_its_library_or_nothing(tmp_path: Path) -> None:
    at = 1
    while course(tmp_path / str(at), at):
        at += 1
    assert at > 5, "every write is a point"
