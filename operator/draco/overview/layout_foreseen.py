"""What happens to one GPU when policies change, in words. `mig_policy` and `mig.gpu_plan` decide it."""

from typing import NamedTuple

import msgspec

from draco.mig.board import Board
from draco.mig.gpu_plan import GpuPlan
from draco.mig.observed import ObservedGpu, ObservedInstance
from draco.mig_policy.boards import at_last
from draco.mig_policy.decide import GpuDecision, wanted_of
from draco.mig_policy.gpu_state import GpuCondition, LayoutState, condition_of
from draco.mig_policy.matching import Rules
from draco.overview.layout_schema import GpuPlanView, LayoutOutcome, PlaceView, WaitView
from draco.resources.api.draco import GpuNode, GpuStatus, InstanceUse, MigMode, MigPolicy, ResetPermit, WantedGpu
from draco.resources.names import closest_profile
from draco.resources.windows import Openness

_WHOLE = "the whole GPU"


class ForeseenGpu(NamedTuple):
    """A GPU as reported and as the planner sees it, with what its agent will do."""

    gpu: GpuStatus
    seen: ObservedGpu
    plan: GpuPlan


def planned(
    plain: GpuPlanView,
    what: ForeseenGpu,
    decision: GpuDecision,
    then: GpuNode,
    *,
    rules: Rules | None,
    allowed: Openness,
) -> GpuPlanView:
    """Return what happens to a GPU. `then` is its node after the decision, `rules` those of the GPU's policy."""
    gpu, made = what.gpu, what.plan
    board = what.seen.board or Board(())
    if rules is not None and _hindered(rules.policy, gpu, board):
        failed = decision.condition.state is LayoutState.FAILED
        outcome = LayoutOutcome.CANNOT if failed else LayoutOutcome.UNKNOWN
        return msgspec.structs.replace(plain, outcome=outcome, message=decision.condition.message)
    shown = _shown(plain, made)
    outcome, message = _outcome(shown), _remark(board, made) or (_without_warm(rules.policy, board) if rules else "")
    resets = made.needs_reset or what.seen.pending
    if rules is not None and resets:
        outcome, message = _reset(made, rules, allowed)
    elif rules is not None and decision.wanted is not None:
        at_end = condition_of(then, at_last(gpu, board, made), decision.wanted, rules.policy.spec.reset.permit)
        if at_end.state is LayoutState.FAILED:
            outcome, message = LayoutOutcome.CANNOT, at_end.message
    if resets and not allowed.is_open:
        shown = msgspec.structs.replace(shown, makes=[], makes_later=[*shown.makes, *shown.makes_later])
    return msgspec.structs.replace(shown, outcome=outcome, message=message)


def _shown(plain: GpuPlanView, made: GpuPlan) -> GpuPlanView:
    """The view with the steps of a plan."""
    waits = [_wait(part) for part in made.in_the_way]
    if made.whole and made.mode is MigMode.STATIC:
        waits.append(WaitView(what=_WHOLE, claims=list(made.whole)))
    coming = [part for part in made.promised if part.use is None and part not in made.in_the_way]
    return msgspec.structs.replace(
        plain,
        mode_change=made.mode_change,
        keeps=[PlaceView(profile=part.profile, start=part.start) for part in made.keeps],
        promised=[_wait(part) for part in sorted(coming, key=lambda part: part.start)],
        destroys=[PlaceView(profile=part.profile, start=part.start) for part in made.destroys],
        makes=[PlaceView(profile=one.profile.name, start=one.start) for one in made.makes],
        makes_later=[PlaceView(profile=one.profile, start=one.start) for one in made.makes_later],
        waits=waits,
    )


def _wait(part: ObservedInstance) -> WaitView:
    if part.claims:
        return WaitView(what=str(part), claims=list(part.claims))
    return WaitView(what=str(part), holder="" if part.use is InstanceUse.FOREIGN else part.holder)


