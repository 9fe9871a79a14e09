"""Writes objects of Draco's kinds for commands, and turns the API server's refusals into sentences with a fix."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from draco.cli.input.reading import without_kinds
from draco.cli.output import CommandError
from draco.kube.connect.client import Client, decode
from draco.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unreachable
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.kinds import Kind

T = TypeVar("T")
_UNKNOWN_FIELDS: Final = re.compile(r'unknown field "([^"]+)"')


def manifest(kind: Kind[Any], key: ObjectKey, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The object as a manifest for `kubectl apply`."""
    metadata = {"name": key.name} | ({"namespace": key.namespace} if key.namespace else {})
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": dict(spec)}


async def create(
    client: Client,
    kind: Kind[T],
    key: ObjectKey,
    spec: Mapping[str, Any],
    *,
    roles: str,
    taken: str,
    dry_run: bool = False,
) -> T:
    """Create an object with strict field validation. Raises CommandError or KubeError.

    `roles` are the ClusterRoles that permit it; `taken` says what to do if the name exists.
    """
    params = {"fieldManager": "draco", "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
    path, body = kind.path(namespace=key.namespace), msgspec.json.encode(manifest(kind, key, spec))
    try:
        return decode(kind, await client.connection.request("POST", path, params=params, body=body))
    except AlreadyExists:
        raise CommandError(f"there is a {kind.kind} {key} already: {taken}") from None
    except Unreachable as error:
        raise CommandError(
            f"{error}; whether {kind.kind} {key} was created is not known: look before you repeat this"
        ) from error
    except ApiError as error:
        raise refused(client, error, kind, "create", roles) from error


def refused(client: Client, error: ApiError, kind: Kind[Any], what: str, roles: str) -> DracoError:
    """The error for a write that the server refused."""
    if isinstance(error, Forbidden):
        return CommandError(
            f"these credentials may not {what} {kind.plural} ({error}). Have an administrator bind to you the "
            f"ClusterRole {roles}."
        )
    if unknown := _UNKNOWN_FIELDS.findall(str(error)):
        return CommandError(
            f"this cluster's {kind.kind} does not know {', '.join(unknown)}: its CRD is of an older Draco. Apply crds/ and "
            "upgrade the operator, or leave out what it does not know."
        )
    if isinstance(error, NotFound) and "could not find" in str(error):  # the kind, not the namespace, is missing
        return without_kinds(client, kind)
    return error
