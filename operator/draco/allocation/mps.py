"""NVIDIA's mpsConfig: what it asks of an MPS control daemon, and what is wrong with one.

Owns its fields and their bounds, as NVIDIA's driver has them. Pure. `configurations` decides which configuration applies, `agent`
and `mps` run the daemons.
Source: MpsConfig in api/nvidia.com/resource/v1beta1/sharing.go of kubernetes-sigs/dra-driver-nvidia-gpu.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from draco.resources.errors import DracoError
from draco.resources.quantity import Quantity, QuantityError
from draco.resources.texts import shown

PERCENTAGE: Final = "defaultActiveThreadPercentage"
LIMIT: Final = "defaultPinnedDeviceMemoryLimit"
LIMITS: Final = "defaultPerDevicePinnedMemoryLimit"
MULTI_USER: Final = "multiUser"
FIELDS: Final = (PERCENTAGE, LIMIT, LIMITS, MULTI_USER)
_MI: Final = 1 << 20
_QUOTED: Final = 60


class MpsLimitsError(DracoError):
    """A limit is for no device of its configuration, as the end of a sentence."""


class MpsSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a configuration asks of its daemon. `limits_mib` are by UUID or number; `limit_mib` is for the other devices."""

    percentage: int | None = None
    limit_mib: int | None = None
    limits_mib: Mapping[str, int] = {}
    multi_user: bool = False

    def limits(self, uuids: Sequence[str]) -> list[int | None]:
        """The limit of each device of the configuration, in MiB; None for none. Numbers count the sorted UUIDs.

        MIG devices are named and sorted by their device names: their UUIDs change. Raises MpsLimitsError.
        """
        order = sorted(uuids)
        by_uuid: dict[str, int] = {}
        for key, mib in self.limits_mib.items():
            if key not in order and not (key.isdecimal() and int(key) < len(order)):
                devices = f"{len(order)} devices ({', '.join(order)})" if len(order) > 1 else f"one device ({order[0]})"
                raise MpsLimitsError(f"{LIMITS} names {shown(key)[:_QUOTED]}, and the configuration is for {devices}")
            by_uuid[key if key in order else order[int(key)]] = mib
        return [by_uuid.get(each, self.limit_mib) for each in uuids]


def settings(config: Mapping[str, Any]) -> MpsSettings:
    """An mpsConfig without mistakes."""
    limit = config.get(LIMIT)
    return MpsSettings(
        percentage=config.get(PERCENTAGE),
        limit_mib=None if limit is None else _mib(limit),
        limits_mib={key: _mib(each) for key, each in (config.get(LIMITS) or {}).items()},
        multi_user=config.get(MULTI_USER) or False,
    )


def mistakes(config: Mapping[str, Any], *, by_number: bool = False) -> Iterator[str]:
    """What is wrong with the values of an mpsConfig, to follow "because". `by_number`: limits are by number only."""
    percentage, limits, multi_user = (config.get(each) for each in (PERCENTAGE, LIMITS, MULTI_USER))
    if percentage is not None and not (type(percentage) is int and 0 <= percentage <= 100):
        yield f"{PERCENTAGE} is {_said(percentage)}: write a whole number from 0 to 100"
    if (limit := config.get(LIMIT)) is not None:
        yield from _bad_limit(LIMIT, limit)
    if limits is not None and not isinstance(limits, dict):
        yield f"{LIMITS} must be an object: a limit by UUID or number of a device"
    elif limits is not None:
        for key, each in limits.items():
            if by_number and not key.isdecimal():
                yield f"{LIMITS} names {shown(key)[:_QUOTED]}: write a number, since UUIDs of MIG devices change"
            yield from _bad_limit(f"{LIMITS}[{shown(key)[:_QUOTED]}]", each)
    if multi_user is not None and type(multi_user) is not bool:
        yield f"{MULTI_USER} is {_said(multi_user)}: write true or false"


def _bad_limit(name: str, value: Any) -> Iterator[str]:
    try:
        if _mib(value) < 1:
            yield f"{name} is {_said(value)}: MPS counts in Mi, so write 1Mi or more"
    except QuantityError as error:
        yield f"{name} is {error}"


def _mib(value: Any) -> int:
    """Whole MiB of a quantity, as NVIDIA's driver cuts it off. Raises QuantityError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Quantity.parse(value if isinstance(value, str) else str(value) if number else "").nanos // (_MI * 10**9)


def _said(value: Any) -> str:
    return shown(str(value))[:_QUOTED]
