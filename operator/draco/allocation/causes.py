"""Why a claim stays pending, in counts.

Owns the folding of a survey into the causes of one claim and their one sentence. It knows what can be known without evaluating
selectors, counters and capacity, and says of the rest only that it was not looked at.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from draco.allocation.supply import DeviceState, Group, Supply, Taint
from draco.resources.claims import DeviceSubRequest, ExactDeviceRequest, ResourceClaim
from draco.resources.classes import DeviceClass
from draco.resources.core import Pod
from draco.resources.taints import DeviceTaint, DeviceToleration

_NAMED = 3
_SCHEDULER_TEXT = 200
_NODE_STATES = {
    DeviceState.NODE_MISSING: "on nodes that do not exist",
    DeviceState.NODE_NOT_READY: "on nodes that are not ready",
    DeviceState.NODE_CORDONED: "on cordoned nodes",
}


class RequestCauses(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the way of one request (or one alternative of it).

    `drivers` are those that the class is known to be confined to; empty when any driver's device may do. `devices` counts the
    devices of those drivers by what stands in the way for this claim; `tainted` counts them by taint, and a device with two
    taints counts twice there.
    """

    request: str
    device_class: str
    class_missing: bool = False
    closest_class: str = ""
    drivers: tuple[str, ...] = ()
    published_drivers: tuple[str, ...] = ()
    wanted: int = 1
    wants_all: bool = False
    devices: Mapping[DeviceState, int] = {}
    tainted: Mapping[Taint, int] = {}
    holders: tuple[str, ...] = ()
    incomplete_pools: tuple[str, ...] = ()
    most_free_on_one_node: int = 0
    counters_shared: bool = False

    @property
    def total(self) -> int:
        """Devices that were counted."""
        return sum(self.devices.values())

    @property
    def reason(self) -> str:
        """The main cause in one word, for metrics."""
        free = self.devices.get(DeviceState.FREE, 0)
        if self.class_missing:
            return "ClassMissing"
        if not self.total:
            return "NoDevices"
        if free and self.most_free_on_one_node < self.wanted:
            return "NotEnoughOnOneNode"
        if free:
            return "NotMatching"
        return str(max(DeviceState, key=lambda state: self.devices.get(state, 0)))

    def __str__(self) -> str:
        if self.class_missing:
            near = f'; the closest there is is "{self.closest_class}"' if self.closest_class else ""
            return f'DeviceClass "{self.device_class}" does not exist{near}'
        of = f" of {' and '.join(self.drivers)}" if self.drivers else ""
        if not self.total:
            others = f" (published: {', '.join(self.published_drivers)})" if self.published_drivers else ""
            return f"no devices{of} are published{others}: check that the driver runs on its nodes"
        counts = "; ".join(self._counts())
        head = f"none of the {self.total} devices{of} is free"
        if self.total == 1:
            head = f"the only device{of} is not free"
        if self.devices.get(DeviceState.FREE):
            head = f"of {self.total} devices{of}" if self.total > 1 else f"of 1 device{of}"
        return f"{head}: {counts}"

    def _counts(self) -> list[str]:
        said = []
        if count := self.devices.get(DeviceState.IN_USE):
            said.append(f"{count} in use by other claims ({_some(self.holders)})")
        if count := self.devices.get(DeviceState.TAINTED):
            by_taint = ", ".join(f"{taint} on {n}" for taint, n in self.tainted.items())
            only = len(self.tainted) == 1
            said.append(f"{count} tainted {next(iter(self.tainted))}" if only else f"{count} tainted ({by_taint})")
        for state, text in _NODE_STATES.items():
            if count := self.devices.get(state):
                said.append(f"{count} {text}")
        if count := self.devices.get(DeviceState.POOL_INCOMPLETE):
            said.append(f"{count} in pools that are not completely published ({_some(self.incomplete_pools)})")
        if count := self.devices.get(DeviceState.FREE):
            said.append(self._free(count))
        return said

    def _free(self, count: int) -> str:
        if self.wanted > self.most_free_on_one_node:
            return f"{count} free, but {self.wanted} are wanted and no node has more than {self.most_free_on_one_node} free"
        unread = "selectors, constraints and capacity"
        if self.wants_all:
            unread += ' (mode "All" needs every matching device of a node to be free)'
        if self.counters_shared:
            unread += ", partitions in use on the same GPU"
        return (
            f"{count} free, so the claim's {unread} or what else the pod asks of a node rule them out "
            "(this version does not evaluate these)"
        )


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """Why a claim is pending: per request, and what the scheduler said of a pod that waits for it."""

    requests: tuple[RequestCauses, ...]
    scheduler: str = ""

    @property
    def reason(self) -> str:
        """The main cause in one word, for metrics: of the first request that surely cannot be met."""
        reasons = [request.reason for request in self.requests]
        sure = [reason for reason in reasons if reason != "NotMatching"]
        return (sure or reasons or ["Unknown"])[0]

    def __str__(self) -> str:
        said: dict[str, list[str]] = {}
        for request in self.requests:
            said.setdefault(str(request), []).append(request.request)
        if len(said) == 1:
            text = next(iter(said))
        else:
            text = ". ".join(f"Request {', '.join(names)}: {why}" for why, names in said.items())
        return f"Cannot be allocated: {text}.{f' {self.scheduler}' if self.scheduler else ''}"


