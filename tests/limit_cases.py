"""Objects at the limits of what an API server stores: accepted ones, and refused ones with Draco's message."""

from typing import Any, Final

Json = dict[str, Any]

V1: Final = "resource.k8s.io/v1"
RULES: Final = "resource.k8s.io/v1beta2"
DRIVER: Final = "gpu.example.com"
_POOL: Final = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
_LONG: Final = "a" * 32


def a_slice(**spec: Any) -> Json:
    fields = {"driver": DRIVER, "pool": _POOL, "nodeName": "node-0", **spec}
    return _of("ResourceSlice", {name: value for name, value in fields.items() if value is not None})


def a_device(**device: Any) -> Json:
    return a_slice(devices=[{"name": "gpu-0", **device}])


def a_capacity(**policy: Any) -> Json:
    capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    return a_device(capacity=capacity, allowMultipleAllocations=True)


def a_claim(**devices: Any) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    return _of("ResourceClaim", {"devices": {"requests": [request], **devices}}, namespace="default")


def an_exact(**fields: Any) -> Json:
    return a_claim(requests=[{"name": "gpu", "exactly": {"deviceClassName": "gpu", **fields}}])


def a_toleration(**fields: Any) -> Json:
    return an_exact(tolerations=[fields])


def a_template(**fields: Any) -> Json:
    claim = an_exact(**fields)
    return _of("ResourceClaimTemplate", {"spec": claim["spec"]}, namespace="default")


def a_class(**spec: Any) -> Json:
    return _of("DeviceClass", spec)


def a_rule(**taint: Any) -> Json:
    spec = {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "example.com/a", "effect": "NoSchedule", **taint}}
    return _of("DeviceTaintRule", spec) | {"apiVersion": RULES}


def _selecting(**selector: str) -> Json:
    rule = a_rule()
    rule["spec"]["deviceSelector"] |= selector
    return rule


def a_node_selector(*requirements: Json, terms: int = 1) -> Json:
    term = {"matchExpressions": list(requirements)}
    return a_slice(nodeName=None, nodeSelector={"nodeSelectorTerms": [term] * terms}, devices=[{"name": "gpu-0"}])


def a_pod(**spec: Any) -> Json:
    containers = [{"name": "main", "image": "busybox"}]
    return {**_of("Pod", {"containers": containers, **spec}, namespace="default"), "apiVersion": "v1"}


def an_affinity(*requirements: Json) -> Json:
    required = {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}
    return a_pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})


def _of(kind: str, spec: Json, **meta: str) -> Json:
    return {"apiVersion": V1, "kind": kind, "metadata": {"name": "x", **meta}, "spec": spec}


