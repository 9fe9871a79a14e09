"""The text of a layout: a bar per GPU, a line per instance. Colours only repeat what the words say. Computes nothing."""

import string
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from draco.overview.layout_schema import Division, FitView, GpuView, InstanceView, LayoutView, NodeLayoutView, Use
from draco.resources.api.draco import MigMode, MigState

STYLES = {
    Use.CLAIM: "black on cyan",
    Use.COMING: "black on bright_yellow",
    Use.WARM: "black on green",
    Use.LAYOUT: "black on bright_blue",
    Use.FOREIGN: "black on magenta",
    Use.ORPHAN: "black on red",
}
STATE_STYLES = {MigState.CHANGING: "yellow", MigState.DIRTY: "red", MigState.NEEDS_RESET: "red"}
WORDS = {
    Use.CLAIM: "",
    Use.COMING: "not made yet",
    Use.WARM: "idle, kept warm",
    Use.LAYOUT: "idle, of the layout",
    Use.FOREIGN: "foreign: made by others",
    Use.ORPHAN: "orphan: is being destroyed",
}
MOST_NODES = 16
"""Up to this many nodes, all are shown in full."""
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_NOT_MADE = {
    "": "without a policy, no instances are made",
    MigMode.STATIC: "only the instances of its layout are made",
    MigMode.DISABLED: "no instances are made, because the policy turns MIG off",
}
_TOGETHER = "\u00a0"
"""A non-breaking space, printed as a plain one."""
_WIDEST_BAR = 36
_WIDEST_UNIT = 4


def show(view: LayoutView, console: Console, width: int, most: int = MOST_NODES) -> None:
    """Print the nodes, wrapped at `width`. If there are more than `most`, undivided nodes are only counted."""
    if not view.nodes:
        console.print("No node has reported GPUs. Is Draco's agent running on the GPU nodes?")
    plain = {node.name: len(node.gpus) for node in view.nodes if len(view.nodes) > most and _is_plain(node)}
    for number, node in enumerate(node for node in view.nodes if node.name not in plain):
        if number:
            console.print()
        # One print per node: each print is slow, and a large fleet has many lines.
        console.print(Text("\n").join(_node_lines(node, width)))
    if plain:
        if len(plain) < len(view.nodes):
            console.print()
        nodes = f"{len(plain)} nodes have" if len(plain) > 1 else "1 node has"
        summary = f"{nodes} no divided GPU ({sum(plain.values())} in all); name a node to see it."
        console.print(Text("\n").join(wrapped(summary, "", "", width)), style="dim")
    if view.notes:
        console.print()
    for note in view.notes:
        console.print(Text(f"- {note}", "yellow"))


def _node_lines(node: NodeLayoutView, width: int) -> Iterator[Text]:
    yield Text(node.name, "bold")
    if not node.gpus:
        yield Text("  Its agent has reported no GPU.")
    column = max((len(gpu.device) for gpu in node.gpus), default=0)
    for gpus in _undivided_together(node.gpus):
        name = gpus[0].device if len(gpus) == 1 else f"{gpus[0].device} to {gpus[-1].device}"
        yield from gpu_lines(gpus[0], f"{name:<{column}}", width)


def _is_plain(node: NodeLayoutView) -> bool:
    """Whether the node has nothing worth showing: no division, policy, message or missing report."""
    return bool(node.gpus) and not any(
        _is_divided(gpu) or gpu.policy or gpu.message or gpu.division is Division.UNREPORTED for gpu in node.gpus
    )


def _is_divided(gpu: GpuView) -> bool:
    return gpu.division is Division.ON or bool(gpu.parts)


def _undivided_together(gpus: Sequence[GpuView]) -> list[list[GpuView]]:
    """The GPUs in order; undivided neighbours with the same text are grouped."""

    def alike(gpu: GpuView) -> object:
        return gpu.device if _is_divided(gpu) else _said(gpu)

    return [list(group) for _, group in groupby(gpus, key=alike)]


def _said(gpu: GpuView) -> tuple[str, ...]:
    return one_line(gpu), gpu.message, fits_line(gpu)


