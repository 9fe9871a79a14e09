"""Whole scenarios under the chart's service accounts: agents and an operator with tokens of the chart's pods."""

import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp

from draco.health.requests import remediates
from draco.kube.errors import NotFound
from draco.maintenance.taint_rules import fence_name
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    DEVICE_LIMITS,
    DEVICE_MAINTENANCES,
    DEVICE_RESERVATIONS,
    GPU_NODES,
    HEALTH_POLICIES,
    JOBS,
    LEASES,
    MAINTENANCE_BUDGETS,
    MIG_POLICIES,
    NODES,
    PODS,
    SHARING_POLICIES,
    SLICES,
    TAINT_RULES,
)
from draco.resources.names import ANNOTATION_HELD, SCHEDULING_GATE, PoolKey, agent_lease_name
from draco_local.simulator.accidents import faults
from tests.component.chart import audit
from tests.component.chart.programs import JOB_SPACE, NODE_NAMES, RAW_PODS, TENANT, Cluster, an_allocation, token
from tests.component.chart.rendering import NAMESPACE
from tests.component.controller.replicas import until


async def a_pod_runs_and_ends(cluster: Cluster) -> None:
    await cluster.claim("one")
    await cluster.pod("train", "one")
    await until(lambda: cluster.running("train"), what="the pod runs")

    async def reported() -> bool:
        return bool((await cluster.client.get(CLAIMS, ObjectKey(TENANT, "one"))).status.devices)

    await until(reported, what="the agent's report")
    await cluster.gone(PODS, ObjectKey(TENANT, "train"))
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "one"))


async def a_pending_claim_is_explained(cluster: Cluster) -> None:
    await cluster.claim("large", count=9)
    await cluster.pod("waits", "large")
    await until(lambda: cluster.said_of("large"), what="the Event")
    await cluster.gone(PODS, ObjectKey(TENANT, "waits"))

    async def withdrawn() -> bool:
        return not await cluster.said_of("large")

    await until(withdrawn, what="the withdrawal of the Event")
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "large"))


async def a_gpu_is_maintained(cluster: Cluster) -> None:
    """A GPU goes through maintenance within a budget, which reports its use."""
    budget = ObjectKey("", "one-at-a-time")
    await cluster.client.create(MAINTENANCE_BUDGETS, {"metadata": {"name": budget.name}, "spec": {"maxDevices": 1}})
    key = ObjectKey("", "swap")
    selector = {"driver": "gpu.nvidia.com", "pool": NODE_NAMES[1], "device": "gpu-0"}
    await cluster.client.create(
        DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": {"deviceSelector": selector}}
    )

    async def phase_is(phase: MaintenancePhase) -> bool:
        return (await cluster.client.get(DEVICE_MAINTENANCES, key)).status.phase == phase

    async def is_used_up() -> bool:
        return (await cluster.client.get(MAINTENANCE_BUDGETS, budget)).status.out_of_service == 1

    await until(lambda: phase_is(MaintenancePhase.IN_MAINTENANCE), what="InMaintenance")
    await until(is_used_up, what="the budget to be used up")
    await cluster.client.patch(DEVICE_MAINTENANCES, key, {"spec": {"finished": True}})
    await until(lambda: phase_is(MaintenancePhase.COMPLETED), what="Completed")
    await cluster.gone(DEVICE_MAINTENANCES, key)
    await cluster.gone(MAINTENANCE_BUDGETS, budget)


