"""What a thief can do with each program's token, on every supported Kubernetes: nothing but that program's work.

Every row attempts a write. A refused one must be refused for the row's reason and change nothing; a permitted one must be found
as written.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from draco.kube.connect.client import Client
from draco.kube.discovery import discover
from draco.kube.errors import ApiError
from draco.resources.api.meta import Condition, ObjectKey
from draco.resources.kinds import CLAIMS, CRON_JOBS, EVENTS, GPU_NODES, GPU_USAGES, LEASES, NODES, PODS, SLICES, Kind
from draco_local.cluster.programs.versions import KUBERNETES_VERSIONS
from tests.component.chart.rendering import NAMESPACE
from tests.component.chart.stolen import (
    DRIVER,
    JOB_SPACE,
    MINE,
    OTHER,
    OTHER_DRIVER,
    PERMISSIVE,
    TENANT,
    WORKING,
    Cluster,
    a_result,
    a_slice,
    an_allocation,
    an_event,
)
from tests.component.chart.thefts import (
    JOBS,
    READY,
    Theft,
    a_claim_of_a_job,
    a_cluster,
    a_condition,
    a_job,
    a_lease,
    claim,
    event,
    merged_status_of,
    named,
    owned,
    publish,
    report,
    rewritten,
    status_of,
    taken_over,
    told_of_a_node,
)
from tests.versions import on

OLDER_SLICES: Kind[Any] = Kind("resource.k8s.io", "v1beta2", "resourceslices", "ResourceSlice", False, dict)
SECRETS: Kind[Any] = Kind("", "v1", "secrets", "Secret", True, dict)
ACCOUNTS: Kind[Any] = Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict)
ROLE_BINDINGS: Kind[Any] = Kind(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict
)
POLICIES: Kind[Any] = Kind(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, dict
)
NO_RIGHT = "cannot (create|patch|update|delete|list|get)"
KIND_OF_GPU_NODE = {"apiVersion": "draco.dev/v1alpha1", "kind": "GpuNode"}


NOT_FOR_MY_NODE = "may write only slices for that node alone"
NOT_MY_POOL = "may write only slices of the pool named after that node"
NOT_MY_DRIVER = "may not write a slice of a driver other than"
NOT_MY_DEVICE = "may report only devices of driver .* in the pool of that node|resourceclaims/driver"
NO_RESERVATION = "may not change the reservations of a claim|resourceclaims/binding"
NO_ALLOCATION = "may not change the allocation of a claim|resourceclaims/binding|field is immutable"
ONLY_OF_MAINTENANCE = "may only write a node's maintenance conditions"
NOT_OF_MAINTENANCE = "may create Jobs only for a DeviceMaintenance, in namespace draco-jobs"
NOT_LISTED = "from CronJobs that the chart's value operator.jobTemplates lists"

THEFTS = [
    # Slices
    Theft("agent", "a slice of another node", publish("x", nodeName=OTHER, pool=OTHER), NOT_FOR_MY_NODE),
    Theft("agent", "my pool on another node", publish("x", nodeName=OTHER, pool=MINE), NOT_FOR_MY_NODE),
    Theft("agent", "another pool on my node", publish("x", nodeName=MINE, pool=OTHER), NOT_MY_POOL),
    Theft("agent", "a newer generation of it", publish("x", nodeName=MINE, pool=OTHER, generation=10**9), NOT_MY_POOL),
    Theft("agent", "a pool within mine", publish("x", nodeName=MINE, pool=f"{MINE}/part"), NOT_MY_POOL),
    Theft("agent", "another driver", publish("x", nodeName=MINE, pool=MINE, driver=OTHER_DRIVER), NOT_MY_DRIVER),
    Theft("agent", "a slice for all nodes", publish("x", allNodes=True, pool=MINE), NOT_FOR_MY_NODE),
    Theft("agent", "nodes left to devices", publish("x", perDeviceNodeSelection=True, pool=MINE), NOT_FOR_MY_NODE),
    Theft(
        "agent",
        "a slice for nodes by a selector",
        publish(
            "x",
            pool=MINE,
            nodeSelector={
                "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [MINE]}]}]
            },
        ),
        NOT_FOR_MY_NODE,
    ),
    Theft(
        "agent",
        "a slice of another node, in an older version of the API",
        lambda client: client.create(OLDER_SLICES, a_slice("x", nodeName=OTHER, pool=OTHER)),
        NOT_FOR_MY_NODE,
    ),
    Theft(
        "agent",
        "another node's devices taken off",
        lambda client: rewritten(client, f"{OTHER}-real", devices=[]),
        NOT_FOR_MY_NODE,
    ),
    Theft(
        "agent",
        "another driver's devices taken off",
        lambda client: rewritten(client, "others", devices=[]),
        NOT_MY_DRIVER,
    ),
    Theft(
        "agent",
        "devices of all nodes taken off",
        lambda client: rewritten(client, "everywhere", devices=[]),
        NOT_FOR_MY_NODE,
    ),
    Theft(
        "agent",
        "another node's slice deleted",
        lambda client: client.delete(SLICES, named(f"{OTHER}-real")),
        NOT_FOR_MY_NODE,
    ),
    Theft(
        "agent", "another driver's slice deleted", lambda client: client.delete(SLICES, named("others")), NOT_MY_DRIVER
    ),
    Theft(
        "agent",
        "a slice for all nodes deleted",
        lambda client: client.delete(SLICES, named("everywhere")),
        NOT_FOR_MY_NODE,
    ),
    Theft("homeless", "a slice of a node", publish("x", nodeName=MINE, pool=MINE), "names no node"),
    # Claims
    Theft(
        "agent",
        "an allocation cleared",
        merged_status_of("here", allocation=None, devices=None, reservedFor=None),
        NO_ALLOCATION,
    ),
    Theft(
        "agent",
        "an allocation made",
        status_of("waiting", allocation=an_allocation(MINE, [a_result(MINE)])),
        NO_ALLOCATION,
    ),
    Theft(
        "agent",
        "an allocation and a report of it at once",
        status_of("waiting", allocation=an_allocation(MINE, [a_result(MINE)]), devices=[report()]),
        NO_ALLOCATION,
    ),
    Theft(
        "agent",
        "an allocation moved",
        merged_status_of("here", allocation=an_allocation(MINE, [a_result(MINE, "gpu-7")]), devices=None),
        NO_ALLOCATION,
    ),
    Theft(
        "agent",
        "a consumer added",
        status_of("here", reservedFor=[{"resource": "pods", "name": "me", "uid": "me"}]),
        NO_RESERVATION,
    ),
    Theft("agent", "consumers taken away", merged_status_of("here", reservedFor=None), NO_RESERVATION),
    Theft(
        "agent",
        "another driver's report changed",
        status_of("here", devices=[report(driver=OTHER_DRIVER)]),
        NOT_MY_DEVICE,
    ),
    Theft("agent", "another driver's report taken away", merged_status_of("here", devices=[report()]), NOT_MY_DEVICE),
    Theft(
        "agent",
        "another driver's report made",
        status_of("theirs", devices=[report(driver=OTHER_DRIVER)]),
        NOT_MY_DEVICE,
    ),
    Theft(
        "agent", "a report of another node's device", status_of("there", devices=[report(pool=OTHER)]), NOT_MY_DEVICE
    ),
    Theft(
        "homeless", "a report of a device", status_of("here", devices=[report()]), "names no node|resourceclaims/driver"
    ),
    Theft(
        "agent",
        "a claim's spec",
        lambda client: client.patch(CLAIMS, claim("here"), {"metadata": {"labels": {"a": "b"}}}),
        NO_RIGHT,
    ),
    Theft("agent", "a claim deleted", lambda client: client.delete(CLAIMS, claim("here")), NO_RIGHT),
    # GpuNodes
    Theft(
        "agent",
        "another node's state",
        lambda client: client.patch(GPU_NODES, named(OTHER), {"status": {"driver": "x"}}, subresource="status"),
        f"may not write the GpuNode of node {OTHER}",
    ),
    Theft(
        "agent",
        "a GpuNode of another name",
        lambda client: client.create(GPU_NODES, {"metadata": {"name": "node-c"}}),
        "may not write the GpuNode of node node-c",
    ),
    Theft(
        "agent",
        "how my GPUs are divided",
        lambda client: client.patch(GPU_NODES, named(MINE), {"spec": {"gpus": []}}),
        NO_RIGHT,
    ),
    Theft("agent", "another GpuNode deleted", lambda client: client.delete(GPU_NODES, named(OTHER)), NO_RIGHT),
    # GpuUsages
    Theft(
        "agent",
        "the usage of another node",
        lambda client: client.create(GPU_USAGES, {"metadata": {"name": OTHER}}),
        f"of node {MINE} may create and write only the GpuUsage of that node",
    ),
    Theft(
        "agent",
        "what another node's users use",
        lambda client: client.patch(GPU_USAGES, named(OTHER), {"status": {"unread": ["x"]}}, subresource="status"),
        f"of node {MINE} may create and write only the GpuUsage of that node",
    ),
    Theft("agent", "another GpuUsage deleted", lambda client: client.delete(GPU_USAGES, named(OTHER)), NO_RIGHT),
    # Events
    Theft(
        "agent",
        "an Event about somebody's pod",
        lambda client: client.create(EVENTS, an_event("x", "victim", kind="Pod", namespace=TENANT)),
        "may write Events about that node only",
    ),
    Theft(
        "agent",
        "an Event about another node",
        lambda client: client.create(EVENTS, an_event("x", OTHER)),
        "may write Events about that node only",
    ),
    Theft(
        "agent",
        "another node's Event changed",
        lambda client: client.patch(EVENTS, event(f"about-{OTHER}"), {"message": "all is well"}),
        "may write Events about that node only",
    ),
    Theft("agent", "an Event deleted", lambda client: client.delete(EVENTS, event(f"about-{MINE}")), NO_RIGHT),
    # Leases: taking the operator's stops it, and renewing another agent's keeps a dead node in use.
    *(
        Theft(
            "agent",
            what,
            taken_over(name),
            f"may not write the Lease {name}",
        )
        for what, name in (("the operator's lease", "draco-operator"), ("another's lease", f"draco-agent-{OTHER}"))
    ),
    Theft(
        "agent",
        "a lease of another name",
        lambda client: client.create(LEASES, a_lease("draco-agent-")),
        "may not write the Lease|Invalid value",
    ),
    Theft(
        "agent",
        "a lease elsewhere",
        lambda client: client.create(LEASES, {**a_lease("x"), "metadata": {"name": "x", "namespace": TENANT}}),
        NO_RIGHT,
    ),
    Theft(
        "agent",
        "a lease deleted",
        lambda client: client.delete(LEASES, ObjectKey(NAMESPACE, "draco-operator")),
        NO_RIGHT,
    ),
    Theft(
        "operator",
        "an agent's lease renewed",
        taken_over(f"draco-agent-{OTHER}"),
        NO_RIGHT,
    ),
    # What neither of them may do
    *(
        theft
        for token in ("agent", "operator", "releasing")
        for theft in (
            Theft(token, "secrets", lambda client: client.list(SECRETS), NO_RIGHT),
            Theft(token, "a pod deleted", lambda client: client.delete(PODS, ObjectKey(TENANT, "victim")), NO_RIGHT),
            Theft(
                token,
                "a pod made",
                lambda client: client.create(PODS, {"metadata": {"name": "x", "namespace": NAMESPACE}}),
                NO_RIGHT,
            ),
            Theft(
                token,
                "a node changed",
                lambda client: client.patch(NODES, named(MINE), {"spec": {"unschedulable": True}}),
                NO_RIGHT,
            ),
            Theft(
                token,
                "another's token",
                lambda client: client.create_subresource(ACCOUNTS, ObjectKey(NAMESPACE, "draco-agent"), "token", {}),
                NO_RIGHT,
            ),
            Theft(
                token,
                "a role of one's own",
                lambda client: client.create(ROLE_BINDINGS, {"metadata": {"name": "x"}}),
                NO_RIGHT,
            ),
            Theft(
                token,
                "the policies deleted",
                lambda client: client.delete(POLICIES, named("draco-agent-slices")),
                NO_RIGHT,
            ),
        )
    ),
    # The operator
    *(
        theft
        for token in ("operator", "releasing")
        for theft in (
            Theft(token, "a slice", publish("x", nodeName=MINE, pool=MINE), NO_RIGHT),
            Theft(token, "a slice deleted", lambda client: client.delete(SLICES, named(f"{MINE}-real")), NO_RIGHT),
            Theft(token, "a claim deleted", lambda client: client.delete(CLAIMS, claim("here")), NO_RIGHT),
            Theft(
                token,
                "a GpuNode's state",
                lambda client: client.patch(GPU_NODES, named(MINE), {"status": {"driver": "x"}}, subresource="status"),
                "status that its agent is lost",
            ),
            Theft(
                token,
                "a GpuNode called ready",
                lambda client: client.patch(
                    GPU_NODES,
                    named(MINE),
                    {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "AgentLost"}]}},
                    subresource="status",
                ),
                "status that its agent is lost",
            ),
        )
    ),
    Theft("operator", "an allocation cleared", merged_status_of("idle", allocation=None), NO_RIGHT),
    Theft(
        "releasing",
        "an allocation made",
        merged_status_of("waiting", allocation=an_allocation(MINE, [a_result(MINE)])),
        "not make or change one",
    ),
    Theft(
        "releasing",
        "an allocation moved",
        merged_status_of("idle", allocation=an_allocation(OTHER, [a_result(OTHER)])),
        "not make or change one|field is immutable|cannot be modified once set",
    ),
    Theft(
        "releasing",
        "a claim in use released",
        merged_status_of("there", allocation=None, reservedFor=None),
        "may not release a claim that is reserved",
    ),
    Theft(
        "releasing",
        "a claim reserved",
        merged_status_of("idle", reservedFor=[{"resource": "pods", "name": "me", "uid": "me"}]),
        "not make or change one",
    ),
    Theft(
        "releasing",
        "a report of a device",
        status_of("idle", devices=[report(device="gpu-1")]),
        "not make or change one|resourceclaims/driver",
    ),
    # What the operator writes about nodes
    Theft("operator", "a node that is not ready", told_of_a_node(a_condition("Ready", "False")), ONLY_OF_MAINTENANCE),
    Theft(
        "operator",
        "a node without a condition of kubelet's",
        lambda client: client.patch(NODES, named(OTHER), {"status": {"conditions": []}}, subresource="status"),
        ONLY_OF_MAINTENANCE,
    ),
    *(
        Theft("operator", f"a node's {what}", attempt, "may not write what kubelet reports in a node's status")
        for what, attempt in (
            ("capacity", told_of_a_node(capacity={"nvidia.com/gpu": "8"})),
            ("addresses", told_of_a_node(addresses=[{"type": "InternalIP", "address": "10.0.0.1"}])),
            ("images", told_of_a_node(images=[{"names": ["registry.example.com/mine"], "sizeBytes": 1}])),
            ("volumes", told_of_a_node(volumesInUse=["kubernetes.io/csi/mine"])),
            ("runtimes", told_of_a_node(runtimeHandlers=[{"name": "mine"}])),
            ("phase", told_of_a_node(phase="Terminated")),
        )
    ),
    *(
        Theft(
            "operator", f"a node's {what}", told_of_a_node(metadata=metadata), "may not write the labels, annotations, "
        )
        for what, metadata in (
            ("labels", {"labels": {"node-role.kubernetes.io/control-plane": ""}}),
            ("annotations", {"annotations": {"example.com/trusted": "yes"}}),
            ("finalizers", {"finalizers": ["example.com/stays"]}),
            ("owners", {"ownerReferences": owned()}),
        )
    ),
    # Jobs and their claims, if the operator may run them
    *(
        Theft(token, f"a Job in {namespace}", a_job("x", namespace=namespace, owners=owned()), NO_RIGHT)
        for token, namespace in (
            ("operator", NAMESPACE),
            ("operator", WORKING),
            ("releasing", PERMISSIVE),
            ("working", TENANT),
            ("working", NAMESPACE),
            ("working", WORKING),
        )
    ),
    Theft("working", "a Job of nobody", a_job("x"), NOT_OF_MAINTENANCE),
    Theft("working", "a Job of something else", a_job("x", owners=owned("GpuNode")), NOT_OF_MAINTENANCE),
    Theft("working", "a Job of a template that is not listed", a_job("x", owners=owned(), template="mine"), NOT_LISTED),
    Theft(
        "working",
        "a template",
        lambda client: client.create(CRON_JOBS, {"metadata": {"name": "plain", "namespace": JOB_SPACE}}),
        NO_RIGHT,
    ),
    Theft(
        "working",
        "a Job changed",
        lambda client: client.patch(JOBS, ObjectKey(JOB_SPACE, "x"), {"spec": {"suspend": False}}),
        NO_RIGHT,
    ),
    *(
        Theft("working", f"a claim in {space}", a_claim_of_a_job("x", namespace=space, owners=owned()), NO_RIGHT)
        for space in (TENANT, NAMESPACE, WORKING)
    ),
    Theft("working", "a claim of nobody", a_claim_of_a_job("x"), "may only remove the allocation of a claim"),
    Theft("working", "a claim deleted", lambda client: client.delete(CLAIMS, claim("here")), NO_RIGHT),
    Theft("working", "an allocation cleared", merged_status_of("idle", allocation=None), NO_RIGHT),
]


@pytest.fixture(scope="module", params=on(*KUBERNETES_VERSIONS))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server of each version, with the chart."""
    with a_cluster(request.param, tmp_path_factory.mktemp(f"stolen-{request.param}")) as made:
        yield made


