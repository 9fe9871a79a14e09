"""Reads from the cluster which GPUs can keep idle instances ahead of claims, and what is free on each.

Owns the reading. Cordons, taints of slices, DeviceTaintRules and isolation count: nothing is kept where no claim can get it.
Remembers for each GPU what others used at the last look. Writes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from draco.controller.view import BY_POOL, ClusterView
from draco.mig.board import Board, Placement
from draco.mig.geometry import State, geometry
from draco.mig_policy.decide import GpuDecision, NodeDecision
from draco.mig_policy.gpu_state import LayoutState, switched_by_reset
from draco.mig_policy.matching import PolicyMatch
from draco.mig_policy.warm_ahead import WarmGpu, beside_fixed
from draco.resources.api.draco import GpuMig, GpuNode, GpuStatus, InstanceUse, MigState, ProfileCount
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device
from draco.resources.api.taints import BLOCKING_EFFECTS
from draco.resources.names import DeviceKey, gpu_name, read_partition_name


class LookedAt:
    """The result of one look, by policy."""

    def __init__(self) -> None:
        self.gpus: dict[str, list[WarmGpu]] = defaultdict(list)
        self.nodes: dict[str, str] = {}
        """The node of each GPU, by UUID."""
        self.untold: dict[str, Counter[str]] = defaultdict(Counter)
        """What GPUs keep, by profile, that cannot be changed now."""

    def stands(self, policy: str, profile: str) -> int:
        """How many instances the policy's GPUs are asked to keep now."""
        return self.untold[policy][profile] + sum(each.stands.get(profile, 0) for each in self.gpus[policy])


class WarmGpus:
    """Takes one look at a time: `begin`, `add` for each node, then `found`."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._before: dict[str, State] = {}
        self._now: dict[str, State] = {}
        self.found = LookedAt()

    def begin(self) -> None:
        """Start a look."""
        self._before, self._now = self._now, {}
        self.found = LookedAt()

    def add(self, decision: NodeDecision, policies: Mapping[str, Collection[str]]) -> None:
        """Add the node's GPUs of these policies; `policies` lists the profiles that each keeps by demand."""
        mine = [each for each in decision.gpus if each.policy in policies]
        gpu_node = self._view.gpu_nodes.store.get(ObjectKey("", decision.node)) if mine else None
        if gpu_node is None:
            return
        reported = {each.uuid: each for each in gpu_node.status.gpus}
        standing = {(each.uuid, each.policy): each.warm for each in gpu_node.spec.gpus}
        held, barred = self._held(gpu_node), self._barred(gpu_node)
        for each in mine:
            stands = {
                one.profile: one.count
                for one in standing.get((each.uuid, each.policy), ())
                if one.profile in policies[each.policy]
            }
            gpu, board = reported.get(each.uuid), decision.boards.get(each.board)
            told = each.verdicts[each.policy].answer is PolicyMatch.SELECTED
            if gpu is None or gpu.mig is None or board is None or each.wanted is None or not told:
                self.found.untold[each.policy].update(stands)
                continue
            fixed = [one for one in each.wanted.warm if one.profile not in policies[each.policy]]
            state = _state(gpu, gpu.mig, board, held, fixed)
            self._now[each.uuid] = state
            self.found.nodes[each.uuid] = decision.node
            self.found.gpus[each.policy].append(
                WarmGpu(
                    uuid=each.uuid,
                    board=board,
                    state=state,
                    lately=self._before.get(each.uuid),
                    usable=gpu.device not in barred and _takes_claims(gpu, gpu.mig, each),
                    stands=stands,
                    idle=Counter(one.profile.name for one in _idle(gpu.mig, board, held)),
                )
            )

    def _held(self, gpu_node: GpuNode) -> frozenset[str]:
        pool = gpu_node.pool
        claims = self._view.claims.store.by_index(BY_POOL, pool)
        return frozenset(one.device for each in claims for one in each.devices_held if one.pool_key == pool)

    def _barred(self, gpu_node: GpuNode) -> frozenset[str]:
        """Names of the node's GPUs of which no claim can get anything now."""
        pool = gpu_node.pool
        node = self._view.nodes.store.get(ObjectKey("", pool.pool))
        isolated = {each.uuid for each in gpu_node.spec.isolated if not read_partition_name(each.device)}
        if "" in isolated or (node is not None and (node.spec.unschedulable or not node.ready)):
            return frozenset(each.device for each in gpu_node.status.gpus)
        devices = list(chain.from_iterable(each.spec.devices for each in self._view.current_slices_of(pool)))
        published = {gpu_name(each.name) for each in devices}
        free = {gpu_name(each.name) for each in devices if not self._is_tainted(each, DeviceKey(*pool, each.name))}
        return frozenset((published - free) | {each.device for each in gpu_node.status.gpus if each.uuid in isolated})

    def _is_tainted(self, device: Device, key: DeviceKey) -> bool:
        is_ruled = any(each.effect in BLOCKING_EFFECTS for each in self._view.rule_taints(key))
        return is_ruled or any(each.sets_aside for each in device.taints)


def _takes_claims(gpu: GpuStatus, mig: GpuMig, decision: GpuDecision) -> bool:
    """Whether instances can be created here; with MIG off, once it may be turned on."""
    if mig.state not in {MigState.READY, MigState.CHANGING} or decision.condition.state is LayoutState.FAILED:
        return False
    permitted = decision.wanted is not None and decision.wanted.reset_permitted
    return mig.enabled or permitted or not switched_by_reset(gpu)


def _idle(mig: GpuMig, board: Board, held: Collection[str]) -> Iterable[Placement]:
    for each in mig.instances:
        profile = board.profile(each.profile)
        if each.use is InstanceUse.WARM and each.device not in held and profile is not None:
            yield Placement(profile, each.start)


def _state(gpu: GpuStatus, mig: GpuMig, board: Board, held: Collection[str], fixed: Iterable[ProfileCount]) -> State:
    """What claims, others and `spec.warm` use of the GPU, and what is still to be destroyed."""
    shape = geometry(board)
    places = set()
    for device in held:
        part = read_partition_name(device)
        profile = board.by_id(part.profile_id) if part is not None and part.parent == gpu.device else None
        if part is not None and profile is not None:
            places.add(Placement(profile, part.start))
    for each in mig.instances:
        profile = board.profile(each.profile)
        if each.use is not InstanceUse.WARM and profile is not None:
            places.add(Placement(profile, each.start))
    state = shape.state_of(places)
    # The whole GPU is in use: by a claim or, with MIG off, by processes that the agent reports.
    if gpu.device in held or (not mig.enabled and mig.state is MigState.READY and mig.message):
        return shape.block(state, (1 << board.units) - 1)
    return beside_fixed(board, state, _idle(mig, board, held), fixed)
