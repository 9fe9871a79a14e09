"""Groups of options: passed to a command as one argument, and the options that select a cluster."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click
import msgspec

Command = Callable[..., Any]
Options = Sequence[Callable[[Command], Command]]

RELEASES: Final = (34, 35, 36, 37)
"""Minor versions of Kubernetes that serve resource.k8s.io/v1 and whose rules and CEL environment Draco knows."""

verbose_option: Final = click.option(
    "-v", "--verbose", is_flag=True, help="Show everything: each request, each node, every change that would help."
)
"""Shows everything instead of about five lines each."""
CLUSTER_OPTIONS: Options = (
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Kubeconfig file [default: as kubectl finds it].",
    ),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig [default: its current one]."),
)


def cluster_option(enough: str) -> Callable[[Command], Command]:
    """The option that says whether files are used without a cluster: by default if they hold objects of the kind `enough`."""
    return click.option(
        "--cluster/--no-cluster",
        default=None,
        help="Overlay the files on a live cluster, or use the files alone.  [default: the cluster, unless the files contain "
        f"{enough}]",
    )


def output_option(*formats: str, text: str = "Output format.") -> Callable[[Command], Command]:
    """The option for the output format; the first format is the default."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help=text)


def with_cluster(command: Command) -> Command:
    """Add the options that select a cluster: `kubeconfig` and `context`."""
    return _with(CLUSTER_OPTIONS, command)


def gathered(into: type[msgspec.Struct], options: Options) -> Callable[[Command], Command]:
    """Add options to a command, which gets them as its argument `sources`, a struct with a field per option."""

    def decorated(command: Command) -> Command:
        @wraps(command)
        def with_sources(**given: Any) -> Any:
            return command(sources=into(**{name: given.pop(name) for name in into.__struct_fields__}), **given)

        return _with(options, with_sources)

    return decorated


def _with(options: Options, command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
