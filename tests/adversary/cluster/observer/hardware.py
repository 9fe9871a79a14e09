"""Files on the simulated nodes: the CDI specs that containers would get, and the boards behind the device files.

Owns reading them and the laws about them. Writes nothing. The state file is the simulated hardware itself.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from tests.adversary.cluster.observer.laws import BLOCKING
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import World, part_of

_LOST = 15
"""NVML's error code for a board that fell off the bus."""
_SPEC = re.compile(r"draco-(?P<driver>.+)-(?P<uid>[0-9a-f]{8}-[0-9a-f-]{27})\.json")
_BOARD = re.compile(r"/dev/nvidia(\d+)")


class Spec(NamedTuple):
    """What one CDI spec gives to containers. `boards` maps a board's device file to the UUIDs that come with it."""

    node: str
    uid: str
    uuids: frozenset[str]
    boards: Mapping[str, frozenset[str]]
    capabilities: frozenset[str]
    needs: frozenset[str] = frozenset()
    """Files of the node without which a container does not start."""
    written: int = 0
    """Modification time in nanoseconds."""
    shares: frozenset[str] = frozenset()
    """The boards and instances of which the claim has shares."""

    @property
    def whole(self) -> frozenset[str]:
        """The whole boards that it gives."""
        return frozenset(file for file, uuids in self.boards.items() if any(each.startswith("GPU-") for each in uuids))


def read_specs(node: str, folder: Path) -> list[Spec]:
    """The specs of a node, without those that vanish or are half written."""
    found = []
    for path in sorted(folder.glob("draco-*.json")):
        named = _SPEC.fullmatch(path.name)
        if named is None:
            continue
        try:
            document, written = json.loads(path.read_bytes()), path.stat().st_mtime_ns
        except (OSError, ValueError):
            continue
        found.append(spec_of(node, named["uid"], document)._replace(written=written))
    return found


def spec_of(node: str, uid: str, document: Mapping[str, Any]) -> Spec:
    """Parse a spec."""
    uuids: set[str] = set()
    boards: dict[str, frozenset[str]] = {}
    capabilities: set[str] = set()
    needs: set[str] = set()
    shares: frozenset[str] = frozenset()
    for device in [document, *(document.get("devices") or [])]:  # edits outside of devices apply to each of them
        edits = device.get("containerEdits") or {}
        needs |= {each["hostPath"] for each in edits.get("mounts") or []}
        needs |= {each["path"] for each in edits.get("hooks") or []}
        values = [each.partition("=")[2] for each in edits.get("env") or []]
        own = frozenset(each for each in values if each.startswith(("GPU-", "MIG-")))
        shares |= own if len(str(device.get("name", "")).partition(uid)[2]) > 1 else frozenset()
        uuids |= own
        for file in edits.get("deviceNodes") or []:
            path = file.get("hostPath") or file["path"]
            if _BOARD.search(path):
                boards[path] = boards.get(path, frozenset()) | own
            elif "nvidia-cap" in path:
                capabilities.add(path)
    return Spec(node, uid, frozenset(uuids), boards, frozenset(capabilities), frozenset(needs), shares=shares)


def given_twice(specs: Collection[Spec], admins: Collection[str]) -> Iterator[Suspicion]:
    """No two specs give the same board, instance or capability; `admins` are claims with administrative access."""
    ordered = sorted((each for each in specs if each.uid not in admins), key=lambda each: (each.node, each.uid))
    for one, other in combinations(ordered, 2):
        if one.node != other.node or (one.uuids & other.uuids and one.uuids & other.uuids <= one.shares & other.shares):
            continue
        shared = (one.uuids & other.uuids) | (one.capabilities & other.capabilities)
        shared |= (one.whole & other.boards.keys()) | (other.whole & one.boards.keys())
        if shared:
            what = ", ".join(sorted(shared))
            text = f"on node {one.node} the specs of claims {one.uid} and {other.uid} both give {what}"
            yield Suspicion("prepared twice", f"{one.node} {one.uid} {other.uid}", text)


def wrong_board(specs: Collection[Spec], states: Mapping[str, Mapping[str, Any]]) -> Iterator[Suspicion]:
    """The device file in a spec belongs to the board whose UUID the spec names."""
    for spec in specs:
        behind = _boards(states.get(spec.node, {}))
        for file, uuids in spec.boards.items():
            found = _BOARD.search(file)
            board = behind.get(int(found[1])) if found else None
            for uuid in sorted(uuids):
                if not behind or (board and uuid in board):
                    continue
                text = f"on node {spec.node} the spec of claim {spec.uid} gives {file} as {uuid}; behind it is {_first(board)}"
                yield Suspicion("wrong board", f"{spec.node} {spec.uid} {file} {uuid}", text)


def lost_but_obtainable(world: World, states: Mapping[str, Mapping[str, Any]]) -> Iterator[Suspicion]:
    """Published devices of a lost or missing board have a taint that keeps claims away."""
    lost = {
        gpu["uuid"]: node
        for node, state in states.items()
        for gpu in [*state.get("gpus", []), *state.get("missing", [])]
        if gpu.get("error") == _LOST or gpu in state.get("missing", [])
    }
    for device, published in world.published():
        part = part_of(published)
        node = lost.get(part.gpu) if part else None
        if node is not None and not any(each.get("effect") in BLOCKING for each in world.taints(device, published)):
            text = f"{part} is lost, and {device} of it has no taint that keeps claims away"
            yield Suspicion("lost but obtainable", f"{node} {device} {part}", text)


def minded(state: Mapping[str, Any]) -> bool:
    """Whether the node's driver answers all calls without delay. If not, its agent cannot know anything new."""
    return bool(state) and not (state.get("failures") or state.get("latency_s") or state["driver"].get("error"))


def _boards(state: Mapping[str, Any]) -> dict[int, list[str]]:
    """The UUIDs of each board and its instances, by minor number."""
    found: dict[int, list[str]] = {}
    for gpu in state.get("gpus") or []:
        instances = [compute for each in gpu.get("instances") or [] for compute in each.get("compute") or []]
        found[gpu["minor"]] = [gpu["uuid"], *(each["uuid"] for each in instances)]
    return found


def _first(board: list[str] | None) -> str:
    return board[0] if board else "nothing"


def read_state(file: Path) -> dict[str, Any]:
    """The state of a node's boards; empty while it cannot be read."""
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found
