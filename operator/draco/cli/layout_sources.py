"""What `draco layout` looks at: GPU nodes with what belongs to them, of a live cluster or of files.

Owns its options, the choice between cluster and files, the reading, and the checks of MigPolicies in files that an API server
would make. Decides nothing about GPUs.
"""

import asyncio
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from draco.cli.manifests import Manifest, decode_all, files_option, read_manifests
from draco.cli.options import CLUSTER_OPTIONS, Options, gathered
from draco.cli.reading import ClusterError, Reader
from draco.kube.client import Client
from draco.kube.errors import NotFound
from draco.kube.kubeconfig import connect
from draco.mig_policy.windows import open_for
from draco.resources.claims import ResourceClaim
from draco.resources.core import Node
from draco.resources.draco import GpuNode, MigMode, MigPolicy, MigPolicySpec, ResetPermit
from draco.resources.errors import DracoError
from draco.resources.kinds import CLAIMS, GPU_NODES, MIG_POLICIES, NODES, SLICES
from draco.resources.manifests import ManifestError, decode_own
from draco.resources.slices import ResourceSlice

_NAMED: Final = 8
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253
_MOST_MOVES: Final = 2
_START: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_SHORTEST: Final = timedelta(minutes=1)
_LONGEST: Final = timedelta(hours=24)


class NoSuchPolicyError(DracoError):
    """A policy that is to be deleted is not there; says which are."""


class LayoutSources(msgspec.Struct, frozen=True, kw_only=True):
    """What a command line says of where objects come from."""

    filenames: Sequence[str]
    cluster: bool | None
    kubeconfig: Path | None
    context: str | None


class Observed(msgspec.Struct, kw_only=True):
    """Nodes with GPUs and what belongs to them, at one time. `server` is "" for files alone.

    `policies` are those that exist, `asked` those that are to be applied, `deleted` names those of the first that are to go.
    """

    server: str = ""
    gpu_nodes: dict[str, GpuNode] = {}
    nodes: dict[str, Node] = {}
    slices: list[ResourceSlice] = []
    claims: list[ResourceClaim] = []
    policies: dict[str, MigPolicy] = {}
    asked: list[MigPolicy] = []
    deleted: list[str] = []
    notes: list[str] = []

    @property
    def place(self) -> str:
        """Where all this is, in words."""
        return "the cluster" if self.server else "the files"


_OPTIONS: Options = (
    files_option,
    click.option(
        "--cluster/--no-cluster",
        default=None,
        help="Put what the files say on top of a live cluster, or take the files alone.  [default: the cluster, unless the "
        "files bring GpuNodes]",
    ),
    *CLUSTER_OPTIONS,
)
with_layout_sources = gathered(LayoutSources, _OPTIONS)
"""Adds the options to a command, which gets them as one argument `sources`."""


def observe(sources: LayoutSources, deleted: Sequence[str] = ()) -> Observed:
    """Everything a layout is about. Raises ManifestError, KubeError, KubeconfigError, ClusterError or NoSuchPolicyError.

    `deleted` are the policies that are to go.
    """
    manifests = read_manifests(sources.filenames)
    if sources.filenames and not manifests:
        raise ManifestError("the files hold no objects: give manifests as for `kubectl apply`, or leave out -f.")
    alone = any(manifest.get("kind") == GPU_NODES.kind for manifest, _ in manifests)
    from_files = sources.cluster is False or (sources.cluster is None and alone)
    if from_files and not manifests:
        raise click.UsageError("There is nothing to read: give files with -f, or leave --no-cluster out.")
    seen = Observed() if from_files else asyncio.run(_read(sources.kubeconfig, sources.context))
    seen.deleted = list(dict.fromkeys(deleted))
    _add(seen, manifests)
    _check_deleted(seen)
    return seen


