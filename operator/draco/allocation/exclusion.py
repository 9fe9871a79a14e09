"""What excludes what on one GPU: which ways to have it go together, and what is said about a claim in the way.

Owns the table, which docs/concepts/sharing.md shows, and its sentences. The agent asks before it prepares a claim, `explanation`
about allocated claims. Shares of one device must also ask for the same time slice and MPS, which are the device's. What a
configuration may ask for is decided in `configurations`, and how many shares there are by the scheduler. Pure.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from draco.allocation.configurations import TimeSlice, mps_settings, time_slice
from draco.allocation.mps import MpsLimitsError, MpsSettings
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.names import read_partition_name
from draco.resources.texts import agreeing, listed

SAME_SETTINGS: Final = "give it the same configuration in a new claim, or wait until that one has ended"
"""What to do about a claim that asks for other settings than the one in the way."""
SAME_SETTINGS_ITSELF: Final = (
    "make a new claim with the same configuration for both, or with different GPUs by the constraint distinctAttribute: "
    "gpu.nvidia.com/uuid"
)
"""The same for a claim with two shares."""
_NAMED: Final = 3


class Way(Enum):
    """How a claim has a GPU or a part of it."""

    ALONE = "the GPU alone"
    SHARE = "a share of the GPU"
    PART = "a MIG device alone"
    PART_SHARE = "a share of a MIG device"
    ADMIN = "administrative access to the GPU"
    PART_ADMIN = "administrative access to a MIG device"


class Beside(Enum):
    """When another claim may have the same GPU in another way."""

    NEVER = "no"
    ALWAYS = "yes"
    ALIKE = "with the same time slice and MPS"
    APART = "without common slices"
    ONE_OR_APART = "of the same MIG device, or without common slices"
    ALIKE_OR_APART = "of the same MIG device with the same MPS, or without common slices"


_TABLE: Final = {
    Way.ALONE: (Beside.NEVER,),
    Way.SHARE: (Beside.NEVER, Beside.ALIKE),
    Way.PART: (Beside.NEVER, Beside.NEVER, Beside.APART),
    Way.PART_SHARE: (Beside.NEVER, Beside.NEVER, Beside.APART, Beside.ALIKE_OR_APART),
    Way.ADMIN: (Beside.ALWAYS,) * 5,
    # Administrative access to a MIG device makes its instance, too, and so divides the GPU.
    Way.PART_ADMIN: (Beside.NEVER, Beside.NEVER, *[Beside.ONE_OR_APART] * 2, Beside.ALWAYS, Beside.ONE_OR_APART),
}
"""Each row goes up to its own way: the order of two claims makes no difference."""
_WAYS: Final = tuple(Way)
_APART: Final = (Beside.APART, Beside.ONE_OR_APART, Beside.ALIKE_OR_APART)
_ALIKE: Final = (Beside.ALIKE, Beside.ALIKE_OR_APART)


def beside(one: Way, other: Way) -> Beside:
    """The table's cell."""
    first, last = sorted((_WAYS.index(one), _WAYS.index(other)))
    return _TABLE[_WAYS[last]][first]


class DeviceSettings(NamedTuple):
    """How programs share a device. `together` are the devices of its MPS daemon, the limits of `mps` its own."""

    time_slice: TimeSlice = TimeSlice.DEFAULT
    mps: MpsSettings | None = None
    together: tuple[str, ...] = ()

    def __str__(self) -> str:
        if (mps := self.mps) is None:
            return f"time slices of {self.time_slice}"
        settings = (
            ("" if mps.percentage is None else f"{mps.percentage} % of the threads"),
            ("" if mps.limit_mib is None else f"{mps.limit_mib}Mi for each client"),
            ("several users" if mps.multi_user else ""),
            (f"{len(self.together)} GPUs together" if len(self.together) > 1 else ""),
        )
        return f"MPS ({', '.join(filter(None, settings)) or 'without limits'})"