@pytest.fixture
async def thief(cluster: Cluster, theft: Theft) -> AsyncIterator[Client]:
    async with cluster.holding(theft.token) as client:
        yield client


@pytest.mark.parametrize("theft", THEFTS, ids=str)
async def test_a_stolen_token_changes_nothing_beyond_its_programs_work(
    cluster: Cluster, thief: Client, theft: Theft
) -> None:
    before = cluster.state()
    with pytest.raises(ApiError, match=theft.refused):
        await theft.attempt(thief)
    assert cluster.state() == before


@pytest.fixture
async def agent(cluster: Cluster) -> AsyncIterator[Client]:
    async with cluster.holding("agent") as client:
        yield client


async def test_an_agent_publishes_changes_and_withdraws_slices_of_its_node(agent: Client) -> None:
    await agent.create(SLICES, a_slice("mine", nodeName=MINE, pool=MINE))
    changed: Any = await rewritten(agent, "mine", devices=[{"name": "gpu-0"}, {"name": "gpu-1"}])
    assert len(changed["spec"]["devices"]) == 2
    await agent.delete(SLICES, named("mine"))


async def test_an_agent_finds_out_which_features_there_are(agent: Client) -> None:
    features = await discover(agent, node_name=MINE, driver=DRIVER)
    assert features.device_taints is True
    assert features.binding_conditions is True


