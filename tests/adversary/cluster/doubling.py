"""Creates claims that pretend to be a pod's, beside the one that kube-controller-manager creates from the template.

Owns these writes. The caller counts refusals.
"""

from collections.abc import Awaitable, Callable

from tests.adversary.cluster.manifests import Document
from tests.adversary.cluster.observer.api import Answer
from tests.adversary.cluster.observer.made import ENTRY


class Doubling:
    """`create` creates an object and counts refusals."""

    def __init__(self, create: Callable[[Document], Awaitable[Answer]]) -> None:
        self._create = create
        self.kinds: dict[str, Callable[[Document], Awaitable[None]]] = {
            "hostile: a claim that says it is a pod's": self._double
        }

    async def _double(self, arguments: Document) -> None:
        """Create the template first or last. If last, kube-controller-manager finds the pretended claim and creates none."""
        claim = arguments["claim"]
        if not arguments["late"]:
            await self._create(arguments["template"])
        answer = await self._create(arguments["pod"])
        if answer.ok:
            made = answer.body["metadata"]
            owner = {"apiVersion": "v1", "kind": "Pod", "name": made["name"], "uid": made["uid"], "controller": True}
            metadata = {**claim["metadata"], "ownerReferences": [owner], "annotations": {ENTRY: arguments["entry"]}}
            await self._create({**claim, "metadata": metadata})
        if arguments["late"]:
            await self._create(arguments["template"])
