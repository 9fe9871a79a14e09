"""`draco explain`: why a claim or a pod waits for devices. `subjects` finds them, `draco.explanation` explains."""

from collections.abc import Callable, Iterator, Sequence

import click
from msgspec.structs import replace

from draco.cli.explain.preempting import PossibleVictims, with_preemption
from draco.cli.explain.refusals import with_refusals
from draco.cli.explain.subjects import ExplainSubject, pending, subject_of
from draco.cli.input.sources import WorldSources, read_world, with_sources
from draco.cli.options import output_option, verbose_option
from draco.cli.output import echo, print_as, warn
from draco.explanation.explain import explain
from draco.explanation.findings.devices import device_verdicts
from draco.explanation.model import Explanation, PendingReason
from draco.explanation.wording import MORE, brief, device_lines, report
from draco.placing.wording import placement_lines
from draco.whatif.world import World

SCHEMA = "draco.dev/explanations/v1"
"""Schema of the document with several explanations. Fields are only added under one name."""
_KINDS = {
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims", "resourceclaims.resource.k8s.io"), "claim"),
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
}
_NOT_FOR_DEVICES = frozenset({PendingReason.ALLOCATED, PendingReason.GATED})


@click.command()
@click.argument("what", nargs=-1, metavar="[claim|pod NAME]")
@with_sources
@click.option("--devices", is_flag=True, help="List each device with what prevents its use.")
@verbose_option
@output_option("text", "json", "yaml")
def command(*, what: Sequence[str], sources: WorldSources, devices: bool, verbose: bool, output: str) -> None:
    """Explain why a claim or a pod waits for devices.

    Accounts for every device, and tries which single change would help. Explains a claim together with the other claims of the
    pod that waits for it. Without a name, lists everything that waits, with the reason. The exit status is 0 whether it waits or
    not.

    \b
    draco explain                        what waits, a line each
    draco explain claim train-gpus       or claim/train-gpus
    draco explain pod train -n ml -v     each request and each node, too
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    asked = _asked(what)
    made, namespace = read_world(sources)
    if made.kubernetes_minor is None:  # else explanations name the bugs of the release
        made.note_unselecting_rules()
    if not asked or asked[0][1] == "":
        wanted = asked[0][0] if asked else ""
        listed = (each for each in _explained(made, pending(made, sources.namespace, wanted)) if _waits(*each))
        _print_list(listed, made, output, wanted)
        return
    explained = list(_explained(made, [subject_of(made, kind, name, namespace) for kind, name in asked]))
    if devices:
        explained = [
            (each, replace(explanation, devices=device_verdicts(made.fleet, each.claims, pod=each.pod)))
            for each, explanation in explained
        ]
    if output != "text":
        print_as(output, explained[0][1] if len(explained) == 1 else _document(explained))
        return
    warn(made.notes if sources.filenames else made.notes[1:])  # the first note names the cluster
    _print(explained, made, report if verbose else _brief)
    if not verbose and any(explanation.requests for _, explanation in explained):
        echo(f"\n{MORE}")


def _asked(what: Sequence[str]) -> list[tuple[str, str]]:
    """Kind and name of each subject; the name is "" if only a kind was given, which selects all waiting ones."""
    if not what:
        return []
    if what[0].lower() in _KINDS:
        kind = _KINDS[what[0].lower()]
        if any("/" in name for name in what[1:]):
            raise click.UsageError(f"Write either `{what[0]} NAME` or `{what[0]}/NAME`, not both.")
        return [(kind, name) for name in what[1:]] or [(kind, "")]
    asked = []
    for each in what:
        kind, slash, name = each.partition("/")
        if not slash or not name or kind.lower() not in _KINDS:
            raise click.UsageError(f"'{each}' is neither a claim nor a pod: write `claim NAME` or `pod NAME`.")
        asked.append((_KINDS[kind.lower()], name))
    return asked


def _explained(made: World, subjects: Sequence[ExplainSubject]) -> Iterator[tuple[ExplainSubject, Explanation]]:
    victims = PossibleVictims(made)
    for subject in subjects:
        explanation = explain(
            made.fleet,
            subject.claims,
            pod=subject.pod,
            scheduler=subject.scheduler,
            ended=subject.ended,
            minor=made.kubernetes_minor,
        )
        yield subject, with_preemption(victims, subject, with_refusals(made, subject, explanation))


def _waits(subject: ExplainSubject, explanation: Explanation) -> bool:
    """Whether it waits for devices, and not, with all of them allocated, for something else."""
    has_all = bool(subject.claims) and all(claim.status.allocation is not None for claim in subject.claims)
    return not (has_all and explanation.reason in _NOT_FOR_DEVICES)


def _print(
    explained: Sequence[tuple[ExplainSubject, Explanation]], made: World, told: Callable[[Explanation], Iterator[str]]
) -> None:
    for number, (subject, explanation) in enumerate(explained):
        if number:
            echo()
        echo(f"{subject}:")
        places = placement_lines(made.fleet, subject.claims, subject.pod, spread=made.spread)
        for line in [*told(explanation), *places]:
            echo(line.rstrip())


def _brief(explanation: Explanation) -> Iterator[str]:
    yield from brief(explanation)
    yield from device_lines(explanation)


def _print_list(explained: Iterator[tuple[ExplainSubject, Explanation]], made: World, output: str, kind: str) -> None:
    if output != "text":
        print_as(output, _document(list(explained)))
        return
    warn(made.notes[1:])
    waits = False
    for subject, explanation in explained:
        waits = True
        echo(f"{subject}: {explanation.reason}: {explanation.summary}")
    if not waits:
        echo(f"{f'No {kind}' if kind else 'Nothing'} waits for devices in {made.server or 'the files'}.")


def _document(explained: Sequence[tuple[ExplainSubject, Explanation]]) -> dict[str, object]:
    return {"schema": SCHEMA, "explanations": [explanation for _, explanation in explained]}
