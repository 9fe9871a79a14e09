"""What keeps the node from serving claims, and all that is reported of it.

Reads the node's facts, and checks on demand whether folders are writable and a certificate is valid. Owns the order of reasons.
Writes nothing.
"""

from draco.agent.files import Files, advice
from draco.agent.plugin.registration import Plugin
from draco.agent.publish.publisher import SlicePublisher
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.report.node_status import NodeReport
from draco.agent.settings import AgentSettings
from draco.agent.state.node import NodeState
from draco.certificates import CertificateMetrics

UNSERVED_S = 30.0
"""How long the cluster may not serve ResourceSlices before the agent is not ready."""


class Readiness:
    """The readiness of one node's agent."""

    def __init__(
        self,
        state: NodeState,
        record: Checkpoint,
        plugin: Plugin,
        publisher: SlicePublisher,
        certificates: CertificateMetrics,
        *,
        settings: AgentSettings,
        files: Files,
    ) -> None:
        self._state = state
        self._record = record
        self._plugin = plugin
        self._publisher = publisher
        self._certificates = certificates
        self._settings = settings
        self._files = files

    def hindrance(self) -> str:
        """Why no new claim should get a GPU of this node, as a sentence; "" while the agent reads, publishes and serves them."""
        facts = self._state.facts
        if facts.view.driver is None or facts.view.fault:
            return facts.view.fault or "The GPUs cannot be read."
        if reason := facts.view.mismatch or facts.gives_way_to:
            return reason
        if not facts.published:
            return facts.problem
        return "" if self._plugin.serving.is_set() else "Kubelet's sockets are not served yet."

    def lacking(self) -> list[str]:
        """Why the agent is not ready, for its probe. A missing registration is kubelet's problem and does not count."""
        facts = self._state.facts
        sentences = [] if self._plugin.serving.is_set() else ["Kubelet's sockets are not served yet."]
        if problem := self._folders_problem():
            sentences.append(problem)
        if facts.view.hang is not None:
            sentences.append(facts.view.fault)
        if facts.gives_way_to:
            return [*sentences, facts.gives_way_to]
        if (for_s := self._publisher.unserved_s) > UNSERVED_S:
            sentences.append(f"The cluster has not served ResourceSlices for {for_s:.0f} s.")
        return sentences if facts.published else [*sentences, facts.problem]

    def node_report(self) -> NodeReport:
        """The input of the GpuNode's status."""
        troubles = self._certificates.troubles.values()
        return NodeReport(
            driver=self._settings.driver,
            facts=self._state.facts,
            registration=self._plugin.registration,
            claims=sum(claim.state == "prepared" for claim in self._record.claims.values()),
            folders_problem=self._folders_problem(),
            certificate_problem=None if self._settings.metrics is None else " ".join(troubles),
        )

    def _folders_problem(self) -> str:
        """Why folders that claims need cannot be written; "" if they seem writable, as far as known without trying."""
        hindrances = (self._files.hindrance(each) for each in (self._settings.cdi_dir, self._settings.state_folder))
        return " ".join(f"No claim can be prepared: {advice(each)}." for each in hindrances if each is not None)
