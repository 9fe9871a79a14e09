"""Turns what was read into the schema of `draco layout show`: who has which part of each GPU, and what still fits. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from draco.mig.board import Board, Placement, unit_mask
from draco.mig.geometry import Geometry, State, geometry
from draco.mig_policy.boards import boards_of
from draco.overview.layout_schema import Division, FitView, GpuView, InstanceView, LayoutView, NodeLayoutView, Use
from draco.overview.snapshot import natural
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.draco import (
    GpuMig,
    GpuNode,
    GpuStatus,
    InstanceStatus,
    MigMode,
    MigPolicy,
    MigState,
    WantedGpu,
)
from draco.resources.api.slices import ResourceSlice
from draco.resources.errors import DracoError
from draco.resources.names import PoolKey, read_partition_name
from draco.resources.texts import nearest


class ObservedNodes(msgspec.Struct, kw_only=True):
    """Nodes with GPUs and related objects at one time. `server` is "" for files without a cluster.

    `policies` are the existing ones, `asked` those to apply, `deleted` the names of existing ones to delete.
    """

    server: str = ""
    gpu_nodes: dict[str, GpuNode] = {}
    nodes: dict[str, Node] = {}
    slices: list[ResourceSlice] = []
    claims: list[ResourceClaim] = []
    policies: dict[str, MigPolicy] = {}
    asked: list[MigPolicy] = []
    deleted: list[str] = []
    notes: list[str] = []

    @property
    def place(self) -> str:
        """The source of the objects, in words."""
        return "the cluster" if self.server else "the files"


_UNSETTLED = frozenset({MigState.DIRTY, MigState.NEEDS_RESET})


class LayoutViewError(DracoError):
    """The requested node does not exist; the message suggests another."""


Holders = Mapping[str, list[str]]
"""The claims on each device of a pool, by device name."""


def layout_of(seen: ObservedNodes, names: Sequence[str] = ()) -> LayoutView:
    """The named nodes, or all. Raises LayoutViewError for an unknown name."""
    for name in names:
        if name not in seen.gpu_nodes:
            raise LayoutViewError(f"there is no GpuNode {name} in {seen.place}{nearest(name, seen.gpu_nodes)}")
    holders = holders_of(seen.claims)
    shown = sorted(set(names) or seen.gpu_nodes, key=natural)
    nodes = [_node(seen.gpu_nodes[name], holders) for name in shown]
    lost = [name for name in shown if seen.gpu_nodes[name].is_agent_lost]
    old = [f"The agent of node {name} is lost: what is shown of its GPUs is what it last reported." for name in lost]
    return LayoutView(server=seen.server, nodes=nodes, notes=[*seen.notes, *old])


def holders_of(claims: Iterable[ResourceClaim]) -> Mapping[PoolKey, Holders]:
    """Which claims have which devices; admin access is ignored."""
    found: dict[PoolKey, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for claim in claims:
        for held in claim.devices_held:
            found[held.pool_key][held.device].append(str(claim.metadata.key))
    return found


def _node(node: GpuNode, holders: Mapping[PoolKey, Holders]) -> NodeLayoutView:
    boards = boards_of(node)
    wanted = {each.uuid: each for each in node.spec.gpus}
    held = holders.get(node.pool, {})
    gpus = [_gpu(gpu, boards, wanted.get(gpu.uuid), held) for gpu in node.status.gpus]
    return NodeLayoutView(name=node.metadata.name, gpus=sorted(gpus, key=lambda each: natural(each.device)))


def _gpu(gpu: GpuStatus, boards: Mapping[str, Board], wanted: WantedGpu | None, held: Holders) -> GpuView:
    mig = gpu.mig or GpuMig()
    board = boards.get(mig.board, Board(()))
    parts = parts_of(gpu, board, held)
    mode = wanted.mode.value if wanted else ""
    whole = sorted(set(held.get(gpu.device, ())))
    usable = bool(board.profiles) and mig.state not in _UNSETTLED and not whole
    usable = usable and (mig.enabled or (mode == MigMode.DYNAMIC and mig.state is MigState.READY))
    allowed = frozenset(wanted.profiles if wanted and wanted.mode is MigMode.DYNAMIC else ())
    fits = _fits(board, parts, allowed) if usable else []
    lasting = [part for part in parts if part.use is not Use.WARM]
    gives_way = usable and mode == MigMode.DYNAMIC and len(lasting) < len(parts)
    return GpuView(
        device=gpu.device,
        uuid=gpu.uuid,
        product=gpu.product_name,
        memory=gpu.memory,
        division=_division(gpu, wanted),
        units=max([board.units, *(part.start + part.size for part in parts)]),
        board=mig.board,
        state=mig.state.value,
        message=mig.message,
        policy=wanted.policy if wanted else "",
        mode=mode,
        claims=whole,
        parts=parts,
        fits=fits,
        fits_without_warm=_fits(board, lasting, allowed) if gives_way else fits,
    )


def _division(gpu: GpuStatus, wanted: WantedGpu | None) -> Division:
    if gpu.mig is None:
        # Agents report no MIG state for incapable GPUs. A GPU with a policy is capable, so its state is unreadable now.
        return Division.UNREPORTED if wanted else Division.INCAPABLE
    if not gpu.mig.capable:
        return Division.INCAPABLE
    return Division.ON if gpu.mig.enabled else Division.OFF


def parts_of(gpu: GpuStatus, board: Board, held: Holders) -> list[InstanceView]:
    """The existing instances, and those promised to claims, by start."""
    promised: dict[tuple[str, int], set[str]] = {}
    for device, claims in held.items():
        name = read_partition_name(device)
        profile = board.by_id(name.profile_id) if name is not None and name.parent == gpu.device else None
        if name is not None and profile is not None:
            promised.setdefault((profile.name, name.start), set()).update(claims)
    parts = [_part(each, promised.pop((each.profile, each.start), set())) for each in (gpu.mig or GpuMig()).instances]
    for (profile_name, start), waiting in promised.items():
        profile = board.profile(profile_name)
        size = profile.size if profile else 1
        parts.append(InstanceView(profile=profile_name, start=start, size=size, use=Use.COMING, claims=sorted(waiting)))
    return sorted(parts, key=lambda part: part.start)


def _part(instance: InstanceStatus, promised: set[str]) -> InstanceView:
    return InstanceView(
        profile=instance.profile,
        start=instance.start,
        size=instance.size,
        use=Use(instance.use.value.lower()),
        claims=sorted(promised | ({instance.claim} if instance.claim else set())),
        holder=instance.holder,
        device=instance.device,
        uuid=instance.uuid,
    )


def _fits(board: Board, parts: Iterable[InstanceView], allowed: frozenset[str]) -> list[FitView]:
    space = geometry(board)
    state = _state_of(space, board, parts)
    starts: dict[str, list[int]] = defaultdict(list)
    for placement in space.fits(state):
        starts[placement.profile.name].append(placement.start)
    return [
        FitView(profile=profile.name, count=space.room(state, profile), starts=starts[profile.name])
        for profile in sorted(board.profiles, key=lambda each: (each.size, each.slices, each.name))
        if starts[profile.name] and (not allowed or profile.name in allowed)
    ]


def _state_of(space: Geometry, board: Board, parts: Iterable[InstanceView]) -> State:
    """The geometry's state with the instances placed."""
    state = space.empty
    for part in parts:
        profile = board.profile(part.profile)
        if profile is not None:
            state = space.add(state, Placement(profile, part.start))
        else:
            state = space.block(state, unit_mask(part.start, part.size))
    return state