async def test_an_agent_makes_its_gpunode_and_reports_in_it(cluster: Cluster, agent: Client) -> None:
    cluster.call("DELETE", f"/apis/draco.dev/v1alpha1/gpunodes/{MINE}")
    await agent.create(GPU_NODES, {"metadata": {"name": MINE}})
    said = {"status": {"driver": DRIVER}}
    reported = await agent.apply(GPU_NODES, named(MINE), said, manager="agent", subresource="status")
    assert reported.status.driver == DRIVER


async def test_an_agent_makes_its_gpuusage_and_reports_in_it(agent: Client) -> None:
    await agent.create(GPU_USAGES, {"metadata": {"name": MINE}})
    said = {"status": {"unread": ["GPU-0"]}}
    reported = await agent.apply(GPU_USAGES, named(MINE), said, manager="agent", subresource="status")
    assert reported.status.unread == ["GPU-0"]


async def test_an_agent_cannot_make_its_gpunode_with_wishes(cluster: Cluster, agent: Client) -> None:
    cluster.call("DELETE", f"/apis/draco.dev/v1alpha1/gpunodes/{MINE}")
    for wishes in (
        {"gpus": [{"uuid": "GPU-0", "policy": "p", "mode": "Disabled"}]},
        {"isolated": [{"request": "swap-fan", "key": "draco.dev/maintenance", "effect": "NoSchedule"}]},
        {"decided": ["GPU-0"]},
    ):
        with pytest.raises(ApiError, match="but not its spec"):
            await agent.create(GPU_NODES, {"metadata": {"name": MINE}, "spec": wishes})
    await agent.create(GPU_NODES, {"metadata": {"name": MINE}, "spec": {}})


