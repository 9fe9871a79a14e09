"""The cluster under test: control plane, kubelet stand-ins, agents and two operators, each a process that can be killed.

Owns starting, killing and restarting them, and tells the observer of each. Chooses nothing.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from draco.agent.plugin.handover import stands_by
from draco_local.cluster import attach, ports
from draco_local.cluster.controlplane import ALL, APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER, ControlPlane, Settings
from draco_local.cluster.errors import MissingRequirement
from draco_local.cluster.process import Processes, ProcessRecord
from draco_local.cluster.programs import binaries, versions
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import state
from tests.adversary.cluster import drivers
from tests.adversary.cluster.audit import audited
from tests.adversary.cluster.drivers import DriverFiles
from tests.adversary.cluster.manifests import ADMINS, DRIVER, TENANTS, WORKS
from tests.adversary.cluster.observer.api import Access
from tests.adversary.cluster.observer.kept import Scraped
from tests.adversary.cluster.observer.observer import Node, Observer
from tests.adversary.cluster.processes import memory_mib
from tests.component.allocation.lab import ALLOCATE, USER, ChartParts
from tests.component.chart.webhook import GATING, LocalWebhook
from tests.requests import call

CHART_VALUES = (
    *(*ALLOCATE, "--set", f"operator.runJobs=true,operator.jobTemplates={{{','.join(WORKS)}}}"),
    *("--api-versions", "scheduling.k8s.io/v1alpha2/PodGroup"),
)
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
REPLICAS = ("operator-a", "operator-b")
OPERATORS = (*REPLICAS, "operator-c")
"""Two of them run; during an upgrade, all three."""
NODES: Mapping[str, str] = {"adv-0": "H100-80GB", "adv-1": "H100-80GB", "adv-2": "A100-40GB"}
"""Nodes and the model of their GPUs."""
CLIQUES: Mapping[str, str] = {"adv-0": "adversary.1", "adv-1": "adversary.1"}
"""The nodes that share an NVLink domain."""
GPUS = 4
READY_WITHIN_S = 120.0
REPLICA_GRACE_S = 25.0
"""A started replica has to import, connect, list everything, and wait for the lease."""
AGENT_GRACE_S = 30.0
AGENT_LEASE_S = 6
"""Shorter than some outages of agents, so that nodes are fenced."""
ENDS_WITHIN_S = 30.0
"""The termination grace period."""
API_GRACE_S = 15.0
"""Informers reconnect with backoff and list again."""
_NEXT = "-next"
OPERATOR = "tests.adversary.cluster.operators"
GATED = (TENANTS[0],)
"""Namespaces where Draco's webhook gates new pods. Elsewhere pods set the gate themselves."""
WITHOUT_RULES = ("--runtime-config=resource.k8s.io/v1beta2=false,resource.k8s.io/v1alpha3=false",)
_STATUS_GATES = (
    "DRAResourceClaimDeviceStatus",
    "DRADeviceBindingConditions",  # needs the first gate
    "DRAResourceClaimGranularStatusAuthorization",  # needs it, too
)
WITHOUT_DEVICE_STATUS = (f"--feature-gates={','.join(f'{gate}=false' for gate in _STATUS_GATES)}",)
FEATURES: Mapping[str, tuple[str, ...]] = {"taint rules": WITHOUT_RULES, "device status": WITHOUT_DEVICE_STATUS}
"""Features that flags of the API server switch off."""


SCRAPE_S = 3.0


class Replica(NamedTuple):
    """Where an operator serves its metrics, and its process."""

    port: int
    pid: int


class DidNotStart(Exception):
    """Part of the cluster did not start in time."""


