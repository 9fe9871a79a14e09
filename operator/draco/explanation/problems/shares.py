"""Claims that would get shares which no container could use together, because of what holds them to their memory.

Only what is certain is told: every device that a request selects is shared in that way, so whatever the scheduler takes is
refused at Prepare. `allocation.share_limits` has the rules.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.rowwise import places
from draco.allocation.share_limits import ONE_CLAIM, ONE_DAEMON, OTHER_CONTAINER, ShareRoom
from draco.cel.paths import AttributePath
from draco.explanation.model import Problem, ProblemKind
from draco.explanation.selection import count, met
from draco.resources.api.claims import ExactDeviceRequest, ResourceClaim
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT, DRACO_DOMAIN, NVIDIA_DRIVER, of_driver
from draco.resources.quantity import Quantity

_OURS: Final = f'device.driver == "{NVIDIA_DRIVER}"'
_LEVEL: Final = f'{_OURS} && device.attributes["{DRACO_DOMAIN}"].?memoryLimit.orValue("")'


def share_problems(fleet: Fleet, claim: ResourceClaim, selected: Mapping[str, bytes]) -> Iterator[Problem]:
    """Requests for shares that Draco's agent would refuse. `selected` are the rows that each request selects, by name."""
    if fleet.inventory.columns.get(AttributePath("attributes", *ATTRIBUTE_MEMORY_LIMIT.split("/"))) is None:
        return
    asked = {one.name: one.exactly for one in claim.spec.devices.requests if one.exactly and selected.get(one.name)}

    def problem(name: str, text: str, remedy: str) -> Problem:
        claims = str(claim.metadata.key)
        return Problem(kind=ProblemKind.SHARES_REFUSED, text=text, claim=claims, request=name, remedy=remedy)

    def held(name: str, by: MemoryLimitBy) -> int:
        return count(met(fleet, f'{_LEVEL} == "{by}"', selected[name]))

    for by, way in ((MemoryLimitBy.MPS, "MPS"), (MemoryLimitBy.LIBRARY, "a library that limits their memory")):
        only = [
            name
            for name, each in asked.items()
            if (found := held(name, by)) == count(selected[name])
            and found
            and not _any_alone(fleet, each, selected[name])
        ]
        for name in only:
            number = asked[name].count if asked[name].allocation_mode != "All" else 1
            if by is MemoryLimitBy.MPS and number > 1:
                text = f"request {name} wants {number} GPUs, and all that it selects are shared with MPS: {ONE_DAEMON}"
                yield problem(name, text, f"ask for 1, {ONE_CLAIM}")
                return
        for name in asked if only else ():
            admin = by is MemoryLimitBy.MPS and asked[name].admin_access
            if name not in only and not admin and count(met(fleet, _OURS, selected[name])) and not held(name, by):
                text = f"all GPUs that request {only[0]} selects are shared with {way}, and none that request {name} selects"
                why = ONE_DAEMON if by is MemoryLimitBy.MPS else "a container that has both would be limited on both"
                yield problem(
                    name,
                    f"{text}: {why}",
                    "use several pods with a claim each" if by is MemoryLimitBy.MPS else OTHER_CONTAINER,
                )
                return


def _any_alone(fleet: Fleet, asked: ExactDeviceRequest, marks: bytes) -> bool:
    """Whether the request may get a share that has its GPU alone."""
    amounts = asked.capacity.requests if asked.capacity is not None else {}
    wanted = Quantity.read(of_driver(amounts, "memory", NVIDIA_DRIVER) or "")
    devices = (fleet.inventory.columns.devices[row] for row in places(marks, 1))
    rooms = {ShareRoom.of(device, NVIDIA_DRIVER) for device in devices if device is not None}
    return any(room.is_all(room.default if wanted is None else wanted.value()) for room in rooms if room is not None)