def _check_deleted(seen: Observed) -> None:
    for name in seen.deleted:
        if name not in seen.policies:
            raise NoSuchPolicyError(f"there is no MigPolicy {name} in {seen.place}: {_those(sorted(seen.policies))}.")
        if any(each.metadata.name == name for each in seen.asked):
            raise click.UsageError(
                f"MigPolicy {name} cannot be deleted and applied in one: leave out --delete {name} or its file."
            )


def _those(names: Sequence[str]) -> str:
    if not names:
        return "there is none at all"
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join([*names[:_NAMED], *more])}"


async def _read(kubeconfig: Path | None, context: str | None) -> Observed:
    async with Client(await connect(kubeconfig, context)) as client:
        return await read_layouts(client)


async def read_layouts(client: Client) -> Observed:
    """The cluster behind a client. Raises KubeError or ClusterError."""
    reader = Reader(client)
    server = str(client.connection.server)
    try:
        gpu_nodes = await reader.all(GPU_NODES)
        policies = await reader.all(MIG_POLICIES)
    except NotFound:
        raise ClusterError(
            f"{server} knows no GpuNodes or no MigPolicies: install Draco there with charts/draco, or apply crds/."
        ) from None
    async with asyncio.TaskGroup() as tasks:
        nodes = tasks.create_task(reader.all_if_allowed(NODES, "no node selector can be asked"))
        slices = tasks.create_task(reader.all_if_allowed(SLICES, "no device selector can be asked"))
        claims = tasks.create_task(reader.all_if_allowed(CLAIMS, "which claims have whole GPUs is not known"))
    return Observed(
        server=server,
        gpu_nodes={each.metadata.name: each for each in gpu_nodes},
        nodes={each.metadata.name: each for each in nodes.result()},
        slices=slices.result(),
        claims=claims.result(),
        policies={each.metadata.name: each for each in policies},
        notes=sorted(reader.unread),
    )


def _add(seen: Observed, manifests: Iterable[tuple[Manifest, str]]) -> None:
    others = []
    policies: list[MigPolicy] = []
    given: dict[tuple[str, str, bool], str] = {}
    for manifest, source in manifests:
        item = decode_own(manifest, source=source)
        if item is None:
            others.append((manifest, source))
            continue
        dumped = isinstance(item, MigPolicy) and not seen.server and _exists(item)
        key = type(item).__name__, item.metadata.name, dumped
        if key in given:
            raise ManifestError(
                f"{source}: {key[0]} {key[1]} was given before, in {given[key]}; leave one of the two out."
            )
        given[key] = source
        if isinstance(item, GpuNode):
            seen.gpu_nodes[item.metadata.name] = item
        else:
            _check(item, manifest, f"{source}: MigPolicy {item.metadata.name}")
            policies.append(item)
    _take_policies(seen, policies)
    for other, _ in decode_all(others, "default"):
        if isinstance(other, Node):
            seen.nodes[other.metadata.name] = other
        elif isinstance(other, ResourceSlice):
            seen.slices = [each for each in seen.slices if each.metadata.name != other.metadata.name] + [other]
        elif isinstance(other, ResourceClaim):
            seen.claims = [each for each in seen.claims if each.metadata.key != other.metadata.key] + [other]


def _exists(item: MigPolicy) -> bool:
    """Whether it comes out of a cluster."""
    return bool(item.metadata.uid)


def _take_policies(seen: Observed, policies: Sequence[MigPolicy]) -> None:
    """Where files stand for a cluster, its own policies are those that come out of one, and those that are to be deleted.

    The others are to be applied.
    """
    dumped = {each.metadata.name for each in policies if _exists(each)}
    gone = {name for name in seen.deleted if name not in dumped}
    existing = [] if seen.server else [each for each in policies if _exists(each) or each.metadata.name in gone]
    if len(existing) == len(policies) and not seen.deleted:
        existing = []  # none is new: then they are asked about themselves
    seen.policies |= {each.metadata.name: each for each in existing}
    seen.asked += [each for each in policies if each not in existing]


