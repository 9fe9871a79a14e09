"""`draco selector`: what an expression reads, what it costs, and its result for devices."""

import asyncio
import codecs
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click
import msgspec

from draco.cel import CompileError, compile_selector, new_expressions
from draco.cel.syntax.parse import MAX_LENGTH
from draco.cel.values.bounds import MAX_COST
from draco.cli.input.manifests import files_option, read_documents
from draco.cli.input.reading import published_slices
from draco.cli.options import RELEASES, output_option, with_cluster
from draco.cli.output import answer_lines, echo, echo_lines, print_document, warn
from draco.cli.selector import cases as selector_cases
from draco.cli.selector import devices as selector_devices
from draco.cli.selector.cases import Findings
from draco.resources.api.slices import ResourceSlice
from draco.resources.written.manifests import decode, expand
from draco.selectors.corrections import corrected

TOO_COMPLEX = "too complex, exceeds cost limit"

_cases = click.option(
    "--cases",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True, exists=True),
    help='JSON lines, each {"expression": …, "device": {"driver", "attributes", "capacity"}}, answered one by one; - reads '
    "standard input.",
)
_output = output_option("text", "json")


@click.group()
def command() -> None:
    """Check device selectors, and try them on devices.

    A selector is the CEL expression of a claim, a template or a DeviceClass. Draco reads it exactly as Kubernetes does.
    """


@command.command()
@click.argument("expression", required=False)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True, exists=True),
    help="Read the expression from a file; - reads standard input.",
)
@_cases
@_output
def check(expression: str | None, file: Path | None, cases: Path | None, output: str) -> None:
    """Compile an expression and say what it reads and costs.

    Errors are Kubernetes' own, with a mark at their place. EXPRESSION may be - for standard input. The status is 1 when
    Kubernetes would refuse the expression.
    """
    _just_one(expression=expression, file=file, cases=cases)
    if cases is not None:
        answer_lines(cases, selector_cases.LONGEST_LINE, selector_cases.checked)
        return
    text = _text(file) if file is not None else _argument(expression)
    found = selector_cases.findings(text)
    refusals = {} if found.compile_error else {minor: _refusal(text, minor) for minor in RELEASES}
    complaints = corrected(text, None)[0]
    if output == "json":
        accepted = [f"1.{minor}" for minor, refusal in refusals.items() if refusal is None]
        advice = [each.message for each in complaints]
        print_document({**msgspec.to_builtins(found), "acceptedBy": accepted, "advice": advice})
    elif found.compile_error:
        warn([found.compile_error, *_advice(text)])
    else:
        echo_lines(_shown(text, found, refusals))
        echo_lines(_advice(text, "but       "))  # valid for Kubernetes, but probably not meant
    if found.compile_error or all(refusals.values()) or any(each.always_fails for each in complaints):
        raise click.exceptions.Exit(1)


def _advice(expression: str, lead: str = "") -> Iterator[str]:
    """What is probably wrong, each after `lead`, and the expression that was probably meant, if it compiles.

    That expression has the corrections, so the lines before it name the causes only.
    """
    complaints, meant = corrected(expression, None)
    is_better = meant != expression and _compiles(meant)
    yield from (f"{lead}{each.told if is_better and each.corrected else each.message}" for each in complaints)
    if is_better:
        yield f"Probably meant: {meant}"


def _compiles(expression: str) -> bool:
    try:
        compile_selector(expression)
    except CompileError:
        return False
    return True


def _just_one(**given: object) -> None:
    """Raise UsageError unless exactly one is given."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        ways = ["as the argument", *(["with -f FILE"] if "file" in given else []), "or many with --cases FILE"]
        raise click.UsageError(f"Give one expression: {', '.join(ways)}.")


def _argument(expression: str | None) -> str:
    """The expression argument; "-" reads standard input."""
    return _text(Path("-")) if expression == "-" else expression or ""


def _text(file: Path) -> str:
    """The expression in a file, without the final line break."""
    most = MAX_LENGTH * 2  # already too long, whatever follows
    with click.open_file(str(file), "rb") as stream:
        data: bytes = stream.read(most)
    try:
        # The limit may cut a multi-byte character.
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < most).rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.ClickException(f"{file} is not text in UTF-8: give a file that holds one expression.") from None


def _refusal(expression: str, minor: int) -> str | None:
    """Why this release's API server refuses the expression in a new object; None if it accepts it."""
    try:
        cost = compile_selector(expression, environment=new_expressions(minor)).estimated_cost
    except CompileError as error:
        return str(error)
    return TOO_COMPLEX if cost is None or cost > MAX_COST else None