TAKEN: Final[dict[str, Json]] = {
    "attribute": a_device(attributes={"_a1": {"int": 1}, f"{DRIVER}/model": {"string": "b"}, _LONG: {"bool": True}}),
    "attribute twice": a_device(attributes={"model": {"string": "a"}, f"{DRIVER}/model": {"string": "b"}}),
    "version": a_device(attributes={"v": {"version": "1.2.3-rc.1+build"}}),
    "capacity": a_device(capacity={"memory": {"value": "6Gi"}, f"{DRIVER}/cores": {"value": "1500m"}}),
    "policy of values": a_capacity(default="1Gi", validValues=["1Gi", "2Gi"]),
    "policy of a range": a_capacity(default="2Gi", validRange={"min": "1Gi", "max": "8Gi", "step": "1Gi"}),
    "pool of parts": a_slice(pool={**_POOL, "name": "a.b/c"}),
    "node selector": a_node_selector(
        {"key": "a", "operator": "In", "values": ["b"]},
        {"key": "a", "operator": "Exists"},
        {"key": "a", "operator": "Gt", "values": ["1"]},
    ),
    "counters": a_slice(sharedCounters=[{"name": "a", "counters": {"memory": {"value": "1Gi"}}}]),
    "claim": a_claim(),
    "toleration of all": a_toleration(operator="Exists"),
    "more tolerations than are documented": an_exact(tolerations=[{"operator": "Exists"}] * 17),
    "toleration of a key": a_toleration(key="example.com/a", value="b", effect="NoSchedule"),
    "toleration without a key": a_toleration(value="a"),
    "toleration of another effect for a while": a_toleration(
        operator="Exists", effect="NoSchedule", tolerationSeconds=1
    ),
    "amount with a dash": an_exact(capacity={"requests": {"gpu-memory": "1"}}),
    "match of both": a_claim(constraints=[{"matchAttribute": f"{DRIVER}/a", "distinctAttribute": f"{DRIVER}/b"}]),
    "driver in capitals": a_claim(config=[{"opaque": {"driver": "GPU", "parameters": {}}}]),
    "toleration for a while": a_toleration(operator="Exists", key="a", effect="NoExecute", tolerationSeconds=60),
    "amounts": an_exact(capacity={"requests": {"memory": "6Gi", f"{DRIVER}/memory": "6Gi"}}),
    "template": a_template(count=2),
    "match": a_claim(constraints=[{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/model"}]),
    "configuration": a_claim(config=[{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": {"a": 1}}}]),
    "class": a_class(selectors=[{"cel": {"expression": "true"}}]),
    "rule": a_rule(value="x"),
    "pod for a node": a_pod(nodeSelector={"kubernetes.io/hostname": "n" * 63, "b": ""}),
    "pod for several nodes": an_affinity({"key": "a", "operator": "In", "values": ["b", "c.d_e", ""]}),
    "rule for one device": _selecting(pool="a.b/c", device="gpu-0"),
    "extended resource": _of("DeviceClass", {"extendedResourceName": "example.com/gpu"}),
}
REFUSED: Final[dict[str, tuple[Json, str]]] = {
    "count beside All": (an_exact(allocationMode="All", count=2), "count must be left out where allocationMode is All"),
    "attribute with a dash": (a_device(attributes={"numa-1": {"int": 1}}), '"numa-1" cannot name an attribute'),
    "attribute with a digit": (a_device(attributes={"1st": {"int": 1}}), '"1st" cannot name an attribute'),
    "attribute too long": (a_device(attributes={f"{_LONG}a": {"int": 1}}), "cannot name an attribute"),
    "attribute of a bad domain": (a_device(attributes={"A_/model": {"int": 1}}), 'has "A_" for its domain'),
    "attribute without a name": (a_device(attributes={f"{DRIVER}/": {"int": 1}}), '"" cannot name an attribute'),
    "attribute of two types": (a_device(attributes={"a": {"int": 1, "bool": True}}), "must have exactly one of int"),
    "version of two parts": (a_device(attributes={"v": {"version": "8.0"}}), '"8.0" is not a semantic version'),
    "capacity with a dash": (a_device(capacity={"gpu-memory": {"value": "1"}}), '"gpu-memory" cannot name a capacity'),
    "policy of both": (
        a_capacity(default="1Gi", validValues=["1Gi"], validRange={"min": "1Gi"}),
        "has both validValues and validRange",
    ),
    "policy without a default": (a_capacity(validValues=["1Gi"]), "requestPolicy.default is missing"),
    "policy with another default": (
        a_capacity(default="3Gi", validValues=["1Gi"]),
        "3Gi is not one of the validValues",
    ),
    "policy out of order": (a_capacity(default="1Gi", validValues=["2Gi", "1Gi"]), "must be in ascending order"),
    "policy below its range": (a_capacity(default="1Gi", validRange={"min": "2Gi"}), "is less than validRange.min"),
    "policy above its range": (
        a_capacity(default="9Gi", validRange={"min": "1Gi", "max": "8Gi"}),
        "is more than validRange.max",
    ),
    "pool of a bad name": (a_slice(pool={**_POOL, "name": "a_b"}), '"a_b" is not the name of a pool'),
    "operator of nodes": (
        a_node_selector({"key": "a", "operator": "IN", "values": ["b"]}),
        '"IN" is unknown: there are In, NotIn, Exists, DoesNotExist, Gt, Lt',
    ),
    "operator without values": (a_node_selector({"key": "a", "operator": "In"}), "must have at least one item for In"),
    "operator with values": (
        a_node_selector({"key": "a", "operator": "Exists", "values": ["b"]}),
        "must have no items for Exists",
    ),
    "two terms": (
        a_node_selector({"key": "a", "operator": "Exists"}, terms=2),
        "must have exactly one item, but has 2",
    ),
    "counter of a bad name": (
        a_slice(sharedCounters=[{"name": "a", "counters": {"Memory": {"value": "1"}}}]),
        '"Memory" is not the name of a counter',
    ),
    "counter set of a bad name": (
        a_slice(sharedCounters=[{"name": "A", "counters": {"memory": {"value": "1"}}}]),
        '"A" is not the name of a counter set',
    ),
    "no counters": (a_slice(sharedCounters=[{"name": "a", "counters": {}}]), "is empty: name at least one counter"),
    "request of a bad name": (
        a_claim(requests=[{"name": "My GPU", "exactly": {"deviceClassName": "gpu"}}]),
        '"My GPU" is not the name of a request',
    ),
    "alternative of a bad name": (
        a_claim(requests=[{"name": "a", "firstAvailable": [{"name": "A", "deviceClassName": "gpu"}]}]),
        '"A" is not the name of an alternative',
    ),
    "class of a bad name": (an_exact(deviceClassName="GPU class"), '"GPU class" is not the name of a DeviceClass'),
    "no devices": (an_exact(count=-1), "count must be greater than zero"),
    "operator of a toleration": (
        a_toleration(key="a", operator="Equals"),
        '"Equals" is unknown: write Exists or Equal',
    ),
    "effect of a toleration": (
        a_toleration(operator="Exists", effect="PreferNoSchedule"),
        '"PreferNoSchedule" is unknown',
    ),
    "request of nothing": (a_claim(requests=[{"name": "gpu"}]), "has neither exactly nor firstAvailable"),
    "unknown mode": (an_exact(allocationMode="Some"), 'allocationMode "Some" is unknown'),
    "selector of nothing": (an_exact(selectors=[{}]), "selectors[0].cel is missing"),
    "match of nothing": (a_claim(constraints=[{"requests": ["gpu"]}]), "must have one of matchAttribute"),
    "match without a domain": (a_claim(constraints=[{"matchAttribute": "model"}]), "has no domain"),
    "match of another request": (
        a_claim(constraints=[{"requests": ["nic"], "matchAttribute": f"{DRIVER}/a"}]),
        '"nic" is not a request of this claim: it has gpu',
    ),
    "configuration of nothing": (a_claim(config=[{"requests": ["gpu"]}]), "opaque is missing"),
    "configuration of a list": (
        a_claim(config=[{"opaque": {"driver": DRIVER, "parameters": [1]}}]),
        "parameters must be an object",
    ),
    "configuration of a bad driver": (
        a_claim(config=[{"opaque": {"driver": "a GPU", "parameters": {}}}]),
        '"a GPU" is not a driver name',
    ),
    "template": (a_template(deviceClassName=""), "spec.spec.devices.requests[0].exactly.deviceClassName is empty"),
    "configuration of a class": (a_class(config=[{}]), "spec.config[0].opaque is missing"),
    "effect of a rule": (a_rule(effect="PreferNoSchedule"), '"PreferNoSchedule" is unknown'),
    "value of a rule": (a_rule(value="no good"), '"no good" is not a label value'),
    "pod for a node by its long name": (
        a_pod(nodeSelector={"kubernetes.io/hostname": "n" * 64}),
        "is not a label value: use at most 63 letters, digits, -, _ and .; to name a node, use a node affinity",
    ),
    "pod for nodes with no label value": (
        an_affinity({"key": "a", "operator": "NotIn", "values": ["b", "-c"]}),
        'nodeSelectorTerms[0].matchExpressions[0].values[1] "-c" is not a label value',
    ),
    "wildcard in a rule's pool": (_selecting(pool="*"), '"*" has a wildcard, and there are none: name one pool'),
    "wildcard in a rule's device": (_selecting(device="gpu-*"), '"gpu-*" has a wildcard'),
    "UUID in a rule": (_selecting(device="GPU-0a1b"), '"GPU-0a1b" is not the name of a device, such as gpu-0'),
    "driver of a rule": (_selecting(driver="gpu_a"), '"gpu_a" is not a driver name'),
    "pool of a rule": (_selecting(pool="a_b"), '"a_b" is not the name of a pool'),
    "extended resource without a domain": (
        _of("DeviceClass", {"extendedResourceName": "gpu"}),
        '"gpu" is not the name of an extended resource',
    ),
    "extended resource of a quota": (
        _of("DeviceClass", {"extendedResourceName": "requests.example.com/gpu"}),
        "is not the name of an extended resource",
    ),
    "extended resource of Kubernetes": (
        _of("DeviceClass", {"extendedResourceName": "kubernetes.io/gpu"}),
        "is not the name of an extended resource",
    ),
}
