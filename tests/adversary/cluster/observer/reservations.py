"""The laws of reservations: reserved devices stay reserved until the end, and go only to pods that take them over.

Owns the history of what each reservation promised, by revision. Reservations and claims come on different watches, so a suspicion
is judged a moment later, by the promises at the claim's revision. Does no I/O.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tests.adversary.cluster.observer.members import claims_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Object, World, is_live, name, results, revision, stamp

KIND = "DeviceReservation"
WEIGHED_AFTER_S = 1.5
REMEMBERED_S = 40.0
"""How long ago the pod of a higher priority may have gone that a reservation lost devices to."""
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Given(NamedTuple):
    """A claim that got devices or lost them."""

    at: float
    claim: Object
    devices: frozenset[DeviceName]


class Reservations:
    """Told of each change of reservations, claims and pods."""

    def __init__(self, world: World) -> None:
        self.reserved = self.taken_over = 0
        """Number of reservations' claims that got devices, and of pods' claims that took some over."""
        self._world = world
        self._promised: dict[str, list[tuple[int, dict[DeviceName, str]]]] = {}
        self._given: list[Given] = []
        self._lost: list[Given] = []
        self._named: set[str] = set()
        self._urgent_at: dict[int, float] = {}
        """When a pod or reservation of each priority was last seen."""

    def reservation_changed(self, before: Object | None, after: Object | None) -> None:
        """A reservation was written or deleted."""
        one = after or before
        assert one is not None
        taking = ((after or {}).get("status") or {}).get("takeovers") or []
        promised = {device: each["uid"] for each in taking if each.get("allocation") for device in _devices(each)}
        self._promised.setdefault(one["metadata"]["uid"], []).append((revision(one), promised))

    def pod_changed(self, pod: Object, now: float) -> None:
        """A pod was written: the scheduler may take back devices that it cannot use, and a reservation's devices may go to it."""
        self._named.update(claims_of(pod))
        self._urgent_at[int(pod["spec"].get("priority") or 0)] = now

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        if after is None or after["metadata"].get("deletionTimestamp"):
            return
        had, has = stamp(before) if before else "", stamp(after)
        if has and has != had:
            self._given.append(Given(now, after, _held(after)))
            self.reserved += bool(reservation_of(after))
        used = ((before or {}).get("status") or {}).get("reservedFor")
        if before is not None and had and not has and not used and reservation_of(after):
            self._lost.append(Given(now, after, _held(before)))

    def _may_lose(self, one: Given) -> bool:
        """Whether a pod or reservation of a higher priority may have got its devices."""
        reservation = self._world.reservations.get(reservation_of(one.claim))
        its = priority_of(reservation) if reservation is not None else None
        if its is None:
            return reservation is None  # it is deleted with its reservation
        return any(priority > its and one.at - at < REMEMBERED_S for priority, at in self._urgent_at.items())

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Suspicions that proved right."""
        there = [priority_of(each) for each in self._world.reservations.values()]
        there += [int(each["spec"].get("priority") or 0) for each in self._world.pods.values() if is_live(each)]
        self._urgent_at |= {each: now for each in there if each is not None}
        for one in [each for each in self._given if now - each.at >= WEIGHED_AFTER_S]:
            self._given.remove(one)
            uid = one.claim["metadata"]["uid"]
            for said in self._promised.values():
                then = next((promised for since, promised in reversed(said) if since < revision(one.claim)), {})
                self.taken_over += any(then.get(device) == uid for device in one.devices)
                for device in one.devices:
                    if then.get(device, uid) != uid:
                        text = f"claim {name(one.claim)} was given {device}, which another claim is about to take over"
                        yield Suspicion("given while promised", f"{uid} {revision(one.claim)} {device}", text)
        for one in [each for each in self._lost if now - each.at >= WEIGHED_AFTER_S]:
            self._lost.remove(one)
            if not one.devices <= {device for device, _ in self._world.published()}:
                continue  # the device has left its pool: no pod could use the claim
            if name(one.claim) not in self._named and not self._may_lose(one):
                held = ", ".join(sorted(map(str, one.devices)))
                text = f"claim {name(one.claim)} of a reservation lost {held}; no pod ever named it, and nobody is more urgent"
                yield Suspicion("reservation lost", f"{one.claim['metadata']['uid']} {revision(one.claim)}", text)


def kept_after_the_end(world: World, at: datetime | None = None) -> Iterator[Suspicion]:
    """An ended reservation has no claims except those in use or being deleted."""
    now = at or datetime.now(UTC)
    ended = {uid for uid, one in world.reservations.items() if (end := ends_at(one)) is not None and end <= now}
    for uid, claim in world.claims.items():
        unused = not (claim.get("status") or {}).get("reservedFor")
        if reservation_of(claim) in ended and unused and not claim["metadata"].get("deletionTimestamp"):
            text = f"claim {name(claim)} is there, unused, and its reservation has ended"
            yield Suspicion("kept after the end", uid, text)


def kept_unused(world: World, at: datetime | None = None) -> Iterator[Suspicion]:
    """Unused claims are gone by the time at which their reservation says it loses them."""
    now = at or datetime.now(UTC)
    for reservation in world.reservations.values():
        for each in (reservation.get("status") or {}).get("idle") or []:
            claim = world.claims.get(each["uid"])
            if claim is None or claim["metadata"].get("deletionTimestamp") or not each.get("losesAt"):
                continue
            used = (claim.get("status") or {}).get("reservedFor")
            if not used and datetime.fromisoformat(each["losesAt"]) <= now:
                text = (
                    f"claim {name(claim)} is there, and was to lose its devices at {each['losesAt']}, as no pod uses it"
                )
                yield Suspicion("kept unused", each["uid"], text)


def priority_of(reservation: Object) -> int | None:
    """A reservation's priority, from its status."""
    said = (reservation.get("status") or {}).get("priority")
    return int(said) if said is not None else None


def reservation_of(claim: Object) -> str:
    """UID of the reservation that controls a claim; "" for none."""
    owners = claim["metadata"].get("ownerReferences") or []
    return next((str(each["uid"]) for each in owners if each["kind"] == KIND and each.get("controller")), "")


def ends_at(reservation: Object) -> datetime | None:
    """When it ends; None for never. Understands durations of one number and one unit."""
    spec = reservation["spec"]
    if said := spec.get("expiresAt"):
        return datetime.fromisoformat(said)
    if lasts := spec.get("duration"):
        made = datetime.fromisoformat(reservation["metadata"]["creationTimestamp"])
        return made + timedelta(seconds=int(lasts[:-1]) * _SECONDS[lasts[-1]])
    return None


def _devices(takeover: Object) -> frozenset[DeviceName]:
    return _held({"status": {"allocation": takeover["allocation"]}})


def _held(claim: Object) -> frozenset[DeviceName]:
    return frozenset(DeviceName(each["driver"], each["pool"], each["device"]) for each in results(claim))
