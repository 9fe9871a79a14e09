"""The GpuNode of this node: what its agent sees and does, for people and for the operator.

Owns its status. If the kind is not installed, the agent works without it.
"""

from collections.abc import Callable, Sequence

import msgspec
import structlog

from draco import __version__
from draco.agent.hardware.faults import DRIVER_HANGS, DRIVER_MISMATCH
from draco.agent.hardware.gpus import Gpu, GpuMigView, device_name, position
from draco.agent.hardware.monitor import HardwareView
from draco.agent.plugin.health_service import reports
from draco.agent.plugin.registration import RegistrationState
from draco.agent.publish.slices import memory, unpublishable
from draco.agent.report import mig_report
from draco.agent.report.own_object import OwnObject
from draco.agent.state.facts import NodeFacts
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.discovery import PARTITIONABLE, Features
from draco.kube.queue import WorkQueue, run_workers
from draco.resources.api.draco import GpuNodeStatus, GpuSharing, GpuStatus, MigState, UnidentifiedGpuStatus
from draco.resources.api.health import GpuFaultStatus
from draco.resources.api.meta import Condition, ObjectKey, all_timed
from draco.resources.kinds import GPU_NODES
from draco.resources.names import (
    CONDITION_CERTIFICATE,
    CONDITION_CLAIMS_THERE,
    CONDITION_COMPLETE,
    CONDITION_PARTITIONABLE,
    CONDITION_SOLE_ALLOCATOR,
    FIELD_MANAGER_AGENT,
)
from draco.resources.texts import listed

log = structlog.get_logger()