async def a_gpu_is_drained_and_tried(cluster: Cluster) -> None:
    """The only GPU of its node, so the Node has the condition, too. Cancelled while its Job runs, which is then stopped."""
    client, key = cluster.client, ObjectKey("", "reset")
    await cluster.claim("leaves")
    await cluster.pod("leaves", "leaves", node=NODE_NAMES[1])
    await until(lambda: cluster.running("leaves"), what="the pod runs")
    await cluster.template("probe", run_s=600)
    spec = {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": NODE_NAMES[1], "device": "gpu-0"},
        "allowMostOfClass": True,
        "drain": {"policy": "Evict"},
        "verification": {"mode": "Job", "fromCronJob": "probe"},
    }
    await client.create(DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": spec})

    async def phase_is(phase: MaintenancePhase) -> bool:
        return (await client.get(DEVICE_MAINTENANCES, key)).status.phase == phase

    await until(lambda: phase_is(MaintenancePhase.IN_MAINTENANCE), what="InMaintenance")
    await client.patch(DEVICE_MAINTENANCES, key, {"spec": {"finished": True}})

    async def a_job() -> bool:
        return bool(await client.list(JOBS, namespace=JOB_SPACE))

    await until(a_job, what="the Job that tries the GPU")
    await client.patch(DEVICE_MAINTENANCES, key, {"spec": {"cancelled": True}})
    await until(lambda: phase_is(MaintenancePhase.CANCELLED), what="Cancelled")
    await cluster.gone(DEVICE_MAINTENANCES, key)
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "leaves"))


async def a_fault_opens_a_request_and_old_ones_are_cleared_away(cluster: Cluster) -> None:
    client, node = cluster.client, NODE_NAMES[1]
    state = next((cluster.folder / "n" / node).rglob("gpus.json"))
    rule = {"name": "hot", "condition": f'fault.family == "thermal" && gpu.node == "{node}"', "effect": "Evict"}
    await client.create(HEALTH_POLICIES, {"metadata": {"name": "heat"}, "spec": {"rules": [rule]}})
    uid = (await client.get(HEALTH_POLICIES, ObjectKey("", "heat"))).metadata.uid

    async def ours(phase: MaintenancePhase) -> list[DeviceMaintenance]:
        requests = await client.list(DEVICE_MAINTENANCES)
        return [each for each in requests if remediates(each) == uid and each.status.phase == phase]

    faults.temperature(state, 0, 120)
    [request] = await until(lambda: ours(MaintenancePhase.IN_MAINTENANCE), what="a request of the policy's")
    faults.temperature(state, 0, 40)
    await until(lambda: ours(MaintenancePhase.COMPLETED), within_s=120, what="its end, once the GPU is cool")
    metadata = {"labels": request.metadata.labels, "annotations": request.metadata.annotations}
    stem = request.metadata.name.rpartition("-")[0]
    for number in range(2, 9):
        key = ObjectKey("", f"{stem}-{number}")
        spec = {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": "nowhere", "device": "gpu-0"}}
        await client.create(
            DEVICE_MAINTENANCES, {"metadata": {"name": key.name, **metadata}, "spec": {**spec, "cancelled": True}}
        )

    async def cleared() -> bool:
        return request.metadata.name not in {each.metadata.name for each in await client.list(DEVICE_MAINTENANCES)}

    await until(cleared, what="the oldest request is cleared away")
    await cluster.gone(HEALTH_POLICIES, ObjectKey("", "heat"))
    for each in await client.list(DEVICE_MAINTENANCES):
        await cluster.gone(DEVICE_MAINTENANCES, each.metadata.key)


async def a_taint_rule_is_reported(cluster: Cluster) -> None:
    """The report reads what the pods' disruption budgets allow."""
    await cluster.claim("tainted")
    await cluster.pod("victim", "tainted", node=NODE_NAMES[1])
    await until(lambda: cluster.running("victim"), what="the pod runs")
    rules = next(kind for kind in TAINT_RULES if kind.version == "v1beta2")
    key = ObjectKey("", "suspect")
    selector = {"driver": "gpu.nvidia.com", "pool": NODE_NAMES[1], "device": "gpu-0"}
    spec = {"taint": {"key": "example.com/suspect", "effect": "None"}, "deviceSelector": selector}
    await cluster.client.create(rules, {"metadata": {"name": key.name}, "spec": spec})

    async def reported() -> bool:
        return any("would delete 1 pod" in text for text in await cluster.said_of(key.name, "TaintImpact"))

    await until(reported, what="the Event on the rule")
    await cluster.gone(rules, key)
    await cluster.gone(PODS, ObjectKey(TENANT, "victim"))
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "tainted"))


