"""Executes actions around reservations, limits, SharingPolicies, PodGroups and pods that a queue holds.

Owns these writes. The caller counts refusals.
"""

from collections.abc import Awaitable, Callable

from tests.adversary.cluster.maintaining import GROUP, Write
from tests.adversary.cluster.manifests import Document
from tests.adversary.cluster.observer.api import Api

LIMITS = f"{GROUP}/devicelimits"
SHARING = f"{GROUP}/sharingpolicies"
POD_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"
RESERVATIONS = GROUP + "/namespaces/{}/devicereservations"


class Reserving:
    """`write` makes a request and counts refusals."""

    def __init__(self, api: Api, write: Write) -> None:
        self._api = api
        self._write = write
        self.kinds: dict[str, Callable[[Document], Awaitable[None]]] = {
            "reservation: changed": self._change,
            "reservation: deleted": self._delete,
            "pod group: deleted": self._delete_pod_group,
            "queue: lets a pod go": self._let_go,
            "limit: set": self._set_limit,
            "sharing policy: set": self._set_sharing,
            "sharing policy: deleted": self._delete_sharing,
            "limit: deleted": self._delete_limit,
        }

    async def _change(self, arguments: Document) -> None:
        await self._write("PATCH", _path(arguments), {"spec": arguments["spec"]})

    async def _delete(self, arguments: Document) -> None:
        await self._write("DELETE", _path(arguments))

    async def _delete_pod_group(self, arguments: Document) -> None:
        namespace, _, title = arguments["pod_group"].partition("/")
        await self._write("DELETE", f"{POD_GROUPS.format(namespace)}/{title}")

    async def _let_go(self, arguments: Document) -> None:
        namespace, _, title = arguments["pod"].partition("/")
        path = f"/api/v1/namespaces/{namespace}/pods/{title}"
        await self._write("PATCH", path, {"spec": {"schedulingGates": arguments["gates"] or None}})

    async def _set_limit(self, arguments: Document) -> None:
        """Create a limit or replace its whole spec."""
        document = arguments["limit"]
        path = f"{LIMITS}/{document['metadata']['name']}"
        found = await self._api.call("GET", path)
        if found.status == 404:
            await self._write("POST", LIMITS, document)
        else:
            amounts = dict.fromkeys((found.body.get("spec") or {}).get("limits") or {}) | document["spec"]["limits"]
            await self._write("PATCH", path, {"spec": {**document["spec"], "limits": amounts}})

    async def _set_sharing(self, arguments: Document) -> None:
        """Create a SharingPolicy or replace its settings."""
        document = arguments["policy"]
        path = f"{SHARING}/{document['metadata']['name']}"
        if (await self._api.call("GET", path)).status == 404:
            there = {key: value for key, value in document["spec"].items() if value is not None}
            await self._write("POST", SHARING, {**document, "spec": there})
        else:
            await self._write("PATCH", path, {"spec": document["spec"]})

    async def _delete_sharing(self, arguments: Document) -> None:
        await self._write("DELETE", f"{SHARING}/{arguments['title']}")

    async def _delete_limit(self, arguments: Document) -> None:
        await self._write("DELETE", f"{LIMITS}/{arguments['title']}")


def _path(arguments: Document) -> str:
    namespace, _, title = arguments["reservation"].partition("/")
    return f"{RESERVATIONS.format(namespace)}/{title}"
