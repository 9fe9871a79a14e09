"""Where a command's objects come from: a live cluster, files, or files on top of a cluster. `whatif.world` combines them."""

import asyncio
from collections.abc import Sequence

import click

from draco.cli.input.live import read_cluster
from draco.cli.input.manifests import Manifest, Sources, decode_all, files_option, read_or_ask
from draco.cli.options import CLUSTER_OPTIONS, Options, cluster_option, gathered
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import KubeconfigError
from draco.resources.kinds import SLICES
from draco.resources.texts import counted
from draco.whatif import world
from draco.whatif.world import World


class WorldSources(Sources, frozen=True, kw_only=True):
    """The same, with the default namespace for objects that name none."""

    namespace: str


_OPTIONS: Options = (
    files_option,
    cluster_option("ResourceSlices"),
    click.option(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        help="Namespace of objects that name none.  [default: the context's]",
    ),
    *CLUSTER_OPTIONS,
)
with_sources = gathered(WorldSources, _OPTIONS)
"""Adds the options to a command, which gets them as the argument `sources`."""


def read_world(sources: WorldSources) -> tuple[World, str]:
    """The world a command starts from, with a note about its source, and the default namespace.

    Raises ManifestError, KubeError, KubeconfigError or CommandError.
    """
    manifests, alone = read_or_ask(sources.filenames, cluster=sources.cluster, enough=SLICES.kind)
    if alone:
        namespace = sources.namespace or "default"
        made = world.of_files(decode_all(manifests, namespace))
        hint = "; --cluster puts them on top of a live one" if sources.cluster is None else ""
        made.notes.insert(0, f"Devices and nodes are those of the files, not of a cluster{hint}.")
        return made, namespace
    return asyncio.run(_on_cluster(sources, manifests))


async def _on_cluster(sources: WorldSources, manifests: Sequence[tuple[Manifest, str]]) -> tuple[World, str]:
    try:
        connection = await connect(sources.kubeconfig, sources.context)
    except KubeconfigError:
        decode_all(manifests, sources.namespace)  # errors in the files are reported before those of the kubeconfig
        raise
    async with Client(connection) as client:
        namespace = sources.namespace or connection.namespace
        objects = decode_all(manifests, namespace)
        made = await read_cluster(client)
        world.put_objects(made, objects)
    files = f", with {counted(len(objects), 'object')} of files" if objects else ""
    made.notes.insert(0, f"The cluster is {made.server} as it is now{files}.")
    return made, namespace