@dataclass
class Cluster:
    """A cluster whose files are in one folder. Use it in one thread."""

    folder: Path
    sockets: Path
    plane: ControlPlane
    processes: Processes
    observer: Observer
    kubeconfig: Path
    running: set[str] = field(default_factory=set)
    agents: dict[str, str] = field(default_factory=lambda: {node: f"agent-{node}" for node in NODES})
    """The agent that serves each node or will be started for it."""
    replicas: dict[str, Replica] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    """Replicas that are suspended by SIGSTOP."""
    fresh_until: dict[str, float] = field(default_factory=dict)
    """When each replica has watched the lease for long enough to take it, in monotonic seconds."""

    @classmethod
    def up(cls, folder: Path) -> "Cluster":
        """Start everything and return when all nodes have published their GPUs and an operator is ready."""
        version = binaries.kubernetes_version()
        programs = binaries.find(*ALL, kubernetes=version)
        # Only at this level does kube-scheduler log for which pod it takes an allocation back.
        told = {APISERVER: audited(folder), SCHEDULER: ("--vmodule", "dynamicresources=5")}
        settings = Settings(
            programs, kubernetes=version, features=_features(version), enter=DIES_WITH_US, extra_flags=told
        )
        plane = ControlPlane(folder / "plane", settings)
        sockets = Path(tempfile.mkdtemp(prefix="adv-"))
        plane.start()
        nodes = {name: Node(sockets / name / "cdi", sockets / name / "gpus.json") for name in NODES}
        observer = Observer(access_of(plane), nodes, tenants=(*TENANTS, ADMINS))
        cluster = cls(folder, sockets, plane, Processes(folder / "programs"), observer, plane.kubeconfig)
        try:
            (folder / "programs").mkdir()
            asyncio.run(cluster._install())
            for name in NODES:
                cluster.start_kubelet(name)
            for name in NODES:
                cluster.start_agent(name)
            for name in REPLICAS:
                cluster.start_operator(name)
            observer.start()
            cluster._wait()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def stop(self) -> None:
        """Kill everything; the observer stops first."""
        self.observer.stop()
        self.processes.stop_each([record.name for record in self.processes.records()], grace_s=0.0)
        self.plane.stop()
        shutil.rmtree(self.plane.folder / "etcd", ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)

    async def _install(self) -> None:
        async with attach.client_of(self.kubeconfig) as client:
            await attach.install(client)
        await asyncio.to_thread(self._install_operators_part)

    def _install_operators_part(self) -> None:
        """Install the operator's part of the chart: account, roles, classes, register, admission policies and webhook."""
        ChartParts(self.plane, CHART_VALUES).install()
        gating = self.webhook.gating("draco", list(self.webhook_ports.values()), GATED)
        call(self.plane, "POST", GATING.path(), gating)
        self.plane.write_kubeconfig(self.operators_kubeconfig, USER)

    @cached_property
    def webhook(self) -> LocalWebhook:
        """The replicas' webhook. Each replica serves it, so another can answer if one does not."""
        return LocalWebhook(self.folder)

    @cached_property
    def webhook_ports(self) -> Mapping[str, int]:
        """Each replica's port, fixed for the cluster's lifetime."""
        found: dict[str, int] = {}
        for name in OPERATORS:
            found[name] = ports.pick(taken=frozenset({self.plane.port, *found.values()}))
        return found

    @property
    def operators_kubeconfig(self) -> Path:
        """Kubeconfig of the chart's account."""
        return self.folder / "operators.kubeconfig"

    def _wait(self) -> None:
        """Wait until every node's GPUs are published and an operator leads."""
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            pools = {one["spec"]["pool"]["name"] for one in list(self.observer.world.slices.values())}
            held = any((each["spec"].get("holderIdentity")) for each in list(self.observer.world.leases.values()))
            if pools >= set(NODES) and held:
                return
            if time.monotonic() > deadline:
                raise DidNotStart(f"pools: {sorted(pools)}, somebody leads: {held}; logs are in {self.folder}")
            time.sleep(0.2)

    def start_kubelet(self, name: str) -> None:
        """Start a node's kubelet stand-in. The first start creates the GPUs."""
        argv = [
            *DIES_WITH_US,
            sys.executable,
            "-m",
            "tests.adversary.cluster.kubelets",
            "--kubeconfig",
            self.kubeconfig,
        ]
        argv += ["--root", self.sockets, "--name", name, "--gpus", str(GPUS), "--board", NODES[name]]
        argv += ["--clique", CLIQUES.get(name, "")]
        self._start(f"kubelet-{name}", argv)
        self.observer.disturbed(name)

    def start_agent(self, node: str) -> None:
        """Start a node's agent."""
        self._start_agent(node, self.agents[node])
        self.observer.up(f"agent of {node}", grace_s=AGENT_GRACE_S)

    def start_next_agent(self, node: str) -> str:
        """Start the successor of the serving agent. Returns its name; "" if no agent serves or a successor already runs."""
        serving, following = self.agents[node], _other_agent(self.agents[node])
        if serving not in self.running or following in self.running:
            return ""
        self._start_agent(node, following)
        return following

    def stands_by(self, node: str) -> bool:
        """Whether the next agent is ready to take over."""
        return stands_by(self.sockets / node / "plugins" / DRIVER)

    def _start_agent(self, name: str, program: str) -> None:
        root = self.sockets / name
        if not (root / "gpus.json").exists():
            root.mkdir(parents=True, exist_ok=True)
            state.create(root / "gpus.json", board=NODES[name], gpus=GPUS, node_name=name)
        if not self.driver(name).root.exists():
            self.driver(name).install()
        argv = [*DIES_WITH_US, sys.executable, "-m", "draco_local.simulator.agent", "--state", root / "gpus.json"]
        argv += ["--node-name", name, "--kubelet-dir", root, "--cdi-dir", root / "cdi", "--kubeconfig", self.kubeconfig]
        argv += ["--driver-root", self.driver(name).root, "--take-over"]
        argv += ["--namespace", attach.SYSTEM_NAMESPACE, "--agent-lease-duration", str(AGENT_LEASE_S)]
        self._start(program, argv, environment={"PATH": f"{self.driver(name).image}:{os.environ['PATH']}"})

    def start_operator(self, name: str) -> None:
        """Start a replica."""
        argv: list[object] = [*DIES_WITH_US, sys.executable, "-m", OPERATOR, "operator", "--kubeconfig"]
        argv.append(self.operators_kubeconfig)
        argv += [
            "--namespace",
            attach.SYSTEM_NAMESPACE,
            "--identity",
            name,
            "--idle-grace",
            "5",
            "--pending-after",
            "3",
            "--run-jobs",
            "--allocate",
            *self.webhook.options(self.webhook_ports[name]),
        ]
        port = ports.pick(taken=frozenset({self.plane.port}))
        argv += ["--listen", f"127.0.0.1:{port}"]
        record = self._start(name, argv)
        self.replicas[name] = Replica(port, record.pid)
        self._comes_up(name)

    def driver(self, node: str) -> DriverFiles:
        """The files of a node's driver."""
        return DriverFiles(self.sockets / node)

    def scraped(self) -> dict[str, Scraped]:
        """Metrics and memory of the running replicas. The metrics are empty if a replica does not answer."""
        found = {}
        for name in (self.running - self.stopped) & set(OPERATORS):
            replica, metrics = self.replicas[name], ""
            with contextlib.suppress(OSError, HTTPException):
                url = f"http://127.0.0.1:{replica.port}/metrics"
                with urllib.request.urlopen(url, timeout=SCRAPE_S) as answer:
                    metrics = answer.read().decode()
            found[name] = Scraped(metrics, memory_mib(replica.pid))
        return found

    def _start(self, name: str, argv: list[object], environment: Mapping[str, str] | None = None) -> ProcessRecord:
        record = self.processes.start(
            name,
            [str(each) for each in argv],
            directory=Path(__file__).parents[3],
            environment={"PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        self.running.add(name)
        if not name.startswith("kubelet"):
            self.observer.programs.started(name, record.pid, self.processes.log(name))
        return record

    def kill(self, name: str) -> None:
        """Kill a program with SIGKILL."""
        self.observer.killed(name)
        if name.startswith("agent-"):
            self._agent_dies(name)
        if name in OPERATORS and self.holder() in {name, ""}:
            self.observer.lease.killed(time.monotonic())
        self.processes.stop(name, grace_s=0.0)
        self.running.discard(name)
        self.stopped.discard(name)
        self._count_replicas()

    def _agent_dies(self, name: str) -> None:
        node = node_of(name)
        self.observer.disturbed(node)
        self.observer.down(f"agent of {node}")
        if _other_agent(name) in self.running:
            self.agents[node] = _other_agent(name)
            self.observer.up(f"agent of {node}", grace_s=AGENT_GRACE_S)

    def end(self, name: str) -> bool:
        """End a program with SIGTERM, or with SIGKILL if it takes too long. Returns whether it ended in time."""
        began = time.monotonic()
        self.observer.programs.told_to_end(name)
        if name in OPERATORS:
            if self.holder() == name:
                self.observer.lease.told_to_end(began)
            self.running.discard(name)
            self._count_replicas()
        elif _other_agent(name) in self.running:
            self.agents[node_of(name)] = _other_agent(name)
        self.processes.stop(name, grace_s=ENDS_WITHIN_S)
        self.running.discard(name)
        self.observer.killed(name)
        return time.monotonic() - began < ENDS_WITHIN_S

    def stop_for_a_while(self, name: str, pid: int) -> None:
        """Suspend a replica with SIGSTOP."""
        os.kill(pid, signal.SIGSTOP)
        self.stopped.add(name)
        self._count_replicas()

    def let_go_on(self, name: str, pid: int) -> bool:
        """Resume a replica with SIGCONT, unless it has ended. Returns whether it was resumed."""
        if name not in self.stopped or self.pid(name) != pid:
            return False
        os.kill(pid, signal.SIGCONT)
        self.stopped.discard(name)
        self._comes_up(name)
        return True

    def _count_replicas(self) -> None:
        """Tell the observer if no replica can take the lease. A started one must first watch it for its whole duration."""
        now = time.monotonic()
        there = [self.fresh_until.get(name, now) - now for name in (self.running - self.stopped) & set(OPERATORS)]
        able_in_s = min(there, default=None)
        if able_in_s is None or able_in_s > 0:
            self.observer.down("replicas")
        if able_in_s is not None and able_in_s > 0:
            self.observer.up("replicas", grace_s=able_in_s)

    def _comes_up(self, name: str) -> None:
        self.fresh_until[name] = time.monotonic() + REPLICA_GRACE_S
        self.observer.up("replicas", grace_s=REPLICA_GRACE_S)

    def revive(self) -> list[str]:
        """Restart the programs that were killed or ended, as Kubernetes would."""
        self.restart_ended()
        operators = [name for name in OPERATORS if name not in self.running]
        missing = operators[: len(REPLICAS) - len(OPERATORS) + len(operators)]
        missing += [f"kubelet-{node}" for node in NODES if f"kubelet-{node}" not in self.running]
        missing += [name for name in self.agents.values() if name not in self.running]
        for name in missing:
            self.start(name)
        return missing

    def restart_ended(self) -> None:
        """Restart the programs that ended without being killed."""
        for name in self.observer.programs.ended():
            self.kill(name)
            self.start(name)

    def start(self, name: str) -> None:
        """Start a program that is not running; an agent only if the node's other agent is not running either."""
        if name in self.running or _other_agent(name) in self.running:
            return
        if name in OPERATORS:
            self.start_operator(name)
        elif name.startswith("kubelet-"):
            self.start_kubelet(name.removeprefix("kubelet-"))
        else:
            self.agents[node_of(name)] = name
            self.start_agent(node_of(name))

    def pid(self, name: str) -> int | None:
        """A program's process ID; None if it is not running."""
        return next((record.pid for record in self.processes.records() if record.name == name), None)

    def holder(self) -> str:
        """The replica that holds the lease."""
        for lease in list(self.observer.world.leases.values()):
            if lease["metadata"]["name"] == "draco-operator":
                return str(lease["spec"].get("holderIdentity") or "").rpartition("_")[0]
        return ""

    def restart_plane(self, component: str, *, flags: tuple[str, ...] = ()) -> None:
        """Kill a Kubernetes component with SIGKILL and restart it."""
        api = component in {ETCD, APISERVER}
        parts = {CONTROLLER_MANAGER: "collector", SCHEDULER: "scheduler"}
        part = "api" if api else parts[component]
        self.observer.down(part)
        self.plane.kill(component)
        self.plane.start_again(component, extra_flags=flags)
        self.observer.up(part, grace_s=API_GRACE_S)

    def reboot(self, node: str, minors: list[int] | None) -> None:
        """Power-cycle a node: kubelet and agents are killed, CDI specs are lost, and the boards boot."""
        self.kill(f"kubelet-{node}")
        for agent in (_other_agent(self.agents[node]), self.agents[node]):
            if agent in self.running:
                self.kill(agent)
        for spec in (self.sockets / node / "cdi").glob("*"):
            spec.unlink(missing_ok=True)
        self.observer.driver_changed(node)
        faults.reboot(self.state(node), minors=minors)
        if installed := self.driver(node).installed:
            drivers.load(self.state(node), installed)
        self.start_kubelet(node)
        self.start_agent(node)

    def state(self, node: str) -> Path:
        """The state file of a node's GPUs."""
        return self.sockets / node / "gpus.json"


def _features(version: str) -> versions.Features:
    """All DRA features, and PodGroups if this version is known to have them."""
    try:
        versions.minor_of(version, "gangs")
    except MissingRequirement:
        return "all"
    return "gangs"


def node_of(agent: str) -> str:
    """The node of an agent's process."""
    return agent.removeprefix("agent-").removesuffix(_NEXT)


def _other_agent(agent: str) -> str:
    """The other of the two names that a node's agents use in turn."""
    return agent.removesuffix(_NEXT) if agent.endswith(_NEXT) else f"{agent}{_NEXT}"


def access_of(plane: ControlPlane) -> Access:
    """Access as administrator."""
    return Access(plane.server, plane.pki / "ca.crt", plane.pki / "admin.crt", plane.pki / "admin.key")
