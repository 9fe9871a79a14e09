"""Which GPUs of a node reach each other over NVLink, from the ends of their links in NVML.

Owns the neighbours and their published form. Pure: reads nothing, writes nothing. Through switches, all GPUs with a link to a
switch reach each other; otherwise those with a link between them. An absent GPU has no neighbours. Maintenance and faults change
nothing here: they are published as taints.
"""

from collections.abc import Mapping, Sequence

import msgspec

from draco.agent.hardware.gpus import Gpu, LinkEnds, device_name, position
from draco.agent.publish.slices import STRING_LIMIT
from draco.resources.api.slices import DeviceAttribute
from draco.resources.names import ATTRIBUTE_NVLINK_GROUP, ATTRIBUTE_NVLINK_PEERS

_NOTHING = LinkEnds()


class NvLinks(msgspec.Struct, frozen=True):
    """A GPU's NVLink peers, as ascending numbers from their names, and its group, in which all are linked to all.

    `group` is the lowest number of the group; None if some of them are not linked, or there is no link.
    """

    peers: tuple[int, ...] = ()
    group: int | None = None

    def attributes(self) -> dict[str, DeviceAttribute]:
        """The published attributes. Numbers fit for 16 GPUs and more, names would not; a truncated list would be wrong."""
        found = {}
        peers = " ".join(map(str, self.peers))
        if peers and len(peers) <= STRING_LIMIT:
            found[ATTRIBUTE_NVLINK_PEERS] = DeviceAttribute(string=peers)
        if self.group is not None:
            found[ATTRIBUTE_NVLINK_GROUP] = DeviceAttribute(int_=self.group)
        return found


def nvlinks(gpus: Sequence[Gpu]) -> dict[str, NvLinks]:
    """The links of a node's GPUs, by device name, without those that have none."""
    here = {_number(each): each.links or _NOTHING for each in gpus if not each.absent}
    address = {each.pci_bus_id: _number(each) for each in gpus if not each.absent}
    switched = {number for number, ends in here.items() if ends.switched}
    peers: dict[int, set[int]] = {number: switched - {number} if number in switched else set() for number in here}
    for number, ends in here.items():
        for other in {address[end] for end in ends.gpus if end in address} - {number}:
            peers[number].add(other)  # a link has two ends, even if only one could be read
            peers[other].add(number)
    names = {_number(each): device_name(each) for each in gpus}
    return {
        names[number]: NvLinks(tuple(sorted(found)), _group(number, peers)) for number, found in peers.items() if found
    }


def _group(number: int, peers: Mapping[int, set[int]]) -> int | None:
    members = peers[number] | {number}
    return min(members) if all(peers[each] | {each} == members for each in members) else None


def _number(gpu: Gpu) -> int:
    return position(gpu)[0]
