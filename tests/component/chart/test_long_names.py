"""Leases of nodes with names of maximum length, under the chart's policies."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from draco.kube.errors import ApiError
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import LEASES
from draco.resources.names import agent_lease_name
from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES
from tests.component.chart.rendering import NAMESPACE
from tests.component.chart.stolen import LONG, LONG_TOO, MINE, Cluster
from tests.component.chart.thefts import a_cluster, a_lease, taken_over


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(DEFAULT_KUBERNETES, tmp_path_factory.mktemp("long-names")) as made:
        yield made


async def test_an_agent_renews_the_lease_of_its_node_alone_however_long_the_names_are(cluster: Cluster) -> None:
    """A long name becomes a digest, which no policy can compute; so the Lease must also be owned by the agent's Node."""
    mine, other = agent_lease_name(LONG), agent_lease_name(LONG_TOO)

    def of(name: str, node: str) -> dict[str, Any]:
        lease = a_lease(name)
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "uid"}
        return {**lease, "metadata": {**lease["metadata"], "ownerReferences": [owner]}}

    async with cluster.holding("remote") as agent:
        for name, node in (
            (mine, LONG_TOO),
            (other, LONG_TOO),
            ("draco-operator-2", LONG),
            (f"draco-agent-{MINE}", LONG),
        ):
            with pytest.raises(ApiError, match="may not write the Lease"):
                await agent.create(LEASES, of(name, node))
        with pytest.raises(ApiError, match="may not write the Lease"):
            await agent.create(LEASES, a_lease(mine))
        made = await agent.create(LEASES, of(mine, LONG))
        spec = msgspec.structs.replace(made.spec, renew_time="2026-01-01T00:00:00.000000Z")
        assert (
            await agent.replace(LEASES, made.metadata.key, msgspec.structs.replace(made, spec=spec))
        ).spec.renew_time
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
        cluster.call("POST", path, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **of(other, LONG_TOO)})
        with pytest.raises(ApiError, match="may not write the Lease"):
            await taken_over(other)(agent)
        theirs = await agent.get(LEASES, ObjectKey(NAMESPACE, other))
        stolen = msgspec.structs.replace(theirs.metadata, owner_references=made.metadata.owner_references)
        with pytest.raises(ApiError, match="may not write the Lease"):
            await agent.replace(LEASES, theirs.metadata.key, msgspec.structs.replace(theirs, metadata=stolen))
