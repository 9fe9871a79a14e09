"""Which policy shares a GPU, and that a GPU in use keeps the form in which claims hold it."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from draco.mig_policy.matching import oldest_first
from draco.resources.api.claims import CelSelector, DeviceSelector, ResourceClaim
from draco.resources.api.draco import GpuNode, GpuNodeSpec, GpuSharing, MemoryLimitBy, MigMode, WantedGpu
from draco.resources.api.meta import Condition, LabelSelector
from draco.resources.api.sharing import Enforcement, SharedGpu, SharingMode, SharingPolicy
from draco.resources.api.slices import Device, DeviceAttribute, DeviceCapacity
from draco.sharing.decide import GpuForm, SharableNode, SharingState, decide, sharing_rules
from draco.sharing.terms import as_shareable, terms_for
from tests.builders import MOMENT, a_claim, a_gpu_node, a_sharing_policy, as_shares

NODE = a_gpu_node(gpus=1)
UUID = NODE.status.gpus[0].uuid
MEMORY = SharedGpu(uuid=UUID, policy="policy", mode=SharingMode.MEMORY, step="1Gi")
COUNT = SharedGpu(uuid=UUID, policy="policy", mode=SharingMode.COUNT, count=4)
ALONE = a_claim("alone", on=["node-0/gpu-0"])
SHARE = as_shares(a_claim("share", on=["node-0/gpu-0"]), "s1", memory="10Gi")
COUNTED = as_shares(a_claim("counted", on=["node-0/gpu-0"]), "s1", memory="0", shares="3")
PART = "gpu-0-mig-1g10gb-19-0"


def published(form: SharedGpu | None, name: str = "gpu-0", memory: str = "81559Mi") -> Device:
    identity = {"parentUUID": UUID} if name != "gpu-0" else {"uuid": UUID}
    plain = Device(
        name=name,
        attributes={key: DeviceAttribute(string=value) for key, value in identity.items()},
        capacity={"memory": DeviceCapacity(value=memory)},
    )
    return plain if form is None else as_shareable(plain, terms_for(form, plain))


def asked_for(form: SharedGpu | None, node: GpuNode = NODE) -> GpuNode:
    """The node with a form that the operator has written before."""
    return msgspec.structs.replace(node, spec=GpuNodeSpec(shared=[form] if form else []))


def decided(
    *policies: SharingPolicy,
    devices: Sequence[Device] = (published(None),),
    claims: Sequence[ResourceClaim] = (),
    before: SharedGpu | None = None,
    node: GpuNode = NODE,
    labels: dict[str, str] | None = None,
) -> GpuForm:
    gpu_node = asked_for(before, node) if before or not node.spec.gpus else node
    seen = SharableNode(gpu_node=gpu_node, labels=labels or {}, devices=devices, claims=claims)
    (gpu,) = decide(seen, [sharing_rules(each) for each in oldest_first(policies)]).gpus
    return gpu


BY_MEMORY = a_sharing_policy(step="1Gi")
BY_COUNT = a_sharing_policy(mode=SharingMode.COUNT, count=4)


def test_a_free_gpu_is_shared_as_its_policy_asks() -> None:
    gpu = decided(BY_MEMORY)
    assert gpu.form == MEMORY
    assert (gpu.state, gpu.message) == (SharingState.WAITING, "its agent has not published it yet")
    assert decided(BY_MEMORY, devices=[published(MEMORY)], before=MEMORY).state is SharingState.SHARED


def test_without_policies_nothing_is_decided() -> None:
    seen = SharableNode(gpu_node=NODE, devices=[published(None)])
    assert decide(seen, []).gpus == ()


def test_a_gpu_that_a_claim_has_alone_is_not_shared_before_it_is_gone() -> None:
    gpu = decided(BY_MEMORY, claims=[ALONE])
    assert (gpu.form, gpu.changes) == (None, True)
    assert (gpu.state, gpu.message) == (
        SharingState.WAITING,
        "waits for claim default/alone",
    )


def test_a_claim_that_got_the_gpu_alone_while_it_was_about_to_be_shared_keeps_it() -> None:
    """The agent shows a taint before it changes; what was allocated until then counts."""
    assert decided(BY_MEMORY, claims=[ALONE], before=MEMORY).form is None


def test_shares_outlive_their_policy() -> None:
    held = decided(devices=[published(MEMORY)], claims=[SHARE], before=MEMORY)
    assert (held.form, held.changes) == (MEMORY, True)
    free = decided(devices=[published(MEMORY)], before=MEMORY)
    assert (free.form, free.changes) == (None, False)


def test_a_share_that_was_taken_while_the_gpu_was_about_to_be_taken_back_keeps_its_form() -> None:
    gpu = decided(BY_MEMORY, devices=[published(COUNT)], claims=[COUNTED], before=MEMORY)
    assert gpu.form == msgspec.structs.replace(COUNT, policy="policy")
    assert gpu.state is SharingState.WAITING


@pytest.mark.parametrize(
    ("there", "claim", "policy"),
    [(MEMORY, SHARE, BY_COUNT), (COUNT, COUNTED, BY_MEMORY)],
    ids=["memory to count", "count to memory"],
)
def test_shares_of_one_mode_are_not_counted_in_another(
    there: SharedGpu, claim: ResourceClaim, policy: SharingPolicy
) -> None:
    gpu = decided(policy, devices=[published(there)], claims=[claim], before=there)
    assert gpu.form == there
    assert str(claim.metadata.key) in gpu.message


def test_amounts_change_under_running_shares() -> None:
    changed = a_sharing_policy(step="2Gi", default="4Gi")
    gpu = decided(changed, devices=[published(MEMORY)], claims=[SHARE], before=MEMORY)
    assert gpu.form is not None
    assert (gpu.form.step, gpu.form.default, gpu.changes) == ("2Gi", "4Gi", False)


@pytest.mark.parametrize(("count", "changes"), [(8, True), (3, True), (2, False)])
def test_a_number_of_shares_is_not_lowered_below_what_is_taken(count: int, changes: bool) -> None:
    changed = a_sharing_policy(mode=SharingMode.COUNT, count=count)
    gpu = decided(changed, devices=[published(COUNT)], claims=[COUNTED], before=COUNT)
    assert gpu.form is not None
    assert gpu.form.count == (count if changes else 4)


def test_administrative_access_keeps_nothing_as_it_is() -> None:
    watching = a_claim("watching", on=["node-0/gpu-0"], admin_access=True)
    assert decided(BY_MEMORY, claims=[watching]).form == MEMORY


def test_claims_count_that_hold_a_gpu_whose_slices_are_not_there() -> None:
    gpu = decided(a_sharing_policy(mode=SharingMode.UNLIMITED), devices=[], claims=[SHARE], before=MEMORY)
    assert gpu.form == MEMORY


def test_the_oldest_policy_has_a_gpu_and_the_other_is_told() -> None:
    younger = a_sharing_policy("younger", mode=SharingMode.UNLIMITED, created=MOMENT + timedelta(hours=1))
    gpu = decided(younger, BY_MEMORY)
    assert gpu.policy == "policy"
    assert set(gpu.verdicts) == {"policy", "younger"}


def test_a_policy_selects_nodes_and_devices() -> None:
    elsewhere = a_sharing_policy(node_selector=LabelSelector(match_labels={"zone": "b"}))
    assert decided(elsewhere, labels={"zone": "a"}).policy == ""
    assert decided(elsewhere, labels={"zone": "b"}).policy == "policy"
    other = a_sharing_policy(device_selectors=[DeviceSelector(cel=CelSelector(expression="false"))])
    assert decided(other).policy == ""


def test_a_gpu_that_cannot_be_judged_now_stays_with_its_policy() -> None:
    broken = a_sharing_policy(device_selectors=[DeviceSelector(cel=CelSelector(expression="device.nothing"))])
    assert decided(broken).policy == ""
    kept = decided(broken, devices=[published(MEMORY)], before=MEMORY)
    assert (kept.policy, kept.form) == ("policy", MEMORY)


def test_a_gpu_that_the_driver_does_not_list_now_stays_as_it_is() -> None:
    unread = [Condition(type="Readable", status="False", reason="DriverFailed", message="")]
    empty = a_gpu_node(gpus=0)
    lost = msgspec.structs.replace(empty, status=msgspec.structs.replace(empty.status, conditions=unread))
    assert decided(BY_MEMORY, devices=[], before=MEMORY, node=lost).form == MEMORY


@pytest.mark.parametrize("wanted", [each for each in Enforcement if each is not Enforcement.NONE])
def test_what_a_node_cannot_enforce_is_not_shared_and_says_why(wanted: Enforcement) -> None:
    gpu = decided(a_sharing_policy(enforcement=wanted))
    assert (gpu.form, gpu.state) == (None, SharingState.FAILED)
    assert gpu.message.startswith(f"its node cannot enforce spec.enforcement {wanted}, only None")


BY_DRIVER = a_sharing_policy(step="1Gi", enforcement=Enforcement.DRIVER_LIMIT)
LIMITED = msgspec.structs.replace(MEMORY, enforcement=Enforcement.DRIVER_LIMIT)


def limiting(by: MemoryLimitBy | None) -> GpuNode:
    gpu = msgspec.structs.replace(NODE.status.gpus[0], sharing=GpuSharing(memory_limit=by, mps=True))
    return msgspec.structs.replace(NODE, status=msgspec.structs.replace(NODE.status, gpus=[gpu]))


def test_shares_are_limited_where_the_driver_can() -> None:
    assert decided(BY_DRIVER, node=limiting(MemoryLimitBy.DRIVER)).form == LIMITED
    for by in (MemoryLimitBy.NONE, None):
        assert decided(BY_DRIVER, node=limiting(by)).state is SharingState.FAILED


@pytest.mark.parametrize(
    ("sharing", "why"),
    [
        (GpuSharing(library=True), ""),
        (GpuSharing(library=False), "only None; that takes the library on the node, at the path in chart value"),
        (
            GpuSharing(library=False, library_problem="there is no file /opt/a.so on the node"),
            "only None: there is no file /opt/a.so",
        ),
        (GpuSharing(), "cannot enforce spec.enforcement Library"),
    ],
)
def test_shares_are_limited_by_a_library_where_the_node_has_it(sharing: GpuSharing, why: str) -> None:
    _is_shared_where_it_can_be(Enforcement.LIBRARY, sharing, why)


@pytest.mark.parametrize(
    ("sharing", "why"),
    [
        (GpuSharing(mps=True), ""),
        (
            GpuSharing(mps=False),
            "only None; that takes a board since Volta, a driver with nvidia-cuda-mps-control, and mps.",
        ),
        (GpuSharing(), "cannot enforce spec.enforcement MPS"),
    ],
)
def test_shares_are_limited_by_mps_where_the_node_has_a_keeper(sharing: GpuSharing, why: str) -> None:
    _is_shared_where_it_can_be(Enforcement.MPS, sharing, why)


def _is_shared_where_it_can_be(by: Enforcement, sharing: GpuSharing, why: str) -> None:
    policy = a_sharing_policy(step="1Gi", enforcement=by)
    gpu = msgspec.structs.replace(NODE.status.gpus[0], sharing=sharing)
    node = msgspec.structs.replace(NODE, status=msgspec.structs.replace(NODE.status, gpus=[gpu]))
    found = decided(policy, node=node)
    assert found.form == (None if why else msgspec.structs.replace(MEMORY, enforcement=by))
    assert why in found.message


@pytest.mark.parametrize("enforcement", [each for each in Enforcement if each is not Enforcement.NONE])
def test_a_limit_without_an_amount_for_each_share_is_never_published(enforcement: Enforcement) -> None:
    gpu = msgspec.structs.replace(
        NODE.status.gpus[0], sharing=GpuSharing(memory_limit=MemoryLimitBy.DRIVER, mps=True, library=True)
    )
    node = msgspec.structs.replace(NODE, status=msgspec.structs.replace(NODE.status, gpus=[gpu]))
    found = decided(a_sharing_policy(mode=SharingMode.COUNT, count=2, enforcement=enforcement), node=node)
    assert (found.form, found.state) == (None, SharingState.FAILED)


def test_a_driver_that_does_not_answer_ends_no_limit() -> None:
    there = [published(LIMITED)]
    kept = decided(BY_DRIVER, devices=there, before=LIMITED, node=limiting(None))
    assert (kept.form, kept.state) == (LIMITED, SharingState.SHARED)
    assert decided(BY_DRIVER, devices=there, before=LIMITED, node=limiting(MemoryLimitBy.NONE)).form is None


BY_MPS = a_sharing_policy(step="1Gi", enforcement=Enforcement.MPS)
WITH_MPS = msgspec.structs.replace(MEMORY, enforcement=Enforcement.MPS)


@pytest.mark.parametrize(
    ("there", "policy"),
    [(MEMORY, BY_DRIVER), (LIMITED, BY_MEMORY), (LIMITED, BY_MPS), (WITH_MPS, BY_MEMORY)],
    ids=["more", "less", "another", "no more MPS"],
)
def test_shares_keep_the_enforcement_under_which_they_were_allocated(there: SharedGpu, policy: SharingPolicy) -> None:
    node = limiting(MemoryLimitBy.DRIVER)
    gpu = decided(policy, devices=[published(there)], claims=[SHARE], before=there, node=node)
    # What is published tells the amounts that the policy left open.
    assert gpu.form is not None
    assert (gpu.form.enforcement, gpu.changes) == (there.enforcement, True)


def test_a_gpu_that_is_divided_for_claims_is_not_shared() -> None:
    layout = WantedGpu(uuid=UUID, policy="by-claims", mode=MigMode.DYNAMIC)
    node = msgspec.structs.replace(NODE, spec=GpuNodeSpec(gpus=[layout]))
    gpu = decided(BY_MEMORY, node=node)
    assert (gpu.form, gpu.state) == (None, SharingState.FAILED)
    assert "MigPolicy by-claims" in gpu.message


def test_mig_devices_are_shared_where_that_is_asked() -> None:
    part = published(None, PART, "9856Mi")
    assert decided(BY_MEMORY, devices=[part]).message == "it is divided, and spec.migDevices is not set"
    both = a_sharing_policy(step="1Gi", mig_devices=True)
    form = msgspec.structs.replace(MEMORY, mig_devices=True)
    assert decided(both, devices=[part]).form == form
    shared = decided(both, devices=[published(form, PART, "9856Mi")], before=form)
    assert shared.state is SharingState.SHARED


def test_amounts_that_a_gpu_does_not_have_are_named() -> None:
    gpu = decided(a_sharing_policy(default="100Gi", step="1Gi"))
    assert (gpu.state, gpu.form) == (SharingState.FAILED, None)
    assert gpu.message == "spec.default 100Gi is more than its memory, 81559Mi"


def test_a_claim_with_several_shares_is_named_once() -> None:
    two = as_shares(a_claim("two", on=["node-0/gpu-0"]), "s1", "s2", memory="10Gi")
    gpu = decided(BY_COUNT, devices=[published(MEMORY)], claims=[two], before=MEMORY)
    assert gpu.message == "waits for claim default/two"
