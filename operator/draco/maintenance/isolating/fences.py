"""The taint rules that fence nodes: one for all devices of a pool whose agent is lost.

Owns such a rule's name, selector, label and owner, and how it is recognised again. It belongs to the GpuNode, so the cluster's
garbage collector takes it away with that even when no operator runs. Whom to fence is decided in `health.fencing`.
"""

import hashlib

from draco.maintenance.rules import FENCE_PREFIX, MANAGED_BY
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from draco.resources.kinds import GPU_NODES
from draco.resources.names import LABEL_FENCES, LABEL_MANAGED_BY, TAINT_AGENT_LOST, PoolKey


def fence_name(pool: PoolKey) -> str:
    """One name per pool: who applies it twice, applies it once."""
    return f"{FENCE_PREFIX}{_digest(pool)}"


def fence_for(gpu_node: GpuNode, pool: PoolKey) -> DeviceTaintRule:
    """The rule that keeps new claims off the node's devices."""
    return DeviceTaintRule(
        metadata=ObjectMeta(
            name=fence_name(pool),
            labels={LABEL_FENCES: _digest(pool), LABEL_MANAGED_BY: MANAGED_BY},
            owner_references=[GPU_NODES.owner(gpu_node.metadata)],
        ),
        spec=DeviceTaintRuleSpec(
            device_selector=DeviceTaintSelector(driver=pool.driver, pool=pool.pool),
            taint=DeviceTaint(key=TAINT_AGENT_LOST, effect="NoSchedule"),
        ),
    )


def is_fence(rule: DeviceTaintRule) -> bool:
    """Whether Draco wrote the rule to fence a node. Other people's rules never qualify."""
    return rule.metadata.name.startswith(FENCE_PREFIX) and LABEL_FENCES in rule.metadata.labels


def fenced_node(rule: DeviceTaintRule) -> str:
    """The node that the rule fences; "" if it fences none."""
    selector = rule.spec.device_selector
    return (selector.pool or "") if is_fence(rule) and selector is not None else ""


def _digest(pool: PoolKey) -> str:
    return hashlib.sha256("\0".join(pool).encode()).hexdigest()[:16]
