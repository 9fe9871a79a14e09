"""Claims whose containers the driver holds to a memory limit: what their specs say, and which limits are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.agent.claims import plan
from draco.agent.claims.memory_limits import limits_mib, unlimitable
from draco.agent.containers.common_edits import LimitImpossible
from draco.agent.errors import PrepareError
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.record.contents import Partition, PreparedClaim, PreparedDevice
from draco.resources.names import NVIDIA_DRIVER, GpuUuid
from tests.builders import a_claim, a_gpu
from tests.unit.agent.claims import test_containers
from tests.unit.agent.claims.test_claims import GPUS
from tests.unit.agent.claims.test_containers import CLAIM, a_folder, a_program

no_toolkit, root = test_containers.no_toolkit, test_containers.root
PART = Partition(profile_id=9, start=0, size=4, gi=1, ci=0, uuid="MIG-1", profile="3g.40gb")


def a_share(gpu: int = 0, mib: int = 10240, **fields: Any) -> PreparedDevice:
    return PreparedDevice(
        device=f"gpu-{gpu}",
        gpu=GpuUuid(f"GPU-{gpu}"),
        minor=gpu,
        request="gpu",
        pool="node-0",
        memory_limit_mib=mib,
        **fields,
    )


def having(*devices: PreparedDevice) -> PreparedClaim:
    return msgspec.structs.replace(CLAIM, devices=list(devices))


def test_shares_of_one_gpu_add_up_and_administrative_access_has_no_limit() -> None:
    claim = having(a_share(), a_share(mib=2048), a_share(1, mib=0), a_share(2, admin=True))
    assert limits_mib(claim) == {"GPU-0": 12288}
    assert limits_mib(CLAIM) == {}


@pytest.mark.parametrize(
    ("devices", "holds", "why"),
    [
        ([a_share(), a_share(1)], True, ""),
        ([a_share(), a_share(1, mib=0)], True, ""),
        ([a_share()], None, ""),
        ([a_share(), a_share(1, mib=2048)], True, "its memory limits differ (2048 MiB, 10240 MiB)"),
        ([a_share()], False, "holds no memory limit on gpu-0, which takes NVIDIA's driver 615"),
        ([a_share(partition=PART)], True, "holds no memory limit on gpu-0"),
        ([a_share(mib=0)], False, ""),
    ],
)
def test_a_limit_that_cannot_be_held_is_refused(devices: list[PreparedDevice], holds: bool | None, why: str) -> None:
    gpus = {GpuUuid(f"GPU-{n}"): a_gpu(n, memory_limits=holds) for n in range(2)}
    said = unlimitable(having(*devices), gpus)
    assert (why in said) if why else said == ""


def test_prepare_refuses_it_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    of_one = plan.intent_of(a_claim(on=["node-0/gpu-0"]), driver=NVIDIA_DRIVER, pool="node-0", gpus=GPUS)
    limited = msgspec.structs.replace(
        of_one, devices=[msgspec.structs.replace(of_one.devices[0], memory_limit_mib=1024)]
    )
    monkeypatch.setattr(plan, "intent_of", lambda *_, **__: limited)
    gpus = {name: msgspec.structs.replace(gpu, memory_limits=False) for name, gpu in GPUS.items()}
    with pytest.raises(PrepareError, match="holds no memory limit on gpu-0"):
        plan.plan_prepare(a_claim(on=["node-0/gpu-0"]), {}, driver=NVIDIA_DRIVER, pool="node-0", gpus=gpus)


def written(root: DriverRoot, folder: Path, claim: PreparedClaim) -> dict[str, Any]:
    """The edits of each device in the claim's spec."""
    cdi = a_folder(root, folder)
    cdi.write(claim)
    assert cdi.is_current(claim)
    devices = json.loads(cdi.path(claim.uid).read_text())["devices"]
    return {each["name"].partition("-1")[0]: each["containerEdits"] for each in devices}


def test_the_spec_has_the_images_hook_for_each_limited_gpu(root: DriverRoot, no_toolkit: Path, tmp_path: Path) -> None:
    a_program(no_toolkit, "nvidia-cdi-hook-nvml", "")
    a_program(root.view / "usr/bin", "nvidia-cdi-hook", "an older one, which does not know the command")
    found = written(root, tmp_path, having(a_share(), a_share(2, mib=0)))
    assert found["gpu-0"]["env"] == [
        "DRACO_DEVICE_GPU_0=GPU-0",
        "NVIDIA_GPU_MEMORY_REQUEST=0",
        "NVIDIA_GPU_MEMORY_LIMIT=10240",
    ]
    path, [hook] = str(tmp_path / "nvidia-cdi-hook-nvml"), found["gpu-0"]["hooks"]
    arguments = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", "/driver", "--gpu-id", "GPU-0"]
    assert hook == {"hookName": "createRuntime", "path": path, "args": arguments}
    assert (found["gpu-2"]["env"], "hooks" in found["gpu-2"]) == (["DRACO_DEVICE_GPU_2=GPU-2"], False)


def test_without_the_hook_or_the_driver_there_is_no_spec(root: DriverRoot, no_toolkit: Path, tmp_path: Path) -> None:
    cdi, claim = a_folder(root, tmp_path), having(a_share())
    with pytest.raises(LimitImpossible, match="there is no nvidia-cdi-hook-nvml in the image"):
        cdi.write(claim)
    assert not cdi.is_current(claim)
    assert cdi.uids() == []
    a_program(no_toolkit, "nvidia-cdi-hook-nvml", "")
    cdi.write(claim)
    shutil.rmtree(root.view / "usr")
    assert not cdi.is_current(claim)
    with pytest.raises(LimitImpossible, match="the node has no NVIDIA driver now"):
        cdi.write(claim)
    cdi.write(having(a_share(mib=0)))
