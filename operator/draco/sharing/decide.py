"""One node: which of its GPUs belong to which SharingPolicy, and in which form each is to be published.

Owns the choice: the oldest policy that selects a GPU has it. A GPU that cannot be judged now stays with its policy. Also owns the
rule that a GPU in use keeps its form: kube-scheduler does not count the holder of a whole device against its shares, nor shares
against a whole device, nor a share without a number of its own against a number of shares. So the form changes when no claim
holds the GPU any more; amounts change under running claims, which keep what they have. What is published counts before what was
last asked for, because a claim may have been allocated while the agent was about to change it. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from draco.allocation.exclusion import waits_for
from draco.cel import Selector
from draco.mig_policy.matching import MatchVerdict, PolicyMatch, by_selectors, compiled, whole_gpus
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.api.draco import GpuNode, GpuStatus, MigMode
from draco.resources.api.meta import find_condition
from draco.resources.api.sharing import SharedGpu, SharingMode, SharingPolicy, SharingSettings
from draco.resources.api.slices import Device
from draco.resources.names import gpu_name
from draco.sharing.enforcement import possible, unable
from draco.sharing.terms import SHARES, TermsError, alike, consumed, form_of, shared_gpu_of, terms_for, terms_of


class SharingRules(msgspec.Struct, frozen=True, kw_only=True):
    """A policy and its compiled selectors. `problem` says why it is invalid: then it takes no further GPU."""

    policy: SharingPolicy
    selectors: tuple[Selector, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.metadata.name


def sharing_rules(policy: SharingPolicy) -> SharingRules:
    """The compiled policy."""
    found = compiled(policy.spec.device_selectors)
    if isinstance(found, str):
        return SharingRules(policy=policy, problem=found)
    return SharingRules(policy=policy, selectors=found)


class SharingState(Enum):
    """Whether a GPU is published as its policy asks, will be, or cannot be."""

    SHARED = "shared"
    WAITING = "waiting"
    FAILED = "failed"


class GpuForm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU. `policy` has it ("" for none); `form` is how its agent is to publish it, None for one claim alone.

    `changes`: another form is wanted, which waits for claims.
    """

    uuid: str
    device: str
    policy: str = ""
    form: SharedGpu | None = None
    changes: bool = False
    state: SharingState = SharingState.SHARED
    message: str = ""
    verdicts: Mapping[str, MatchVerdict] = {}

    @property
    def condition(self) -> tuple[SharingState, str]:
        """Its state, and why."""
        return self.state, self.message


