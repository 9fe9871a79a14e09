"""The agent machine's layer of SharingPolicies: an operator that decides forms of GPUs, and what must be true of them.

Owns the policies, the operator's looks, and the checks of published forms against allocated claims. The operator is the product's
own decision, because only both together keep the promise: the operator keeps a form that claims hold, and the agent gives notice
before it changes one. The operator looks before time passes, so always within that notice: it clears a GPU as soon as it sees the
notice, because nothing is allocated until the notice is over. `shares` has the steps of claims.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from hypothesis import strategies as st

from draco.resources.api.draco import MigMode, WantedGpu
from draco.resources.api.sharing import SharingPolicy
from draco.sharing.clearance import NOTICE_S, withdrawn
from draco.sharing.decide import SharableNode, SharingRules, decide, sharing_rules
from tests.adversary.agent.node import NUMBERS, accident, fired
from tests.adversary.agent.scheduler import Claim, Published, Result, amount, held
from tests.adversary.agent.sickness import refused
from tests.adversary.agent.slicing import TimeSlicing
from tests.adversary.agent.surroundings import DRIVER

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "Memory": {"mode": "Memory"},
    "Memory by default": {"mode": "Memory", "step": "1Gi", "minimum": "2Gi", "default": "10Gi"},
    "Count 2": {"mode": "Count", "count": 2},
    "Count 4": {"mode": "Count", "count": 4},
    "Unlimited": {"mode": "Unlimited"},
    "Limited": {"mode": "Memory", "step": "1Gi", "default": "10Gi", "enforcement": "DriverLimit"},
    "MIG, too": {"mode": "Memory", "migDevices": True},
    "MIG, too, by count": {"mode": "Count", "count": 2, "migDevices": True},
}
_DYNAMIC = WantedGpu(uuid="", policy="", mode=MigMode.DYNAMIC)
ASKED = st.sampled_from((*POLICIES, "Memory by default", "Limited", "Count 4", ""))
"""Draws what is wanted of a GPU; "" for no policy."""


class Sharing(TimeSlicing):
    """Steps for SharingPolicies, and the checks of published forms."""

    def __init__(self) -> None:
        super().__init__()
        self.policies: dict[str, str] = {}
        """The policy of each GPU, by UUID."""
        self.excused: set[str] = set()
        """GPUs of whose form nothing is demanded until no claim holds them."""
        self.announced: dict[str, tuple[str, str, float]] = {}
        """Published devices: board, form, and since when they are kept from claims."""
        self.sharing: frozenset[tuple[str, str]] = frozenset()
        """Pods with a share of a GPU, which they may have together."""

    @accident(pick=NUMBERS, asked=ASKED, seen=st.booleans())
    def sharing_policy(self, pick: int, asked: str, seen: bool = False) -> None:
        """A SharingPolicy for one GPU is made, changed or deleted."""
        self._share_gpu(pick, asked)
        for seconds in (61.0, 21.0) if seen else ():
            if self.agent is not None:
                self.turn(seconds)

    def _share_gpu(self, pick: int, asked: str) -> None:
        boards = self._boards()
        if not boards:
            return
        fired[f"sharing policy: {asked or 'none'}"] += 1
        uuid = boards[pick % len(boards)]
        if asked:
            self.policies[uuid] = asked
        else:
            self.policies.pop(uuid, None)
        self._decide()

    def _forms(self) -> dict[str, Any]:
        node = self.source.gpu_node
        if node is None:
            return {}
        devices = [device for one in self.source.slices.values() for device in one.spec.devices]
        rules = [_rules(uuid, asked) for uuid, asked in sorted(self.policies.items())]
        found = decide(SharableNode(gpu_node=node, devices=devices, claims=self.source.claims), rules)
        cleared = withdrawn(devices, DRIVER) & {each.uuid for each in found.gpus}
        return {
            "shared": [msgspec.to_builtins(each) for each in found.shared],
            "changing": found.changing,
            "cleared": [{"uuid": uuid, "generation": 1} for uuid in sorted(cleared)],
        }

    def _operator_looks(self) -> None:
        """The operator writes its decision about forms if that has changed. If the agent cannot hear of it, it is excused."""
        node = self.source.gpu_node
        held = {board for claim in self._allocated() for board in claim.boards.values()}
        self.excused = (self.excused & held) | {
            board for claim in self._allocated() if claim.blind for board in claim.boards.values()
        }
        if node is None:
            self.excused |= held if self.policies else set()
            return
        shown = any(_form(device) for device in self.past[-1].devices) if self.past else False
        if not (self.policies or node.spec.shared or node.spec.changing or shown):
            return
        wanted = self._forms()
        written = {
            "shared": [msgspec.to_builtins(each) for each in node.spec.shared],
            "changing": node.spec.changing,
            "cleared": [msgspec.to_builtins(each) for each in node.spec.cleared],
        }
        if node.spec.decided and wanted != written:
            self._decide()
        if not node.spec.decided or self.source.gone or self.source.mute:
            heard = {each["uuid"]: each for each in self.source.heard}
            self.excused |= held & {
                uuid
                for uuid in {*heard, *(each["uuid"] for each in wanted["shared"])}
                if heard.get(uuid) != next((each for each in wanted["shared"] if each["uuid"] == uuid), None)
            }

    def _board_of(self, device: str) -> str:
        """The board whose name a device's has; "" if none is published."""
        for last in self.past[-1:]:
            for name in last.names():
                if name.partition("-mig-")[0] == device.partition("-mig-")[0]:
                    return last.board(name)
        return ""

    def _give(
        self,
        claim: Claim,
        published: Published,
        device: str,
        *,
        tolerant: bool,
        admin: bool = False,
        wanted: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Allocate a device to a claim, or a share of it, if it fits.

        Slices that have another form than the last ones are seconds old: by then the scheduler has seen its end announced.
        """
        others = [] if admin else [*self.claims.values(), claim]
        if published.form(device) != self.past[-1].form(device) or device not in published.free(
            others, tolerant=tolerant, asked=wanted
        ):
            return
        consumed = published.consumption(device, wanted, held(others)) or {}
        share = (
            f"s{len(claim.results)}-{claim.name}" if published.device(device).get("allowMultipleAllocations") else ""
        )
        limited = bool(share) and not admin and published.limits(device)
        claim.results = [*claim.results, Result(device, admin=admin, share=share, consumed=consumed, limited=limited)]
        claim.boards = claim.boards | {device: published.board(device)}

    def _limits_work(self) -> bool:
        """Whether the loaded driver holds containers to their memory."""
        return int(str(self._hardware()["driver"]["version"]).partition(".")[0]) >= 615

    def _allocated(self) -> list[Claim]:
        return [claim for claim in self.claims.values() if not claim.gone]

    def _check_forms(self, published: Published) -> None:
        """What is published leaves the scheduler no more than there is, given all claims that it has allocated."""
        self._check_notice(published)
        for device in published.devices:
            name, board = device["name"], published.board(device["name"])
            if board in self.excused:
                continue
            held = [
                (claim, one)
                for claim in self._allocated()
                for one in claim.results
                if one.device == name and claim.boards.get(name) == board and not one.admin
            ]
            taken: dict[str, int] = {}
            for claim, one in held:
                shareable = bool(device.get("allowMultipleAllocations"))
                assert bool(one.share) is shareable, (
                    f"{name} is published {'for several claims' if shareable else 'for one claim'}, and {claim.name} has "
                    f"{'a share of it' if one.share else 'it alone'}"
                )
                for what, much in one.consumed.items():
                    taken[what] = taken.get(what, 0) + much
                counted = "shares" in device.get("capacity", {})
                assert not counted or "shares" in one.consumed, (
                    f"{name} is shared by number, and {claim.name} has a share without one"
                )
            fired["published under shares"] += bool(taken)
            for what, much in taken.items():
                there = amount(device.get("capacity", {}).get(what, {"value": "0"})["value"])
                assert much <= there, f"claims have {much} of {what} of {name}, which has {there}"

    def _check_notice(self, published: Published) -> None:
        """A form changes only after the API server has had a taint for as long as the scheduler may take to see it."""
        now_s = self.clock.monotonic()
        before, self.announced = self.announced, {}
        for device in published.devices:
            name, board, form = device["name"], published.board(device["name"]), _form(device)
            known = before.get(name)
            if known is not None and known[:2] == (board, form):
                since_s = known[2]
            else:
                since_s = math.inf
                assert known is None or known[0] != board or now_s - known[2] >= NOTICE_S, (
                    f"{name} was {known[1] or 'exclusive'} and is {form or 'exclusive'}, and nobody was told before"
                )
            self.announced[name] = (board, form, min(since_s, now_s) if refused(device) else math.inf)

    def _check_share_record(self) -> None:
        """The record never has two claims that exclude each other, and loses no share that kubelet was told of."""
        record = self._up().agent.parts.checkpoint.claims
        prepared = [
            (claim, device)
            for claim in record.values()
            if claim.state == "prepared"
            for device in claim.devices
            if not device.admin and device.partition is None
        ]
        for index, (claim, one) in enumerate(prepared):
            for other, two in prepared[index + 1 :]:
                assert claim is other or one.gpu != two.gpu or (one.share_id and two.share_id), (
                    f"{claim.name} and {other.name} are both prepared on {one.gpu}, and one has it alone"
                )
        for told in self.claims.values() if not self.damaged else ():
            if told.told and not told.leaving and told.shared:
                known: Any = record.get(told.uid)  # type: ignore[call-overload]
                state = known.state if known is not None else "away"
                assert state == "prepared", f"{told.name} has shares, and is {state} on record"

    def _check_sharers(self, claim: Claim) -> None:
        """A Prepare was just answered: all shares of a GPU have one time slice."""
        for other in self.claims.values():
            for device in claim.shared & other.shared if other.told and not other.leaving else ():
                assert claim.time_slices.get(device, 0) == other.time_slices.get(device, 0), (
                    f"{claim.name} and {other.name} have shares of {device} with different time slices"
                )
                assert claim.percentage == other.percentage or "-mig-" in device, (
                    f"{claim.name} and {other.name} have shares of {device} with different MPS"
                )

    def _check_share_refusal(self, claim: Claim, error: str) -> None:
        """Processes of pods that have other shares of a GPU are no reason to refuse one."""
        if not claim.shared or "of an earlier user" not in error:
            return
        fired["share refused for a process"] += 1
        told = {other.name for other in self.claims.values() if other.told and not other.leaving}
        for gpu in self._hardware()["gpus"]:
            if gpu["uuid"] in claim.boards.values() and len(claim.boards) == 1:
                pods = {each.get("hostname") for each in gpu["processes"]}
                assert not pods or not all((pod, gpu["uuid"]) in self.sharing and pod in told for pod in pods), (
                    f"{claim.name} gets no share beside others: {error}"
                )

    def _check_settled(self, published: Published) -> None:
        """At rest, when no claim is left, each GPU is published as its policy asks."""
        for device in published.devices:
            board = published.board(device["name"])
            is_part, is_divided = "-mig-" in device["name"], board in self.wanted or "consumesCounters" in device
            if is_part is not is_divided or refused(device):
                continue
            if is_part and self.wanted.get(board, _DYNAMIC).mode is not MigMode.STATIC:
                continue
            asked = POLICIES.get(self.policies.get(board, ""), {})
            if is_part and not asked.get("migDevices"):
                asked = {}
            if asked.get("mode") == "Memory" and "memory" not in device.get("capacity", {}):
                continue
            if "enforcement" in asked and not self._limits_work():
                asked = {}
            fired["form at rest"] += 1
            mode = asked.get("mode", "") + (", limited" if "enforcement" in asked else "")
            fired[f"form at rest: {mode}{', MIG' if is_part else ''}"] += 1
            assert _form(device) == mode, (
                f"{device['name']} is wanted as {mode or 'exclusive'}, and is published as "
                f"{_form(device) or 'exclusive'} although nobody has it"
            )


def _form(device: Mapping[str, Any]) -> str:
    """The mode in which a published device is shared; "" if it is not."""
    if not device.get("allowMultipleAllocations"):
        return ""
    limited = device["attributes"].get("draco.dev/memoryLimit", {}).get("string") == "driver"
    return _mode(device) + (", limited" if limited else "")


def _mode(device: Mapping[str, Any]) -> str:
    if "shares" in device.get("capacity", {}):
        return "Count"
    default = device.get("capacity", {}).get("memory", {}).get("requestPolicy", {}).get("default", "0")
    return "Memory" if amount(default) else "Unlimited"


def _rules(uuid: str, asked: str) -> SharingRules:
    selector = {"cel": {"expression": f'device.attributes["gpu.nvidia.com"].?uuid.orValue("") == "{uuid}"'}}
    spec = {**POLICIES[asked], "deviceSelectors": [selector]}
    return sharing_rules(msgspec.convert({"metadata": {"name": uuid.lower()}, "spec": spec}, SharingPolicy))


def sharers(claims: Iterable[Claim]) -> frozenset[tuple[str, str]]:
    """The claims (by UID) and devices of which they have shares."""
    return frozenset((claim.uid, device) for claim in claims for device in claim.shared)
