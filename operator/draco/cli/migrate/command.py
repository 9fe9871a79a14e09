"""`draco migrate`: what other tools' configuration becomes in Draco. Reads files, prints manifests, and changes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click
import msgspec

from draco.cli.input.manifests import read_documents, read_texts
from draco.cli.input.yaml_documents import documents
from draco.cli.migrate import workloads
from draco.cli.options import output_option
from draco.cli.output import CommandError, echo, print_document, print_yaml, warn
from draco.cli.writing import manifest
from draco.mig.known_boards import MODELS
from draco.migration import device_plugin, mig_parted
from draco.migration.conversion import Conversion, FormatError, Rest
from draco.resources.kinds import DEVICE_CLASSES, MIG_POLICIES, SHARING_POLICIES

_KINDS = {each.type: each for each in (MIG_POLICIES, SHARING_POLICIES, DEVICE_CLASSES)}


@click.group()
def command() -> None:
    """Bring workloads and settings from other tools to Draco."""


@command.command("mig-parted")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    metavar="NAME",
    help="Only this layout; may be repeated. Your nodes' labels nvidia.com/mig.config name those in use.",
)
@output_option("yaml", "json")
def from_mig_parted(file: str, layouts: Sequence[str], output: str) -> None:
    """Convert the layouts of mig-parted or NVIDIA's MIG manager to MigPolicies.

    FILE is a configuration of mig-parted, or a ConfigMap that has one under config.yaml; "-" is standard input. The policies
    select nodes by the same label as the MIG manager, nvidia.com/mig.config: remove the manager first, and keep the labels.
    What cannot be converted is named on standard error, and the exit status is then 1. Reads only the file.

    \b
    draco migrate mig-parted config.yaml --layout all-balanced
    kubectl get configmap -n gpu-operator default-mig-parted-config -o yaml | draco migrate mig-parted - > policies.yaml
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    given = {each.key: each for each in _given(file)}
    only = given.get(mig_parted.DATA_KEY) or (next(iter(given.values())) if len(given) == 1 else None)
    if only is None:
        raise CommandError(f"the ConfigMap has no {mig_parted.DATA_KEY}; give the one that the MIG manager reads.")
    with _refusals(only.source):
        _show(mig_parted.convert(mig_parted.read(only.value), layouts), output)


@command.command("sharing")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--board",
    type=click.Choice(list(MODELS)),
    metavar="BOARD",
    help=f"The GPUs' board, for MPS, whose shares are parts of its memory: {', '.join(MODELS)}.",
)
@output_option("yaml", "json")
def from_device_plugin(file: str, board: str | None, output: str) -> None:
    """Convert the sharing of NVIDIA's device plugin (time slicing, MPS) to SharingPolicies.

    FILE is a configuration of the plugin, or a ConfigMap with one or several; "-" is standard input. The policies for a ConfigMap
    select nodes by the same label as the plugin, nvidia.com/device-plugin.config. Pods go on asking for nvidia.com/gpu, or
    nvidia.com/gpu.shared, and get a share for each. What cannot be converted is named on standard error, and the exit status is
    then 1. Reads only the file.

    \b
    draco migrate sharing config.yaml
    kubectl get configmap -n gpu-operator time-slicing-config -o yaml | draco migrate sharing - > policies.yaml
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    configurations = {}
    for each in _given(file):
        with _refusals(each.source):
            configurations[each.key] = device_plugin.read(each.value)
    found = device_plugin.convert(configurations, MODELS[board] if board else None)
    if not any(found):
        raise CommandError(f"{file} shares nothing: it has neither sharing.timeSlicing nor sharing.mps.")
    _show(found, output)


@command.command("convert")
@click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Manifests, YAML or JSON: a file, a folder, or - for standard input. Repeatable.",
)
@output_option("yaml", "json")
def convert(filenames: Sequence[str], output: str) -> None:
    """Convert workloads that ask for nvidia.com/gpu or nvidia.com/mig-PROFILE to claims.

    Prints all documents in their order. Each container that asks gets a ResourceClaimTemplate, before its workload; pods get the
    toleration that the admission plugin ExtendedResourceToleration used to add. Node selectors and required node affinity by
    labels of GPU feature discovery become selectors of the claims where these mean the same, if the GPUs of a node are alike.
    Comments are kept. What cannot be converted stays, and is named on standard error; the exit status is then 1.
    Reads only the files; give those together that are applied together.

    \b
    draco migrate convert -f deployment.yaml > converted.yaml
    helm template my-release my-chart | draco migrate convert -f - | kubectl apply -f -
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    found = workloads.converted(dict(read_texts(filenames)))
    if output == "json":
        print_document({"apiVersion": "v1", "kind": "List", "items": found.objects})
    else:
        echo(found.text, nl=False)
    if not found.changed and not found.rests:
        warn(["There is nothing to convert: nothing asks for nvidia.com/gpu or nvidia.com/mig-PROFILE."])
    _tell(found.rests)


class _Given(NamedTuple):
    """A configuration, its place, and its key in a ConfigMap; "" for a file of its own."""

    key: str
    value: object
    source: str


@contextmanager
def _refusals(source: str) -> Iterator[None]:
    try:
        yield
    except FormatError as error:
        raise CommandError(f"{source}: {error}") from error


def _given(file: str) -> list[_Given]:
    """The configurations of a file: itself, or those of a ConfigMap."""
    document, source = next(iter(read_documents([file])), (None, file))
    if document is None:
        raise CommandError(f"{file} is empty: give a configuration, or a ConfigMap that has one.")
    if not isinstance(document, Mapping) or document.get("kind") != "ConfigMap":
        return [_Given("", document, source)]
    data = document.get("data")
    texts = {key: text for key, text in data.items() if isinstance(text, str)} if isinstance(data, Mapping) else {}
    if not texts:
        raise CommandError(f"{source}: the ConfigMap has no data; give the one that the tool reads.")
    return [
        _Given(key, each.value, f"{source}, {key}")
        for key, text in texts.items()
        for each in documents(f"{source}, {key}", text)
    ]


def _show(conversion: Conversion, output: str) -> None:
    """Print the manifests, and on standard error what is missing. Raises Exit with status 1 if something is."""
    manifests = [
        manifest(_KINDS[type(each)], each.metadata.key, msgspec.to_builtins(each.spec)) for each in conversion.objects
    ]
    if output == "json":
        print_document({"apiVersion": "v1", "kind": "List", "items": manifests})
    else:
        for number, each in enumerate(manifests):
            echo("---\n" if number else "", nl=False)
            print_yaml(each)
    _tell(conversion.rests)


def _tell(rests: Sequence[Rest]) -> None:
    """Name what is not converted on standard error. Raises Exit with status 1 if there is something."""
    warn(f"Not converted: {each}" for each in rests)
    if rests:
        raise click.exceptions.Exit(1)
