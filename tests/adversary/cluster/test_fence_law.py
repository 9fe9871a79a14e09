"""The law of fences: which fences have a cause, and that the cluster's agents renew leases."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from draco_local.cluster import attach
from tests.adversary.cluster.cluster import Cluster
from tests.adversary.cluster.observer.fences import WEIGHED_AFTER_S, FenceLaw
from tests.adversary.cluster.observer.service import AGENT_LOST

Document = dict[str, Any]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LASTS_S = 20
SEEN = 1000.0


def a_renewal(second: float, revision: int, node: str = "node") -> Document:
    stamp = (BEGAN + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "metadata": {"name": f"draco-agent-{node}", "uid": node, "resourceVersion": str(revision)},
        "spec": {"renewTime": stamp, "leaseDurationSeconds": LASTS_S},
    }


def a_fence(second: float, revision: int, *, node: str = "node", key: str = AGENT_LOST) -> Document:
    stamp = (BEGAN + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"name": "draco-fence-x", "uid": f"fence-{revision}", "resourceVersion": str(revision)}
    return {
        "metadata": {**metadata, "creationTimestamp": stamp},
        "spec": {"deviceSelector": {"pool": node}, "taint": {"key": key, "effect": "NoSchedule"}},
    }


def judged(fence: Document, *renewals: Document, grace_s: float = 0.0) -> list[str]:
    law = FenceLaw()
    law.rule_changed(None, fence, SEEN)  # the watch of rules may be ahead of that of leases
    for each in renewals:
        law.renewed(each)
    assert not list(law.weighed(SEEN + WEIGHED_AFTER_S / 2, grace_s=grace_s)), "the other watch may be behind"
    return [each.text for each in law.weighed(SEEN + WEIGHED_AFTER_S, grace_s=grace_s)]


def test_a_node_is_fenced_when_its_lease_has_run_out() -> None:
    assert not judged(a_fence(25.5, 9), a_renewal(0.0, 1), a_renewal(5.0, 2))


def test_a_node_whose_agent_renews_is_not_fenced() -> None:
    (text,) = judged(a_fence(15.0, 9), a_renewal(0.0, 1), a_renewal(5.0, 2))
    assert "11 s before at most, and it lasts 20 s" in text


def test_a_renewal_that_crosses_a_fence_takes_its_cause_away_only_if_the_one_before_was_in_time() -> None:
    assert not judged(a_fence(26.0, 9), a_renewal(5.0, 1), a_renewal(25.5, 8))
    assert judged(a_fence(26.0, 9), a_renewal(20.0, 1), a_renewal(25.5, 8))


def test_an_operator_that_waits_for_a_processor_writes_later_what_it_decided_in_time() -> None:
    renewals = [a_renewal(0.0, 1), a_renewal(22.0, 8)]
    assert judged(a_fence(26.0, 9), *renewals)
    assert not judged(a_fence(26.0, 9), *renewals, grace_s=3.0)
    assert not judged(a_fence(26.0, 9), a_renewal(22.0, 8), grace_s=3.0)


def test_what_is_renewed_after_the_fence_is_no_reason_against_it() -> None:
    assert not judged(a_fence(26.0, 9), a_renewal(5.0, 1), a_renewal(26.5, 10))


@pytest.mark.parametrize("renewals", [[], [a_renewal(0.0, 1, node="other")], [a_renewal(99.5, 8)]])
def test_an_agent_that_never_was_overdue_is_not_lost(renewals: list[Document]) -> None:
    assert judged(a_fence(100.0, 9), *renewals)


def test_a_fence_is_weighed_once_and_other_rules_are_none() -> None:
    assert not judged(a_fence(5.0, 9, key="example.com/suspect"))
    law = FenceLaw()
    fence = a_fence(5.0, 9)
    for at in (0.0, 10.0):
        law.rule_changed(None, fence, at)
    law.rule_changed(fence, None, 11.0)
    assert len(list(law.weighed(20.0, grace_s=0.0))) == law.fences == 1


def test_the_agents_of_the_cluster_renew_their_leases_where_the_operator_looks(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, tmp_path, Mock(), Mock(), Mock(), tmp_path / "kubeconfig")
    cluster.start_agent("adv-0")
    agent = cluster.processes.start.call_args.args[1]  # type: ignore[attr-defined]
    cluster.start_operator("operator-a")
    operator = cluster.processes.start.call_args.args[1]  # type: ignore[attr-defined]
    for argv in (agent, operator):
        assert argv[argv.index("--namespace") + 1] == attach.SYSTEM_NAMESPACE