def _shown(expression: str, found: Findings, refusals: dict[int, str | None]) -> Iterator[str]:
    reads = list(found.reads or [])
    if found.reads_everything:
        reads.append("all attributes or all capacities of a domain or of the device")
    for index, read in enumerate(reads or ["nothing of the device"]):
        yield f"{'reads' if index == 0 else '':<10}{read}"
    cost = "no bound" if found.estimated_cost is None else f"at most {found.estimated_cost:,}"
    yield f"{'cost':<10}{cost} of {MAX_COST:,}"
    for refusal, alike in groupby(refusals.items(), key=lambda item: item[1]):
        minors = [minor for minor, _ in alike]
        word = "accepted" if refusal is None else "refused"
        yield f"{word:<10}in new objects by {_releases(minors)}{'' if refusal is None else f': {refusal}'}"
    newest = RELEASES[-1]
    if refusals[newest] and refusals[newest] != TOO_COMPLEX and _with_lists(expression, newest):
        yield f"{'accepted':<10}by Kubernetes 1.{newest} with the feature gate DRAListTypeAttributes"


def _releases(minors: Sequence[int]) -> str:
    if minors[-1] == RELEASES[-1]:
        return f"Kubernetes 1.{minors[0]} and newer"
    return f"Kubernetes 1.{minors[0]}" + (f" to 1.{minors[-1]}" if len(minors) > 1 else "")


def _with_lists(expression: str, minor: int) -> bool:
    """Whether the expression is valid in a new object if attributes may be lists."""
    try:
        compile_selector(expression, environment=new_expressions(minor, list_attributes=True))
    except CompileError:
        return False
    return True


@command.command("eval")
@click.argument("expression", required=False)
@files_option
@_cases
@with_cluster
@output_option("text", "wide", "json", text="wide: a line for each device. json: one document.")
def evaluate(
    *,
    expression: str | None,
    filenames: Sequence[str],
    cases: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
) -> None:
    """Show what an expression returns for each device: true, false, or the error.

    The devices are those of the cluster, or those of the ResourceSlices given with -f; devices that agree in all that the
    expression reads are counted together. EXPRESSION may be - for standard input. The status is 1 when the expression does not
    compile, or fails on a device.
    """
    _just_one(expression=expression, cases=cases)
    if cases is not None:
        answer_lines(cases, selector_cases.LONGEST_LINE, selector_cases.evaluated)
        return
    text = _argument(expression)
    selector = selector_cases.compiled(text)
    if isinstance(selector, str):
        warn([selector, *_advice(text)])
        raise click.exceptions.Exit(1)
    slices = _slices_of(filenames) if filenames else asyncio.run(published_slices(kubeconfig, context))
    found = list(selector_devices.outcomes(selector, slices))
    match output:
        case "json":
            print_document({"devices": list(map(selector_devices.record, found))})
        case "wide":
            echo_lines(selector_devices.wide_lines(found))
        case _:
            groups = selector_devices.folded(found)
            echo(selector_devices.summary(groups))
            echo_lines(selector_devices.group_lines(groups))
    warn(selector_devices.doubts(found))
    said: Iterable[str] = ()
    is_matched, fails = any(outcome.match for outcome in found), any(outcome.error for outcome in found)
    if found and not is_matched and any(each.severity == "error" for each in corrected(text, None)[0]):
        said = _advice(text)
    elif fails or not is_matched:
        said = selector_devices.advice(text, slices)
    warn(said)
    if fails:
        raise click.exceptions.Exit(1)


def _slices_of(filenames: Sequence[str]) -> list[ResourceSlice]:
    slices = []
    for document, where in read_documents(filenames):
        for manifest, source in expand(document, source=where):
            if manifest.get("kind") == "ResourceSlice" and isinstance(
                item := decode(manifest, source=source), ResourceSlice
            ):
                slices.append(item)
    if not slices:
        raise click.ClickException(
            f"{', '.join(filenames)} holds no ResourceSlice: give one, as `kubectl get resourceslices -o yaml` writes it, or "
            "leave -f out to read those of the cluster."
        )
    return slices