def explain_pending(
    claim: ResourceClaim, supply: Supply, classes: Mapping[str, DeviceClass], pods: Iterable[Pod] = ()
) -> Causes:
    """The causes, given the claim's own view of the supply. `pods` are the live unscheduled pods that wait for it."""
    requests = []
    for request in claim.spec.devices.requests:
        alternatives: list[tuple[str, ExactDeviceRequest | DeviceSubRequest]] = [
            (f"{request.name}/{sub.name}", sub) for sub in request.first_available
        ]
        if request.exactly is not None:
            alternatives.insert(0, (request.name, request.exactly))
        requests += [_explain_request(name, asked, supply, classes) for name, asked in alternatives]
    return Causes(requests=tuple(requests), scheduler=_scheduler_says(pods))


def _explain_request(
    name: str, asked: ExactDeviceRequest | DeviceSubRequest, supply: Supply, classes: Mapping[str, DeviceClass]
) -> RequestCauses:
    device_class = classes.get(asked.device_class_name)
    if device_class is None:
        near = difflib.get_close_matches(asked.device_class_name, classes, n=1)
        return RequestCauses(
            request=name, device_class=asked.device_class_name, class_missing=True, closest_class="".join(near)
        )
    selectors = [*device_class.spec.selectors, *asked.selectors]
    confined = {driver for s in selectors if s.cel and (driver := confined_to_driver(s.cel.expression))}
    drivers = sorted(confined or supply.drivers)
    admin = isinstance(asked, ExactDeviceRequest) and bool(asked.admin_access)
    devices: Counter[DeviceState] = Counter()
    tainted: Counter[Taint] = Counter()
    free_on: Counter[str] = Counter()
    for group, count in supply.groups.items():
        if group.driver not in drivers:
            continue
        state, untolerated = _for_this_request(group, asked.tolerations, admin=admin)
        devices[state] += count
        if state is DeviceState.TAINTED:
            tainted.update(dict.fromkeys(untolerated, count))
        if state is DeviceState.FREE:
            free_on.update(supply.nodes[group])
    anywhere = free_on.pop("", 0)
    return RequestCauses(
        request=name,
        device_class=asked.device_class_name,
        drivers=tuple(sorted(confined)),
        published_drivers=tuple(supply.drivers),
        wanted=asked.count if asked.allocation_mode == "ExactCount" else 1,
        wants_all=asked.allocation_mode == "All",
        devices=devices,
        tainted=dict(sorted(tainted.items())),
        holders=tuple(sorted({holder for driver in drivers for holder in supply.holders.get(driver, ())})),
        incomplete_pools=tuple(pool for driver in drivers for pool in supply.incomplete.get(driver, ())),
        most_free_on_one_node=anywhere + max(free_on.values(), default=0),
        counters_shared=not supply.partitioned.isdisjoint(drivers),
    )


def _for_this_request(
    group: Group, tolerations: list[DeviceToleration], *, admin: bool
) -> tuple[DeviceState, list[Taint]]:
    """A group's state as this request meets it: taints may be tolerated, administrative access does not mind use."""
    state = group.state
    if state not in {DeviceState.IN_USE, DeviceState.TAINTED} or (state is DeviceState.IN_USE and not admin):
        return state, []
    untolerated = [taint for taint in group.taints if not _tolerated(taint, tolerations)]
    return (DeviceState.TAINTED if untolerated else DeviceState.FREE), untolerated


def _tolerated(taint: Taint, tolerations: list[DeviceToleration]) -> bool:
    full = DeviceTaint(key=taint.key, value=taint.value, effect=taint.effect)
    return any(toleration.tolerates(full) for toleration in tolerations)


_DRIVER = re.compile(r"""\s*device\.driver\s*==\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*(?:&&|$)""")


def confined_to_driver(expression: str) -> str:
    """The only driver whose devices a selector can accept, "" when the expression does not plainly say so.

    Read from `device.driver == "x"` at the start of a pure conjunction. Anything with an alternative in it is not read at all.
    """
    if "||" in expression or "?" in expression:
        return ""
    found = _DRIVER.match(expression)
    return (found.group(1) or found.group(2)) if found else ""


def _scheduler_says(pods: Iterable[Pod]) -> str:
    """What the scheduler says of the first waiting pod, shortened; its words are the only ones on what is not devices."""
    for pod in sorted(pods, key=lambda pod: pod.metadata.key):
        condition = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
        if condition is None:
            return f"No scheduler has looked at pod {pod.metadata.name} yet."
        if condition.status == "False" and condition.message:
            message = condition.message
            if len(message) > _SCHEDULER_TEXT:
                message = message[:_SCHEDULER_TEXT].rstrip() + "…"
            return f"The scheduler says of pod {pod.metadata.name}: {message}"
    return ""


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
