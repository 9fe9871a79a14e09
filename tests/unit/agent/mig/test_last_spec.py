"""Which spec is in effect for GPUs that the current GpuNode does not decide about."""

import msgspec

from draco.agent.mig.last_spec import NOTHING, as_published, in_effect
from draco.resources.api.draco import GpuNodeSpec, IsolatedGpu, MigMode, PromisedDevice, WantedGpu, WantedInstance
from draco.resources.api.health import FaultOverride, HealthEffect
from draco.resources.api.sharing import SharedGpu, SharingMode
from draco.resources.api.slices import (
    Device,
    DeviceAttribute,
    DeviceCapacity,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from draco.resources.api.taints import DeviceTaint
from draco.sharing.terms import as_shareable, terms_for

ONE, TWO = "GPU-1", "GPU-2"


def isolated(uuid: str, device: str = "", request: str = "fan", key: str = "draco.dev/maintenance") -> IsolatedGpu:
    return IsolatedGpu(request=request, uuid=uuid, device=device, key=key, effect="NoSchedule")


def everything(uuid: str, number: int) -> GpuNodeSpec:
    """A spec with one entry of each kind for one GPU."""
    return GpuNodeSpec(
        gpus=[WantedGpu(uuid=uuid, policy="p", mode=MigMode.DYNAMIC)],
        promised=[PromisedDevice(device=f"gpu-{number}", uuid=uuid)],
        changing=[uuid],
        shared=[SharedGpu(uuid=uuid, policy="s", mode=SharingMode.MEMORY)],
        isolated=[isolated(uuid)],
        health=[FaultOverride(uuid=uuid, fault="Xid43", policy="h", effect=HealthEffect.NO_SCHEDULE)],
        operator_allocated=[uuid],
    )


def both() -> GpuNodeSpec:
    one, two = everything(ONE, 0), everything(TWO, 1)
    return GpuNodeSpec(
        **{
            name: getattr(one, name) + getattr(two, name)
            for name in ("gpus", "promised", "shared", "changing", "isolated", "health", "operator_allocated")
        }
    )


def test_what_nobody_has_decided_stays_as_it_was() -> None:
    assert in_effect(both(), NOTHING) == both()


def test_of_a_gpu_that_is_decided_about_nothing_of_before_is_left() -> None:
    assert in_effect(both(), GpuNodeSpec(decided=[ONE])) == GpuNodeSpec(
        **{name: getattr(everything(TWO, 1), name) for name in GpuNodeSpec.__struct_fields__ if name != "decided"},
        decided=[ONE],
    )
    assert in_effect(both(), GpuNodeSpec(decided=[ONE, TWO])) == GpuNodeSpec(decided=[ONE, TWO])


def test_what_is_said_takes_the_place_of_what_was_said_before_and_is_never_there_twice() -> None:
    said = GpuNodeSpec(gpus=[WantedGpu(uuid=ONE, policy="q", mode=MigMode.DISABLED)], operator_allocated=[ONE])
    now = in_effect(both(), said)
    assert [(each.uuid, each.policy) for each in now.gpus] == [(ONE, "q"), (TWO, "p")]
    assert now.operator_allocated == [ONE, TWO]
    assert in_effect(both(), both()) == both()


def test_what_concerns_every_gpu_goes_once_anything_is_decided() -> None:
    before = GpuNodeSpec(isolated=[isolated("")])
    assert in_effect(before, GpuNodeSpec(operator_allocated=[ONE])).isolated == before.isolated
    assert in_effect(before, GpuNodeSpec(decided=[ONE])).isolated == []


def test_a_gpu_that_is_gone_for_good_is_forgotten() -> None:
    assert in_effect(both(), NOTHING, [ONE]) == everything(TWO, 1)


def published(*devices: Device) -> list[ResourceSlice]:
    pool = ResourcePool(name="node-0", generation=1, resource_slice_count=1)
    return [ResourceSlice(spec=ResourceSliceSpec(driver="gpu.nvidia.com", pool=pool, devices=list(devices)))]


def a_whole(*taints: DeviceTaint) -> Device:
    return Device(name="gpu-0", attributes={"uuid": DeviceAttribute(string=ONE)}, taints=list(taints))


def a_part(profile: str, id_: int, start: int, *taints: DeviceTaint) -> Device:
    said = {"uuid": DeviceAttribute(string="MIG-1")} if start else {}
    attributes = said | {"parentUUID": DeviceAttribute(string=ONE), "profile": DeviceAttribute(string=profile)}
    name = f"gpu-0-mig-{profile.replace('.', '')}-{id_}-{start}"
    return Device(name=name, attributes=attributes, taints=list(taints))


MAINTAINED = DeviceTaint(key="draco.dev/maintenance", value="v", effect="NoSchedule")


def test_slices_tell_what_is_under_maintenance_and_what_draco_allocates() -> None:
    fan = DeviceTaint(key="example.com/fan", effect="NoExecute")
    ours = DeviceTaint(key="draco.dev/operator-allocated", effect="NoSchedule")
    parts = [a_part("1g.10gb", 19, 0, MAINTAINED, ours), a_part("1g.10gb", 19, 1, MAINTAINED, ours, fan)]
    spec = as_published(published(a_whole(MAINTAINED, fan, ours), *parts))
    assert spec.operator_allocated == [ONE]
    assert {each.device: each.taint for each in spec.isolated} == {"gpu-0": MAINTAINED, "gpu-0-mig-1g10gb-19-1": fan}


def test_only_a_part_that_is_under_maintenance_is_so_again() -> None:
    spec = as_published(published(a_part("3g.40gb", 9, 0), a_part("3g.40gb", 9, 4, MAINTAINED)))
    assert [each.device for each in spec.isolated] == ["gpu-0-mig-3g40gb-9-4"]


def test_what_the_agent_sees_for_itself_is_nobodys_wish() -> None:
    own = [DeviceTaint(key=f"draco.dev/{name}", effect="NoSchedule") for name in ("xid", "unsettled")]
    said = DeviceTaint(key="draco.dev/maintenance", effect="None")
    assert as_published(published(a_whole(*own, said))) == NOTHING


def test_slices_tell_how_a_gpu_is_divided() -> None:
    assert as_published(published(a_whole())).gpus == []
    [on_demand] = as_published(published(a_whole(), a_part("2g.20gb", 14, 0), a_part("1g.10gb", 19, 0))).gpus
    assert (on_demand.uuid, on_demand.mode, on_demand.profiles) == (ONE, MigMode.DYNAMIC, ["1g.10gb", "2g.20gb"])
    [laid_out] = as_published(published(a_part("3g.40gb", 9, 0), a_part("3g.40gb", 9, 4))).gpus
    assert laid_out.mode is MigMode.STATIC
    assert laid_out.layout == [WantedInstance(profile="3g.40gb", start=start) for start in (0, 4)]


def test_slices_tell_how_a_gpu_is_shared() -> None:
    """A GPU that claims share must not be published for one claim by an agent that lost its record."""
    whole = msgspec.structs.replace(a_whole(), capacity={"memory": DeviceCapacity(value="81559Mi")})
    form = SharedGpu(uuid=ONE, policy="", mode=SharingMode.MEMORY, step="1Gi", minimum="1Gi", default="10Gi")
    spec = as_published(published(as_shareable(whole, terms_for(form, whole))))
    assert spec.shared == [form]
    part = msgspec.structs.replace(a_part("1g.10gb", 19, 0), capacity={"memory": DeviceCapacity(value="9856Mi")})
    by_count = SharedGpu(uuid=ONE, policy="", mode=SharingMode.COUNT, count=4)
    spec = as_published(published(as_shareable(part, terms_for(by_count, part))))
    assert spec.shared == [msgspec.structs.replace(by_count, mig_devices=True)]