class NodeForms(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All GPUs of a node."""

    node: str
    gpus: tuple[GpuForm, ...] = ()

    @property
    def shared(self) -> list[SharedGpu]:
        """The shared GPUs for the node's spec, by UUID."""
        return sorted((each.form for each in self.gpus if each.form), key=lambda each: each.uuid)

    @property
    def changing(self) -> list[str]:
        """The UUIDs of GPUs that claims keep from the form that is wanted."""
        return sorted(each.uuid for each in self.gpus if each.changes)


class SharableNode(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node with GPUs. `devices` are published by its pool, `claims` hold some of them."""

    gpu_node: GpuNode
    labels: Mapping[str, str] = {}
    devices: Sequence[Device] = ()
    claims: Sequence[ResourceClaim] = ()


class _PublishedGpu(NamedTuple):
    """A GPU as its agent reports it, as a whole device if that can be told, and as its published devices."""

    gpu: GpuStatus
    whole: Device | None
    devices: Sequence[Device]


def decide(seen: SharableNode, rules: Sequence[SharingRules]) -> NodeForms:
    """The form of each of the node's GPUs. `rules` are the policies, oldest first."""
    node = seen.gpu_node
    before = {each.uuid: each for each in node.spec.shared}
    if not rules and not before and not any(each.allow_multiple_allocations for each in seen.devices):
        return NodeForms(node=node.metadata.name)
    devices: dict[str, list[Device]] = {}
    for device in seen.devices:
        devices.setdefault(gpu_name(device.name), []).append(device)
    whole = whole_gpus(seen.devices, node.status.gpus, driver=node.status.driver)
    gpus = [
        _form(seen, _PublishedGpu(gpu, whole.get(gpu.uuid), devices.get(gpu.device, [])), rules)
        for gpu in node.status.gpus
    ]
    return NodeForms(node=node.metadata.name, gpus=(*gpus, *_unreported(node, before)))


def _unreported(node: GpuNode, before: Mapping[str, SharedGpu]) -> Iterable[GpuForm]:
    """GPUs that are not reported because the node's driver does not answer: they stay as they are."""
    readable = find_condition(node.status.conditions, "Readable")
    if readable is None or readable.status == "True":
        return
    reported = {each.uuid for each in node.status.gpus}
    for uuid, form in before.items():
        if uuid not in reported:
            why = "it cannot be read now"
            yield GpuForm(uuid=uuid, device="", policy=form.policy, form=form, state=SharingState.WAITING, message=why)


def _form(seen: SharableNode, seen_gpu: _PublishedGpu, rules: Sequence[SharingRules]) -> GpuForm:
    node, (gpu, whole, devices) = seen.gpu_node, seen_gpu
    driver = node.status.driver
    now = next((each for each in node.spec.shared if each.uuid == gpu.uuid), None)
    has_it = now.policy if now is not None else ""
    verdicts = {each.name: _verdict(each, seen.labels, whole, driver) for each in rules}
    owner = next((each for each in rules if _takes(verdicts[each.name], each.name == has_it)), None)
    problem, wanted = "", None
    if owner is not None and verdicts[owner.name].answer is PolicyMatch.UNKNOWN:
        wanted = now
    elif owner is not None:
        wanted = _wanted(owner.policy, gpu.uuid)
        if problem := _unenforced(gpu, wanted, now) or _problem(node, gpu, wanted, devices):
            wanted = None
    there = shared_gpu_of(gpu.uuid, devices, driver) if devices else now
    holds = _holds(seen, gpu.device)
    form, claims = _kept(wanted, now, there, holds, driver)
    plain = GpuForm(uuid=gpu.uuid, device=gpu.device, form=form, changes=bool(claims), verdicts=verdicts)
    if owner is None:
        return plain
    state, message = _state(wanted, problem, claims, devices, driver)
    return msgspec.structs.replace(plain, policy=owner.name, state=state, message=message)


def _verdict(rules: SharingRules, labels: Mapping[str, str], whole: Device | None, driver: str) -> MatchVerdict:
    selector = rules.policy.spec.node_selector
    if selector is not None and not selector.selects(labels):
        return MatchVerdict(PolicyMatch.OTHER_NODE)
    if rules.problem:
        return MatchVerdict(PolicyMatch.UNKNOWN, error=rules.problem)
    return by_selectors(rules.selectors, whole, driver)


def _takes(said: MatchVerdict, has_it: bool) -> bool:
    return said.answer is PolicyMatch.SELECTED or (said.answer is PolicyMatch.UNKNOWN and has_it)


def _wanted(policy: SharingPolicy, uuid: str) -> SharedGpu:
    settings = {name: getattr(policy.spec, name) for name in SharingSettings.__struct_fields__}
    return SharedGpu(uuid=uuid, policy=policy.metadata.name, **settings)


def _unenforced(gpu: GpuStatus, wanted: SharedGpu, now: SharedGpu | None) -> str:
    """Why a GPU cannot hold shares to their memory as the policy asks, as the end of a sentence; "" if it can.

    A GPU that has been shared so keeps that while its driver does not answer.
    """
    can = possible(gpu.sharing).get(wanted.enforcement, False)
    if can or (can is None and now is not None and now.enforcement is wanted.enforcement):
        return ""
    return unable(gpu.sharing, wanted.enforcement)


def _problem(node: GpuNode, gpu: GpuStatus, wanted: SharedGpu, devices: Sequence[Device]) -> str:
    """Why a GPU cannot be shared as the policy asks, as the end of a sentence; "" if it can."""
    layout = next((each for each in node.spec.gpus if each.uuid == gpu.uuid), None)
    if layout is not None and layout.mode is MigMode.DYNAMIC:
        return (
            f"MigPolicy {layout.policy} divides it as claims ask, and one share would keep it whole; exclude it there"
        )
    named = [each for each in devices if form_of(wanted, each.name)]
    if devices and not named:
        return "it is divided, and spec.migDevices is not set"
    for each in named:
        try:
            terms_for(wanted, each, node.status.driver)
        except TermsError as error:
            return str(error) if each.name == gpu.device else f"{error} ({each.name})"
    return ""


def _state(
    wanted: SharedGpu | None, problem: str, claims: Sequence[str], devices: Sequence[Device], driver: str
) -> tuple[SharingState, str]:
    if problem:
        return SharingState.FAILED, problem
    if claims:
        return SharingState.WAITING, waits_for(claims)
    if wanted is None or not devices or not all(_is_as(wanted, each, driver) for each in devices):
        return SharingState.WAITING, "its agent has not published it yet"
    return SharingState.SHARED, ""


def _is_as(wanted: SharedGpu, device: Device, driver: str) -> bool:
    """Whether a device is published as wanted."""
    form = form_of(wanted, device.name)
    return terms_of(device, driver) == (None if form is None else terms_for(form, device, driver))


class _Hold(msgspec.Struct, frozen=True):
    """A device that a claim holds."""

    claim: str
    result: DeviceRequestAllocationResult


def _holds(seen: SharableNode, gpu: str) -> list[_Hold]:
    pool = seen.gpu_node.pool
    return [
        _Hold(str(claim.metadata.key), result)
        for claim in seen.claims
        for result in claim.results
        if result.key.pool_key == pool and gpu_name(result.device) == gpu and not result.admin_access
    ]


def _kept(
    wanted: SharedGpu | None,
    now: SharedGpu | None,
    there: SharedGpu | None,
    holds: Sequence[_Hold],
    driver: str,
) -> tuple[SharedGpu | None, list[str]]:
    """The form to ask for, and the claims that keep the GPU from the wanted one. `there` is published, `now` was asked for."""
    against = [each for each in holds if not _fits(wanted, each, driver) or not _same_terms(wanted, there, each)]
    against += [] if against or _is_enough(wanted, holds, driver) else holds
    if not against:
        return wanted, []
    forms = (now, there) if alike(now, there) else (there, now)
    form = next((form for form in forms if all(_fits(form, each, driver) for each in holds)), now)
    if form is not None and not form.policy:
        form = msgspec.structs.replace(form, policy=(now or wanted or form).policy)
    return form, sorted({each.claim for each in against})


def _fits(form: SharedGpu | None, hold: _Hold, driver: str) -> bool:
    """Whether what a claim holds is counted in this form."""
    result = hold.result
    of_device = form_of(form, result.device)
    if of_device is None or result.share_id is None:
        return of_device is None and result.share_id is None
    by_count = consumed(result.consumed_capacity, SHARES, driver) is not None
    return by_count is (of_device.mode is SharingMode.COUNT)


def _same_terms(wanted: SharedGpu | None, there: SharedGpu | None, hold: _Hold) -> bool:
    one, other = form_of(wanted, hold.result.device), form_of(there, hold.result.device)
    return one is None or other is None or (one.mode, one.enforcement) == (other.mode, other.enforcement)


def _is_enough(wanted: SharedGpu | None, holds: Sequence[_Hold], driver: str) -> bool:
    """Whether no more shares are held than the form has."""
    if wanted is None or wanted.mode is not SharingMode.COUNT:
        return True
    taken: Counter[str] = Counter()
    for each in holds:
        taken[each.result.device] += consumed(each.result.consumed_capacity, SHARES, driver) or 0
    return all(amount <= (wanted.count or 1) for amount in taken.values())
