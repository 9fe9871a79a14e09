"""What the name of a published device says of a partition.

Owns the reading of names, for all who meet them in allocated claims: a claim names its devices and nothing else of them, and must
be understood after they are no longer published. The agent makes the names (`agent.partitions`).
"""

import re
from typing import NamedTuple


class PartitionName(NamedTuple):
    """The name of a partition, taken apart. `parent` is the name of its whole GPU."""

    parent: str
    profile_id: int
    start: int


_PARTITION = re.compile(r"(gpu-[0-9]+)-mig-[a-z0-9.+-]+-([0-9]+)-([0-9]+)")


def read_partition_name(device: str) -> PartitionName | None:
    """What a device's name says of a partition: gpu-0-mig-1g10gb-19-4. None for a whole GPU, or any other name.

    The profile is named by NVML's id; its text is for people and differs between drivers.
    """
    found = _PARTITION.fullmatch(device)
    return PartitionName(found[1], int(found[2]), int(found[3])) if found else None
