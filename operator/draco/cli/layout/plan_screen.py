"""The text of a plan: each policy, then what happens to its GPUs. Colours only repeat what the words say. Computes nothing."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from draco.cli.layout.screen import wrapped
from draco.overview.layout_schema import GpuPlanView, LayoutOutcome, PlaceView, PlanView, PolicyPlanView, WaitView
from draco.resources.texts import agreeing, counted, listed

STYLES = {
    LayoutOutcome.CANNOT: "red",
    LayoutOutcome.RESET: "magenta",
    LayoutOutcome.WAITS: "yellow",
    LayoutOutcome.UNKNOWN: "yellow",
    LayoutOutcome.CHANGES: "cyan",
    LayoutOutcome.UNCHANGED: "green",
}
_NAMED = 4
"""GPUs of a group that are named; the rest are counted."""
_MOST_GROUPS = 16
"""Groups listed per outcome; the GPUs of the rest are counted."""
_INDENT = " " * 4


def show(view: PlanView, console: Console, width: int) -> None:
    """Print the plan, wrapped at `width`."""
    for note in view.notes:
        _print(console, width, f"- {note}", ("", "  "), "yellow")
    for policy in view.policies:
        _print(console, width, _headline(policy), ("", _INDENT))
        if policy.problem:
            _print(console, width, policy.problem, ("  ", _INDENT), "red")
        if policy.message:
            _print(console, width, policy.message, ("  ", _INDENT))
    groups = _folded(view.gpus)
    for outcome in LayoutOutcome:
        those = [group for group in groups if group[0].outcome is outcome]
        for gpus in those[:_MOST_GROUPS]:
            _group(console, width, gpus)
        if more := sum(len(gpus) for gpus in those[_MOST_GROUPS:]):
            console.print()
            console.print(
                Text.assemble((outcome.value, STYLES.get(outcome, "")), f"  {more} more: list them with -o json")
            )
    console.print()
    _print(console, width, verdict(view), ("", ""), "green" if view.applicable else "red")


def _group(console: Console, width: int, gpus: Sequence[GpuPlanView]) -> None:
    first = gpus[0]
    word = first.outcome.value
    text = f"{word}  {counted(len(gpus), 'GPU')}: {_names(gpus)}"
    console.print()
    for number, line in enumerate(wrapped(text, "", _INDENT, width)):
        if not number:
            line.stylize(STYLES.get(first.outcome, ""), 0, len(word))
        console.print(line)
    for sentence in sentences(first):
        _print(console, width, sentence, (_INDENT, f"{_INDENT}  "))


def _headline(policy: PolicyPlanView) -> str:
    layout = f", layout {policy.layout}" if policy.mode == "Static" else ""
    return f"Policy {policy.name} ({_fate(policy)}, {policy.mode}{layout}): {counted(policy.gpus, 'GPU')}"


def _fate(policy: PolicyPlanView) -> str:
    if policy.deleted:
        return "deleted"
    if policy.new:
        return "new"
    return "unchanged" if policy.unchanged else "changed"


def verdict(view: PlanView) -> str:
    """The closing sentence."""
    cannot = sum(each.outcome is LayoutOutcome.CANNOT for each in view.gpus)
    is_deletion = all(each.deleted for each in view.policies)
    named = [each.name for each in view.policies if each.problem]
    named = named or [each.name for each in view.policies if each.deleted == is_deletion]
    subject = f"{agreeing(len(named), 'Policy', 'Policies')} {listed(named)}"
    if any(each.problem for each in view.policies):
        elsewhere = f"; of the others, {counted(cannot, 'GPU')} cannot get the layout" if cannot else ""
        return f"{subject} cannot be applied{elsewhere}."
    if cannot and is_deletion:
        return f"{subject} can be deleted, but the next policy cannot be applied on {counted(cannot, 'GPU')}."
    if cannot:
        return f"{subject} cannot be applied on {counted(cannot, 'GPU')}."
    later = sum(each.outcome in {LayoutOutcome.WAITS, LayoutOutcome.RESET, LayoutOutcome.UNKNOWN} for each in view.gpus)
    changing = sum(each.outcome is LayoutOutcome.CHANGES for each in view.gpus)
    said = [
        f"{counted(number, 'GPU')} {when}" for number, when in ((changing, "immediately"), (later, "later")) if number
    ]
    outcome = f": {', '.join(said)}" if said else f", and {agreeing(len(named), 'changes', 'change')} nothing"
    return f"{subject} can be {'deleted' if is_deletion else 'applied'}{outcome}."


def sentences(gpu: GpuPlanView) -> Iterator[str]:
    """What happens to a GPU, step by step."""
    if gpu.message:
        yield gpu.message
    if gpu.outcome is LayoutOutcome.OLDER:
        return
    if gpu.policy != gpu.before:
        yield f"goes from {gpu.before or 'no policy'} to {gpu.policy or 'no policy'}"
    if gpu.destroys:
        yield f"destroys {_places(gpu.destroys)} (idle)"
    for wait in gpu.waits:
        yield f"waits {_for_what(wait)}"
    if gpu.mode_change:
        yield f"turns MIG {gpu.mode_change}"
    if gpu.makes:
        yield f"makes {_places(gpu.makes)}"
    if gpu.makes_later:
        yield f"makes {_places(gpu.makes_later)} after that"
    if gpu.keeps and (gpu.destroys or gpu.makes or gpu.makes_later or gpu.waits):
        yield f"keeps {_places(gpu.keeps)}"
    for promise in gpu.promised:
        yield f"keeps {promise.what} for {_named_claims(promise.claims)}"


def _for_what(wait: WaitView) -> str:
    if wait.claims:
        return f"for {_named_claims(wait.claims)}, which {'have' if len(wait.claims) > 1 else 'has'} {wait.what}"
    return f"for {wait.holder}, which has {wait.what}" if wait.holder else f"until its owner destroys {wait.what}"


def _named_claims(claims: Sequence[str]) -> str:
    return f"{'claims' if len(claims) > 1 else 'claim'} {', '.join(claims)}"


def _places(places: Sequence[PlaceView]) -> str:
    starts: dict[str, list[str]] = {}
    for each in places:
        starts.setdefault(each.profile, []).append(str(each.start))
    return "; ".join(f"{profile} at {', '.join(at)}" for profile, at in starts.items())


def _folded(gpus: Sequence[GpuPlanView]) -> list[list[GpuPlanView]]:
    groups: dict[tuple[str, ...], list[GpuPlanView]] = {}
    for each in gpus:
        groups.setdefault((each.outcome.value, *sentences(each)), []).append(each)
    return list(groups.values())


def _names(gpus: Sequence[GpuPlanView]) -> str:
    return listed((f"{each.node}/{each.device or each.uuid}" for each in gpus), _NAMED)


def _print(console: Console, width: int, text: str, indents: tuple[str, str], style: str = "") -> None:
    for line in wrapped(text, *indents, width):
        console.print(line, style=style)
