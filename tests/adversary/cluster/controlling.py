"""Executes actions around the Jobs of JobSets, as the JobSet controller does.

Owns these writes. kube-controller-manager creates and deletes the pods. The caller counts refusals.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable

from tests.adversary.cluster.maintaining import Write
from tests.adversary.cluster.manifests import JOB_SET, Document
from tests.adversary.cluster.observer.api import Api
from tests.adversary.cluster.observer.world import World, is_live, name

JOBS = "/apis/batch/v1/namespaces/{}/jobs"
POLL_S = 0.2
GONE_WITHIN_POLLS = 150
CONFLICT = 409


class Controlling:
    """`write` makes a request and counts refusals, `delete_pod` deletes a pod as an action says, `soon` runs something later."""

    def __init__(
        self,
        api: Api,
        world: World,
        write: Write,
        delete_pod: Callable[[Document], Awaitable[None]],
        soon: Callable[[float, Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._api = api
        self._world = world
        self._write = write
        self._delete_pod = delete_pod
        self._soon = soon
        self.kinds: dict[str, Callable[[Document], Awaitable[None]]] = {
            "job: changed": self._change,
            "job: other label": self._change,
            "job: loses a pod": self._lose,
            "job set: starts again": self._restart,
            "job set: deleted": self._delete,
        }

    async def _change(self, arguments: Document) -> None:
        await self._write("PATCH", _path(arguments["job"]), arguments["change"])

    async def _lose(self, arguments: Document) -> None:
        """Delete a live pod: kube-controller-manager chose its name."""
        namespace, _, title = arguments["job"].partition("/")
        prefix = f"{namespace}/{title}-"
        live = sorted(name(pod) for pod in list(self._world.pods.values()) if is_live(pod))
        for pod in [each for each in live if each.startswith(prefix)][:1]:
            await self._delete_pod({"pod": pod, "grace": 0})

    async def _restart(self, arguments: Document) -> None:
        jobs = arguments["jobs"]
        titles = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in jobs]
        await self._delete({"jobs": titles, "how": "Foreground"})
        for job in jobs:
            self._soon(0.0, lambda job=job: self._make_again(job))

    async def _make_again(self, job: Document) -> None:
        """Create the Job once the previous one of this name is gone."""
        attempt = f'"{JOB_SET}restart-attempt": '
        again = json.loads(json.dumps(job).replace(f'{attempt}"0"', f'{attempt}"1"'))
        for _ in range(GONE_WITHIN_POLLS):
            if (await self._api.call("POST", JOBS.format(job["metadata"]["namespace"]), again)).status != CONFLICT:
                return
            await asyncio.sleep(POLL_S)

    async def _delete(self, arguments: Document) -> None:
        for job in arguments["jobs"]:
            await self._write("DELETE", f"{_path(job)}?propagationPolicy={arguments['how']}")


def _path(job: str) -> str:
    namespace, _, title = job.partition("/")
    return f"{JOBS.format(namespace)}/{title}"
