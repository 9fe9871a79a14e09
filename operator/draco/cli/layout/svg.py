"""A layout as one self-contained SVG picture; equal layouts give equal text. Owns sizes, colours and escaping."""

import unicodedata
from collections.abc import Iterator
from xml.sax.saxutils import escape

from draco.cli.layout.screen import by_whom, fits_line, one_line, part_use, whole_line
from draco.overview.layout_schema import Division, GpuView, InstanceView, LayoutView, Use

COLOURS = {
    Use.CLAIM: "#56b4e9",
    Use.COMING: "#f0e442",
    Use.WARM: "#009e73",
    Use.LAYOUT: "#9ad0c2",
    Use.FOREIGN: "#cc79a7",
    Use.ORPHAN: "#d55e00",
}
"""The Okabe-Ito palette, which colour-blind readers can tell apart."""
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
ROW = 66
HEIGHT = 34
HEAD = 34
MARGIN = 16
_CHARACTER = 6.2
"""Approximate width of a label's character."""


def picture(view: LayoutView) -> str:
    """The whole SVG document."""
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
    yield _text(MARGIN, y + 22, gpu.device, "l")
    held = whole_line(gpu)
    if gpu.division is not Division.ON and not gpu.parts:
        held = ""  # the bar already shows it
        yield _rect(LEFT, y, BAR, "#f2f2f2", one_line(gpu))
        yield _fitted((LEFT + 8, y + 22), one_line(gpu), BAR, "s")
    else:
        unit = BAR / max(gpu.units, 1)
        for index in range(gpu.units):
            yield _rect(LEFT + index * unit, y, unit, "#f2f2f2", f"unit {index}")
        for part in gpu.parts:
            yield from _part(part, y, unit)
        yield _fitted((LEFT + BAR + 12, y + 22), f"{gpu.state}, {by_whom(gpu)}", WIDTH - LEFT - BAR - 12, "s")
    notes = [text for text in (gpu.message.rstrip("."), held, fits_line(gpu)) if text]
    if notes:
        yield _fitted((LEFT, y + HEIGHT + 14), "; ".join(notes), WIDTH - LEFT, "w" if gpu.message else "s")


def _part(part: InstanceView, y: int, unit: float) -> Iterator[str]:
    x, width = LEFT + part.start * unit, part.size * unit
    said = f"{part.profile} at {part.start}: {part_use(part) or 'claim'}"
    yield _rect(x, y, width, COLOURS[part.use], said)
    who = ", ".join(part.claims)
    yield _fitted((x + 5, y + (14 if who else 22)), part.profile, width - 8, "l")
    if who:
        yield _fitted((x + 5, y + 28), who, width - 8, "s")


def _legend(y: int) -> Iterator[str]:
    x = MARGIN
    for use, words in LEGEND.items():
        yield f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[use]}" stroke="#555"/>'
        yield _text(x + 20, y + 12, words, "s")
        x += 155


def _rect(x: float, y: int, width: float, fill: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{HEIGHT}" fill="{fill}" stroke="#555"><title>{_escaped(title)}'
        "</title></rect>"
    )


def _text(x: float, y: int, text: str, kind: str) -> str:
    return f'<text x="{x:.2f}" y="{y}" class="{kind}">{_escaped(text)}</text>'


def _fitted(at: tuple[float, int], text: str, width: float, kind: str) -> str:
    """A text, cut if it is too long; then its tooltip has all of it."""
    most = max(int(width / _CHARACTER), 1)
    if len(text) <= most:
        return _text(*at, text, kind)
    shown = f"{_escaped(text[: most - 1])}…<title>{_escaped(text)}</title>"
    return f'<text x="{at[0]:.2f}" y="{at[1]}" class="{kind}">{shown}</text>'


def _escaped(text: str) -> str:
    """The text with markup escaped, and without characters that XML does not allow."""
    return escape("".join(char for char in text.replace("\u00a0", " ") if unicodedata.category(char)[0] != "C"))
