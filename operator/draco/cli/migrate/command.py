"""`draco migrate`: what other tools' configuration becomes in Draco. Reads files, prints manifests, and changes nothing."""

from collections.abc import Mapping, Sequence

import click
import msgspec

from draco.cli.input.manifests import read_documents
from draco.cli.input.yaml_documents import documents
from draco.cli.options import output_option
from draco.cli.output import CommandError, echo, print_document, print_yaml, warn
from draco.cli.writing import manifest
from draco.migration import mig_parted
from draco.resources.kinds import MIG_POLICIES


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
    kubectl get configmap -n gpu-operator default-mig-parted-config -o yaml | draco migrate mig-parted - | kubectl apply -f -
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    conversion = _converted(file, layouts)
    manifests = [
        manifest(MIG_POLICIES, each.metadata.key, msgspec.to_builtins(each.spec)) for each in conversion.policies
    ]
    if output == "json":
        print_document({"apiVersion": "v1", "kind": "List", "items": manifests})
    else:
        for number, each in enumerate(manifests):
            echo("---\n" if number else "", nl=False)
            print_yaml(each)
    warn(f"Not converted: {each}" for each in conversion.rests)
    if conversion.rests:
        raise click.exceptions.Exit(1)


def _converted(file: str, layouts: Sequence[str]) -> mig_parted.Conversion:
    for document, source in read_documents([file]):
        try:
            return mig_parted.convert(mig_parted.read(_of_config_map(document, source)), layouts)
        except mig_parted.FormatError as error:
            raise CommandError(f"{source}: {error}") from error
    raise CommandError(f"{file} is empty: give a configuration of mig-parted.")


def _of_config_map(document: object, source: str) -> object:
    """What a ConfigMap has under config.yaml, or its only key; any other document as it is."""
    if not isinstance(document, Mapping) or document.get("kind") != "ConfigMap":
        return document
    data = document.get("data")
    data = data if isinstance(data, Mapping) else {}
    key = mig_parted.DATA_KEY if mig_parted.DATA_KEY in data or len(data) != 1 else next(iter(data))
    if not isinstance(text := data.get(key), str):
        raise CommandError(f"{source}: the ConfigMap has no {key}; give the one that the MIG manager reads.")
    return next((each.value for each in documents(f"{source}, {key}", text)), None)
