"""The version in which Draco reads PodGroups: the newest known one that the cluster serves and allows Draco to watch."""

import asyncio
import json
from typing import Any, cast

import pytest

from draco.kube.connect.client import Client
from draco.kube.discovery import differences, discover_for_operator, until_changed
from draco.kube.errors import NotFound, Unreachable
from draco.resources.api.scheduling import PodGroup
from draco.resources.kinds import POD_GROUPS, SLICES, Kind
from tests.doubles.clock import ManualClock

BETA1, ALPHA3, ALPHA2 = POD_GROUPS
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Server:
    """Reports the served versions of scheduling.k8s.io and the allowed verbs on PodGroups; says nothing about slices."""

    def __init__(self, **plurals: list[str]) -> None:
        self.plurals = plurals
        self.forbidden: set[str] = set()
        self.answers = True

    @property
    def connection(self) -> "Server":
        return self

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: Any) -> bytes:
        if not self.answers:
            raise Unreachable("no route")
        group, version = path.removeprefix("/apis/").rsplit("/", 1)
        if method == "POST" and path == _REVIEWS:
            asked = json.loads(body)["spec"]["resourceAttributes"]
            allowed = asked["resource"] == "podgroups" and asked["verb"] not in self.forbidden
            return json.dumps({"status": {"allowed": allowed}}).encode()
        if path == f"/apis/{SLICES.api_version}":
            return resources("resourceslices")
        if method == "GET" and group == "scheduling.k8s.io" and version in self.plurals:
            return resources(*self.plurals[version])
        raise NotFound(404, "NotFound", path)

    async def pod_groups(self) -> Kind[PodGroup] | None:
        return (await discover_for_operator(cast("Client", self), allocates=True)).pod_groups


def resources(*plurals: str) -> bytes:
    return json.dumps({"kind": "APIResourceList", "resources": [{"name": each} for each in plurals]}).encode()


def serving(*kinds: Kind[PodGroup]) -> Server:
    return Server(**{kind.version: ["podgroups"] for kind in kinds})


def test_newer_versions_come_first() -> None:
    assert [kind.version for kind in POD_GROUPS] == ["v1beta1", "v1alpha3", "v1alpha2"]


@pytest.mark.parametrize(
    ("served", "taken"),
    [
        ([BETA1, ALPHA3, ALPHA2], BETA1),
        ([ALPHA2, BETA1], BETA1),
        ([ALPHA3, ALPHA2], ALPHA3),
        ([ALPHA2], ALPHA2),
        ([], None),
    ],
)
async def test_the_newest_that_is_served_is_read(served: list[Kind[PodGroup]], taken: Kind[PodGroup] | None) -> None:
    assert await serving(*served).pod_groups() == taken


async def test_a_version_of_the_group_that_has_no_pod_groups_is_passed_over() -> None:
    assert (
        await Server(v1=["priorityclasses"], v1beta1=["priorityclasses"], v1alpha3=["podgroups"]).pod_groups() == ALPHA3
    )
    assert await Server(v1=["priorityclasses", "podgroups"], v1alpha2=["workloads"]).pod_groups() is None


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_what_may_not_be_listed_or_watched_is_not_read_in_any_version(verb: str) -> None:
    server = serving(BETA1, ALPHA2)
    server.forbidden = {verb}
    assert await server.pod_groups() is None
    server.forbidden = {"create"}
    assert await server.pod_groups() == BETA1


async def test_an_operator_that_does_not_allocate_asks_nothing_of_pod_groups() -> None:
    server = serving(BETA1)
    assert (await discover_for_operator(cast("Client", server))).pod_groups is None


async def test_a_server_that_does_not_answer_is_not_taken_for_one_without_pod_groups() -> None:
    server = serving(BETA1)
    server.answers = False
    with pytest.raises(Unreachable):
        await server.pod_groups()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [ALPHA2], "PodGroup is now read in scheduling.k8s.io/v1alpha2 instead of no version"),
        (
            [ALPHA2],
            [BETA1, ALPHA2],
            "PodGroup is now read in scheduling.k8s.io/v1beta1 instead of scheduling.k8s.io/v1alpha2",
        ),
        ([ALPHA3], [], "PodGroup is now read in no version instead of scheduling.k8s.io/v1alpha3"),
    ],
)
async def test_a_version_that_comes_or_goes_while_the_operator_runs_is_noticed_and_it_starts_again(
    before: list[Kind[PodGroup]], after: list[Kind[PodGroup]], said: str
) -> None:
    """The restart itself is in `controller.app`: everything that depends on a feature is wired at the start."""
    server, later, clock = serving(*before), serving(*after), ManualClock()
    known = await discover_for_operator(cast("Client", server), allocates=True)

    async def look() -> Any:
        return await discover_for_operator(cast("Client", later), allocates=True)

    task = asyncio.create_task(until_changed(look, known, clock=clock, every_s=300, confirm_s=10))
    await clock.advance(320)
    changed = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert changed
    assert differences(known, task.result()) == [said]
