from draco_local.cluster import data
from draco_local.cluster.attach import SYSTEM_NAMESPACE
from draco_local.cluster.realnode.join import ACCOUNT, agent_manifests


def test_the_agent_gets_from_the_installation_all_but_the_pods_that_would_run_it() -> None:
    found = agent_manifests(data.install().read_text())
    kinds = [kind.kind for kind, _ in found]
    assert kinds[:3] == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"]
    assert {document["metadata"]["name"] for _, document in found[:3]} == {ACCOUNT}
    policies, bindings = (
        [
            document["metadata"]["name"]
            for kind, document in found[3:]
            if kind.kind == f"ValidatingAdmissionPolicy{what}"
        ]
        for what in ("", "Binding")
    )
    assert len(policies) + len(bindings) == len(found[3:])
    assert policies == bindings, "a policy that nothing binds holds nobody"
    assert {f"{ACCOUNT}-slices", f"{ACCOUNT}-claims"} <= set(policies)
    assert found[0][1]["metadata"]["namespace"] == SYSTEM_NAMESPACE


def test_what_belongs_to_no_agent_is_left_to_others() -> None:
    operator = "kind: ClusterRole\nmetadata: {name: op, labels: {app.kubernetes.io/component: operator}}\n"
    unlabelled = "---\nkind: ServiceAccount\nmetadata: {name: a}\n"
    assert agent_manifests(operator + unlabelled) == []
