"""The placer that is kept from one question to the next finds what a new one would, whatever has changed in between."""

import random
from collections.abc import Collection, Sequence

import msgspec
import pytest

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.placing.groups.group import allocated
from draco.placing.search import best, node_search
from draco.placing.search.best import BestPlacer
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.names import PoolKey
from tests.doubles.placing import a_placer
from tests.unit.allocation.worlds import a_world, put


def renamed(claim: ResourceClaim, name: str) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, name=name))


def found(
    placer: BestPlacer, claims: Sequence[ResourceClaim], called: str = "", spread: Collection[PoolKey] = ()
) -> str:
    """Where the claims would go, or "nowhere"; and where again after that, for them or for claims with the name `called`."""
    try:
        with placer.as_if(spread=spread):
            chosen = placer.best(claims, placer.fleet.nodes)
            if chosen is None:
                return "nowhere"
            for claim, result in zip(claims, chosen.results, strict=True):
                placer.put(allocated(renamed(claim, called + claim.metadata.name), result))
            again = placer.best(claims, placer.fleet.nodes)
            return f"{chosen}; {chosen.runner_up}; then {again}"
    except AllocationError as error:
        return str(error)


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 60), marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("tries", [best.MAX_TRIES_IN_ALL, 4])
def test_whatever_claims_come_and_go_in_between_the_kept_placer_finds_what_a_new_one_does(
    tries: int, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the search is cut short: its result is then not remembered."""
    monkeypatch.setattr(best, "MAX_TRIES_IN_ALL", tries)
    monkeypatch.setattr(node_search, "_LEAST_TRIES", 1)
    moves = 0
    for seed in seeds:
        chance = random.Random(seed)
        fleet, objects, asked = Fleet(), *a_world(chance)
        known = [put(fleet, each) for each in objects]
        claims = {str(each.metadata.key): each for each in known if isinstance(each, ResourceClaim)}
        wanted = [claims[name] for name in asked]
        holding = [each for each in claims.values() if each.status.allocation is not None]
        placer = a_placer(fleet)
        for turn in range(12):
            question = wanted if chance.random() < 0.6 else wanted[: chance.randint(1, len(wanted))]
            called, spread = (
                chance.choice(("", "another-")),
                chance.choice(([], [each.key for each in fleet.inventory.pools])),
            )
            kept = found(placer, question, called, spread)
            assert kept == found(a_placer(fleet), question, called, spread), (seed, turn)
            if holding and chance.random() < 0.3:
                gone = holding.pop(chance.randrange(len(holding)))
                placer.remove(gone.metadata.key)
                continue
            try:
                with placer.as_if():
                    chosen = placer.best(question, fleet.nodes)
            except AllocationError:
                continue
            for claim, result in zip(question, chosen.results if chosen else [], strict=False):
                holding.append(allocated(renamed(claim, f"{claim.metadata.name}-{turn}"), result))
                placer.put(holding[-1])
                moves += 1
    assert moves >= len(seeds)


def test_a_claim_that_nobody_knows_may_be_forgotten() -> None:
    placer = a_placer(Fleet())
    placer.remove(ObjectKey("default", "nobodys"))
    with placer.as_if():
        pass
    placer.remove(ObjectKey("default", "nobodys"))
