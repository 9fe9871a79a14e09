"""Many small clusters at once: JSON lines in, one JSON line out for each, as they come.

Owns the form of a scenario and of its answer. A scenario is decided by `allocate` alone, on objects as they are given: what an
API server would refuse to store is answered as Kubernetes' allocator answers it. Knows nothing of files or of the command line.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import allocate
from draco.resources.api.claims import AllocationResult, DeviceClass, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.errors import DracoError
from draco.resources.written.conversion import written
from draco.resources.written.manifests import Object, decode
from draco.whatif.trials import share_ids

LONGEST_LINE: Final = 64 << 20
"""Bytes of a scenario: some thousand nodes with all their devices."""

_VERSIONS: Final = {"Node": "v1", "Pod": "v1"}


class ScenarioError(DracoError):
    """A line is no scenario."""


class Scenario(msgspec.Struct):
    """One line: objects, and the claims to allocate together on a node, given by its name or as an object."""

    node: str | dict[str, Any]
    name: str | int | None = None
    objects: list[dict[str, Any]] | None = None
    claims: list[str] | None = None


class ScenarioAnswer(msgspec.Struct):
    """Results of the claims in their order. Neither results nor an error: they do not fit."""

    name: str | int | None
    results: list[dict[str, Any]] | None = None
    error: str | None = None


def answers(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One line for each scenario. A line that cannot be read is answered by what is wrong with it."""
    for number, line in enumerate(lines, 1):
        yield msgspec.json.encode(answer(line, f"line {number}")) + b"\n"


def answer(line: bytes, source: str) -> ScenarioAnswer:
    """What the allocator says of one scenario."""
    name = None
    try:
        scenario = _scenario(line, source)
        name = scenario.name
        results = _decide(scenario)
    except DracoError as error:
        return ScenarioAnswer(name=_name(line) if name is None else name, error=str(error))
    except RecursionError:
        return ScenarioAnswer(name=name, error=f"{source}: the scenario is nested too deeply; no Kubernetes object is")
    return ScenarioAnswer(name=name, results=None if results is None else [written(result) for result in results])


def _scenario(line: bytes, source: str) -> Scenario:
    if len(line) > LONGEST_LINE:
        raise ScenarioError(f"{source} is longer than {LONGEST_LINE >> 20} MiB; split the scenario")
    try:
        return msgspec.json.decode(line, type=Scenario)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise ScenarioError(
            f'{source} is not a scenario: {error}; write {{"name", "objects": […], "node", "claims": ["namespace/name"]}}'
        ) from error


def _name(line: bytes) -> str | None:
    """The name in a line that is no scenario, so that its answer can be recognised."""
    try:
        return msgspec.json.decode(line[:LONGEST_LINE], type=_Named).name
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return None


class _Named(msgspec.Struct):
    name: str | None = None


def _decide(scenario: Scenario) -> list[AllocationResult] | None:
    fleet = _fleet(scenario.objects or [])
    node = _node(scenario.node, fleet.nodes)
    wanted: list[ResourceClaim] = []
    by_name = {str(key): claim for key, claim in fleet.claims.items()}
    for name in scenario.claims or []:
        claim = by_name.get(name) or by_name.get(f"default/{name}")
        if claim is None:
            raise ScenarioError(f'no claim "{name}" among the objects; name claims of the scenario as "namespace/name"')
        wanted.append(claim)
    return allocate(fleet.inventory, fleet.state, node, wanted, fleet.classes, share_ids=share_ids())


def _node(node: str | dict[str, Any], known: Mapping[str, Node]) -> Node:
    """The node of that name; one without labels if no object describes it."""
    if isinstance(node, str):
        return known.get(node) or Node(metadata=ObjectMeta(name=node))
    return cast("Node", _decoded({**node, "kind": "Node"}, "node"))


def _fleet(objects: list[dict[str, Any]]) -> Fleet:
    """Of objects, each of another name. Pods and templates are nothing to it: the allocator knows only claims."""
    found: dict[type, dict[object, Any]] = defaultdict(dict)
    for number, manifest in enumerate(objects, 1):
        source = f"object {number}"
        item = _decoded(manifest, source)
        key, of_kind = item.metadata.key, found[type(item)]
        if key in of_kind:
            raise ScenarioError(f"{source}: there are two objects {type(item).__name__} {key}; name each once")
        of_kind[key] = item
    return Fleet.of(
        slices=found[ResourceSlice].values(),
        rules=found[DeviceTaintRule].values(),
        nodes=found[Node].values(),
        classes=found[DeviceClass].values(),
        claims=found[ResourceClaim].values(),
    )


def _decoded(manifest: dict[str, Any], source: str) -> Object:
    """Scenarios may leave out the version where it is today's."""
    kind = manifest.get("kind")
    version = _VERSIONS.get(kind, "resource.k8s.io/v1") if isinstance(kind, str) else "v1"
    return decode({"apiVersion": version, **manifest}, source=source)
