"""The rights that an account used, by the API server's audit log, compared with those that the chart's roles grant.

A right is (API group, resource, verb). An apply request that creates its object uses two: patch and create.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:draco-system"]
  - level: None
"""


class Right(NamedTuple):
    """What a rule grants or a request needs. `name` is the only object that a rule permits; "" for all."""

    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        where = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {where}" + (f" {self.name}" if self.name else "")


def granted(documents: Iterable[dict[str, Any]], account: str) -> set[Right]:
    """The rights that an account's roles grant."""
    documents = list(documents)
    roles = {(each["kind"], each["metadata"]["name"]): each for each in documents if each["kind"].endswith("Role")}
    bound = [
        roles[each["roleRef"]["kind"], each["roleRef"]["name"]]
        for each in documents
        if each["kind"].endswith("RoleBinding") and account in {one["name"] for one in each["subjects"]}
    ]
    return {
        Right(group, resource, verb, name)
        for role in bound
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


class Requests:
    """Each account's requests by the rights that they needed."""

    def __init__(self, log: Path, account: str) -> None:
        self.allowed: set[Right] = set()
        self.refused: dict[Right, str] = {}
        user = f"system:serviceaccount:draco-system:{account}"
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["user"]["username"] == user and "resource" in event.get("objectRef", {}):
                self._count(event)

    def _count(self, event: dict[str, Any]) -> None:
        on = event["objectRef"]
        resource = on["resource"] + (f"/{on['subresource']}" if "subresource" in on else "")
        right = Right(on.get("apiGroup", ""), resource, event["verb"], on.get("name", ""))
        code = event.get("responseStatus", {}).get("code", 0)
        said = event.get("responseStatus", {}).get("message", "")
        # An admission policy refuses with 422, like a validation error.
        if (
            event["annotations"].get("authorization.k8s.io/decision") == "forbid"
            or code == 403
            or (code == 422 and "denied request" in said)
        ):
            self.refused[right] = f"{event['requestURI']} {said}"
            return
        self.allowed.add(right)
        if right.verb == "patch" and code == 201:
            self.allowed.add(right._replace(verb="create"))


def unused(rights: set[Right], requests: Requests) -> list[Right]:
    """Granted rights that no request needed."""
    asked = requests.allowed | {right._replace(name="") for right in requests.allowed}
    return sorted(rights - asked)
