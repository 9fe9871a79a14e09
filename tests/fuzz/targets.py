"""The fuzz targets: every part of Draco that reads untrusted text, each with the law it must keep.

Owns the list of targets, what each starts from, and what counts as an answer.
"""

import io
import json
from pathlib import Path

import msgspec

from draco.cel import CompileError, EvaluationError, compile_selector, device_view
from draco.cli.input.yaml_documents import documents
from draco.cli.lint.command import check
from draco.cli.output import lines_of
from draco.cli.selector.cases import evaluated
from draco.cli.simulate.scenarios import answers
from draco.cli.simulate.traces import LONGEST_LINE, Arrive, TraceError, events
from draco.mig.geometry import geometry
from draco.mig.ideal_packing import packable
from draco.mig.known_boards import BOARDS
from draco.mig.layouts import LayoutError, resolve
from draco.mig.replay import Policy, Replay, SimulatedFleet, rule_of
from draco.resources.api.draco import LayoutInstances
from draco.resources.api.slices import Device
from draco.resources.quantity import Quantity, QuantityError
from draco.resources.semver import SemVer, SemVerError
from draco.resources.written.manifests import ManifestError, decode, expand
from tests.differential.cel_grammar import RULES
from tests.differential.cel_oddities import ODD
from tests.differential.runs import KEPT
from tests.fuzz import machines
from tests.fuzz.run import Target

ROOT = Path(__file__).parents[2]
DRIVER = "gpu.example.com"
DEVICE = {
    "name": "gpu-0",
    "attributes": {
        "model": {"string": "A100"},
        "count": {"int": 8},
        "flag": {"bool": True},
        "version": {"version": "1.2.3"},
        "names": {"strings": ["a", "b"]},
    },
    "capacity": {"memory": {"value": "40Gi"}},
}
SELECTORS = [
    *ODD,
    f'device.driver == "{DRIVER}" && device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
    f'device.attributes["{DRIVER}"].?model.orValue("") in ["A100", "H100"]',
    f'has(device.attributes["{DRIVER}"].version) && device.attributes["{DRIVER}"].version.isGreaterThan(semver("1.0.0"))',
    f'cel.bind(d, device.attributes["{DRIVER}"], d.names.exists(n, n.matches("^[a-z]+$")) && d.count % 2 == 0)',
]
QUANTITIES = ["40Gi", "1.5", "-3k", "1e3", "0.000000001", "9223372036854775807", "+.5Ki", "1E", "12n", "7.", "0e-30"]
BEYOND_SUFFIXES = 10**30
"""Billionths: 1000E, which Kubernetes writes without any suffix."""
VERSIONS = ["1.2.3", "0.0.0", "1.2.3-rc.1+build.5", "v1.2", "1.2.3-01", "99999999999999999999.0.0"]


def selector(text: str) -> str:
    """A selector is true, false, or an error of its own kind."""
    view = device_view(DRIVER, msgspec.convert(DEVICE, Device))
    try:
        return str(compile_selector(text).matches(view))
    except (CompileError, EvaluationError) as error:
        return _sentence(error)


def quantity(text: str) -> str:
    """A quantity is refused, or written in a form that parses to the same one (up to where Kubernetes runs out of suffixes)."""
    try:
        read = Quantity.parse(text)
    except QuantityError as error:
        return _sentence(error)
    again = Quantity.parse(str(read))
    assert again == read or abs(read.nanos) >= BEYOND_SUFFIXES
    assert str(again) == str(read)
    return "read"


def version(text: str) -> str:
    """A version is refused, or written in a form that parses to the same one."""
    try:
        read = SemVer.parse(text)
    except SemVerError as error:
        return _sentence(error)
    assert SemVer.parse(str(read)) == read
    return "read"


def manifest(text: str) -> str:
    """A file of manifests is read, or refused with a sentence that names the place."""
    try:
        kinds = [
            type(decode(each, source=source)).__name__
            for document in documents("file.yaml", text)
            for each, source in expand(document.value, source="file.yaml")
        ]
    except ManifestError as error:
        refused = _sentence(error)
    else:
        return " ".join(kinds)
    assert "file.yaml" in refused
    return refused


def linted(text: str) -> str:
    """Corrections are complete: the corrected text has nothing left to correct, and is not changed again."""
    checked = check({"file.yaml": text}, kubernetes=36)
    after = checked.after["file.yaml"]
    again = check({"file.yaml": after}, kubernetes=36)
    left = [str(told) for told in again.findings if told.corrected]
    assert not left, left
    assert again.after["file.yaml"] == after
    assert after == text or any(told.corrected for told in checked.findings)
    return " ".join(sorted({f"{told.rule} {told.corrected}" for told in checked.findings}))


def scenario(text: str) -> str:
    """Each line gets one line of answer, with results or an error."""
    (line,) = answers([text.encode(errors="surrogatepass")])
    answer = json.loads(line)
    assert set(answer) == {"name", "results", "error"}
    assert answer["results"] is None or answer["error"] is None
    return str(answer["error"])


