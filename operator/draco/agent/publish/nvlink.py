"""Which GPUs of a node reach each other over NVLink, by what NVML says of where their links lead.

Owns who is whose neighbour and the form in which that is published. Pure: reads nothing, writes nothing.

Through switches all GPUs reach each other that have a link to one; without, those between which there is a link. A GPU that is
absent has no neighbours. Maintenance and faults change nothing here: they are told by taints.
"""

from collections.abc import Mapping, Sequence

import msgspec

from draco.agent.hardware.gpus import LinkEnds, LocatedGpu, device_name, position
from draco.agent.publish.slices import STRING_LIMIT
from draco.resources.api.slices import DeviceAttribute
from draco.resources.names import ATTRIBUTE_NVLINK_GROUP, ATTRIBUTE_NVLINK_PEERS

_NOTHING = LinkEnds()


class NvLinks(msgspec.Struct, frozen=True):
    """The GPUs that one has an NVLink to, by the numbers in their names, ascending, and the group in which all have one to all.

    `group` is the lowest of the group's numbers; None where some of them have no link to each other, or there is no link.
    """

    peers: tuple[int, ...] = ()
    group: int | None = None

    def attributes(self) -> dict[str, DeviceAttribute]:
        """As they are published. Names would not fit: numbers do for 16 GPUs and more, and half of a list would be a lie."""
        found = {}
        peers = " ".join(map(str, self.peers))
        if peers and len(peers) <= STRING_LIMIT:
            found[ATTRIBUTE_NVLINK_PEERS] = DeviceAttribute(string=peers)
        if self.group is not None:
            found[ATTRIBUTE_NVLINK_GROUP] = DeviceAttribute(int_=self.group)
        return found


def nvlinks(gpus: Sequence[LocatedGpu]) -> dict[str, NvLinks]:
    """The links of a node's GPUs, by device name; those without any are left out."""
    here = {_number(each): each.gpu.links or _NOTHING for each in gpus if not each.gpu.absent}
    address = {each.gpu.pci_bus_id: _number(each) for each in gpus if not each.gpu.absent}
    switched = {number for number, ends in here.items() if ends.switched}
    peers: dict[int, set[int]] = {number: switched - {number} if number in switched else set() for number in here}
    for number, ends in here.items():
        for other in {address[end] for end in ends.gpus if end in address} - {number}:
            peers[number].add(other)  # a link has two ends, also where only one of them could be asked
            peers[other].add(number)
    names = {_number(each): device_name(each.gpu) for each in gpus}
    return {
        names[number]: NvLinks(tuple(sorted(found)), _group(number, peers)) for number, found in peers.items() if found
    }


def _group(number: int, peers: Mapping[int, set[int]]) -> int | None:
    members = peers[number] | {number}
    return min(members) if all(peers[each] | {each} == members for each in members) else None


def _number(located: LocatedGpu) -> int:
    return position(located.gpu)[0]