async def test_what_an_agent_says_of_wishes_in_a_status_is_not_stored(cluster: Cluster, agent: Client) -> None:
    path = f"/apis/draco.dev/v1alpha1/gpunodes/{MINE}"
    wishes = {"gpus": [{"uuid": "GPU-0", "policy": "p", "mode": "Disabled"}]}
    cluster.call("PATCH", f"{path}?fieldManager=test", {**KIND_OF_GPU_NODE, "spec": wishes})
    before = cluster.call("GET", path)
    body = {"metadata": {"labels": {"a": "b"}}, "spec": {"gpus": []}, "status": {"driver": "said"}}
    await agent.patch(GPU_NODES, named(MINE), body, subresource="status")
    stored = cluster.call("GET", path)
    assert (stored["spec"], stored["status"]["driver"]) == (before["spec"], "said")
    assert stored["spec"]["gpus"]
    assert "labels" not in stored["metadata"]


async def test_an_agent_renews_the_lease_of_its_node(agent: Client) -> None:
    made = await agent.create(LEASES, a_lease(f"draco-agent-{MINE}"))
    renewed = msgspec.structs.replace(
        made, spec=msgspec.structs.replace(made.spec, renew_time="2026-01-01T00:00:00.000000Z")
    )
    assert (await agent.replace(LEASES, made.metadata.key, renewed)).spec.renew_time


