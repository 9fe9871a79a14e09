"""Which EvictionRequests a thief of the operator's token cannot touch: those of others."""

from collections.abc import Iterator

import pytest

from draco.kube.errors import ApiError
from draco.maintenance.draining.eviction_requests import eviction_request_for, request_key
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import EVICTION_REQUESTS
from tests.component.chart.stolen import TENANT, Cluster
from tests.component.chart.thefts import a_cluster

pytestmark = pytest.mark.other_version

REFUSED = "may only create and delete EvictionRequests whose requester is draco.dev/maintenance"
UID = "00000000-0000-0000-0000-000000000001"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster("1.37.2", tmp_path_factory.mktemp("requests")) as made:
        yield made


async def test_the_operator_makes_and_withdraws_its_own_eviction_requests_and_no_others(cluster: Cluster) -> None:
    pod = Pod(metadata=ObjectMeta(name="web", namespace=TENANT, uid=UID))
    spec = {"target": {"pod": {"name": "web", "uid": UID}}, "requester": "example.com/other", "intent": "Eviction"}
    others = {"metadata": {"name": "other", "namespace": TENANT}, "spec": spec}
    path = f"/apis/lifecycle.k8s.io/v1alpha1/namespaces/{TENANT}/evictionrequests"
    cluster.call("POST", path, {"apiVersion": "lifecycle.k8s.io/v1alpha1", "kind": "EvictionRequest", **others})
    async with cluster.holding("operator") as operator:
        with pytest.raises(ApiError, match=REFUSED):
            await operator.delete(EVICTION_REQUESTS, ObjectKey(TENANT, "other"))
        with pytest.raises(ApiError, match=REFUSED):
            await operator.create(EVICTION_REQUESTS, {**others, "metadata": {"name": "more", "namespace": TENANT}})
        await operator.create(EVICTION_REQUESTS, eviction_request_for(pod))
        await operator.delete(EVICTION_REQUESTS, request_key(pod))
    assert [each["metadata"]["name"] for each in cluster.call("GET", path)["items"]] == ["other"]