RECHECK_S = 300.0
FIGURES_S = 30.0
"""The longest delay of a write if only counts and times of faults have changed."""
FAULTS_PER_GPU = 64
ABSENT_S = 60.0
JOINING = (
    "it is being registered with its NVLink fabric and takes no new claim until that is done; if it takes minutes, look into "
    "the fabric manager's log (`journalctl -u nvidia-fabricmanager`)."
)


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the status. `claims` is the number of prepared ones."""

    driver: str
    facts: NodeFacts
    registration: RegistrationState
    claims: int
    folders_problem: str = ""
    """Why folders that claims need cannot be written."""
    certificate_problem: str | None = None
    """The problem of the metrics certificate, "" for none; None without a certificate."""


def status(node_report: NodeReport, *, generation: int) -> GpuNodeStatus:
    """The status to report, conditions without times."""
    facts = node_report.facts
    view, divisions = facts.view, facts.divisions if facts.recovered else {}
    health = {report.device: report for report in reports(view)}
    in_order = sorted(view.gpus, key=position)
    boards = mig_report.boards(in_order)
    gpus = [
        GpuStatus(
            device=device_name(one),
            uuid=one.uuid,
            product_name=one.product_name,
            architecture=one.architecture,
            memory=memory(one),
            minor=one.minor,
            pci_bus_id=one.pci_bus_id,
            numa_node=one.numa_node,
            health=health[device_name(one)].state.value,
            message=health[device_name(one)].message,
            notes=notes(one, facts, divisions.get(one.uuid)),
            faults=[fault.status for fault in one.faults[:FAULTS_PER_GPU]],
            sharing=_sharing(one, facts),
            mig=mig_report.mig(one, divisions, boards),
        )
        for one in in_order
    ]
    return GpuNodeStatus(
        observed_generation=generation,
        isolates=facts.features is None or facts.features.device_taints is not False,
        driver=node_report.driver,
        agent_version=__version__,
        driver_version=view.driver_version,
        cuda_driver_version=view.driver.cuda_driver_version if view.driver else "",
        pool_generation=facts.published.generation if facts.published else 0,
        prepared_claims=node_report.claims,
        gpu_count=len(gpus),
        mig_gpu_count=sum(one.mig is not None and one.mig.enabled for one in gpus),
        mig_instance_count=sum(len(one.mig.instances) for one in gpus if one.mig is not None),
        gpus=gpus,
        unidentified=[
            UnidentifiedGpuStatus(index=one.index, uuid=one.uuid, message=one.message) for one in view.unidentified
        ],
        boards=mig_report.tables(boards),
        conditions=[
            msgspec.structs.replace(one, observed_generation=generation) for one in _conditions(node_report, gpus)
        ],
    )


def _sharing(gpu: Gpu, facts: NodeFacts) -> GpuSharing | None:
    sharing = facts.sharing(gpu)
    return None if sharing == GpuSharing() else sharing


def notes(gpu: Gpu, facts: NodeFacts, division: GpuMigView | None) -> list[str]:
    """Notes on a GPU beside its health, to follow its name and a colon."""
    found = [one.message for one in gpu.unread]
    wanted = gpu.uuid in (facts.wanted.gpus or ())  # a MigPolicy has it
    if (slicing := facts.time_slicing.get(gpu.uuid)) is not None and slicing.problem:
        found.append(slicing.problem)
    if (mps := facts.mps.get(gpu.uuid)) is not None and mps.problem:
        found.append(mps.problem)
    if gpu.joining:
        found.append(JOINING)
    if division is not None and not wanted and _left_in_mig_mode(gpu, division):
        found.append(
            "its MIG mode is on, it has no instances and no MigPolicy has it, so it takes no claim; turn the mode off "
            f"(`nvidia-smi -i {gpu.uuid} -mig 0`) and reset it (`nvidia-smi --gpu-reset -i {gpu.uuid}`), or select it with a "
            "MigPolicy."
        )
    return found


def _left_in_mig_mode(gpu: Gpu, division: GpuMigView) -> bool:
    """Whether it is unusable until a person resets it. Where the mode can end without a reset, Prepare ends it."""
    return division.enabled and not division.held and division.state is MigState.READY and gpu.mig_needs_reset


def without_figures(said: GpuNodeStatus) -> GpuNodeStatus:
    """A status without counts and times of faults, which a program can change at any rate."""
    gpus = [msgspec.structs.replace(gpu, faults=[_without_figures(one) for one in gpu.faults]) for gpu in said.gpus]
    return msgspec.structs.replace(said, gpus=gpus)


def _without_figures(fault: GpuFaultStatus) -> GpuFaultStatus:
    return msgspec.structs.replace(fault, message="", count=0, clean_probes=0, first_seen=None, last_seen=None)


def _conditions(node_report: NodeReport, gpus: Sequence[GpuStatus]) -> list[Condition]:
    facts = node_report.facts
    view, registration, conflict = facts.view, node_report.registration, facts.conflict
    unreadable, why_unreadable = _unreadable(view)
    parts = [
        _condition("Readable", not unreadable, "DriverAnswers", unreadable, why_unreadable),
        _condition("Published", facts.published is not None, "SlicesWritten", "NotWritten", facts.problem),
        _condition("Registered", registration.accepted, "KubeletAccepted", "NotAccepted", registration.error),
        _condition(
            "Writable", not node_report.folders_problem, "FoldersWritable", "FolderRefused", node_report.folders_problem
        ),
    ]
    exclusive = _exclusive("" if conflict is None else conflict.sentence)
    needed = [exclusive, *parts] if conflict is not None and conflict.gives_way else parts
    lacking = [part for part in needed if part.status != "True"]
    sentences = " ".join(dict.fromkeys(part.message for part in lacking))
    ready = _condition("Ready", not lacking, "Serving", lacking[0].reason if lacking else "", sentences)
    further = [
        *_claims_there(" ".join(map(str, facts.leftovers.values()))),
        *_partitionable(facts.features),
        *_complete(view, gpus),
        *_if_known(
            CONDITION_SOLE_ALLOCATOR,
            None if facts.device_plugins is None else str(facts.device_plugins),
            "NoDevicePlugin",
            "DevicePlugin",
        ),
        *_if_known("ToolkitUsed", facts.edits_problem, "EditsTaken", "OwnEdits"),
        *_if_known(CONDITION_CERTIFICATE, node_report.certificate_problem, "Trusted", "Unfit"),
    ]
    return [ready, *parts, exclusive, *further]


def _unreadable(view: HardwareView) -> tuple[str, str]:
    """Why not every GPU is readable, as a reason and a message; both "" if all are."""
    if view.driver is None or view.fault:
        return ("Unreadable" if view.hang is None else DRIVER_HANGS), view.fault
    if view.mismatch:
        return DRIVER_MISMATCH, view.mismatch
    named = "; ".join(f"GPU {one.index}: {one.message}" for one in view.unidentified)
    return ("GpuUnidentified" if named else ""), named


def _complete(view: HardwareView, gpus: Sequence[GpuStatus]) -> list[Condition]:
    """Whether everything is published and no GPU waits for a person. Nothing before the first reading."""
    if view.driver is None:
        return []
    by_note: dict[str, list[str]] = {}
    for gpu in gpus:
        for note in gpu.notes:
            by_note.setdefault(note, []).append(gpu.device)
    of_node = [*(one.message for one in view.driver.unread), *unpublishable(view.driver)]
    if view.deaf:
        of_node.append(f"the agent receives no XIDs and reads the GPUs only at intervals: {view.deaf}")
    said = [f"{sentence[0].upper()}{sentence[1:]}" for sentence in of_node]
    said += [f"{listed(devices)}: {note}" for note, devices in by_note.items()]
    return [_condition(CONDITION_COMPLETE, not said, "AllPublished", "NotAllPublished", "\n".join(said))]


def _exclusive(conflict: str) -> Condition:
    return _condition("Exclusive", not conflict, "OnlyPlugin", "AnotherPlugin", conflict)


def _partitionable(features: Features | None) -> list[Condition]:
    """Nothing while unknown. A cluster without partitions does not make the node less ready."""
    if features is None or features.partitionable_devices is None:
        return []
    why = " ".join(f"{each.consequence} {each.remedy}" for each in features.missing if each.name == PARTITIONABLE)
    return [_condition(CONDITION_PARTITIONABLE, not why, "CountersKept", "CountersNotKept", why)]


def _claims_there(leftovers: str) -> list[Condition]:
    """Nothing while all prepared claims can be used."""
    return [_condition(CONDITION_CLAIMS_THERE, "", "", "ClaimGone", leftovers)] if leftovers else []


def _if_known(name: str, problem: str | None, why: str, why_not: str) -> list[Condition]:
    """A condition that does not affect readiness; nothing while unknown."""
    return [] if problem is None else [_condition(name, not problem, why, why_not, problem)]


def _condition(name: str, holds: object, why: str, why_not: str, message: str) -> Condition:
    if holds:
        return Condition(type=name, status="True", reason=why)
    return Condition(type=name, status="False", reason=why_not, message=message)


class NodeReporter:
    """Writes the GpuNode. `node_report` supplies the input of each write; `touch` says that it may have changed."""

    def __init__(self, client: Client, *, node: str, node_report: Callable[[], NodeReport], clock: Clock) -> None:
        self._client = client
        self._node = node
        self._node_report = node_report
        self._clock = clock
        self._queue: WorkQueue[str] = WorkQueue(clock=clock, base_s=0.5, cap_s=60.0)
        self._object = OwnObject(client, GPU_NODES, node)
        self._said: GpuNodeStatus | None = None
        self._figures_wait = False

    def touch(self, _change: object = None) -> None:
        """Report soon if something has changed. Several calls make one write."""
        node_report = self._node_report()
        fresh = status(node_report, generation=node_report.facts.wanted.generation)
        if fresh == self._said:
            return
        figures = self._said is not None and without_figures(fresh) == without_figures(self._said)
        self._said = fresh
        if not figures:
            self._queue.add_after(self._node, 0.05)
        elif not self._figures_wait:
            self._figures_wait = True
            self._queue.add_after(self._node, FIGURES_S)

    def report_now(self, _change: object = None) -> None:
        """Report immediately: the object was deleted, or its spec changed."""
        self._queue.add(self._node)

    async def run(self) -> None:
        """Report until cancelled."""
        self.touch()
        await run_workers(self._queue, self._reconcile, workers=1, log=log)

    async def _reconcile(self, node: str) -> float | None:
        key = ObjectKey("", node)
        self._figures_wait = False
        current = await self._object.read_or_create()
        if current is None:
            return ABSENT_S
        wanted = status(self._node_report(), generation=current.metadata.generation)
        fresh = msgspec.structs.replace(
            wanted, conditions=all_timed(wanted.conditions, current.status.conditions, self._clock.now())
        )
        if fresh != current.status:
            await self._client.apply(
                GPU_NODES,
                key,
                {"status": msgspec.to_builtins(fresh)},
                manager=FIELD_MANAGER_AGENT,
                subresource="status",
            )
        return RECHECK_S

    async def refused(self, sentence: str, *, by_ours: bool) -> None:
        """Report that this agent does not start, since another plugin serves the driver. Other fields stay.

        Under its own field manager, whose fields the next report of a running agent takes back. `by_ours`: the other plugin is a
        Draco agent, which reports itself whether the node is ready.
        """
        key = ObjectKey("", self._node)
        current = await self._object.read_or_create()
        if current is None:
            return
        exclusive = _exclusive(sentence)
        ready = Condition(type="Ready", status="False", reason=exclusive.reason, message=sentence)
        wanted = [exclusive] if by_ours else [ready, exclusive]
        fresh = all_timed(wanted, current.status.conditions, self._clock.now())
        await self._client.apply(
            GPU_NODES,
            key,
            {"status": {"conditions": msgspec.to_builtins(fresh)}},
            manager=f"{FIELD_MANAGER_AGENT}-refused",
            subresource="status",
        )
