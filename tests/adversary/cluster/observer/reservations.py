"""The laws of reservations: what is reserved stays so until its end, and goes to nobody but who takes it over.

Owns the memory of what each reservation has promised to whom, revision by revision: reservations and claims come on different
watches, so what seems wrong is weighed a moment later, by what was promised at the claim's own revision. Does no I/O.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tests.adversary.cluster.observer.members import claims_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Object, World, name, results, revision, stamp

KIND = "DeviceReservation"
WEIGHED_AFTER_S = 1.5
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Given(NamedTuple):
    """A claim that was given devices, or lost them."""

    at: float
    claim: Object
    devices: frozenset[DeviceName]


class Reservations:
    """Told of each change of reservations, claims and pods."""

    def __init__(self, world: World) -> None:
        self.reserved = self.taken_over = 0
        """Claims of reservations that got devices, and claims of pods that took some over."""
        self._world = world
        self._promised: dict[str, list[tuple[int, dict[DeviceName, str]]]] = {}
        self._given: list[Given] = []
        self._lost: list[Given] = []
        self._named: set[str] = set()

    def reservation_changed(self, before: Object | None, after: Object | None) -> None:
        """A reservation was written or is gone."""
        one = after or before
        assert one is not None
        taking = ((after or {}).get("status") or {}).get("takeovers") or []
        promised = {device: each["uid"] for each in taking if each.get("allocation") for device in _devices(each)}
        self._promised.setdefault(one["metadata"]["uid"], []).append((revision(one), promised))

    def pod_changed(self, pod: Object) -> None:
        """A pod was written: the scheduler may take back what it cannot use."""
        self._named.update(claims_of(pod))

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or is gone."""
        if after is None or after["metadata"].get("deletionTimestamp"):
            return
        had, has = stamp(before) if before else "", stamp(after)
        if has and has != had:
            self._given.append(Given(now, after, _held(after)))
            self.reserved += bool(reservation_of(after))
        used = ((before or {}).get("status") or {}).get("reservedFor")
        if before is not None and had and not has and not used and reservation_of(after):
            self._lost.append(Given(now, after, _held(before)))

    def weighed(self, now: float) -> Iterator[Suspicion]:
        """Those that were right."""
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
            if name(one.claim) not in self._named:
                held = ", ".join(sorted(map(str, one.devices)))
                text = f"claim {name(one.claim)} of a reservation lost {held}, and no pod has ever named it"
                yield Suspicion("reservation lost", f"{one.claim['metadata']['uid']} {revision(one.claim)}", text)


def kept_after_the_end(world: World, at: datetime | None = None) -> Iterator[Suspicion]:
    """A reservation that has ended has no claims but those that are in use, or go."""
    now = at or datetime.now(UTC)
    ended = {uid for uid, one in world.reservations.items() if (end := ends_at(one)) is not None and end <= now}
    for uid, claim in world.claims.items():
        unused = not (claim.get("status") or {}).get("reservedFor")
        if reservation_of(claim) in ended and unused and not claim["metadata"].get("deletionTimestamp"):
            text = f"claim {name(claim)} is there, unused, and its reservation has ended"
            yield Suspicion("kept after the end", uid, text)


def reservation_of(claim: Object) -> str:
    """The UID of the reservation that controls a claim; "" for none."""
    owners = claim["metadata"].get("ownerReferences") or []
    return next((str(each["uid"]) for each in owners if each["kind"] == KIND and each.get("controller")), "")


def ends_at(reservation: Object) -> datetime | None:
    """When it ends; None for never. Durations are written as one number and one unit."""
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
