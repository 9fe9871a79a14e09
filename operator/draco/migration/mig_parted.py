"""Converts layouts of mig-parted, which NVIDIA's MIG manager applies, to MigPolicies.

A layout there is chosen for a node by its label `nvidia.com/mig.config`; the policies select nodes by the same label, so that the
labels stay in force. One entry of a layout becomes one policy. Owns the format and its rules, and what has no equal in Draco.
Must not guess: GPUs by index are not converted, since an index means another GPU after a boot or on another node.

Source: the types and checks of NVIDIA's mig-parted, version v1 of its configuration.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from draco.mig.board import Board
from draco.mig.known_boards import BOARDS, MODELS
from draco.mig.layouts import LayoutError, resolve
from draco.migration.conversion import Conversion, FormatError, Rest, decoded, object_name, selector
from draco.migration.device_ids import PRODUCTS
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.draco import LayoutInstances, MigLayout, MigMode, MigPolicy, MigPolicySpec
from draco.resources.api.meta import LabelSelector, ObjectMeta
from draco.resources.names import MIG_PROFILE, NVIDIA_DRIVER
from draco.resources.texts import agreeing, listed, nearest

LABEL: Final = "nvidia.com/mig.config"
DATA_KEY: Final = "config.yaml"
"""Where the MIG manager's ConfigMap has the configuration."""
_DEVICE_ID = re.compile(r"0x([0-9A-Fa-f]{4})10[Dd][Ee]")
_PROFILE = re.compile(rf"(\d+c\.)?{MIG_PROFILE.pattern}")
_ALL: Final = "all"
_BOARDS: Final[Mapping[str, Board]] = {
    model.product_name: BOARDS[name] for name, model in MODELS.items() if name in BOARDS
}
"""By product name, those whose profiles are known."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """How some GPUs of a node are divided. `devices` is "all" or indices; `device_filter` has PCI device IDs."""

    devices: str | list[int]
    mig_enabled: bool
    mig_devices: dict[str, int] | None = None
    device_filter: str | list[str] = ""

    @property
    def device_ids(self) -> Sequence[str]:
        """The PCI device IDs that it is for; none for all boards."""
        filters = [self.device_filter] if isinstance(self.device_filter, str) else self.device_filter
        return [each for each in filters if each]


class LayoutsByName(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """A configuration: entries by the name of the layout."""

    version: str
    mig_configs: dict[str, list[Entry]] = {}


def read(document: object) -> LayoutsByName:
    """Read a configuration. Raises FormatError."""
    found = decoded(document, LayoutsByName, "mig-parted")
    for name, entries in found.mig_configs.items():
        for number, entry in enumerate(entries, 1):
            for problem in _problems(entry):
                raise FormatError(f"entry {number} of layout {name}: {problem}")
    return found


def convert(configuration: LayoutsByName, layouts: Collection[str] = ()) -> Conversion:
    """Convert the layouts named, or all. Raises FormatError for one that does not exist."""
    there = configuration.mig_configs
    for each in layouts:
        if each not in there:
            raise FormatError(f"there is no layout {each}{nearest(each, there)}")
    return Conversion.of(each for name in layouts or there for each in _converted(name, there[name]))


def _problems(entry: Entry) -> Iterator[str]:
    """What mig-parted itself refuses."""
    if isinstance(entry.devices, str) and entry.devices != _ALL:
        yield f"devices is {entry.devices!r}; it must be all or a list of indices"
    if entry.mig_enabled and entry.mig_devices is None:
        yield "mig-enabled is true, so mig-devices must be there; write {} for no instances"
    if not entry.mig_enabled and entry.mig_devices:
        yield "mig-enabled is false, so mig-devices must be empty"
    for profile, count in (entry.mig_devices or {}).items():
        if _PROFILE.fullmatch(profile) is None:
            yield f"{profile!r} is no MIG profile; one is 1g.10gb"
        if count < 0:
            yield f"it wants {count} x {profile}; the number must not be negative"
    for each in entry.device_ids:
        if _DEVICE_ID.fullmatch(each) is None:
            yield f"device-filter {each} is no device ID of NVIDIA; one is 0x233010DE"


def _converted(name: str, entries: Sequence[Entry]) -> Iterator[MigPolicy | Rest]:
    """The policies of a layout, or why one of its entries has none."""
    if not entries:
        yield Rest(name, "it has no entries, so it divides nothing.")
    if twice := _selected_twice(entries):
        yield Rest(name, f"several entries are for {twice}, of which mig-parted keeps the last; remove the others.")
        return
    if indices := sorted({each for entry in entries if isinstance(entry.devices, list) for each in entry.devices}):
        yield Rest(
            name,
            f"it divides the GPUs {listed(indices, len(indices))} by their index, which means other GPUs on another node or "
            "after a boot. Write MigPolicies with device selectors, or with the UUIDs of the other GPUs in spec.exclude.",
        )
    for entry in entries:
        if isinstance(entry.devices, list):
            continue
        products = [product for each in entry.device_ids for product in PRODUCTS.get(_id(each), ())]
        if unknown := [each for each in entry.device_ids if _id(each) not in PRODUCTS]:
            yield Rest(
                name,
                f"no product is known for device-filter {listed(unknown)}. If you have such boards, add their productName to the "
                "device selector, as `draco status -o json` has it.",
            )
            if not products:
                continue
        yield _policy_or_rest(name, entry, products, is_alone=len(entries) == 1)


def _policy_or_rest(name: str, entry: Entry, products: Sequence[str], *, is_alone: bool) -> MigPolicy | Rest:
    instances = [
        LayoutInstances(profile=each, count=count) for each, count in (entry.mig_devices or {}).items() if count
    ]
    if entry.mig_enabled and not instances:
        return Rest(
            name,
            "it switches MIG on without instances. To have them made for claims, write a MigPolicy with mode Dynamic.",
        )
    if odd := [each.profile for each in instances if MIG_PROFILE.fullmatch(each.profile) is None]:
        return Rest(
            name,
            f"{listed(odd)} {agreeing(len(odd), 'is', 'are')} a part of an instance's compute slices; Draco gives each instance "
            "all of them. Use the profile of the whole instance, such as 2g.10gb.",
        )
    if impossible := _impossible(instances, products):
        return Rest(name, impossible)
    mode = MigMode.STATIC if entry.mig_enabled else MigMode.DISABLED
    layout = _name(name, []).replace(".", "-") if instances else ""
    return MigPolicy(
        metadata=ObjectMeta(name=_name(name, [] if is_alone else products)),
        spec=MigPolicySpec(
            mode=mode,
            node_selector=LabelSelector(match_labels={LABEL: name}),
            device_selectors=_selectors(products),
            layouts=[MigLayout(name=layout, instances=instances)] if instances else [],
            layout=layout,
        ),
    )


def _impossible(instances: Sequence[LayoutInstances], products: Iterable[str]) -> str:
    """Why none of these products can have the layout; "" if one can, or if Draco has no table of one."""
    why = ""
    for product in products:
        if (board := _BOARDS.get(product)) is None:
            return ""
        try:
            resolve(board, instances)
        except LayoutError as error:
            why = f"{error}."
        else:
            return ""
    return why


def _selected_twice(entries: Sequence[Entry]) -> str:
    """The boards that several entries are for; "" if there are none."""
    by_index = [set(each.devices) if isinstance(each.devices, list) else None for each in entries]
    ids = [set(map(_id, each.device_ids)) for each in entries]
    for later in range(len(entries)):
        for earlier in range(later):
            one, other = by_index[earlier], by_index[later]
            if one is not None and other is not None and not one & other:
                continue
            if not ids[earlier] or not ids[later]:
                return "the same boards"
            if common := sorted(ids[earlier] & ids[later]):
                return listed(f"0x{each}10DE" for each in common)
    return ""


def _selectors(products: Sequence[str]) -> list[DeviceSelector]:
    if not products:
        return []
    names = ", ".join(f'"{each}"' for each in products)
    return [selector(f'device.attributes["{NVIDIA_DRIVER}"].productName in [{names}]')]


def _name(layout: str, products: Sequence[str]) -> str:
    return object_name("-".join([layout, *(each.removeprefix("NVIDIA ") for each in products[:1])]))


def _id(device_filter: str) -> str:
    return device_filter[2:6].upper()
