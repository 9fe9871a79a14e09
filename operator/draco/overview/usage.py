"""`draco top`: what agents report of the usage of their GPUs, by device, claim, pod or namespace.

Owns the sums and their order. Each process is in one row, so columns can be added up; a device counts once in each row that has a
part of it.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from draco.resources.api.base import OutputStruct
from draco.resources.api.usage import DeviceUsage, DeviceUser, GpuUsage

STALE = timedelta(minutes=10)
"""An agent that works writes at least every five minutes."""


class By(StrEnum):
    """What a row stands for."""

    CLAIM = "claim"
    POD = "pod"
    NAMESPACE = "namespace"
    GPU = "gpu"


class SortBy(StrEnum):
    """What orders the rows."""

    UTILIZATION = "utilization"
    MEMORY = "memory"
    NAME = "name"


class UsageRow(OutputStruct, frozen=True, kw_only=True):
    """What one claim, pod or namespace uses of its devices, or all of one device. "" and None: not reported, or none.

    `utilization_percent` adds up devices: 150 is one and a half GPUs. Without namespace, claim and pod, the processes are outside
    pods, or unknown. `unused_since`: none of the devices has been used by the claim since then.
    """

    namespace: str = ""
    claim: str = ""
    pod: str = ""
    node: str = ""
    devices: list[str] = []
    product: str = ""
    claims: int = 0
    pods: int = 0
    processes: int = 0
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    unused_since: datetime | None = None


class UsageDocument(OutputStruct, frozen=True, kw_only=True):
    """What `draco top -o json` prints. `stale`: nodes whose agent reported nothing lately; `unread`: GPUs by node."""

    by: By
    rows: list[UsageRow] = []
    stale: list[str] = []
    unread: dict[str, list[str]] = {}
    notes: list[str] = []


class _Part(msgspec.Struct, frozen=True):
    """A user of a device of a node."""

    node: str
    device: DeviceUsage
    user: DeviceUser | None
    unused_since: datetime | None = None


def usage(
    usages: Iterable[GpuUsage], *, by: By, sort_by: SortBy, namespace: str = "", node: str = "", now: datetime
) -> UsageDocument:
    """The rows, the greatest first. `namespace` and `node` select; "" for all."""
    chosen = [one for one in usages if node in ("", one.metadata.name)]
    groups: dict[tuple[str, ...], list[_Part]] = {}
    for part in (part for one in chosen for part in _parts(one)):
        if by is By.GPU or part.user is not None:
            groups.setdefault(_key(part, by), []).append(part)
    groups = {key: some for key, some in groups.items() if any(_is_in(part, namespace) for part in some)}
    rows = [_row(by, some) for some in groups.values()]
    return UsageDocument(
        by=by,
        rows=sorted(rows, key=lambda row: _order(row, by, sort_by)),
        stale=sorted(one.metadata.name for one in chosen if one.status.time and now - one.status.time > STALE),
        unread={one.metadata.name: one.status.unread for one in chosen if one.status.unread},
    )


def _parts(one: GpuUsage) -> Iterable[_Part]:
    devices = {device.uuid: device for device in one.status.devices}
    unused = {(each.uuid, each.namespace, each.claim): each.since for each in one.status.unused}
    used = {user.uuid for user in one.status.users}
    for user in one.status.users:
        if user.uuid in devices:
            since = unused.get((user.uuid, user.namespace, user.claim))
            yield _Part(one.metadata.name, devices[user.uuid], user, since)
    for device in devices.values():
        if device.uuid not in used:
            yield _Part(one.metadata.name, device, None)


def _is_in(part: _Part, namespace: str) -> bool:
    return not namespace or (part.user is not None and part.user.namespace == namespace)


def _key(part: _Part, by: By) -> tuple[str, ...]:
    user = part.user
    if by is By.GPU or user is None:
        return (part.node, part.device.uuid)
    match by:
        case By.CLAIM:
            return (user.namespace, user.claim) if user.claim else (user.namespace, "", part.node, user.pod)
        case By.POD:
            return (user.namespace, user.pod) if user.pod else (user.namespace, "", part.node, user.claim)
        case By.NAMESPACE:
            return (user.namespace,)


def _row(by: By, parts: Sequence[_Part]) -> UsageRow:
    devices = {part.device.uuid: part.device for part in parts}
    users = [part.user for part in parts if part.user is not None]
    names = {part.device.uuid: part.device.device or part.device.uuid for part in parts}
    of_device = by is By.GPU
    sources: Sequence[DeviceUsage | DeviceUser] = list(devices.values()) if of_device else users
    first = users[0] if users else None
    return UsageRow(
        namespace=_only([user.namespace for user in users]),
        claim=first.claim if first and by is By.CLAIM else "",
        pod=_only([user.pod for user in users]) if by in (By.CLAIM, By.POD) else "",
        node=_only([part.node for part in parts]),
        devices=sorted(names.values()),
        product=_only([device.product_name for device in devices.values()]),
        claims=len({(user.namespace, user.claim) for user in users if user.claim}),
        pods=len({(user.namespace, user.pod) for user in users if user.pod}),
        processes=sum(user.processes for user in users),
        utilization_percent=_sum([each.utilization_percent for each in sources]),
        memory_used_bytes=_sum([each.memory_used_bytes for each in sources]),
        memory_total_bytes=_sum([each.memory_total_bytes for each in devices.values()]),
        unused_since=_latest([part.unused_since for part in parts]) if by is By.CLAIM else None,
    )


def _only(names: Iterable[str]) -> str:
    """The only one of these names; "" if there are several."""
    found = {*names}
    return found.pop() if len(found) == 1 else ""


def _sum(values: Sequence[int | None]) -> int | None:
    """The sum of what is known; None if nothing is."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _latest(times: Sequence[datetime | None]) -> datetime | None:
    """The last of them; None if one is missing."""
    known = [each for each in times if each is not None]
    return max(known) if len(known) == len(times) else None


def _order(row: UsageRow, by: By, sort_by: SortBy) -> tuple[object, ...]:
    busy, memory = -(row.utilization_percent or 0), -(row.memory_used_bytes or 0)
    place = (row.node, row.devices)
    name = place if by is By.GPU else (row.namespace, row.claim, row.pod, *place)
    match sort_by:
        case SortBy.UTILIZATION:
            return (busy, memory, *name)
        case SortBy.MEMORY:
            return (memory, busy, *name)
        case SortBy.NAME:
            return name
