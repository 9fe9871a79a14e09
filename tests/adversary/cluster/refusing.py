"""Makes the API server refuse all allocations in one namespace for a while, as an admission policy may.

Owns these writes. Claims in other namespaces must not be affected, and this namespace's must be allocated soon after.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tests.adversary.cluster.maintaining import Write
from tests.adversary.cluster.manifests import Document
from tests.adversary.cluster.observer.api import Api

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{ADMISSION}/validatingadmissionpolicies"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
POLICY = "adv-no-devices"
_TRIES, _TRY_AGAIN_S = 120, 0.5
_ALLOCATED = "has({0}.status) && has({0}.status.allocation)"

Soon = Callable[[float, Callable[[], Awaitable[None]]], None]


async def prepare(api: Api) -> None:
    """Create the policy, which refuses nothing until it is bound to a namespace."""
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["resourceclaims/status"],
    }
    new = f"{_ALLOCATED.format('object')} && !({_ALLOCATED.format('oldObject')})"
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": f"!({new})", "message": "This namespace gets no devices now."}],
    }
    await api.call("POST", POLICIES, {"metadata": {"name": POLICY}, "spec": spec})


class Refusing:
    """`write` makes a request and counts refusals; `soon` runs something after a number of seconds."""

    def __init__(self, write: Write, soon: Soon) -> None:
        self._write = write
        self._soon = soon
        self.kinds: dict[str, Callable[[Document], Awaitable[None]]] = {"allocations refused": self._refuse}

    async def _refuse(self, arguments: Document) -> None:
        namespace = arguments["namespace"]
        title = f"{POLICY}-{namespace}"
        selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        spec = {
            "policyName": POLICY,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        }
        await self._write("POST", BINDINGS, {"metadata": {"name": title}, "spec": spec})

        async def over() -> None:
            """End the refusal, with retries: a namespace left without devices would never come to rest."""
            for _ in range(_TRIES):
                if (await self._write("DELETE", f"{BINDINGS}/{title}")).status in {200, 404}:
                    return
                await asyncio.sleep(_TRY_AGAIN_S)

        self._soon(arguments["seconds"], over)
