"""Executes maintainers' actions: writes requests, budgets, HealthPolicies, and the templates of maintenance Jobs.

Owns these writes. The caller counts refusals.
"""

from collections.abc import Awaitable, Callable

from tests.adversary.cluster.manifests import WORKS, Document, cron_job
from tests.adversary.cluster.observer.api import Answer, Api

GROUP = "/apis/draco.dev/v1alpha1"
REQUESTS = f"{GROUP}/devicemaintenances"
BUDGETS = f"{GROUP}/maintenancebudgets"
HEALTH_POLICIES = f"{GROUP}/healthpolicies"
CRON_JOBS = "/apis/batch/v1/namespaces/draco-jobs/cronjobs"
RUN_SECONDS = {"adv-works": 1.0, "adv-works-long": 8.0, "adv-never-ends": None}

Write = Callable[..., Awaitable[Answer]]


async def prepare(api: Api) -> None:
    """Create the templates of maintenance Jobs."""
    for title in WORKS:
        if title in RUN_SECONDS:
            await api.call("POST", CRON_JOBS, cron_job(title, RUN_SECONDS[title]))


class Maintaining:
    """Maintainers of one cluster. `write` makes a request and counts refusals."""

    def __init__(self, api: Api, write: Write) -> None:
        self._api = api
        self._write = write
        self.kinds: dict[str, Callable[[Document], Awaitable[None]]] = {
            "maintenance: approved": lambda arguments: self._set(arguments, {"approved": True}),
            "maintenance: finished": lambda arguments: self._set(arguments, {"finished": True}),
            "maintenance: other effect": lambda arguments: self._set(
                arguments, {"taint": {"effect": arguments["effect"]}}
            ),
            "maintenance: cancelled": lambda arguments: self._set(arguments, {"cancelled": True}),
            "maintenance: deleted": lambda arguments: self._delete(REQUESTS, arguments),
            "maintenance: all deleted": self._delete_all,
            "budget: set": lambda arguments: self._put(BUDGETS, arguments["budget"]),
            "budget: deleted": lambda arguments: self._delete(BUDGETS, arguments),
            "health policy: set": lambda arguments: self._put(HEALTH_POLICIES, arguments["policy"]),
            "health policy: deleted": lambda arguments: self._delete(HEALTH_POLICIES, arguments),
        }

    async def _set(self, arguments: Document, spec: Document) -> None:
        await self._write("PATCH", f"{REQUESTS}/{arguments['title']}", {"spec": spec})

    async def _delete(self, path: str, arguments: Document) -> None:
        await self._write("DELETE", f"{path}/{arguments['title']}")

    async def _put(self, path: str, document: Document) -> None:
        """Create or update an object."""
        answer = await self._api.call("PATCH", f"{path}/{document['metadata']['name']}", {"spec": document["spec"]})
        if answer.status == 404:
            said = {key: value for key, value in document["spec"].items() if value is not None}
            await self._write("POST", path, {**document, "spec": said})

    async def _delete_all(self, _: Document) -> None:
        """Delete HealthPolicies first, because they would create new requests."""
        for path in (HEALTH_POLICIES, REQUESTS):
            for one in (await self._api.call("GET", path)).body.get("items") or []:
                await self._delete(path, {"title": one["metadata"]["name"]})
