"""A layout as one picture that needs nothing else: SVG, equal for equal layouts.

Owns sizes, colours and the escaping of names. Computes nothing.
"""

import unicodedata
from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from draco.cli.layout_schema import Division, GpuView, LayoutView, PartView, Use
from draco.cli.layout_screen import by_whom, fits_line, one_line, told

COLOURS = {
    Use.CLAIM: "#56b4e9",
    Use.COMING: "#f0e442",
    Use.WARM: "#009e73",
    Use.LAYOUT: "#9ad0c2",
    Use.FOREIGN: "#cc79a7",
    Use.ORPHAN: "#d55e00",
}
"""Told apart by most people who see colours differently (Okabe and Ito)."""
LEGEND = {
    Use.CLAIM: "held by a claim",
    Use.COMING: "promised to a claim",
    Use.WARM: "idle, warm",
    Use.LAYOUT: "idle, of a layout",
    Use.FOREIGN: "made by others",
    Use.ORPHAN: "being destroyed",
}
WIDTH = 1000
LEFT = 170
BAR = 560
ROW = 46
HEAD = 34
MARGIN = 16
_CHARACTER = 6.6
"""Width of a character of the labels in a part, about."""


def picture(view: LayoutView) -> str:
    """The whole document."""
    body: list[str] = []
    y = MARGIN
    for node in view.nodes:
        body.append(_text(MARGIN, y + 20, node.name, "n"))
        y += HEAD
        for gpu in node.gpus:
            body += _gpu(gpu, y)
            y += ROW
    if not view.nodes:
        body.append(_text(MARGIN, y + 20, "No node has reported GPUs.", "l"))
        y += HEAD
    body += _legend(y + 8)
    height = y + 8 + HEAD
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="How GPUs are divided">'
    )
    style = (
        "<style>text{font:12px sans-serif;fill:#222}.n{font-weight:bold;font-size:14px}.s{fill:#555;font-size:11px}"
        ".w{fill:#b00020;font-size:11px}</style>"
    )
    background = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([head, style, background, *body, "</svg>", ""])


def _gpu(gpu: GpuView, y: int) -> Iterator[str]:
    yield _text(MARGIN, y + 16, gpu.device, "l")
    if gpu.division is not Division.ON and not gpu.parts:
        yield _rect(LEFT, y, BAR, "#f2f2f2", one_line(gpu))
        yield _text(LEFT + 8, y + 16, _cut(one_line(gpu), BAR), "s")
    else:
        unit = BAR / max(gpu.units, 1)
        for index in range(gpu.units):
            yield _rect(LEFT + index * unit, y, unit, "#f2f2f2", f"unit {index}")
        for part in gpu.parts:
            yield from _part(part, y, unit)
        yield _text(LEFT + BAR + 12, y + 16, _cut(f"{gpu.state}, {by_whom(gpu)}", WIDTH - LEFT - BAR - 12), "s")
    notes = [text for text in (gpu.message, fits_line(gpu)) if text]
    if notes:
        yield _text(LEFT, y + 36, _cut("; ".join(notes), WIDTH - LEFT), "w" if gpu.message else "s")


def _part(part: PartView, y: int, unit: float) -> Iterator[str]:
    x, width = LEFT + part.start * unit, part.size * unit
    said = f"{part.profile} at {part.start}: {told(part) or 'claim'}"
    yield _rect(x, y, width, COLOURS[part.use], said)
    label = f"{part.profile} {', '.join(part.claims)}".strip()
    yield _text(x + 5, y + 16, _cut(label, width - 8), "l")


def _legend(y: int) -> Iterator[str]:
    x = MARGIN
    for use, words in LEGEND.items():
        yield f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[use]}" stroke="#555"/>'
        yield _text(x + 20, y + 12, words, "s")
        x += 155


def _rect(x: float, y: int, width: float, fill: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="24" fill="{fill}" stroke="#555"><title>{_escaped(title)}'
        "</title></rect>"
    )


def _text(x: float, y: int, text: str, kind: str) -> str:
    return f"<text x={quoteattr(f'{x:.2f}')} y={quoteattr(str(y))} class={quoteattr(kind)}>{_escaped(text)}</text>"


def _cut(text: str, width: float) -> str:
    most = max(int(width / _CHARACTER), 0)
    return text if len(text) <= most else f"{text[: most - 1]}…" if most > 1 else ""


def _escaped(text: str) -> str:
    """Names may come from anywhere: markup is written as text, and what XML does not allow is left out."""
    return escape("".join(char for char in text if char == " " or unicodedata.category(char)[0] != "C"))