async def a_gpu_is_partitioned_and_an_idle_claim_gives_way(cluster: Cluster) -> None:
    client, node = cluster.client, NODE_NAMES[0]
    spec = {
        "mode": "Dynamic",
        "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node}},
        "repair": {"idleClaims": "Release"},
    }
    await client.create(MIG_POLICIES, {"metadata": {"name": "shared"}, "spec": spec})

    async def partitions() -> list[str]:
        slices = await client.list(SLICES)
        return [
            d.name for each in slices if each.spec.node_name == node for d in each.spec.devices if "-mig-" in d.name
        ]

    [part, *_] = [
        name for name in await until(partitions, what="partitions") if "-mig-1g10gb-" in name and name.endswith("-0")
    ]
    await cluster.claim("idle", profile="1g.10gb")
    status = {"allocation": an_allocation(node, part)}
    await client.patch(CLAIMS, ObjectKey(TENANT, "idle"), {"status": status}, subresource="status")
    await cluster.claim("whole", profile="4g.40gb")
    await cluster.pod("needs-all", "whole", node=node)
    await until(lambda: cluster.said_of("idle", "ClaimReleased"), what="the release")
    await until(lambda: cluster.running("needs-all"), what="the pod that it kept waiting")
    await cluster.gone(PODS, ObjectKey(TENANT, "needs-all"))
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "whole"))
    await cluster.claim("part", profile="1g.10gb")
    await cluster.pod("small", "part", node=node)
    await until(lambda: cluster.running("small"), what="a pod on a partition")
    await cluster.gone(PODS, ObjectKey(TENANT, "small"))
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "part"))
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "idle"))
    await cluster.gone(MIG_POLICIES, ObjectKey("", "shared"))

    async def whole_again() -> bool:
        return not await partitions()

    await until(whole_again, what="a GPU without partitions")


async def a_gpu_is_shared(cluster: Cluster) -> None:
    client, node = cluster.client, NODE_NAMES[1]
    nodes = {"matchLabels": {"kubernetes.io/hostname": node}}
    spec = {"mode": "Memory", "default": "10Gi", "nodeSelector": nodes}
    await client.create(SHARING_POLICIES, {"metadata": {"name": "by-memory"}, "spec": spec})

    async def shared() -> bool:
        slices = await client.list(SLICES)
        return any(device.allow_multiple_allocations for each in slices for device in each.spec.devices)

    async def unshared() -> bool:
        return not await shared()

    await until(shared, what="GPUs for several claims")
    await cluster.gone(SHARING_POLICIES, ObjectKey("", "by-memory"))
    await until(unshared, what="GPUs for one claim each again")