def _check(policy: MigPolicy, manifest: Manifest, source: str) -> None:
    """What an API server would refuse. Raises ManifestError."""
    if unknown := _unknown_field(MigPolicySpec, manifest.get("spec"), "spec"):
        raise ManifestError(f"{source}: {unknown}.")
    if not _NAME.fullmatch(policy.metadata.name) or len(policy.metadata.name) > _LONGEST_NAME:
        raise ManifestError(
            f"{source}: metadata.name must be of small letters, digits, - and ., begin and end with a letter or a digit, and "
            f"have at most {_LONGEST_NAME} characters."
        )
    spec = policy.spec
    for profile, count in _counts(manifest.get("spec")):
        if count < 1:
            raise ManifestError(f"{source}: count of {profile} is {count}: it must be at least 1.")
    if not 0 <= spec.repair.max_moves <= _MOST_MOVES:
        raise ManifestError(f"{source}: spec.repair.maxMoves is {spec.repair.max_moves}: it is 0, 1 or 2.")
    names = [layout.name for layout in spec.layouts]
    if spec.mode is MigMode.STATIC and not spec.layout:
        raise ManifestError(f"{source}: mode Static needs the name of one of spec.layouts in spec.layout.")
    if spec.layout and spec.layout not in names:
        has = f"it has {', '.join(names)}" if names else "it is empty"
        raise ManifestError(f"{source}: spec.layouts has no layout named {spec.layout}: {has}.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ManifestError(f"{source}: spec.layouts has two layouts named {twice}; leave one of them out.")
    for each in spec.warm:
        if spec.profiles and each.profile not in spec.profiles:
            raise ManifestError(
                f"{source}: spec.warm names {each.profile}, which spec.profiles leaves out; add it there."
            )
    _check_reset(policy, source)


def _check_reset(policy: MigPolicy, source: str) -> None:
    reset = policy.spec.reset
    if reset.permit is ResetPermit.IN_WINDOWS and not reset.windows:
        raise ManifestError(f"{source}: permit InWindows needs at least one window in spec.reset.windows.")
    for window in reset.windows:
        if not _START.fullmatch(window.start):
            raise ManifestError(
                f'{source}: a window of spec.reset starts at a time such as "22:00", not "{window.start}".'
            )
        if not _SHORTEST <= open_for(window.duration) <= _LONGEST:
            raise ManifestError(
                f"{source}: a window of spec.reset is open for 1m to 24h, written in hours and minutes such as 2h30m, not "
                f"{window.duration}."
            )


def _counts(value: object) -> Iterator[tuple[str, int]]:
    """Every count as it is written: one of 0 is no longer to be seen once it is read as what the API takes for unset."""
    if isinstance(value, Mapping):
        count = value.get("count")
        if isinstance(count, int):
            yield str(value.get("profile")), count
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _counts(inner)


def _unknown_field(type_: Any, value: object, path: str) -> str:
    """The first field that the struct does not have, with the one that may be meant; "" if there is none."""
    shape = msgspec.inspect.type_info(type_) if isinstance(type_, type) else type_
    if isinstance(shape, msgspec.inspect.UnionType):
        shape = next((each for each in shape.types if not isinstance(each, msgspec.inspect.NoneType)), shape)
    if isinstance(shape, msgspec.inspect.ListType) and isinstance(value, list):
        found = (_unknown_field(shape.item_type, each, f"{path}[{index}]") for index, each in enumerate(value))
        return next(filter(None, found), "")
    if not isinstance(shape, msgspec.inspect.StructType) or not isinstance(value, Mapping):
        return ""
    fields = {field.encode_name: field.type for field in shape.fields}
    for name, inner in value.items():
        if name not in fields:
            near = difflib.get_close_matches(str(name)[:100], fields, n=1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            return f"there is no field {path}.{name}: {meant}".removesuffix("?") + ("?" if near else "")
        if deeper := _unknown_field(fields[name], inner, f"{path}.{name}"):
            return deeper
    return ""
