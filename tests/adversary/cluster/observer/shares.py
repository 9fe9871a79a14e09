"""The laws of shares: no device is given out beyond its capacities, and its form is that of the claims that hold it.

Owns reading capacities and what claims consume of them. Does no I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Holding, World, amount

UNSETTLED, SHARING = "draco.dev/unsettled", "Sharing"


def over_committed(world: World) -> Iterator[Suspicion]:
    """Claims have no more of a device's capacities than it ever had together, at any revision of the API server."""
    for device, holdings in _shares(world).items():
        there = world.names.most.get(device, {})
        for what, much in _consumed(holdings).items():
            if much > there.get(what, much):
                yield _beyond("over-committed", device, what, much, there[what], holdings)


def beyond_what_is_published(world: World) -> Iterator[Suspicion]:
    """Nor more than it is published with."""
    shares = _shares(world)
    for device, published in world.published():
        there = {name: amount(each["value"]) for name, each in (published.get("capacity") or {}).items()}
        for what, much in _consumed(shares.get(device, [])).items():
            if much > there.get(what.rpartition("/")[2], 0):
                yield _beyond("beyond what is published", device, what, much, there.get(what, 0), shares[device])


def otherwise_shared(world: World) -> Iterator[Suspicion]:
    """A device of which claims have shares is published for several claims, and one that a claim has alone is not."""
    published = dict(world.published())
    for holding in world.holdings():
        device = published.get(holding.device)
        if device is None:
            continue
        is_shareable = bool(device.get("allowMultipleAllocations"))
        if is_shareable is not bool(holding.share):
            how = "for several claims" if is_shareable else "for one claim"
            has = "a share of it" if holding.share else "it alone"
            text = f"{holding.device} is published {how}, and claim {holding.claim} has {has}"
            yield Suspicion("otherwise shared", f"{holding.uid} {holding.device}", text)


def waits_for_nobody(world: World) -> Iterator[Suspicion]:
    """At rest, a GPU that is to be shared otherwise is in use; once it is free, it changes."""
    held = {holding.device._replace(device=_gpu(holding.device.device)) for holding in world.holdings()}
    for device, published in world.published():
        taints = [(each["key"], each.get("value")) for each in published.get("taints") or []]
        if (UNSETTLED, SHARING) in taints and device._replace(device=_gpu(device.device)) not in held:
            text = f"{device} is kept free to be shared otherwise, and nobody has it"
            yield Suspicion("waits for nobody", str(device), text)


def _shares(world: World) -> dict[DeviceName, list[Holding]]:
    found: defaultdict[DeviceName, list[Holding]] = defaultdict(list)
    for holding in world.holdings():
        if holding.share:
            found[holding.device].append(holding)
    return found


def _consumed(holdings: list[Holding]) -> Counter[str]:
    found: Counter[str] = Counter()
    for holding in holdings:
        for what, much in holding.consumed:
            found[what.rpartition("/")[2]] += amount(much)
    return found


def _beyond(law: str, device: DeviceName, what: str, much: int, there: int, holdings: list[Holding]) -> Suspicion:
    claims = ", ".join(sorted(each.claim for each in holdings))
    text = f"claims {claims} have {much} of {what} of {device}, which has {there}"
    return Suspicion(law, f"{device} {what} {much}", text)


def _gpu(device: str) -> str:
    return device.partition("-mig-")[0]