async def a_claim_is_allocated_by_draco(cluster: Cluster) -> None:
    """A claim is allocated within a limit, which reports its use."""
    client, node = cluster.client, NODE_NAMES[0]
    spec = {
        "mode": "Disabled",
        "allocator": "Operator",
        "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node}},
    }
    await client.create(MIG_POLICIES, {"metadata": {"name": "handed-over"}, "spec": spec})
    limit = ObjectKey("", "one-each")
    await client.create(DEVICE_LIMITS, {"metadata": {"name": limit.name}, "spec": {"limits": {"devices": 1}}})
    # Not a class of the chart by its name: claims of those have their finalizer already.
    own = ObjectKey("", "dracos-and-ours")
    selector = {"cel": {"expression": "device.attributes['draco.dev'].?allocator.orValue('') == 'operator'"}}
    meta = {"name": own.name, "labels": {"draco.dev/allocator": "operator"}}
    await client.create(DEVICE_CLASSES, {"metadata": meta, "spec": {"selectors": [selector]}})
    await cluster.claim("dracos", device_class=own.name)
    await until(lambda: _held(cluster), what="a node held against scale-down while no pod uses the claim")
    await cluster.pod("with-dracos", "dracos")
    await until(lambda: cluster.running("with-dracos"), what="a pod with a claim that Draco allocated")

    async def is_used_up() -> bool:
        return "1 of 1 devices" in (await client.get(DEVICE_LIMITS, limit)).status.message

    await until(is_used_up, what="the limit to be used up")
    await cluster.gone(DEVICE_LIMITS, limit)
    await cluster.gone(PODS, ObjectKey(TENANT, "with-dracos"))
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "dracos"))
    await cluster.gone(DEVICE_CLASSES, own)
    await _a_job_set_starts(cluster)
    await _a_gpu_is_reserved(cluster)
    await _gpus_are_worked_on_and_tried(cluster)
    await _a_partition_is_tried(cluster)
    await cluster.gone(MIG_POLICIES, ObjectKey("", "handed-over"))

    async def handed_back() -> bool:
        slices = await client.list(SLICES)
        return not any(d.taints for each in slices if each.spec.node_name == node for d in each.spec.devices)

    await until(handed_back, what="the GPUs are the scheduler's again")


async def a_claim_that_nobody_uses_is_looked_at(cluster: Cluster) -> None:
    """A DeviceLimit makes the operator read the usage of the node."""
    client, limit = cluster.client, ObjectKey("", "unused")
    await cluster.claim("unused")
    await cluster.pod("unused", "unused")
    await until(lambda: cluster.running("unused"), what="the pod runs")
    unused = {"evictAfter": "1h", "notice": "1h"}  # the pods are warned as soon as nobody uses the GPU
    await client.create(DEVICE_LIMITS, {"metadata": {"name": limit.name}, "spec": {"unused": unused}})

    async def is_told() -> bool:
        return "unused for 1h" in (await client.get(DEVICE_LIMITS, limit)).status.message

    await until(is_told, what="the limit's status")
    asks = audit.Right("draco.dev", "gpuusages", "get", NODE_NAMES[0])

    async def is_read() -> bool:
        found = audit.Requests(cluster.folder / "audit.log", "draco-operator")
        return asks in found.allowed or asks in found.refused

    await until(is_read, what="the usage to be read")
    await cluster.gone(DEVICE_LIMITS, limit)
    await cluster.gone(PODS, ObjectKey(TENANT, "unused"))
    await cluster.gone(CLAIMS, ObjectKey(TENANT, "unused"))


async def _held(cluster: Cluster) -> bool:
    return any(ANNOTATION_HELD in each.metadata.annotations for each in await cluster.client.list(NODES))


