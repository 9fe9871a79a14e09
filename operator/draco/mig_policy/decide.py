"""One node: which of its GPUs belong to which policy, and what is wanted of each.

Owns the choice: the oldest policy that selects a GPU has it. A GPU that cannot be judged now, because its agent or driver is down
or a selector fails, stays with its policy. Also owns the translation of a policy, which is for any board, for a certain board:
the layout with its starts, and the profiles that the board has. Also says on which pools Draco spreads claims. Decisions of tens
of thousands of GPUs are cached and hold no cycles, so the garbage collector need not walk them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self

import msgspec

from draco.mig.board import Board, Placement
from draco.mig.layouts import LayoutError, resolve
from draco.mig_policy.boards import boards_of, profile_names
from draco.mig_policy.gpu_state import GpuCondition, LayoutState, condition_of
from draco.mig_policy.matching import (
    MatchVerdict,
    PolicyMatch,
    Rules,
    oldest_first,
    rules_of,
    spreading_policies,
    verdict,
    whole_gpus,
)
from draco.resources.api.core import Node
from draco.resources.api.draco import (
    Allocator,
    GpuMig,
    GpuNode,
    GpuStatus,
    InstanceUse,
    LayoutInstances,
    MigMode,
    MigPolicy,
    ProfileCount,
    WantedGpu,
    WantedInstance,
)
from draco.resources.api.meta import find_condition
from draco.resources.api.slices import Device, ResourceSlice, own_slices
from draco.resources.names import NVIDIA_DRIVER, PoolKey

_KEPT = frozenset({InstanceUse.CLAIM, InstanceUse.LAYOUT, InstanceUse.WARM})


class SeenNode(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node with GPUs. `devices` are its whole GPUs by UUID, as published."""

    gpu_node: GpuNode
    labels: Mapping[str, str] = {}
    devices: Mapping[str, Device] = {}

    @classmethod
    def of(cls, gpu_node: GpuNode, node: Node | None, slices: Iterable[ResourceSlice]) -> Self:
        """From its agent's report, the Node if known, and the slices of its pool."""
        parts = own_slices(slices, gpu_node.metadata.name)
        devices = [device for each in parts for device in each.spec.devices]
        whole = whole_gpus(devices, gpu_node.status.gpus, driver=gpu_node.status.driver)
        return cls(gpu_node=gpu_node, labels=node.metadata.labels if node else {}, devices=whole)


class GpuDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU. `policy` has it ("" for none) and chooses its allocator; `verdicts` has each policy's answer."""

    uuid: str
    device: str
    board: str = ""
    policy: str = ""
    wanted: WantedGpu | None = None
    allocator: Allocator = Allocator.SCHEDULER
    condition: GpuCondition = GpuCondition(LayoutState.APPLIED)
    verdicts: Mapping[str, MatchVerdict] = {}


class NodeDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All GPUs of a node."""

    node: str
    gpus: tuple[GpuDecision, ...]
    boards: Mapping[str, Board] = {}

    @property
    def wanted(self) -> list[WantedGpu]:
        """The GPUs for the node's spec, by UUID."""
        return sorted((each.wanted for each in self.gpus if each.wanted), key=lambda each: each.uuid)

    def __str__(self) -> str:
        said = [
            f"{each.device or each.uuid}: {f'{each.wanted.mode} by {each.policy}' if each.wanted else 'left alone'}"
            for each in self.gpus
        ]
        return f"{self.node}: " + ("; ".join(said) or "no GPU")


Ahead = Mapping[str, Sequence[ProfileCount]]
"""The idle instances that each GPU should keep for measured demand, by UUID."""


def decide(
    seen: SeenNode, rules: Sequence[Rules], permits: Mapping[str, bool], ahead: Ahead | None = None
) -> NodeDecision:
    """What is wanted of the node's GPUs. `rules` are the policies, oldest first; `permits` whether each may reset now.

    `ahead` None: demand is not measured here, so what is kept for it stays unchanged.
    """
    node = seen.gpu_node
    boards = boards_of(node)
    current = {each.uuid: each for each in node.spec.gpus}
    gpus = [*node.status.gpus, *_unreported(node, current)]
    decided = tuple(_gpu(seen, gpu, boards, rules, permits, ahead=ahead) for gpu in gpus)
    return NodeDecision(node=node.metadata.name, gpus=decided, boards=boards)


def spread_pools(
    decisions: Iterable[NodeDecision], policies: Iterable[MigPolicy], drivers: Mapping[str, str]
) -> frozenset[PoolKey]:
    """The pools, each named after its node, on which claims are spread. `drivers` has the driver of each node.

    If the GPUs of one node belong to several policies, one that spreads suffices: spreading is about nodes, not GPUs.
    """
    spreading = {each.metadata.name for each in spreading_policies(policies)}
    return frozenset(
        PoolKey(drivers.get(each.node, NVIDIA_DRIVER), each.node)
        for each in decisions
        if any(gpu.policy in spreading for gpu in each.gpus)
    )


def spread_pools_of(nodes: Iterable[SeenNode], policies: Iterable[MigPolicy]) -> frozenset[PoolKey]:
    """The same for objects that were read once, before any decision."""
    seen, known = list(nodes), oldest_first(policies)
    rules = [rules_of(each) for each in known]
    drivers = {each.gpu_node.metadata.name: each.gpu_node.status.driver for each in seen}
    return spread_pools((decide(each, rules, {}) for each in seen), known, drivers)


