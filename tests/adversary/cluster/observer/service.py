"""The laws of maintenance: devices stay isolated during the work, and return to service when no request needs them.

Owns comparing what a request's phase promises with rules and slices, and what may be left at the end. Does no I/O.
"""

from collections.abc import Iterator

from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Object, Part, World, condition, name

BLOCKING = frozenset({"NoSchedule", "NoExecute"})
AT_WORK = frozenset({"InMaintenance", "Verifying", "Failed"})
OVER = frozenset({"Completed", "Cancelled"})
DOMAIN = "draco.dev/"
MAINTENANCE = "draco.dev/maintenance"
AGENT_LOST = "draco.dev/agent-lost"
OPERATOR_ALLOCATED = "draco.dev/operator-allocated"
REMEDIATES = "draco.dev/remediates"
JOB_SPACE = "draco-jobs"
ENDING_WORKS = ("adv-works", "adv-works-long")
"""CronJobs whose Jobs succeed after some seconds."""


def phase_of(request: Object) -> str:
    """The request's phase."""
    return str((request.get("status") or {}).get("phase") or "")


def taken(world: World, request: Object) -> list[Part]:
    """The hardware that a request isolated: what its device names stood for then, and stand for now."""
    parts = []
    for each in (request.get("status") or {}).get("devices") or []:
        if each.get("overlaps"):
            continue
        device = DeviceName(each["driver"], each["pool"], each["device"])
        seen = world.names.history.get(device)
        if seen:
            parts.append(seen[-1][1])
        if each.get("uuid") and (not seen or not seen[-1][1].slices):
            parts.append(Part(each["uuid"]))
    return parts


def lifted_at_work(world: World) -> Iterator[Suspicion]:
    """While a request is InMaintenance, Verifying or Failed, all its devices have a taint that keeps claims away."""
    for request in world.requests.values():
        effect = (request["spec"].get("taint") or {}).get("effect", "NoSchedule")
        isolated = (request.get("status") or {}).get("isolatedAt")
        if phase_of(request) not in AT_WORK or effect not in BLOCKING or not isolated:
            continue
        if request["metadata"].get("deletionTimestamp"):
            continue
        parts = taken(world, request)
        for device, published in world.published():
            part = part_now(world, device)
            if part is None or not any(part.overlaps(each) for each in parts):
                continue
            if not any(taint.get("effect") in BLOCKING for taint in world.taints(device, published)):
                text = f"{name(request)} is {phase_of(request)}, and {device} of it has no taint that keeps claims away"
                yield Suspicion("lifted at work", f"{request['metadata']['uid']} {device}", text)


def cordoned(world: World) -> Iterator[Suspicion]:
    """No node is cordoned, and none is tainted by Draco."""
    for uid, node in world.nodes.items():
        spec = node.get("spec") or {}
        ours = [taint["key"] for taint in spec.get("taints") or [] if taint["key"].startswith(DOMAIN)]
        if spec.get("unschedulable") or ours:
            what = f"is tainted {', '.join(ours)}" if ours else "is cordoned"
            yield Suspicion("cordoned", uid, f"node {name(node)} {what}")


def wants_its_rules(world: World, uid: str) -> bool:
    """Whether a rule's owner exists and still needs it."""
    if uid in world.nodes or uid in world.rules or uid in world.gpu_nodes:
        return True
    request = world.requests.get(uid)
    return request is not None and phase_of(request) not in OVER


def not_restored(world: World) -> Iterator[Suspicion]:
    """At rest, a device has Draco's maintenance taint only if an unfinished request covers it."""
    wanted: list[tuple[set[str], list[Part]]] = []
    for request in world.requests.values():
        if phase_of(request) in OVER or request["metadata"].get("deletionTimestamp"):
            continue
        key = (request["spec"].get("taint") or {}).get("key", MAINTENANCE)
        wanted.append(({key}, taken(world, request)))
    for device, published in world.published():
        part = part_now(world, device)
        for taint in world.taints(device, published):
            if taint["key"] != MAINTENANCE:
                continue
            if not any(taint["key"] in keys and part and any(map(part.overlaps, parts)) for keys, parts in wanted):
                text = f"{device} has the taint {taint['key']}:{taint['effect']}, and no request wants that"
                yield Suspicion("not restored", f"{device} {taint['key']}", text)


def stuck(world: World) -> Iterator[Suspicion]:
    """At rest, no request is stuck: cancelled ones have returned their devices, and deleted ones are gone."""
    for uid, request in world.requests.items():
        phase = phase_of(request)
        if request["metadata"].get("deletionTimestamp"):
            yield Suspicion("stuck", uid, f"{name(request)} was deleted, and is still there")
        elif not phase:
            yield Suspicion("stuck", uid, f"nobody has said anything of {name(request)}")
        elif request["spec"].get("cancelled") and phase not in OVER:
            yield Suspicion("stuck", uid, f"{name(request)} was cancelled, and is {phase}: {_message(request)}")


