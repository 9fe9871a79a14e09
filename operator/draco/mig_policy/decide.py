"""One node: which of its GPUs belong to which policy, and what is wanted of each.

Owns the choice: the oldest policy that selects a GPU has it. A GPU that cannot be judged now, because its agent or its driver is
down, or because a selector is broken, stays with the policy that has it.

Decisions of tens of thousands of GPUs are remembered, and hold no cycles: the garbage collector need not walk them each time.
"""

from collections.abc import Mapping, Sequence

import msgspec

from draco.mig.board import Board
from draco.mig_policy.boards import boards_of
from draco.mig_policy.gpu_state import GpuCondition, LayoutState, condition_of
from draco.mig_policy.matching import MatchVerdict, PolicyMatch, Rules, verdict
from draco.mig_policy.wanted import wanted_of
from draco.resources.api.draco import GpuNode, GpuStatus, WantedGpu
from draco.resources.api.slices import Device


class SeenNode(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node with GPUs. `devices` are its whole GPUs by UUID, as published."""

    gpu_node: GpuNode
    labels: Mapping[str, str] = {}
    devices: Mapping[str, Device] = {}


class GpuDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU. `policy` has it ("" for none); `verdicts` is what each policy says to it."""

    uuid: str
    device: str
    board: str = ""
    policy: str = ""
    wanted: WantedGpu | None = None
    condition: GpuCondition = GpuCondition(LayoutState.APPLIED)
    verdicts: Mapping[str, MatchVerdict] = {}


class NodeDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All GPUs of a node."""

    node: str
    gpus: tuple[GpuDecision, ...]
    boards: Mapping[str, Board] = {}

    @property
    def wanted(self) -> list[WantedGpu]:
        """What is to stand in the node's spec, by UUID."""
        return sorted((each.wanted for each in self.gpus if each.wanted), key=lambda each: each.uuid)

    def __str__(self) -> str:
        said = [
            f"{each.device or each.uuid}: {f'{each.wanted.mode} by {each.policy}' if each.wanted else 'left alone'}"
            for each in self.gpus
        ]
        return f"{self.node}: " + ("; ".join(said) or "no GPU")


def decide(seen: SeenNode, rules: Sequence[Rules], permits: Mapping[str, bool]) -> NodeDecision:
    """What is wanted of the node's GPUs. `rules` are the policies, oldest first; `permits` whether each may reset now."""
    node = seen.gpu_node
    boards = boards_of(node)
    current = {each.uuid: each for each in node.spec.gpus}
    gpus = [*node.status.gpus, *_unreported(node, current)]
    decided = tuple(_gpu(seen, gpu, boards, rules, permits) for gpu in gpus)
    return NodeDecision(node=node.metadata.name, gpus=decided, boards=boards)


def _gpu(
    seen: SeenNode,
    gpu: GpuStatus,
    boards: Mapping[str, Board],
    rules: Sequence[Rules],
    permits: Mapping[str, bool],
) -> GpuDecision:
    current = next((each for each in seen.gpu_node.spec.gpus if each.uuid == gpu.uuid), None)
    driver = seen.gpu_node.status.driver
    device = seen.devices.get(gpu.uuid)
    has_it = current.policy if current is not None else ""
    verdicts = {
        each.name: verdict(each, seen.labels, gpu, device, driver=driver, has_it=each.name == has_it) for each in rules
    }
    owner = next((each for each in rules if _takes(verdicts[each.name], each.name == has_it)), None)
    plain = GpuDecision(uuid=gpu.uuid, device=gpu.device, board=gpu.mig.board if gpu.mig else "", verdicts=verdicts)
    if owner is None:
        return plain
    kept = current if has_it == owner.name else None
    wanted, hindered = kept, None
    if gpu.mig is not None and verdicts[owner.name].answer is PolicyMatch.SELECTED:
        result = wanted_of(owner.policy, gpu.uuid, gpu.mig, boards.get(gpu.mig.board))
        # What cannot be as it is wanted stays as it was, and Draco's.
        wanted, hindered = result.wanted or kept, result.hindered
    if wanted is not None:
        wanted = msgspec.structs.replace(wanted, reset_permitted=permits.get(owner.name, False))
    if hindered is None and wanted is not None:
        hindered = condition_of(seen.gpu_node, gpu, wanted, owner.policy.spec.reset.permit)
    return msgspec.structs.replace(
        plain, policy=owner.name, wanted=wanted, condition=hindered or GpuCondition(LayoutState.CHANGING)
    )


def _takes(said: MatchVerdict, has_it: bool) -> bool:
    return said.answer is PolicyMatch.SELECTED or (said.answer is PolicyMatch.UNKNOWN and has_it)


def _unreported(node: GpuNode, current: Mapping[str, WantedGpu]) -> list[GpuStatus]:
    """GPUs that are spoken for and not reported while the node's driver does not answer. Otherwise they are gone."""
    readable = next((each for each in node.status.conditions if each.type == "Readable"), None)
    if readable is None or readable.status == "True":
        return []
    reported = {each.uuid for each in node.status.gpus}
    return [GpuStatus(device="", uuid=uuid) for uuid in current if uuid not in reported]