def gpu_lines(gpu: GpuView, name: str, width: int) -> Iterator[Text]:
    """The lines of one GPU, or of several that share a name and a text."""
    name = f"  {name}  "
    indent = " " * len(name)
    if not _is_divided(gpu):
        yield from wrapped(one_line(gpu), name, indent, width)
        yield from _about(gpu, indent, width)
        return
    state = Text(gpu.state, STATE_STYLES.get(MigState(gpu.state), "green"))
    first = Text.assemble(name, bar(gpu), "  ", state)
    policy = by_whom(gpu)
    if len(first) + 2 + len(policy) <= width:
        yield Text.assemble(first, f"  {policy}")
    else:
        yield first
        yield from wrapped(policy, indent, indent, width)
    rows = [_row(group) for group in _alike(gpu.parts)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        line = f"{cells[0]} {cells[1]} at {cells[2]}  {row[3]}"
        yield from wrapped(line.rstrip(), indent, f"{indent}    ", width)
    if held := whole_line(gpu):
        yield from wrapped(held, indent, indent, width)
    yield from _about(gpu, indent, width)


def one_line(gpu: GpuView) -> str:
    """The line of an undivided GPU."""
    held = f"; {whole_line(gpu)}" if gpu.claims else ""
    match gpu.division:
        case Division.UNREPORTED:
            return f"the agent does not report the instances of this GPU{held}"
        case Division.INCAPABLE:
            return f"cannot be divided: no MIG{held}"
        case _:
            wanted = f" ({by_whom(gpu)})" if gpu.policy else ""
            return f"not divided: MIG is off{wanted}{held}"


def whole_line(gpu: GpuView) -> str:
    """Who uses the whole GPU; "" for nobody."""
    return f"in use as a whole by {_claims(gpu.claims)}" if gpu.claims else ""


def by_whom(gpu: GpuView) -> str:
    """The policy of the GPU."""
    return f"{gpu.mode} by {gpu.policy}" if gpu.policy else "no policy"


def _alike(parts: Sequence[InstanceView]) -> list[list[tuple[str, InstanceView]]]:
    """Neighbouring instances with the same text, each with its letter."""
    lettered = ((_letter(index), part) for index, part in enumerate(parts))
    return [list(group) for _, group in groupby(lettered, key=lambda each: (each[1].profile, part_use(each[1])))]


def _row(group: Sequence[tuple[str, InstanceView]]) -> tuple[str, str, str, str]:
    letters = group[0][0] if len(group) == 1 else f"{group[0][0]}-{group[-1][0]}"
    first = group[0][1]
    return letters, first.profile, ", ".join(str(part.start) for _, part in group), part_use(first)


def _letter(index: int) -> str:
    return _LETTERS[index % len(_LETTERS)]


def part_use(part: InstanceView) -> str:
    """Who uses an instance, or its purpose."""
    claims = _claims(part.claims) if part.claims else ""
    holder = f"in use by {part.holder}" if part.holder else ""
    said = [claims, WORDS[part.use], holder]
    return "; ".join(filter(None, said))


def _claims(names: Sequence[str]) -> str:
    return f"{'claim' if len(names) == 1 else 'claims'} {', '.join(names)}"


def fits_line(gpu: GpuView) -> str:
    """What still fits, as a sentence; "" if unknown."""
    if gpu.state in {MigState.DIRTY, MigState.NEEDS_RESET}:
        return "no instances are made until this is resolved"
    if gpu.division is not Division.ON and not gpu.fits:
        return ""
    if gpu.mode != MigMode.DYNAMIC:
        return f"has room for {_counts(gpu.fits)}; {_NOT_MADE[gpu.mode]}" if gpu.fits else "full"
    said = f"fits {_counts(gpu.fits)}"
    counts = {each.profile: each.count for each in gpu.fits}
    if more := [each for each in gpu.fits_without_warm if each.count != counts.get(each.profile)]:
        said += f"; {_counts(more)} when idle warm instances are destroyed"
    return said if gpu.fits or gpu.fits_without_warm else "full"


def _counts(fits: Sequence[FitView]) -> str:
    return " or ".join(f"{each.count}{_TOGETHER}x{_TOGETHER}{each.profile}" for each in fits) or "nothing more"


def _about(gpu: GpuView, indent: str, width: int) -> Iterator[Text]:
    if gpu.message:
        yield from wrapped(gpu.message, indent, indent, width)
    if fits := fits_line(gpu):
        yield from wrapped(fits, indent, f"{indent}  ", width)


def bar(gpu: GpuView) -> Text:
    """The memory units from left to right: a bracket per instance, a dot per free unit."""
    unit = max(1, min(_WIDEST_UNIT, _WIDEST_BAR // max(gpu.units, 1)))
    text, at = Text(), 0
    for index, part in enumerate(gpu.parts):
        text.append(_free(part.start - at, unit), "dim")
        text.append(
            _block(_letter(index), part, unit * (part.start + part.size - max(at, part.start))), STYLES[part.use]
        )
        at = max(at, part.start + part.size)
    text.append(_free(gpu.units - at, unit), "dim")
    return text


def _free(units: int, unit: int) -> str:
    return ".".center(unit) * max(units, 0)


def _block(letter: str, part: InstanceView, width: int) -> str:
    if width < 3:
        return letter * max(width, 0)
    name = f"{letter} {part.profile}"
    inside = name if len(name) <= width - 2 else letter
    return f"[{inside:<{width - 2}}]"


def wrapped(text: str, first: str, rest: str, width: int) -> Iterator[Text]:
    """The wrapped lines of a text, with their indentation."""
    # Names are never broken, so that they can be searched and copied.
    printable = "".join(char if char.isprintable() or char == _TOGETHER else " " for char in text)
    lines = textwrap.wrap(
        printable,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        yield Text(line.replace(_TOGETHER, " "))