def case(text: str) -> str:
    """Each line gets one line of answer: a match, or one of two errors."""
    (line,) = evaluated([text.encode(errors="surrogatepass")])
    ((kind, said),) = json.loads(line).items()
    assert kind in {"match", "compileError", "error"}
    return f"{kind} {said}"


def trace(text: str) -> str:
    """A trace of MIG claims is replayed to its end, or one sentence names the line that is wrong."""
    board = BOARDS["H100-80GB"]
    made = Replay(SimulatedFleet(geometry(board), 2, 2), rule_of(Policy.STEERED, lambda _: 0), 2)
    stream = io.BytesIO(text.encode(errors="surrogatepass"))
    try:
        for event in events(lines_of(stream, LONGEST_LINE), board, "trace"):
            if isinstance(event, Arrive):
                made.arrive(event.claim, event.profile, event.t, movable=event.movable)
            else:
                made.depart(event.claim, event.t)
    except TraceError as error:
        return _sentence(error).partition(": ")[2][:30]
    assert packable(board, made.counts, 2)
    return f"{made.results.accepted} accepted, {made.results.refused} refused, {made.results.moves} moved"


def layout(text: str) -> str:
    """A layout has placements that can be created in order, or one sentence says why not and the nearest one has them."""
    board = BOARDS["H100-80GB"]
    try:
        items = msgspec.json.decode(text.encode(errors="surrogatepass"), type=list[LayoutInstances])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "no layout"
    try:
        placements = resolve(board, items)
        told = f"{len(placements)} placements"
    except LayoutError as error:
        placements, told = error.nearest, _sentence(error)[:60]
    made = geometry(board)
    state = made.empty
    for each in placements:
        assert made.fits_at(state, each)
        state = made.add(state, each)
    return told


def _sentence(error: Exception) -> str:
    said = str(error)
    assert said.strip()
    assert "Traceback" not in said
    return said


def _manifests() -> list[str]:
    return [path.read_text() for path in sorted((ROOT / "manifests" / "examples").rglob("*.yaml"))]


def _articles() -> list[str]:
    return [path.read_text() for path in sorted((ROOT / "tests/unit/linting/articles").rglob("*.yaml"))]


def _scenarios() -> list[str]:
    return [json.dumps(json.loads(path.read_text())) for path in sorted((KEPT / "allocator").glob("*.json"))]


def _cases() -> list[str]:
    device = {"driver": DRIVER, **DEVICE}
    return [json.dumps({"expression": each, "device": device}) for each in SELECTORS]


def _traces() -> list[str]:
    page = (ROOT / "docs" / "how-to" / "mig-capacity.md").read_text()
    movable = (
        '{"t": 0, "arrive": 1, "profile": "1g.10gb", "movable": true}\n{"t": 1, "arrive": 2, "profile": "7g.80gb"}\n'
    )
    return [page.split("```json\n")[1].split("```")[0], movable]


LAYOUTS = [
    '[{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "count": 4}]',
    '[{"profile": "2g.20gb", "count": 4}]',
    '[{"profile": "1g.10gb+me", "count": 2}, {"profile": "4g.40gb", "start": 0}, {"profile": "3g.40gb", "start": 0}]',
]
CEL_TOKENS = [
    *sorted({way for ways in RULES.values() for way in ways}),
    "&&",
    "||",
    "?",
    ":",
    "?.",
    "[?",
    "in",
    "null",
    "1u",
]
JSON_TOKENS = ["null", "true", "[]", "{}", '""', "0", "-1", "1e400", '"a":', ",", ":", "\\ud800", '"All"', '"quantity"']
YAML_TOKENS = [
    "---\n",
    "&a ",
    "*a",
    "<<: *a",
    "!!binary ",
    "!!python/object:x ",
    "|\n",
    "? ",
    "- ",
    "{",
    "null",
    "~",
    "\n  ",
]
KINDS = ["ResourceClaim", "ResourceSlice", "Pod", "List", "apiVersion: resource.k8s.io/v1beta1\n", "kind: Secret\n"]

TARGETS = (
    Target("selector", selector, SELECTORS, CEL_TOKENS),
    Target("quantity", quantity, QUANTITIES, ["e", "E", "Ki", "m", "n", ".", "+", "-", "0" * 400, "e-999999999"]),
    Target("version", version, VERSIONS, ["-", "+", ".", "0", "v", "rc"]),
    Target("manifest", manifest, _manifests(), [*YAML_TOKENS, *KINDS, *JSON_TOKENS]),
    Target("lint", linted, [*_articles(), *_manifests()], [*YAML_TOKENS, *KINDS, *CEL_TOKENS]),
    Target("scenario", scenario, _scenarios(), [*JSON_TOKENS, *KINDS]),
    Target("case", case, _cases(), JSON_TOKENS),
    Target("trace", trace, _traces(), [*JSON_TOKENS, "\n", '"movable"', "7g.80gb", '"depart": 1']),
    Target("layout", layout, LAYOUTS, [*JSON_TOKENS, '"start": 2', '"count": 99', "7g.80gb", "1g.20gb"]),
    *machines.TARGETS,
)
