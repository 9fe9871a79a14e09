"""Finds objects in manifests, however old, wrong or incomplete these are.

Owns the paths to claims, requests, selectors and pods. Skips values of an unexpected shape; the responsible rule reports them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from draco.linting.model import Json, Manifest, TreePath
from draco.resources.written.conversion import GROUP, OF_A_REQUEST
from draco.resources.written.manifests import WORKLOADS, copies
from draco.selectors.known_names import CLASSES

_POD_SPECS: Final[Mapping[str, TreePath]] = MappingProxyType(
    {"Pod": ("spec",), **{kind: (*path, "spec") for (_, kind), path in WORKLOADS.items()}}
)
"""Path to the pod spec in each kind, whatever its version."""
NAMING: Final[Mapping[str, bool]] = MappingProxyType({"resourceClaimName": False, "resourceClaimTemplateName": True})
"""Fields of a pod's resourceClaims entry that name a claim, and whether they name a template."""
CONTAINERS: Final = ("initContainers", "containers")
_DRIVER: Final = re.compile(r"""device\.driver\s*==\s*(["'])([^"'\\]+)\1""")


class WrittenClaim(NamedTuple):
    """What a claim or a template asks for; `devices` is at `path`."""

    manifest: int
    path: TreePath
    devices: Json
    name: str
    namespace: str
    is_template: bool


class WrittenClaims:
    """The claims and templates of manifests by name. If several have one name, the first counts."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self.all = list(claims(manifests))
        self._by_name: dict[tuple[str, bool, str], WrittenClaim] = {}
        self._by_namespace: dict[str, list[WrittenClaim]] = defaultdict(list)
        for claim in self.all:
            self._by_name.setdefault((claim.namespace, claim.is_template, claim.name), claim)
            self._by_namespace[claim.namespace].append(claim)

    def within(self, namespace: str) -> Sequence[WrittenClaim]:
        """The claims and templates of a namespace."""
        return self._by_namespace.get(namespace, ())

    def find(self, namespace: str, name: str, *, is_template: bool) -> WrittenClaim | None:
        """The claim, or the template, of that name."""
        return self._by_name.get((namespace, is_template, name))

    def named_by(self, entry: "WrittenRequest", namespace: str) -> WrittenClaim | None:
        """The claim or template that an entry of a pod's resourceClaims names."""
        found = (
            self.find(namespace, text(entry.fields.get(field)), is_template=is_template)
            for field, is_template in NAMING.items()
        )
        return next((claim for claim in found if claim is not None), None)


class WrittenRequest(NamedTuple):
    """A request, or one alternative of a prioritized list."""

    path: TreePath
    fields: Json


class WrittenPodSpec(NamedTuple):
    """The spec of a pod, or of a workload's pods; `replicas` defaults to 1."""

    manifest: int
    path: TreePath
    spec: Json
    kind: str
    name: str
    namespace: str
    replicas: int


class WrittenUse(NamedTuple):
    """The use of an entry of resourceClaims by a container, or by a device of a virtual machine (KubeVirt)."""

    path: TreePath
    fields: Json
    name_field: str = "name"
    request_field: str = "request"

    @property
    def name(self) -> str:
        """The name of the entry."""
        return text(self.fields.get(self.name_field))


class WrittenSelector(NamedTuple):
    """An expression and its place; `driver` is the driver of its devices, None if unknown."""

    manifest: int
    path: TreePath
    expression: str
    driver: str | None
    is_of_class: bool


