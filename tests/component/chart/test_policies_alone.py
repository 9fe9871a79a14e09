"""What the admission policies refuse alone: here the accounts have every right, as if other roles were bound to them.

There is one attempt per expression, which no other expression refuses.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from draco.kube.errors import ApiError
from draco.resources.kinds import CLAIMS, EVENTS, GPU_NODES, NODES, SLICES, Kind
from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES
from tests.component.chart.rendering import NAMESPACE
from tests.component.chart.stolen import (
    DRIVER,
    MINE,
    OTHER,
    OTHER_DRIVER,
    PERMISSIVE,
    TENANT,
    WORKING,
    Cluster,
    a_result,
    an_allocation,
    an_event,
)
from tests.component.chart.thefts import (
    Attempt,
    Theft,
    a_claim_of_a_job,
    a_cluster,
    a_condition,
    a_job,
    claim,
    event,
    merged_status_of,
    named,
    owned,
    publish,
    report,
    rewritten,
    status_of,
    told_of_a_node,
)
from tests.versions import OLDEST, on

ACCOUNTS = (
    (NAMESPACE, "draco-agent"),
    (NAMESPACE, "draco-operator"),
    (PERMISSIVE, "releasing-operator"),
    (WORKING, "working-operator"),
)
NO_NODE = "names no node"
REVIEWS: Kind[Any] = Kind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, dict
)
INVALID = "must be an allocated device in the claim|may not be specified when `allocated` is not set"
"""What the API server itself refuses before it asks a policy, in the versions that do."""
ME = [{"resource": "pods", "name": "me", "uid": "me"}]
DEVICES_ONLY = "may write only the device status of a claim"
MY_DEVICES = f"may report only devices of driver {DRIVER} in the pool of that node"
NOT_HERE = f"the claim has no device of driver {DRIVER} on node {MINE}"
NO_WISHES = "may create its GpuNode and write its status, but not its spec"
MY_EVENTS = "may write Events about that node only"
TAKE_BACK_ONLY = "may only remove the allocation of a claim"


def labelled(name: str) -> Attempt:
    return lambda client: client.patch(CLAIMS, claim(name), {"metadata": {"labels": {"a": "b"}}})


def deleted(name: str) -> Attempt:
    return lambda client: client.delete(CLAIMS, claim(name))


def made(name: str) -> Attempt:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}
    meta = {"name": name, "namespace": TENANT}
    return lambda client: client.create(CLAIMS, {"metadata": meta, "spec": {"devices": devices}})


def wished(**wishes: Any) -> Attempt:
    return lambda client: client.create(GPU_NODES, {"metadata": {"name": MINE}, "spec": wishes})


REFUSED = [
    Theft("homeless", "a slice of no node", publish("x", allNodes=True, pool="x"), NO_NODE),
    Theft("homeless", "a status", status_of("here", devices=[report()]), NO_NODE),
    Theft("agent", "no node's slice of my pool", publish("x", allNodes=True, pool=MINE), "for that node alone"),
    Theft(
        "agent",
        "another pool",
        publish("x", nodeName=MINE, pool=OTHER),
        "only slices of the pool named after that node",
    ),
    Theft("agent", "another driver", publish("x", nodeName=MINE, pool=MINE, driver=OTHER_DRIVER), "a driver other"),
    Theft("agent", "taken over", lambda c: rewritten(c, "others", driver=DRIVER), "a driver other|immutable"),
    Theft("agent", "a slice deleted", lambda c: c.delete(SLICES, named("others")), "a driver other"),
    Theft("agent", "a claim's labels", labelled("here"), DEVICES_ONLY),
    Theft("agent", "a claim", made("x"), DEVICES_ONLY),
    Theft("agent", "a claim deleted", deleted("here"), DEVICES_ONLY),
    Theft(
        "agent",
        "an allocation cleared",
        merged_status_of("idle", allocation=None),
        "may not change the allocation of a claim",
    ),
    Theft("agent", "a reservation", status_of("here", reservedFor=ME), "may not change the reservations of a claim"),
    Theft("agent", "a report taken away", merged_status_of("here", devices=[]), MY_DEVICES),
    Theft("agent", "another driver's", status_of("here", devices=[report(driver=OTHER_DRIVER)]), MY_DEVICES),
    Theft("agent", "another node's", status_of("there", devices=[report(pool=OTHER)]), MY_DEVICES),
    Theft("agent", "another's allocation", status_of("theirs", devices=[report()]), f"{NOT_HERE}|{INVALID}"),
    Theft("agent", "another pool's allocation", status_of("elsewhere", devices=[report()]), f"{NOT_HERE}|{INVALID}"),
    Theft("agent", "another GpuNode", lambda c: c.create(GPU_NODES, {"metadata": {"name": "new"}}), "GpuNode of node"),
    Theft("agent", "my GpuNode deleted", lambda c: c.delete(GPU_NODES, named(MINE)), NO_WISHES),
    Theft("agent", "wishes", lambda c: c.patch(GPU_NODES, named(MINE), {"spec": {"gpus": []}}), NO_WISHES),
    Theft(
        "agent", "a GpuNode with modes", wished(gpus=[{"uuid": "GPU-0", "policy": "p", "mode": "Disabled"}]), NO_WISHES
    ),
    Theft("agent", "a GpuNode with promises", wished(promised=[]), NO_WISHES),
    Theft("agent", "a GpuNode that is handed over", wished(operatorAllocated=["GPU-0"]), NO_WISHES),
    Theft("agent", "another node's event", lambda c: c.create(EVENTS, an_event("x", OTHER)), MY_EVENTS),
    Theft(
        "agent",
        "an event about a pod called as my node",
        lambda c: c.create(EVENTS, an_event("x", MINE, kind="Pod")),
        MY_EVENTS,
    ),
    Theft("agent", "an event deleted", lambda c: c.delete(EVENTS, event(f"about-{OTHER}")), MY_EVENTS),
    Theft("releasing", "a claim's labels", labelled("idle"), TAKE_BACK_ONLY),
    Theft("releasing", "a claim", made("x"), TAKE_BACK_ONLY),
    Theft("releasing", "a claim deleted", deleted("idle"), TAKE_BACK_ONLY),
    Theft("operator", "a claim released", merged_status_of("idle", allocation=None), "may not release claims"),
    Theft("releasing", "only a report", status_of("idle", devices=[report(device="gpu-1")]), "not make or change"),
    Theft(
        "releasing",
        "an allocation made",
        merged_status_of("waiting", allocation=an_allocation(MINE, [a_result(MINE)])),
        "not make or change",
    ),
    Theft("releasing", "a reservation kept", merged_status_of("there", allocation=None), f"that is reserved|{INVALID}"),
    Theft(
        "releasing",
        "a claim in use released",
        merged_status_of("there", allocation=None, reservedFor=None),
        "that is reserved",
    ),
    Theft("releasing", "one reserved", merged_status_of("waiting", reservedFor=ME), f"or reserve one|{INVALID}"),
    Theft(
        "releasing", "a report", merged_status_of("waiting", devices=[report()]), f"may not report devices|{INVALID}"
    ),
    *(
        Theft("working", what, attempt, TAKE_BACK_ONLY)
        for what, attempt in (
            ("a claim elsewhere", a_claim_of_a_job("x", namespace=TENANT, owners=owned())),
            ("a claim of nobody", a_claim_of_a_job("x")),
            ("a claim deleted", deleted("idle")),
            ("a claim's labels", labelled("idle")),
        )
    ),
    Theft("working", "a claim released", merged_status_of("idle", allocation=None), "may not release claims"),
    Theft("working", "a Job elsewhere", a_job("x", namespace=TENANT, owners=owned()), "in namespace draco-jobs"),
    Theft("working", "a Job of nobody", a_job("x"), "create Jobs only for a DeviceMaintenance"),
    Theft("working", "a Job of any template", a_job("x", owners=owned(), template="mine"), "operator.jobTemplates"),
    *(
        Theft(token, what, attempt, "may only write the conditions of a node")
        for token in ("operator", "working")
        for what, attempt in (
            ("a node", lambda c: c.create(NODES, {"metadata": {"name": "x"}})),
            ("a node deleted", lambda c: c.delete(NODES, named(OTHER))),
            ("a node cordoned", lambda c: c.patch(NODES, named(OTHER), {"spec": {"unschedulable": True}})),
            ("a node's labels", lambda c: c.patch(NODES, named(OTHER), {"metadata": {"labels": {"a": "b"}}})),
        )
    ),
    Theft(
        "operator",
        "another condition",
        told_of_a_node(a_condition("Drained"), a_condition("Ready")),
        "maintenance conditions",
    ),
    Theft(
        "operator",
        "capacity",
        told_of_a_node(capacity={"example.com/x": "1"}),
        "what kubelet reports in a node's status",
    ),
    Theft("operator", "labels", told_of_a_node(metadata={"labels": {"a": "b"}}), "may not write the labels"),
]


@pytest.fixture(scope="module", params=on(DEFAULT_KUBERNETES, OLDEST))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server where each account has every right."""
    with a_cluster(request.param, tmp_path_factory.mktemp(f"alone-{request.param}")) as found:
        subjects = [{"kind": "ServiceAccount", "namespace": space, "name": name} for space, name in ACCOUNTS]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        found.call("POST", path, {"metadata": {"name": "everything"}, "roleRef": role, "subjects": subjects})
        asyncio.run(has_every_right(found))
        yield found


async def has_every_right(cluster: Cluster) -> None:
    """Wait until the new role takes effect."""
    async with asyncio.timeout(60):
        for token in cluster.tokens:
            async with cluster.holding(token) as client:
                asked = {"spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}}
                while True:
                    if (await client.create(REVIEWS, asked))["status"].get("allowed"):
                        break
                    await asyncio.sleep(0.1)


@pytest.mark.parametrize("theft", REFUSED, ids=str)
async def test_a_policy_holds_whatever_roles_are_bound_to_an_account(cluster: Cluster, theft: Theft) -> None:
    before = cluster.state()
    async with cluster.holding(theft.token) as client:
        with pytest.raises(ApiError, match=theft.refused):
            await theft.attempt(client)
    assert cluster.state() == before