async def test_an_agent_says_what_happens_on_its_node(agent: Client) -> None:
    await agent.apply(EVENTS, event("mine"), an_event("mine", MINE), manager="agent")
    await agent.patch(
        EVENTS, event("mine"), {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}
    )
    assert (await agent.patch(EVENTS, event("mine"), {"message": "twice"})).message == "twice"


async def test_an_agent_reports_its_devices_and_withdraws_that(cluster: Cluster, agent: Client) -> None:
    cluster.make_claim(
        "reported",
        on=MINE,
        results=[a_result(MINE), {**a_result(MINE), "driver": OTHER_DRIVER}],
        devices=[{"driver": OTHER_DRIVER, "pool": MINE, "device": "gpu-0", "data": {"of": "theirs"}}],
    )

    async def say(*devices: dict[str, Any]) -> list[tuple[str, str, list[Condition]]]:
        said = await agent.apply(
            CLAIMS, claim("reported"), {"status": {"devices": list(devices)}}, manager="agent", subresource="status"
        )
        assert said.status.allocation is not None
        assert said.status.reserved_for
        return sorted((each.driver, each.device, each.conditions) for each in said.status.devices)

    theirs: tuple[str, str, list[Condition]] = (OTHER_DRIVER, "gpu-0", [])
    ready = msgspec.convert(READY, Condition)
    broken = msgspec.structs.replace(ready, status="False")
    assert await say(report()) == [(DRIVER, "gpu-0", [ready]), theirs]
    assert await say(report(conditions=[{**READY, "status": "False"}])) == [(DRIVER, "gpu-0", [broken]), theirs]
    assert await say() == [theirs]
    by_merge = await agent.patch(
        CLAIMS, claim("reported"), {"metadata": {"labels": {"a": "b"}}, "status": {}}, subresource="status"
    )
    assert by_merge.metadata.labels == {}


async def test_an_operator_that_may_release_does_so(cluster: Cluster) -> None:
    cluster.make_claim("released", on=MINE, results=[a_result(MINE)], devices=[report()], reserved=False)
    async with cluster.holding("releasing") as operator:
        released = await operator.patch(
            CLAIMS, claim("released"), {"status": {"allocation": None}}, subresource="status"
        )
    assert (released.status.allocation, released.status.devices) == (None, [])


async def test_an_operator_says_that_a_node_is_in_maintenance_and_takes_it_back(cluster: Cluster) -> None:
    async def said() -> dict[str, str]:
        found = cluster.call("GET", f"/api/v1/nodes/{OTHER}")["status"]["conditions"]
        return {each["type"]: each["status"] for each in found}

    before = await said()
    assert before, "kubelet has said something, too"
    ours = ("MaintenancePlanned", "MaintenanceInProgress", "DrainInProgress", "Drained")
    async with cluster.holding("operator") as operator:
        await told_of_a_node(*map(a_condition, ours))(operator)
        assert await said() == before | dict.fromkeys(ours, "True")
        await told_of_a_node(*(a_condition(each, "False") for each in ours))(operator)
        assert await said() == before | dict.fromkeys(ours, "False")