def mapping(value: Any) -> Json:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> Sequence[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def at(tree: Json, path: TreePath) -> Any:
    """The value at a path, or None."""
    here: Any = tree
    for step in path:
        if isinstance(step, int):
            here = here[step] if isinstance(here, list) and step < len(here) else None
        else:
            here = mapping(here).get(step)
    return here


def is_near(one: TreePath, other: TreePath) -> bool:
    """Whether one path contains the other, or both are equal."""
    shorter, longer = sorted((one, other), key=len)
    return longer[: len(shorter)] == shorter


def text(value: Any) -> str:
    """Return the value if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def objects_in(tree: Json) -> Iterator[tuple[TreePath, Json]]:
    """Yield the object of a document, or each item of a list, with its path."""
    items = tree.get("items")
    if not str(tree.get("kind")).endswith("List") or not isinstance(items, list):
        yield (), tree
        return
    for index, item in enumerate(items):
        if isinstance(item, dict):
            yield ("items", index), item


def kind_of(manifest: Manifest) -> str:
    """The kind, or ""."""
    return text(manifest.tree.get("kind"))


def name_of(tree: Json) -> str:
    """metadata.name."""
    return text(mapping(tree.get("metadata")).get("name"))


def namespace_of(tree: Json) -> str:
    """metadata.namespace, or "default"."""
    return text(mapping(tree.get("metadata")).get("namespace")) or "default"


def is_of_group(manifest: Manifest) -> bool:
    """Whether it is an object of resource.k8s.io in any version."""
    return text(manifest.tree.get("apiVersion")).partition("/")[0] == GROUP


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> Iterator[tuple[int, Manifest]]:
    """Yield the objects of these kinds in resource.k8s.io, in any version, with their index."""
    for index, manifest in enumerate(manifests):
        if kind_of(manifest) in kinds and is_of_group(manifest):
            yield index, manifest


def claims(manifests: Sequence[Manifest]) -> Iterator[WrittenClaim]:
    """Yield every claim and template."""
    for index, manifest in of_kind(manifests, "ResourceClaim", "ResourceClaimTemplate"):
        is_template = kind_of(manifest) == "ResourceClaimTemplate"
        path: TreePath = ("spec", "spec", "devices") if is_template else ("spec", "devices")
        devices = mapping(at(manifest.tree, path))
        yield WrittenClaim(index, path, devices, name_of(manifest.tree), namespace_of(manifest.tree), is_template)


def requests(claim: WrittenClaim) -> Iterator[WrittenRequest]:
    """Yield each request of a claim as a whole."""
    return _items(claim.path, claim.devices, "requests")


def _items(path: TreePath, holder: Json, field: str) -> Iterator[WrittenRequest]:
    """Yield the mappings in the list `holder[field]`, with their paths."""
    for number, item in enumerate(listed(holder.get(field))):
        if isinstance(item, dict):
            yield WrittenRequest((*path, field, number), item)


def wanted(request: WrittenRequest) -> Iterator[WrittenRequest]:
    """Yield what a request asks for: one entry, or each alternative."""
    if any(field in request.fields for field in OF_A_REQUEST):
        yield request
    if isinstance(exactly := request.fields.get("exactly"), dict):
        yield WrittenRequest((*request.path, "exactly"), exactly)
    yield from _items(request.path, request.fields, "firstAvailable")


def asked_of(claim: WrittenClaim) -> Iterator[WrittenRequest]:
    """Yield what all requests of a claim ask for."""
    for request in requests(claim):
        yield from wanted(request)


def expression_of(selector: Any) -> str:
    """The expression of an item of selectors, or ""."""
    return text(mapping(mapping(selector).get("cel")).get("expression"))


def request_names(claim: WrittenClaim) -> list[str]:
    """The names by which constraints and containers can refer to requests, including alternatives."""
    names = []
    for request in requests(claim):
        name = text(request.fields.get("name"))
        alternatives = map(mapping, listed(request.fields.get("firstAvailable")))
        names += [name, *(f"{name}/{text(alternative.get('name'))}" for alternative in alternatives)]
    return [name for name in names if name]


def selectors(manifests: Sequence[Manifest]) -> Iterator[WrittenSelector]:
    """Yield every expression of every claim, template and class."""
    drivers = drivers_of_classes(manifests)
    for claim in claims(manifests):
        configured = _configured_driver(claim)
        for asked in asked_of(claim):
            driver = drivers.get(text(asked.fields.get("deviceClassName")), configured)
            yield from _expressions(claim.manifest, asked.path, asked.fields, driver, is_of_class=False)
    for index, manifest in of_kind(manifests, "DeviceClass"):
        spec = mapping(manifest.tree.get("spec"))
        driver = drivers.get(name_of(manifest.tree))
        yield from _expressions(index, ("spec",), spec, driver, is_of_class=True)


def _configured_driver(claim: WrittenClaim) -> str | None:
    """The driver that all configurations of a claim are for, and so its devices'; None without one."""
    opaque = [mapping(mapping(config).get("opaque")) for config in listed(claim.devices.get("config"))]
    found = {text(each.get("driver")) for each in opaque}
    return found.pop() or None if len(found) == 1 else None


def _expressions(
    manifest: int, path: TreePath, holder: Json, driver: str | None, *, is_of_class: bool
) -> Iterator[WrittenSelector]:
    for number, selector in enumerate(listed(holder.get("selectors"))):
        expression = mapping(mapping(selector).get("cel")).get("expression")
        if isinstance(expression, str):
            place = (*path, "selectors", number, "cel", "expression")
            named = _DRIVER.search(expression)
            yield WrittenSelector(manifest, place, expression, named[2] if named else driver, is_of_class)


def drivers_of_classes(manifests: Sequence[Manifest]) -> dict[str, str]:
    """The driver of each known class: NVIDIA's classes, and those in the manifests whose selectors compare the driver."""
    drivers = dict(CLASSES)
    for manifest in manifests:
        if kind_of(manifest) != "DeviceClass":
            continue
        for selector in listed(mapping(manifest.tree.get("spec")).get("selectors")):
            if named := _DRIVER.search(expression_of(selector)):
                drivers[name_of(manifest.tree)] = named[2]
    return drivers


def pods(manifests: Sequence[Manifest]) -> Iterator[WrittenPodSpec]:
    """Yield the pod spec of every pod and workload, and those inside of other kinds, such as JobSet and RayCluster."""
    for index, manifest in enumerate(manifests):
        kind, tree = kind_of(manifest), manifest.tree
        paths = [_POD_SPECS[kind]] if kind in _POD_SPECS else _inner_pod_specs(tree)
        for path in paths:
            if isinstance(spec := at(tree, path), dict):
                yield WrittenPodSpec(index, path, spec, kind, name_of(tree), namespace_of(tree), copies(tree))


def _inner_pod_specs(tree: Json) -> Iterator[TreePath]:
    """Paths to the specs of pods and virtual machines anywhere in an object."""
    waiting: list[tuple[TreePath, Any]] = [((), tree)]
    while waiting:
        path, here = waiting.pop()
        if path and path[-1] == "spec" and _is_pod_spec(mapping(here)):
            yield path
        elif isinstance(here, dict):
            waiting += [((*path, field), inner) for field, inner in reversed(list(here.items()))]
        elif isinstance(here, list):
            waiting += [((*path, number), inner) for number, inner in reversed(list(enumerate(here)))]


def _is_pod_spec(spec: Json) -> bool:
    """Whether it has containers, or a virtual machine's domain."""
    return any(map(mapping, listed(spec.get("containers")))) or bool(mapping(spec.get("domain")))


def uses(pod: WrittenPodSpec) -> Iterator[WrittenUse]:
    """Yield each use of an entry of a pod's resourceClaims."""
    for container in containers(pod):
        for path, fields in container_claims(container):
            yield WrittenUse(path, fields)
    devices = mapping(at(pod.spec, ("domain", "devices")))
    for field in ("gpus", "hostDevices"):
        for path, fields in _items((*pod.path, "domain", "devices"), devices, field):
            if fields.get("claimName"):
                yield WrittenUse(path, fields, "claimName", "requestName")


def containers(pod: WrittenPodSpec) -> Iterator[WrittenRequest]:
    """Yield each container of a pod with its path."""
    for field in CONTAINERS:
        yield from _items(pod.path, pod.spec, field)


def pod_claims(pod: WrittenPodSpec) -> Iterator[WrittenRequest]:
    """Yield each entry of a pod's resourceClaims."""
    return _items(pod.path, pod.spec, "resourceClaims")


def container_claims(container: WrittenRequest) -> Iterator[WrittenRequest]:
    """Yield each entry of a container's resources.claims."""
    return _items((*container.path, "resources"), mapping(container.fields.get("resources")), "claims")
