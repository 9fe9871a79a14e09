"""Does what is chosen about claims that say they are a pod's, beside the one that kube-controller-manager makes from a template.

Owns these writes. What is refused is counted by whoever writes for it.
"""

from collections.abc import Awaitable, Callable

from tests.adversary.cluster.evicting import CLAIMS
from tests.adversary.cluster.maintaining import Write
from tests.adversary.cluster.manifests import Document
from tests.adversary.cluster.observer.made import ENTRY

TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
PODS = "/api/v1/namespaces/{}/pods"


class Doubling:
    """`write` makes a request and counts what is refused."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.kinds: dict[str, Callable[[Document], Awaitable[None]]] = {
            "hostile: a claim that says it is a pod's": self._double
        }

    async def _double(self, arguments: Document) -> None:
        """The template comes first, or last: then kube-controller-manager finds the claim, and makes none."""
        pod, template, claim = arguments["pod"], arguments["template"], arguments["claim"]
        namespace = pod["metadata"]["namespace"]
        if not arguments["late"]:
            await self._write("POST", TEMPLATES.format(namespace), template)
        answer = await self._write("POST", PODS.format(namespace), pod)
        if answer.ok:
            made = answer.body["metadata"]
            owner = {"apiVersion": "v1", "kind": "Pod", "name": made["name"], "uid": made["uid"], "controller": True}
            metadata = {**claim["metadata"], "ownerReferences": [owner], "annotations": {ENTRY: arguments["entry"]}}
            await self._write("POST", CLAIMS.format(namespace), {**claim, "metadata": metadata})
        if arguments["late"]:
            await self._write("POST", TEMPLATES.format(namespace), template)