def verified_by_job(request: Object) -> bool:
    """Whether it is verified by a Job that ends on its own."""
    return (request["spec"].get("verification") or {}).get("fromCronJob") in ENDING_WORKS


def verifying_for_ever(world: World) -> Iterator[Suspicion]:
    """A request with free devices and a Job that ends on its own does not stay in Verifying.

    Devices with another taint than that of maintenance are not judged: a fault or a person may keep the Job away.
    """
    keys = {(each["spec"].get("taint") or {}).get("key", MAINTENANCE) for each in world.requests.values()}
    published = dict(world.published())
    for uid, request in world.requests.items():
        if phase_of(request) != "Verifying" or not verified_by_job(request):
            continue
        if request["spec"].get("cancelled") or request["metadata"].get("deletionTimestamp"):
            continue
        listed = (request.get("status") or {}).get("devices") or []
        asked = [
            DeviceName(each["driver"], each["pool"], each["device"]) for each in listed if not each.get("overlaps")
        ]
        if asked and all(_is_free(world, device, published.get(device), keys) for device in asked):
            text = f"{name(request)} is Verifying, and all it waits for is free: {_message(request)}"
            yield Suspicion("verifying for ever", uid, text)


def _is_free(world: World, device: DeviceName, published: Object | None, keys: set[str]) -> bool:
    """Whether a maintenance Job can get the device."""
    part = part_now(world, device)
    if published is None or part is None:
        return False
    kept = [each["key"] for each in world.taints(device, published) if each.get("effect") in BLOCKING]
    if any(key not in keys and key not in {MAINTENANCE, OPERATOR_ALLOCATED} for key in kept):
        return False
    holdings = (each for each in world.holdings() if each.part is not None and each.part.overlaps(part))
    return all(each.claim.startswith(f"{JOB_SPACE}/") for each in holdings)


def fenced_without_cause(world: World) -> Iterator[Suspicion]:
    """At rest, all agents run, so no device is fenced. `fences` judges earlier fences."""
    for device, published in world.published():
        if any(taint["key"] == AGENT_LOST for taint in world.taints(device, published)):
            yield Suspicion("fenced without cause", str(device), f"{device} is fenced, and its agent is there")


def emptied_by_mistake(world: World) -> Iterator[Suspicion]:
    """A drain by NoExecute taint empties the boards that its request isolated, not other boards that have their names now."""
    for uid, rule in world.rules.items():
        spec, selector = rule["spec"], rule["spec"].get("deviceSelector") or {}
        owners = [each["uid"] for each in rule["metadata"].get("ownerReferences") or []]
        request = next((world.requests[each] for each in owners if each in world.requests), None)
        if request is None or spec["taint"]["effect"] != "NoExecute":
            continue
        if (request["spec"].get("taint") or {}).get("effect") == "NoExecute":
            continue  # its author asked for NoExecute
        for each in (request.get("status") or {}).get("devices") or []:
            device = DeviceName(each["driver"], each["pool"], each["device"])
            is_meant = all(selector.get(field) == each[field] for field in ("driver", "pool", "device"))
            part = part_now(world, device) if is_meant else None
            if part is not None and each.get("uuid") not in {None, "", part.gpu}:
                text = f"{name(request)} isolated {each['uuid']}, and empties {part.gpu}, which is called {device} now"
                yield Suspicion("emptied by mistake", f"{uid} {device}", text)


def repaired_by_nobody(world: World) -> Iterator[Suspicion]:
    """A GpuNode lists a GPU as repaired only while a policy's request whose Jobs succeeded covers it."""
    requests = {name(each): each for each in world.requests.values()}
    for node in world.gpu_nodes.values():
        for each in (node.get("spec") or {}).get("repaired") or []:
            request = requests.get(each["request"])
            if request is None or not _has_repaired(request):
                text = f"{name(node)} is told that {each['uuid']} was repaired for {each['request']}, and nothing was"
                yield Suspicion("repaired by nobody", f"{name(node)} {each['uuid']}", text)


def _has_repaired(request: Object) -> bool:
    ours = REMEDIATES in (request["metadata"].get("labels") or {})
    return ours and condition(request, "Worked").get("status") == "True" and phase_of(request) not in OVER


def part_now(world: World, device: DeviceName) -> Part | None:
    """What a name stands for now."""
    seen = world.names.history.get(device)
    return seen[-1][1] if seen else None


def _message(request: Object) -> str:
    return str((request.get("status") or {}).get("message") or "")
