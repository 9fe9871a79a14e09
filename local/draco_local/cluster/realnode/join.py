"""Waiting until real nodes are part of the cluster, and giving each node's agent its identity.

Owns the token in each node. The agent's service account and rights, and the policy that limits each agent to its own node, come
from the installation. The token is bound to the Node object, so the API server sees which node its holder speaks for, exactly as
with the token of a DaemonSet's pod. Source: KEP-4193.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import yaml

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import NODES, Kind
from draco.resources.names import LABEL_MANAGED_BY
from draco_local.cluster import data
from draco_local.cluster.attach import MANAGER, SYSTEM_NAMESPACE
from draco_local.cluster.errors import ProcessFailed
from draco_local.cluster.realnode.nodes import RealNodes

ACCOUNT: Final = "draco-agent"
_TOKEN_VALID_S: Final = 365 * 24 * 3600
_POLL_S: Final = 0.1
_COMPONENT: Final = "app.kubernetes.io/component"

_ACCOUNTS: Kind[Any] = Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict)
_AGENT_KINDS: Final[Sequence[Kind[Any]]] = (
    _ACCOUNTS,
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, dict),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict),
    Kind(
        *("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        namespaced=False,
        type=dict,
    ),
    Kind(
        *(
            "admissionregistration.k8s.io",
            "v1",
            "validatingadmissionpolicybindings",
            "ValidatingAdmissionPolicyBinding",
        ),
        namespaced=False,
        type=dict,
    ),
)
"""The agent's objects in the installation except its DaemonSet, in the order in which they are applied."""


async def join(
    client: Client, nodes: RealNodes, names: Sequence[str], *, agents: bool = True, within_s: float = 90.0
) -> None:
    """Return when each named node is Ready and, with `agents`, its agent has a token.

    Raises ProcessFailed, naming the log to read.
    """
    if agents:
        await install_account(client)
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(_join_one(client, nodes, name, agents=agents, within_s=within_s))


async def install_account(client: Client) -> None:
    """Apply the agent's objects of the installation: its account, its rights, and its admission policy."""
    for kind, document in agent_manifests(data.install().read_text()):
        metadata = document["metadata"]
        key = ObjectKey(metadata.get("namespace", ""), metadata["name"])
        await client.apply(kind, key, document, manager=MANAGER)


def agent_manifests(installation: str) -> list[tuple[Kind[Any], dict[str, Any]]]:
    """Return the agent's objects of the installation, without the DaemonSet: here something else runs the agent."""
    documents = [each for each in yaml.safe_load_all(installation) if each]
    agents = [each for each in documents if each["metadata"].get("labels", {}).get(_COMPONENT) == "agent"]
    return [
        (kind, {**each, "metadata": {**each["metadata"], "labels": {LABEL_MANAGED_BY: MANAGER}}})
        for kind in _AGENT_KINDS
        for each in agents
        if each["kind"] == kind.kind
    ]


async def _join_one(client: Client, nodes: RealNodes, name: str, *, agents: bool, within_s: float) -> None:
    node = await _wait_for(client, nodes, name, within_s, ready=False)
    if agents:
        await _give_token(client, nodes, node)
    await _wait_for(client, nodes, name, within_s, ready=True)


async def _give_token(client: Client, nodes: RealNodes, node: Node) -> None:
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": _TOKEN_VALID_S,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Node",
                "name": node.metadata.name,
                "uid": node.metadata.uid,
            },
        },
    }
    answer = await client.create_subresource(_ACCOUNTS, ObjectKey(SYSTEM_NAMESPACE, ACCOUNT), "token", request)
    nodes.write_agent_token(node.metadata.name, answer["status"]["token"])


async def _wait_for(client: Client, nodes: RealNodes, name: str, within_s: float, *, ready: bool) -> Node:
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            node = await client.get(NODES, ObjectKey("", name))
        except NotFound:
            node = None
        if node and (node.ready or not ready):
            return node
        if not nodes.powered(name):
            raise ProcessFailed(f"Node {name} stopped while it booted: see {nodes.log(name, 'console')}.")
        if asyncio.get_running_loop().time() > deadline:
            what = "become Ready" if ready else "register"
            raise ProcessFailed(
                f"Node {name} did not {what} within {within_s:.0f} s: see {nodes.log(name, 'kubelet')}."
            )
        await asyncio.sleep(_POLL_S)
