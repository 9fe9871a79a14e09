"""Many small clusters in one run: JSON lines in, one JSON line out for each, as they arrive.

Owns the forms of scenarios and answers. `allocate` alone decides, on objects as given: objects that an API server would refuse to
store are answered as Kubernetes' allocator answers them. Knows neither files nor the command line.
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
"""Most bytes of a scenario: a few thousand nodes with all their devices."""

_VERSIONS: Final = {"Node": "v1", "Pod": "v1"}


class ScenarioError(DracoError):
    """A line that is not a valid scenario."""


class Scenario(msgspec.Struct):
    """One line: objects, and the claims to allocate together on a node, which is a name or an object."""

    node: str | dict[str, Any]
    name: str | int | None = None
    objects: list[dict[str, Any]] | None = None
    claims: list[str] | None = None


class ScenarioAnswer(msgspec.Struct):
    """Results of the claims in order. Without results and error, they do not fit."""

    name: str | int | None
    results: list[dict[str, Any]] | None = None
    error: str | None = None


def answers(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One answer per scenario. A line that cannot be read is answered with the error."""
    for number, line in enumerate(lines, 1):
        yield msgspec.json.encode(answer(line, f"line {number}")) + b"\n"


def answer(line: bytes, source: str) -> ScenarioAnswer:
    """The allocator's answer to one scenario."""
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
    """The name in a malformed scenario, so that its answer can be matched; None if it has none."""
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
    """The named node; one without labels if no object describes it."""
    if isinstance(node, str):
        return known.get(node) or Node(metadata=ObjectMeta(name=node))
    return cast("Node", _decoded({**node, "kind": "Node"}, "node"))


def _fleet(objects: list[dict[str, Any]]) -> Fleet:
    """A fleet of the objects, without Pods and templates, which the allocator ignores. Raises ScenarioError for a duplicate."""
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
    """Decode an object; apiVersion defaults to the current one."""
    kind = manifest.get("kind")
    version = _VERSIONS.get(kind, "resource.k8s.io/v1") if isinstance(kind, str) else "v1"
    return decode({"apiVersion": version, **manifest}, source=source)
