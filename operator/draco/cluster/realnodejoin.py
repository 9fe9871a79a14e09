"""Waiting until real nodes are part of the cluster, and giving each node's agent its identity.

Owns the agent's service account in a cluster without the chart, and the token in each node. The token is bound to the Node
object, so the API server sees which node its holder speaks for, exactly as with the token of a DaemonSet's pod: the
rights that Kubernetes calls `associated-node`, and a policy that holds each agent to its own node, work as in production.
Source: KEP-4193.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final


from draco.cluster.errors import ProcessFailed
from draco.cluster.realnodes import RealNodes
from draco.kube.client import Client
from draco.kube.errors import NotFound
from draco.resources.core import Node
from draco.resources.kinds import NODES, Kind
from draco.resources.meta import ObjectKey
from draco.resources.names import NVIDIA_DRIVER


NAMESPACE: Final = "draco-system"
ACCOUNT: Final = "draco-agent"
_TOKEN_VALID_S: Final = 365 * 24 * 3600
_POLL_S: Final = 0.1
_MANAGER: Final = "draco-cluster"

_NAMESPACES: Kind[Any] = Kind("", "v1", "namespaces", "Namespace", False, dict)
_ACCOUNTS: Kind[Any] = Kind("", "v1", "serviceaccounts", "ServiceAccount", True, dict)
_ROLES: Kind[Any] = Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, dict)
_BINDINGS: Kind[Any] = Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict)


async def join(client: Client, nodes: RealNodes, names: Sequence[str], *, within_s: float = 90.0) -> None:
    """Return when each named node is Ready and its agent has a token. Raises ProcessFailed, naming the log to read."""
    await install_account(client)
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(_join_one(client, nodes, name, within_s))


async def wait_until_ready(client: Client, nodes: RealNodes, name: str, *, within_s: float = 90.0) -> None:
    """Return when the node is Ready, as said by a kubelet that runs now. Raises ProcessFailed after `within_s` seconds."""
    await _wait_for(client, nodes, name, within_s, ready=True)


async def install_account(client: Client) -> None:
    """The agent's service account and rights: what the chart would install, for a cluster without it."""
    name = ObjectKey("", ACCOUNT)
    await client.apply(_NAMESPACES, ObjectKey("", NAMESPACE), {}, manager=_MANAGER)
    await client.apply(_ACCOUNTS, ObjectKey(NAMESPACE, ACCOUNT), {}, manager=_MANAGER)
    await client.apply(_ROLES, name, {"rules": agent_rules(NVIDIA_DRIVER)}, manager=_MANAGER)
    binding = {
        "roleRef": {"apiGroup": _ROLES.group, "kind": _ROLES.kind, "name": ACCOUNT},
        "subjects": [{"kind": _ACCOUNTS.kind, "name": ACCOUNT, "namespace": NAMESPACE}],
    }
    await client.apply(_BINDINGS, name, binding, manager=_MANAGER)


def agent_rules(driver: str) -> list[dict[str, Any]]:
    """What the agent may do; the same as in the chart."""
    return [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        },
        {
            "apiGroups": ["draco.dev"],
            "resources": ["gpunodes"],
            "verbs": ["get", "list", "watch", "create", "patch"],
        },
        {"apiGroups": ["draco.dev"], "resources": ["gpunodes/status"], "verbs": ["patch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "resourceNames": [driver],
            "verbs": ["associated-node:patch", "associated-node:update"],
        },
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ]


async def _join_one(client: Client, nodes: RealNodes, name: str, within_s: float) -> None:
    node = await _wait_for(client, nodes, name, within_s, ready=False)
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": _TOKEN_VALID_S,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid},
        },
    }
    answer = await client.create_subresource(_ACCOUNTS, ObjectKey(NAMESPACE, ACCOUNT), "token", request)
    nodes.write_agent_token(name, answer["status"]["token"])
    await _wait_for(client, nodes, name, within_s, ready=True)


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
            raise ProcessFailed(f"Node {name} went off while it booted: {nodes.log(name, 'console')} says why.")
        if asyncio.get_running_loop().time() > deadline:
            what = "become Ready" if ready else "register"
            raise ProcessFailed(
                f"Node {name} did not {what} within {within_s:.0f} s: see {nodes.log(name, 'kubelet')}."
            )
        await asyncio.sleep(_POLL_S)
