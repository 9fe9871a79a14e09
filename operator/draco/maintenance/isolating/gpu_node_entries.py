"""Entries in GpuNodes that make agents publish devices with the taint of their maintenance.

A taint rule names one device, and can be written only once that device is known. A new partition of a GPU under maintenance would
therefore be free for a moment. To prevent that, a Draco agent reads in its GpuNode which GPUs are under maintenance, in the same
object as the wanted layout, and publishes their devices with the taint. Owns these entries, and the check that agents follow
them. Rules are written as well: for other drivers, and because people read and delete them. Where the cluster serves no rules,
these entries alone isolate.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.selecting.matching import MaintenanceScope, fixed_selection, has_begun, is_exact, isolated_boards
from draco.resources.api.draco import GpuNode, IsolatedGpu
from draco.resources.api.maintenance import CONDITION_READY_FOR_WORK, DeviceMaintenance
from draco.resources.api.taints import BLOCKING_EFFECTS, TAINTS_PER_DEVICE, DeviceTaintRule, TaintIdentity
from draco.resources.names import DeviceKey, PoolKey


def isolates(request: DeviceMaintenance) -> bool:
    """Whether the request keeps new claims off its devices. A finished one does so until they are verified."""
    return has_begun(request) and _may_isolate(request)


def _may_isolate(request: DeviceMaintenance) -> bool:
    over = request.metadata.deletion_timestamp is not None or request.is_returning
    return not over and request.spec.taint.effect in BLOCKING_EFFECTS


def isolated_gpus(
    request: DeviceMaintenance,
    pool: PoolKey,
    hardware: PoolHardware,
    rules: Iterable[DeviceTaintRule],
    present: Iterable[IsolatedGpu] = (),
) -> list[IsolatedGpu]:
    """The entries about a request for the agent of `pool`. `rules` are the request's, `present` are today's entries.

    A GPU is under maintenance by UUID: the one that the request isolated first, and the one that has its name now. Present
    entries stay while nothing is published under the name. Entries of a request that is finished, or no longer isolates, stay
    while its status says that work can start.
    """
    rules = list(rules)
    selection = fixed_selection(request, rules)
    if selection is None or request.metadata.deletion_timestamp is not None:
        return []
    names = selection.names_in(pool)
    present = [each for each in present if each.request == request.metadata.name and each.device in names]
    if not isolates(request):
        return present if request.says(CONDITION_READY_FOR_WORK) else []
    found = []
    for device in names:
        uuids = {""}
        if device:
            here = DeviceKey(*pool, device)
            uuids = {isolated_boards(request, rules).get(here, ""), hardware.board(device)}
            uuids = uuids - {""} or {each.uuid for each in present if each.device == device}
        found += [_isolated(request, uuid, device) for uuid in sorted(uuids)]
    return found


def _isolated(request: DeviceMaintenance, uuid: str, device: str) -> IsolatedGpu:
    taint = request.spec.taint
    return IsolatedGpu(
        request=request.metadata.name,
        uuid=uuid,
        device=device,
        key=taint.key,
        value=taint.value,
        effect=taint.effect,
    )


def not_heeded(
    request: DeviceMaintenance,
    scope: MaintenanceScope,
    pools: Mapping[PoolKey, PoolHardware],
    nodes: Mapping[PoolKey, GpuNode],
    idle: Collection[PoolKey] = (),
) -> Sequence[DeviceKey]:
    """Published devices of a request whose slices lack its taint although their agents can set it.

    Once none is left for a GPU, its agent knows of the maintenance and publishes later devices of that GPU with the taint.
    `nodes` are the GpuNodes of the pools. From `idle` pools nothing is published now: an entry that the agent will read suffices.
    A device without a GpuNode keeps its taint, but its agent has to be told again, so it counts.
    """
    if not _may_isolate(request):
        return []
    found = []
    for key in (*scope.named, *scope.overlapping):
        pool = key.pool_key
        node = nodes.get(pool)
        board = scope.boards.get(key, "")
        if node is None and _has_taint(request, pools[pool], key):
            found.append(key)
        if node is None or not _can_isolate(node, board) or key.device not in pools[pool].published:
            continue
        asked = _asked(request, scope, key)
        is_told = any(_isolated(request, uuid, asked) in node.spec.isolated for uuid in ("", board))
        device = pools[pool].published_as(key.device)
        taints = device.taints if device is not None else []
        # A device without room for another taint is isolated by those it has: the agent puts taints of maintenance first.
        is_full = len(taints) >= TAINTS_PER_DEVICE
        heeds = pool in idle or is_full or _has_taint(request, pools[pool], key)
        if not (is_told and heeds):
            found.append(key)
    return sorted(found)


def _asked(request: DeviceMaintenance, scope: MaintenanceScope, device: DeviceKey) -> str:
    """The device name in the agent's entry: its own, that of the whole of which it is a part, or "" for all of a pool."""
    selector = request.spec.device_selector
    return (selector.device or "") if is_exact(selector) else scope.overlapping.get(device, device).device


def not_reached(
    request: DeviceMaintenance,
    scope: MaintenanceScope,
    pools: Mapping[PoolKey, PoolHardware],
    nodes: Mapping[PoolKey, GpuNode],
) -> Sequence[DeviceKey]:
    """Published devices of a request that no Draco agent would publish with its taint. `nodes` as above."""
    return sorted(
        key
        for key in (*scope.named, *scope.overlapping)
        if key.device in pools[pool := key.pool_key].published
        and not _has_taint(request, pools[pool], key)
        and not ((node := nodes.get(pool)) and _can_isolate(node, scope.boards.get(key, "")))
    )


def _has_taint(request: DeviceMaintenance, hardware: PoolHardware, key: DeviceKey) -> bool:
    """Whether the device's own slice has the request's taint, which only an agent writes."""
    taint, device = request.spec.taint, hardware.published_as(key.device)
    taints = device.taints if device is not None else []
    return TaintIdentity(taint.key, taint.value, taint.effect) in {each.identity for each in taints}


def _can_isolate(node: GpuNode, board: str) -> bool:
    return node.status.isolates and bool(board)