def asked_settings(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> DeviceSettings | None:
    """What an accepted configuration asks of a device; None if only its node can tell: it counts the GPUs' UUIDs."""
    if (asked := mps_settings(claim, result)) is None:
        return DeviceSettings(time_slice(claim, result))
    number, mps = asked
    others = (each for each in claim.results if each.driver == result.driver)
    together = {each.device for each in others if (of := mps_settings(claim, each)) is not None and of[0] == number}
    try:
        if read_partition_name(result.device) is not None:
            limit = dict(zip(sorted(together), mps.limits(sorted(together)), strict=True))[result.device]
            together = {result.device}
        else:
            [limit] = mps.limits(sorted(together))
    except (MpsLimitsError, ValueError):
        return None
    return DeviceSettings(mps=msgspec.structs.replace(mps, limit_mib=limit, limits_mib={}), together=tuple(together))


class ClaimedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device as one claim has it. `units` are the slices of a MIG device, None for a whole GPU."""

    gpu: str
    device: str
    units: int | None = None
    is_share: bool = False
    is_admin: bool = False
    settings: DeviceSettings = DeviceSettings()

    @property
    def way(self) -> Way:
        """How the claim has it."""
        if self.units is None:
            return Way.ADMIN if self.is_admin else Way.SHARE if self.is_share else Way.ALONE
        return Way.PART_ADMIN if self.is_admin else Way.PART_SHARE if self.is_share else Way.PART


class Exclusion(NamedTuple):
    """Two uses that exclude each other; `settings` if only what they ask of a shared device differs."""

    wanted: ClaimedDevice
    held: ClaimedDevice
    settings: bool = False

    def difference(self, holder: str = "") -> str:
        """What the claim asks for, and the holder (or the claim itself) has, of a shared device, as the end of a sentence."""
        wanted, held = self.wanted, self.held
        asked, device = wanted.settings, wanted.device
        if not holder:
            return f"it asks for {asked} on one share of {device}, and for {held.settings} on another"
        return f"it asks for {asked} on {device}, and claim {holder} has another share of it with {held.settings}"

    def by(self, claim: str, holder: str, uid: str, then: str = "") -> str:
        """Why `claim` cannot be prepared beside `holder`, as a sentence. `then`: why the holder will not end, if it will not."""
        wanted, held = self.wanted, self.held
        if self.settings:
            return f"Claim {claim} cannot be prepared: {self.difference(holder)}; {then or f'{SAME_SETTINGS}.'}"
        what = "which is" if held.device == wanted.device else f"but {held.device} is"
        end = then or "it can be prepared when kubelet has unprepared that one."
        return (
            f"Claim {claim} was allocated {wanted.device}, {what} still prepared for claim {holder} (uid {uid}); {end}"
        )

    def in_itself(self, claim: str) -> str:
        """Why `claim` can never be prepared, as a sentence: it has both."""
        wanted, held = self.wanted, self.held
        if self.settings:
            return f"Claim {claim} cannot be prepared: {self.difference()}; {SAME_SETTINGS_ITSELF}."
        return (
            f"Claim {claim} was allocated both {wanted.device} and {held.device}, which share hardware; delete all pods that use "
            "the claim, so that it is allocated again."
        )


def exclusion(wanted: ClaimedDevice, held: ClaimedDevice) -> Exclusion | None:
    """Why the two exclude each other; None if they do not."""
    if wanted.gpu != held.gpu:
        return None
    rule, same = beside(wanted.way, held.way), wanted.device == held.device
    apart = rule in _APART and not (wanted.units or 0) & (held.units or 0)
    if rule is Beside.ALWAYS or apart or (rule is Beside.ONE_OR_APART and same):
        return None
    if not same or rule not in _ALIKE:
        return Exclusion(wanted, held)
    return None if wanted.settings == held.settings else Exclusion(wanted, held, settings=True)


def waits_for(claims: Sequence[str]) -> str:
    """What a change of a GPU in use waits for, as the end of a sentence."""
    return f"waits for {agreeing(len(claims), 'claim', 'claims')} {listed(claims, _NAMED)}"
