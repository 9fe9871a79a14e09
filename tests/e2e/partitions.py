"""Objects for tests on a whole cluster: claims for partitions, pods that use them, and allocations made by hand."""

import json
from datetime import UTC, datetime

from tests.e2e import provider
from tests.e2e.kubectl import Kubectl

NODE = provider.NODES[0]


def a_claim(name: str, profile: str) -> str:
    """A claim for one partition of a profile."""
    selector = json.dumps(f"device.attributes['gpu.nvidia.com'].profile == '{profile}'")
    return f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: {name}}}
spec:
  devices:
    requests:
      - {{name: part, exactly: {{deviceClassName: mig.nvidia.com, selectors: [{{cel: {{expression: {selector}}}}}]}}}}
"""


def a_pod(name: str, claim: str) -> str:
    """A pod that runs until it is deleted."""
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{{name: part, resourceClaimName: {claim}}}]
  containers: [{{name: main, image: "busybox:1.37", command: [sleep, infinity], resources: {{claims: [{{name: part}}]}}}}]
"""


def allocate(kube: Kubectl, claim: str, device: str) -> None:
    """Allocate a claim that no pod uses yet, as a tool that allocates ahead of pods.

    Without the timestamp, the scheduler could not add a pod later.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    host = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    allocation = {
        "devices": {"results": [{"request": "part", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [host]}]},
        "allocationTimestamp": now,
    }
    patch = json.dumps({"status": {"allocation": allocation}})
    kube.run("patch", "resourceclaim", claim, "--subresource=status", "--type=merge", "-p", patch)


def claim_name(kube: Kubectl, name: str) -> str:
    """The claim's name in messages."""
    return f"{kube.get('resourceclaim', name)['metadata']['namespace']}/{name}"