def without_policy(plan: GpuPlanView, what: ForeseenGpu, had: WantedGpu | None) -> GpuPlanView:
    """Return what happens when a GPU loses its policy: it is no longer offered in parts."""
    if what.gpu.mig is None:
        message = "its agent does not report it now; when it does, its idle instances are destroyed"
        return msgspec.structs.replace(plan, outcome=LayoutOutcome.UNKNOWN, message=message)
    if had is None or had.mode is MigMode.DISABLED:
        return plan
    outcome = LayoutOutcome.CHANGES if plan.outcome is LayoutOutcome.UNCHANGED else plan.outcome
    return msgspec.structs.replace(plan, outcome=outcome, message=_offered(what))


def _offered(what: ForeseenGpu) -> str:
    """How claims get a GPU without a policy."""
    seen, made = what.seen, what.plan
    if seen.enabled and seen.switched_by_reset:
        return (
            "no new claim gets it until MIG is off, which needs a reset: deleting the policy does not turn MIG off, a policy of "
            "mode Disabled that permits resets does"
        )
    if any(each.use is InstanceUse.FOREIGN for each in seen.instances):
        return "no new claim gets it until the foreign instances are destroyed by hand"
    until = (
        ", after the claims on its partitions end" if any(part.claims for part in (*made.keeps, *made.promised)) else ""
    )
    return f"new claims get it only as a whole{until}"


def _hindered(policy: MigPolicy, gpu: GpuStatus, board: Board) -> bool:
    """Whether what the policy wants of the GPU cannot be determined."""
    if gpu.mig is None:
        return True
    return isinstance(wanted_of(policy, gpu.uuid, gpu.mig, board if board.profiles else None), GpuCondition)


def _outcome(shown: GpuPlanView) -> LayoutOutcome:
    if shown.waits or shown.makes_later:
        return LayoutOutcome.WAITS
    return LayoutOutcome.CHANGES if shown.makes or shown.destroys or shown.mode_change else LayoutOutcome.UNCHANGED


def _remark(board: Board, made: GpuPlan) -> str:
    """What else is worth knowing if nothing is wrong."""
    if made.mode_change == "on" and not board.profiles:
        return "the profiles of its board are known only when MIG is on: plan again then"
    lacking = ", ".join(f"{one.missing} x {one.profile}" for one in made.no_room)
    return f"there is no room now to keep {lacking} warm" if lacking else ""


def _without_warm(policy: MigPolicy, board: Board) -> str:
    """A remark about a board that has none of the profiles to keep warm; a policy may name those of several boards."""
    names, asked = [each.name for each in board.profiles], [each.profile for each in policy.spec.warm]
    if policy.spec.mode is not MigMode.DYNAMIC or not names or not asked or not set(asked).isdisjoint(names):
        return ""
    near = ", ".join(filter(None, dict.fromkeys(closest_profile(each, names) for each in asked)))
    return f"its board has no {' or '.join(asked)} to keep warm" + (f"; the nearest is {near}" if near else "")


def _reset(made: GpuPlan, rules: Rules, allowed: Openness) -> tuple[LayoutOutcome, str]:
    what = f"turning MIG {made.mode_change} needs a reset of the GPU" if made.mode_change else "the GPU needs a reset"
    if allowed.is_open:
        return LayoutOutcome.RESET, f"{what}, which the policy permits now"
    if rules.policy.spec.reset.permit is ResetPermit.NEVER:
        by_hand = f"switch it {made.mode_change} with nvidia-smi -mig and " if made.mode_change else ""
        return (
            LayoutOutcome.CANNOT,
            f"{what}, and spec.reset.permit is Never; permit it, or {by_hand}reset the GPU by hand",
        )
    if allowed.until is None:
        return LayoutOutcome.CANNOT, f"{what}, and no window of spec.reset ever opens"
    return LayoutOutcome.RESET, f"{what}, which the policy permits from {allowed.until:%Y-%m-%d %H:%M} UTC"
