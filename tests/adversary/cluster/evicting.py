"""Executes actions around evictions for other pods: priorities, permissions in policies, and PodDisruptionBudgets.

Owns these writes. The caller counts refusals.
"""

from collections.abc import Awaitable, Callable

from tests.adversary.cluster.maintaining import GROUP, Write
from tests.adversary.cluster.manifests import PRIORITIES, Document, priority_class
from tests.adversary.cluster.observer.api import Api

PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
POD_BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"


async def prepare(api: Api) -> None:
    """Create the PriorityClasses that pods use."""
    for title in PRIORITIES:
        await api.call("POST", PRIORITY_CLASSES, priority_class(title))


class Evicting:
    """`write` makes a request and counts refusals; `delete_pod` deletes a pod as an action says."""

    def __init__(self, api: Api, write: Write, delete_pod: Callable[[Document], Awaitable[None]]) -> None:
        self._api = api
        self._write = write
        self._delete_pod = delete_pod
        self.kinds: dict[str, Callable[[Document], Awaitable[None]]] = {
            "policy: permits": self._permit,
            "pod budget: set": self._guard,
            "pod budget: deleted": self._end_guard,
            "tenant: a group loses a pod": self._lose,
        }

    async def _permit(self, arguments: Document) -> None:
        await self._write("PATCH", f"{GROUP}/migpolicies/{arguments['title']}", {"spec": arguments["spec"]})

    async def _lose(self, arguments: Document) -> None:
        """Create the claim that takes the pod's devices before they become free."""
        path = CLAIMS.format(arguments["taker"]["metadata"]["namespace"])
        await self._write("POST", path, arguments["taker"])
        await self._delete_pod(arguments)

    async def _guard(self, arguments: Document) -> None:
        """Create or update the budget."""
        document = arguments["budget"]
        path = POD_BUDGETS.format(document["metadata"]["namespace"])
        answer = await self._api.call("PATCH", f"{path}/{document['metadata']['name']}", {"spec": document["spec"]})
        if answer.status == 404:
            await self._write("POST", path, document)

    async def _end_guard(self, arguments: Document) -> None:
        namespace, _, title = arguments["budget"].partition("/")
        await self._write("DELETE", f"{POD_BUDGETS.format(namespace)}/{title}")