def _gpu(
    seen: SeenNode,
    gpu: GpuStatus,
    boards: Mapping[str, Board],
    rules: Sequence[Rules],
    permits: Mapping[str, bool],
    *,
    ahead: Ahead | None,
) -> GpuDecision:
    current = next((each for each in seen.gpu_node.spec.gpus if each.uuid == gpu.uuid), None)
    driver = seen.gpu_node.status.driver
    device = seen.devices.get(gpu.uuid)
    has_it = current.policy if current is not None else ""
    verdicts = {
        each.name: verdict(each, seen.labels, gpu, device, driver=driver, has_it=each.name == has_it) for each in rules
    }
    owner = next((each for each in rules if _takes(verdicts[each.name], each.name == has_it)), None)
    plain = GpuDecision(uuid=gpu.uuid, device=gpu.device, board=gpu.mig.board if gpu.mig else "", verdicts=verdicts)
    if owner is None:
        return plain
    kept = current if has_it == owner.name else None
    wanted, hindered = kept, None
    if gpu.mig is not None and verdicts[owner.name].answer is PolicyMatch.SELECTED:
        there = (kept.warm if kept else []) if ahead is None else ahead.get(gpu.uuid, ())
        result = wanted_of(owner.policy, gpu.uuid, gpu.mig, boards.get(gpu.mig.board), there)
        # What is impossible stays as before, and Draco's.
        wanted, hindered = (result, None) if isinstance(result, WantedGpu) else (kept, result)
    if wanted is not None:
        wanted = msgspec.structs.replace(wanted, reset_permitted=permits.get(owner.name, False))
    if hindered is None and wanted is not None:
        hindered = condition_of(seen.gpu_node, gpu, wanted, owner.policy.spec.reset.permit)
    return msgspec.structs.replace(
        plain,
        policy=owner.name,
        wanted=wanted,
        allocator=owner.policy.spec.allocator,
        condition=hindered or GpuCondition(LayoutState.CHANGING),
    )


def _takes(said: MatchVerdict, has_it: bool) -> bool:
    return said.answer is PolicyMatch.SELECTED or (said.answer is PolicyMatch.UNKNOWN and has_it)


def _unreported(node: GpuNode, current: Mapping[str, WantedGpu]) -> list[GpuStatus]:
    """GPUs of policies that are not reported because the node's driver does not answer. If it answers, they are gone."""
    readable = find_condition(node.status.conditions, "Readable")
    if readable is None or readable.status == "True":
        return []
    reported = {each.uuid for each in node.status.gpus}
    return [GpuStatus(device="", uuid=uuid) for uuid in current if uuid not in reported]


def wanted_of(
    policy: MigPolicy, uuid: str, mig: GpuMig, board: Board | None, ahead: Sequence[ProfileCount] = ()
) -> WantedGpu | GpuCondition:
    """What the policy wants of the GPU with this UUID, or why that is unknown, so that the GPU stays unchanged.

    `ahead` is what it keeps for demand; profiles without a limit in the policy are ignored. Resets are not permitted here: that
    depends on the time.
    """
    plain = WantedGpu(uuid=uuid, policy=policy.metadata.name, mode=policy.spec.mode)
    if policy.spec.mode is MigMode.DISABLED:
        return plain
    if board is None:
        # Some drivers report what fits on a board only once MIG is on, so that comes first.
        return _cannot(LayoutState.CHANGING, "its agent has not reported its board") if mig.enabled else plain
    return (
        _static(policy, plain, mig, board)
        if policy.spec.mode is MigMode.STATIC
        else _dynamic(policy, plain, board, ahead)
    )


def _static(policy: MigPolicy, plain: WantedGpu, mig: GpuMig, board: Board) -> WantedGpu | GpuCondition:
    layout = next((each for each in policy.spec.layouts if each.name == policy.spec.layout), None)
    if layout is None:
        return _cannot(LayoutState.FAILED, f"spec.layouts has no layout named {policy.spec.layout}")
    placed = _placed(board, tuple(layout.instances), _present(mig, board))
    if isinstance(placed, str):
        return _cannot(LayoutState.FAILED, f"layout {layout.name}: {placed}")
    return msgspec.structs.replace(plain, layout=list(placed))


def _dynamic(
    policy: MigPolicy, plain: WantedGpu, board: Board, ahead: Sequence[ProfileCount]
) -> WantedGpu | GpuCondition:
    has = {profile.name for profile in board.profiles}
    profiles = [name for name in policy.spec.profiles if name in has]
    if policy.spec.profiles and not profiles:
        names = ", ".join(profile_names({"": board}))
        return _cannot(LayoutState.FAILED, f"its board has none of spec.profiles; it has {names}")
    limits = {each.profile: each.count for each in policy.spec.warm_ahead.limits} if policy.spec.warm_ahead else {}
    warm = [each for each in policy.spec.warm if each.profile in has]
    warm += [
        ProfileCount(profile=each.profile, count=min(each.count, limits[each.profile]))
        for each in ahead
        if each.profile in has and each.profile in limits
    ]
    return msgspec.structs.replace(plain, profiles=profiles, warm=warm)


def _cannot(state: LayoutState, message: str) -> GpuCondition:
    return GpuCondition(state, message.rstrip("."))


def _present(mig: GpuMig, board: Board) -> frozenset[Placement]:
    """Instances to keep if possible: one in use should not go for an equivalent start."""
    return frozenset(
        Placement(profile, each.start)
        for each in mig.instances
        if each.use in _KEPT and (profile := board.profile(each.profile)) is not None
    )


@lru_cache(maxsize=4096)
def _placed(
    board: Board, instances: tuple[LayoutInstances, ...], present: frozenset[Placement]
) -> tuple[WantedInstance, ...] | str:
    try:
        placements = resolve(board, instances, present)
    except LayoutError as error:
        return str(error)
    return tuple(WantedInstance(profile=each.profile.name, start=each.start) for each in placements)