async def _a_job_set_starts(cluster: Cluster) -> None:
    """Draco reads from the Jobs how many pods start together, and removes its gate from them."""
    client, name = cluster.client, "of-a-set"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.draco.dev"}}
    claim = {"metadata": {"name": name, "namespace": TENANT}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    await client.create(CLAIM_TEMPLATES, claim)
    pod = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
        "schedulingGates": [{"name": SCHEDULING_GATE}],
        "terminationGracePeriodSeconds": 0,
    }
    labels = {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/global-replicas": "1"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    meta = {"name": name, "namespace": TENANT, "labels": labels}
    await client.create(JOBS, {"metadata": meta, "spec": {"parallelism": 1, "template": template}})

    async def started() -> bool:
        pods = await client.list(RAW_PODS, namespace=TENANT, label_selector=f"batch.kubernetes.io/job-name={name}")
        return any(each["status"].get("phase") == "Running" for each in pods)

    await until(started, what="a pod of a JobSet with a claim that Draco allocated")
    await cluster.gone(JOBS, ObjectKey(TENANT, name))
    for each in await client.list(RAW_PODS, namespace=TENANT, label_selector=f"batch.kubernetes.io/job-name={name}"):
        await cluster.gone(PODS, ObjectKey(TENANT, each["metadata"]["name"]))
    await client.delete(CLAIM_TEMPLATES, ObjectKey(TENANT, name))


async def _a_gpu_is_reserved(cluster: Cluster) -> None:
    """A GPU is reserved by a template of the namespace for a second."""
    client = cluster.client
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.draco.dev"}}
    template = {"spec": {"devices": {"requests": [request]}}}
    await client.create(CLAIM_TEMPLATES, {"metadata": {"name": "one", "namespace": TENANT}, "spec": template})
    meta = {"name": "kept", "namespace": TENANT}
    await client.create(DEVICE_RESERVATIONS, {"metadata": meta, "spec": {"templateName": "one"}})
    key = ObjectKey(TENANT, "kept")

    async def reserved(number: int) -> bool:
        return (await client.get(DEVICE_RESERVATIONS, key)).status.reserved == number

    await until(lambda: reserved(1), what="the reservation has a GPU")
    await client.patch(DEVICE_RESERVATIONS, key, {"spec": {"expiresAt": "2020-01-01T00:00:00Z"}})
    await until(lambda: reserved(0), what="the reservation has ended")
    await cluster.gone(DEVICE_RESERVATIONS, key)


async def _gpus_are_worked_on_and_tried(cluster: Cluster) -> None:
    """Maintenance with Jobs of a GPU handed over to Draco, and of one that kube-scheduler allocates while another is Draco's."""
    await cluster.template("reset", run_s=0.2)
    await cluster.template("probe", run_s=0.2)
    for node in NODE_NAMES:
        await _is_verified_by_a_job(cluster, node, "gpu-0", work={"fromCronJob": "reset"})


async def _a_partition_is_tried(cluster: Cluster) -> None:
    client, node = cluster.client, NODE_NAMES[0]
    await client.patch(MIG_POLICIES, ObjectKey("", "handed-over"), {"spec": {"mode": "Dynamic"}})

    async def part() -> str:
        slices = await client.list(SLICES)
        devices = [each for item in slices if item.spec.node_name == node for each in item.spec.devices]
        return next((each.name for each in devices if "-mig-1g10gb-" in each.name and each.taints), "")

    name = await until(part, what="partitions that Draco allocates")
    await _is_verified_by_a_job(cluster, node, name)
    await client.patch(MIG_POLICIES, ObjectKey("", "handed-over"), {"spec": {"mode": "Disabled"}})


async def _is_verified_by_a_job(cluster: Cluster, node: str, device: str, **spec: Any) -> None:
    client, key = cluster.client, ObjectKey("", f"try-{node}-{device}")
    selector = {"driver": "gpu.nvidia.com", "pool": node, "device": device}
    probe = {"mode": "Job", "fromCronJob": "probe"}
    body = {"deviceSelector": selector, "verification": probe, **spec}
    await client.create(DEVICE_MAINTENANCES, {"metadata": {"name": key.name}, "spec": body})

    async def reached(*phases: MaintenancePhase) -> bool:
        return (await client.get(DEVICE_MAINTENANCES, key)).status.phase in phases

    if not spec:
        await until(lambda: reached(MaintenancePhase.IN_MAINTENANCE), what="InMaintenance")
        await client.patch(DEVICE_MAINTENANCES, key, {"spec": {"finished": True}})
    try:
        await until(lambda: reached(MaintenancePhase.COMPLETED), what=f"{device} of {node} is verified", within_s=60)
    except AssertionError as error:
        raise AssertionError((await client.get(DEVICE_MAINTENANCES, key)).status.message) from error
    await cluster.gone(DEVICE_MAINTENANCES, key)


async def metrics_are_scraped(cluster: Cluster) -> None:
    """Scrape with an unauthorised token: the operator and the agents must find that it may not read metrics."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token(cluster.plane, 'default', 'metrics')}"}
    async with aiohttp.ClientSession(trust_env=False, headers=headers) as session:
        for port in cluster.metrics_ports:
            async with session.get(f"https://127.0.0.1:{port}/metrics", ssl=tls) as response:
                assert response.status == 403, await response.text()


async def an_agent_is_lost(cluster: Cluster) -> None:
    """An agent's driver fails. The operator reads its lease again before it fences its GPUs."""
    rules = next(kind for kind in TAINT_RULES if kind.version == "v1beta2")
    gpus = cluster.folder / "n" / NODE_NAMES[1] / "gpus.json"
    key = ObjectKey("", fence_name(PoolKey("gpu.nvidia.com", NODE_NAMES[1])))

    async def fenced() -> bool:
        return key.name in {each.metadata.name for each in await cluster.client.list(rules)}

    async def is_open() -> bool:
        return not await fenced()

    async def called_lost() -> bool:
        conditions = (await cluster.client.get(GPU_NODES, ObjectKey("", NODE_NAMES[1]))).status.conditions
        return any(each.type == "Ready" and each.reason == "AgentLost" for each in conditions)

    faults.break_driver(gpus)
    await until(fenced, what="the fence")
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    node = ObjectKey("", NODE_NAMES[1])
    await cluster.client.apply(GPU_NODES, node, ready, manager="somebody", subresource="status")
    await until(called_lost, what="the condition of a GpuNode that claims to be ready")
    faults.reload_driver(gpus)
    await until(is_open, what="the lift")


async def an_agents_lease_is_changed(cluster: Cluster) -> None:
    """Somebody else changes an agent's lease: the agent reads it before it renews it."""
    key = ObjectKey(NAMESPACE, agent_lease_name(NODE_NAMES[0]))
    changed = await cluster.client.patch(LEASES, key, {"metadata": {"annotations": {"example.com/seen": "by-us"}}})

    async def renewed() -> bool:
        return (await cluster.client.get(LEASES, key)).spec.renew_time != changed.spec.renew_time

    await until(renewed, what="the renewal of a lease that was changed")


async def a_report_is_deleted(cluster: Cluster) -> None:
    key = ObjectKey("", NODE_NAMES[0])
    before = await cluster.client.get(GPU_NODES, key)
    await cluster.client.delete(GPU_NODES, key)

    async def anew() -> bool:
        with suppress(NotFound):
            found = await cluster.client.get(GPU_NODES, key)
            return found.metadata.uid != before.metadata.uid and bool(found.status.conditions)
        return False

    await until(anew, what="another GpuNode")


async def a_record_is_damaged(cluster: Cluster) -> None:
    """The agent reports a damaged checkpoint with an Event on the Node, and rebuilds it from the API."""
    async with cluster.nodes():
        await until(lambda: cluster.said_of(NODE_NAMES[0], "CheckpointDamaged"), what="the Event on the Node")
        await cluster.claim("afterwards")
        await cluster.pod("afterwards", "afterwards", node=NODE_NAMES[0])
        await until(lambda: cluster.running("afterwards"), what="a pod, which is prepared with the rebuilt record")
        await cluster.gone(PODS, ObjectKey(TENANT, "afterwards"))
        await cluster.gone(CLAIMS, ObjectKey(TENANT, "afterwards"))


SCENARIOS: list[Callable[[Cluster], Awaitable[None]]] = [
    a_pod_runs_and_ends,
    a_pending_claim_is_explained,
    a_gpu_is_maintained,
    a_gpu_is_drained_and_tried,
    a_fault_opens_a_request_and_old_ones_are_cleared_away,
    a_taint_rule_is_reported,
    a_gpu_is_partitioned_and_an_idle_claim_gives_way,
    a_gpu_is_shared,
    a_claim_is_allocated_by_draco,
    a_claim_that_nobody_uses_is_looked_at,
    metrics_are_scraped,
    an_agent_is_lost,
    an_agents_lease_is_changed,
    a_report_is_deleted,
]
