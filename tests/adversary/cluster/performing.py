"""Executes actions: writes objects, breaks hardware, kills programs and restarts them.

Owns one function per kind of action. Refusals by the cluster are only counted. Delayed recoveries are tasks of the performer;
`settle` runs them immediately.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pynvml

from draco_local.cluster.controlplane import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from draco_local.simulator.accidents import faults, hotplug
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.state import StateError
from tests.adversary.cluster import drivers, evicting, maintaining, refusing
from tests.adversary.cluster.breaking import BREAK
from tests.adversary.cluster.cluster import FEATURES, NODES, Cluster
from tests.adversary.cluster.controlling import JOBS, Controlling
from tests.adversary.cluster.doubling import Doubling
from tests.adversary.cluster.evicting import Evicting
from tests.adversary.cluster.killing import Killing
from tests.adversary.cluster.maintaining import REQUESTS, Maintaining
from tests.adversary.cluster.manifests import ADMINS, TENANTS, Document
from tests.adversary.cluster.observer import world
from tests.adversary.cluster.observer.api import Answer, Api
from tests.adversary.cluster.observer.laws import READY
from tests.adversary.cluster.observer.watching import RESOURCE, RULE_VERSIONS
from tests.adversary.cluster.probing import Probing
from tests.adversary.cluster.refusing import Refusing
from tests.adversary.cluster.reserving import POD_GROUPS, RESERVATIONS, Reserving
from tests.adversary.cluster.tenants import Action
from tests.adversary.cluster.upgrading import Upgrades

PATHS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "ResourceClaim": RESOURCE + "/v1/namespaces/{}/resourceclaims",
    "ResourceClaimTemplate": RESOURCE + "/v1/namespaces/{}/resourceclaimtemplates",
    "DeviceReservation": RESERVATIONS,
    "PodGroup": POD_GROUPS,
    "Job": JOBS,
}
POLICIES = "/apis/draco.dev/v1alpha1/migpolicies"
REPORTS = "/apis/draco.dev/v1alpha1/gpunodes"
WRITE_TIMEOUT_S = 5.0
POLL_S = 0.1
NEEDED_WITHIN_S = 15.0
RULES_GRACE_S = 60.0
"""Operators that started without taint rules check for them every ten seconds and restart at the third success."""


class Performer:
    """Executes actions on one cluster.

    `done` counts actions by kind, `refused` the API server's refusals, `came_of` the actions that took effect.
    """

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.came_of: Counter[str] = Counter()
        self._cluster = cluster
        self._api = api
        self._later: set[asyncio.Task[None]] = set()
        self._settling = asyncio.Event()
        self._restarting = asyncio.Lock()
        self._rules = ""
        self.probing = Probing(cluster.observer, self._write)
        self._upgrades = Upgrades(cluster, self._soon, self._pause)
        self._kinds: dict[str, Callable[[Document], Awaitable[None]]] = {
            "rule: one device": self._rule,
            "rule: many devices": self._rule,
            "rule: lifted": self._lift,
            "maintenance: asked for": self._maintain,
            "policy: set": self._policy,
            "policy: deleted": self._delete_policy,
            "policy: allocator": self._hand_over,
            "tenant: deletes a pod": self._delete_pod,
            "tenant: deletes a claim": self._delete_claim,
            "tenant: lets go": self._let_go,
            "report: deleted": self._delete_report,
            "kill: kube-apiserver": lambda _: self._restart(APISERVER),
            "kill: kube-scheduler": lambda _: self._restart(SCHEDULER),
            "kill: kube-controller-manager": lambda _: self._restart(CONTROLLER_MANAGER),
            "kill: etcd": lambda _: self._restart(ETCD),
            "feature switched off": self._switch_off,
            "upgrade: agent": self._upgrades.agent,
            "upgrade: operator": self._upgrades.operator,
            "wait: pods run": self._wait_for_pods,
            "wait: pods are gone": self._wait_until_gone,
            "wait: groups have waited": self._wait_for_groups,
            "wait: ready for work": self._wait_for_requests,
            "hardware: reboot": self._reboot,
            "hardware: hangs": self._hang,
            "all is given back": self._given_back,
            **Killing(cluster, self._soon, self.came_of).kinds,
            **Maintaining(api, self._write).kinds,
            **Reserving(api, self._write).kinds,
            **Evicting(api, self._write, self._delete_pod).kinds,
            **Doubling(self._create).kinds,
            **Controlling(api, cluster.observer.world, self._write, self._delete_pod, self._soon).kinds,
            **Refusing(self._write, self._soon).kinds,
        }

    async def prepare(self) -> None:
        """Create namespaces and find the served version of taint rules."""
        for name in (*TENANTS, ADMINS):
            labels = {"resource.kubernetes.io/admin-access": "true"} if name == ADMINS else {}
            body = {"metadata": {"name": name, "labels": labels}}
            await self._api.call("POST", "/api/v1/namespaces", body)
        await maintaining.prepare(self._api)
        await evicting.prepare(self._api)
        await refusing.prepare(self._api)
        for version in RULE_VERSIONS:
            if (await self._api.call("GET", f"{RESOURCE}/{version}/devicetaintrules?limit=1")).ok:
                self._rules = f"{RESOURCE}/{version}/devicetaintrules"
                break

    async def perform(self, action: Action) -> None:
        """Execute an action now."""
        self._cluster.observer.note(str(action))
        self.done[action.kind] += 1
        arguments = action.arguments
        if action.kind.startswith(("hardware", "kill: kubelet")):
            self._cluster.observer.disturbed(arguments["node"])
        if "create" in arguments:
            for document in arguments["create"]:
                await self._create(document)
        elif action.kind in self._kinds:
            await self._kinds[action.kind](arguments)
        else:
            do = self._change_driver if action.kind.startswith("driver") else self._fault
            await asyncio.to_thread(do, action)

    async def settle(self) -> None:
        """Run delayed recoveries now, end every fault, and start everything."""
        self._settling.set()
        while self._later:
            await asyncio.gather(*self._later)
        self._settling.clear()
        self._cluster.observer.disturbed()
        for node in NODES:
            await asyncio.to_thread(self._heal, node)
        async with self._restarting:
            revived = await asyncio.to_thread(self._cluster.revive)
        self._cluster.observer.note(f"at rest; started again: {', '.join(revived) or 'nothing'}")

    async def start_scheduler_afresh(self) -> None:
        """Restart the scheduler, so that it knows the current state and no past."""
        self._cluster.observer.note("the scheduler is started afresh")
        await self._restart(SCHEDULER)

    async def _create(self, document: Document) -> Answer:
        namespace = document["metadata"]["namespace"]
        return await self._write("POST", PATHS[document["kind"]].format(namespace), document)

    async def _write(self, method: str, path: str, body: object = None) -> Answer:
        answer = await self._api.call(method, path, body, timeout_s=WRITE_TIMEOUT_S)
        if not answer.ok:
            self.refused[f"{method} {answer.status}"] += 1
            self._cluster.observer.note(f"refused: {answer.status} {str(answer.body.get('message'))[:200]}")
        return answer

    async def _rule(self, arguments: Document) -> None:
        document = dict(arguments["rule"])
        document["apiVersion"] = self._rules.removeprefix("/apis/").rpartition("/")[0]
        document["spec"] = {
            **document["spec"],
            "deviceSelector": self._resolved(document["spec"].get("deviceSelector", {})),
        }
        await self._write("POST", self._rules, document)

    async def _lift(self, arguments: Document) -> None:
        await self._write("DELETE", f"{self._rules}/{arguments['title']}")

    async def _maintain(self, arguments: Document) -> None:
        document = dict(arguments["request"])
        document["spec"] = {**document["spec"], "deviceSelector": self._resolved(document["spec"]["deviceSelector"])}
        await self._write("POST", REQUESTS, document)

    def _resolved(self, selector: Document) -> Document:
        """Replace a partition's drawn number by its published name, and record the name so that a replay uses the same one."""
        wanted = selector.get("device", "")
        if not wanted.startswith("partition:"):
            return selector
        names = sorted(
            device["name"]
            for one in list(self._cluster.observer.world.slices.values())
            if one["spec"]["pool"]["name"] == selector["pool"]
            for device in one["spec"].get("devices") or []
            if "-mig-" in device["name"]
        )
        number = int(wanted.partition(":")[2])
        selector["device"] = names[number % len(names)] if names else "gpu-0"
        return selector

    async def _policy(self, arguments: Document) -> None:
        document = arguments["policy"]
        answer = await self._api.call("POST", POLICIES, document, timeout_s=WRITE_TIMEOUT_S)
        if answer.status == 409:
            await self._write("PATCH", f"{POLICIES}/{document['metadata']['name']}", {"spec": document["spec"]})

    async def _hand_over(self, arguments: Document) -> None:
        change = {"spec": {"allocator": arguments["allocator"]}}
        await self._write("PATCH", f"{POLICIES}/{arguments['title']}", change)

    async def _delete_policy(self, arguments: Document) -> None:
        await self._write("DELETE", f"{POLICIES}/{arguments['title']}")

    async def _delete_report(self, arguments: Document) -> None:
        await self._write("DELETE", f"{REPORTS}/{arguments['node']}")

    async def _delete_pod(self, arguments: Document) -> None:
        namespace, _, name = arguments["pod"].partition("/")
        self._cluster.observer.bystanders.asked(arguments["pod"])
        grace = "" if arguments["grace"] is None else f"?gracePeriodSeconds={arguments['grace']}"
        await self._write("DELETE", f"{PATHS['Pod'].format(namespace)}/{name}{grace}")

    async def _delete_claim(self, arguments: Document) -> None:
        namespace, _, name = arguments["claim"].partition("/")
        await self._write("DELETE", f"{PATHS['ResourceClaim'].format(namespace)}/{name}")

    async def _let_go(self, arguments: Document) -> None:
        pod, claim = self._delete_pod(arguments), self._delete_claim(arguments)
        if arguments["order"] == "at once":
            await asyncio.gather(pod, claim)
            return
        for each in (pod, claim) if arguments["order"] == "pod first" else (claim, pod):
            await each

    async def _wait_for_pods(self, arguments: Document) -> None:
        pods = self._cluster.observer.world.pods
        await self._until(
            lambda: {world.name(each) for each in list(pods.values()) if world.phase(each) == "Running"}, arguments
        )

    async def _wait_until_gone(self, arguments: Document) -> None:
        pods = self._cluster.observer.world.pods
        await self._until(lambda: set(arguments["of"]) - {world.name(each) for each in list(pods.values())}, arguments)

    async def _wait_for_groups(self, arguments: Document) -> None:
        await self._until(self._cluster.observer.groups_to_compare, arguments)

    async def _wait_for_requests(self, arguments: Document) -> None:
        requests = self._cluster.observer.world.requests

        def ready() -> set[str]:
            found = list(requests.values())
            return {world.name(each) for each in found if world.condition(each, READY).get("status") == "True"}

        await self._until(ready, arguments)

    async def _until(self, there: Callable[[], set[str]], arguments: Document) -> None:
        """Wait for a state that a record needs, up to a deadline. The observer judges it."""
        for _ in range(int(arguments.get("within_s", NEEDED_WITHIN_S) / POLL_S)):
            if set(arguments["of"]) <= there():
                return
            await asyncio.sleep(POLL_S)

    def _soon(self, after_s: float, do: Callable[[], Awaitable[None]]) -> None:
        async def later() -> None:
            await self._pause(after_s)
            await do()

        task = asyncio.create_task(later())
        self._later.add(task)
        task.add_done_callback(self._ended)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the start of the next rest."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settling.wait(), seconds)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._later.discard(task)
        if not task.cancelled():
            task.result()

    async def _restart(self, component: str) -> None:
        async with self._restarting:
            await asyncio.to_thread(self._cluster.restart_plane, component)

    async def _switch_off(self, arguments: Document) -> None:
        flags = FEATURES[arguments["feature"]]
        async with self._restarting:
            if arguments["feature"] == "taint rules":
                self._cluster.observer.down("rules")
            await asyncio.to_thread(self._cluster.restart_plane, APISERVER, flags=flags)

        async def back() -> None:
            await self._restart(APISERVER)
            self._cluster.observer.up("rules", grace_s=RULES_GRACE_S)

        self._soon(arguments["back_in_s"], back)

    async def _given_back(self, _: Document) -> None:
        """Tell the observer that no taint may remain. The record has deleted all requests and rebooted every node before this."""
        self._cluster.observer.expects_nothing_tainted = True

    async def _reboot(self, arguments: Document) -> None:
        node = arguments["node"]
        minors = arguments["minors"]
        found = state.load(self._cluster.state(node)).gpus
        there = sum(gpu.error != pynvml.NVML_ERROR_GPU_IS_LOST for gpu in found)
        order = [each for each in minors if each < there] if minors else None
        await asyncio.to_thread(self._cluster.reboot, node, order)

    async def _hang(self, arguments: Document) -> None:
        path = self._cluster.state(arguments["node"])
        faults.hang(path, arguments["function"])

        async def back() -> None:
            await asyncio.to_thread(faults.stop_failing, path, arguments["function"])

        self._soon(arguments["seconds"], back)

    def _fault(self, action: Action) -> None:
        """Apply a fault to one board. Raises StateError if it is impossible now."""
        arguments: Any = action.arguments
        path, gpu = self._cluster.state(arguments["node"]), arguments.get("gpu", 0)
        what = action.kind.removeprefix("hardware: ")
        try:
            if what == "healed":
                self._heal(arguments["node"])
            else:
                if what == "driver reloaded":
                    self._cluster.observer.driver_changed(arguments["node"])
                BREAK[what](path, gpu, arguments)
                if what == "XID":
                    uuid = state.load(path).gpus[gpu].uuid
                    self._cluster.observer.faulted(arguments["node"], uuid, arguments["code"])
                self.came_of["faults of boards"] += 1
        except StateError as error:
            self.refused["hardware"] += 1
            self._cluster.observer.note(f"refused: {error}")

    def _change_driver(self, action: Action) -> None:
        node = action.arguments["node"]
        files, gpus = self._cluster.driver(node), self._cluster.state(node)
        self._cluster.observer.driver_changed(node)
        match action.kind.removeprefix("driver: "):
            case "other files":
                files.install(action.arguments["version"])
            case "no files":
                files.remove()
            case "toolkit":
                files.toolkit(action.arguments["which"])
            case "loaded as installed":
                if files.installed:
                    faults.reload_driver(gpus, version=files.installed)
            case other:
                raise AssertionError(f"nobody knows how to do {other}")
        self._cluster.observer.driver_changed(node)

    def _heal(self, node: str) -> None:
        """Repair a node by hand: every board is present and healthy, and no call fails or waits."""
        path, files = self._cluster.state(node), self._cluster.driver(node)
        if files.installed != drivers.loaded(path):
            self._cluster.observer.driver_changed(node)
            files.install(drivers.loaded(path))
        with state.mutate(path) as well:
            well.failures.clear()
            well.latency_s.clear()
        found = state.load(path)
        for gpu in [*found.gpus, *found.missing]:
            if gpu in found.missing or gpu.error:
                hotplug.reseat(path, gpu.uuid)
            else:
                faults.heal(path, gpu.uuid)
