"""The wire format of admission webhooks: the review request and its answer.

Owns the form of an AdmissionReview and the maximum length of a warning. The callers provide the contents.
"""

import base64
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.foreign import read, read_plain, shallow
from draco.resources.errors import DracoError
from draco.resources.texts import shortened

WARNING_CHARACTERS: Final = 256
"""The API server may cut longer ones."""
MOST_WARNINGS: Final = 10


class ReviewOutcome(StrEnum):
    """The result of one review, for metrics."""

    CLEAN = "clean"
    WARNED = "warned"
    DENIED = "denied"
    GATED = "gated"
    """A pod that got Draco's scheduling gate."""
    UNSEEN = "unseen"
    """Allowed without a check: unreadable, not enough known yet, too costly, or too late."""


class NotAReview(DracoError):
    """The body of a request is not an AdmissionReview."""


class _ReviewedKind(ApiStruct, frozen=True, kw_only=True):
    kind: str = ""


class AdmissionRequest(ApiStruct, frozen=True, kw_only=True):
    """The request of the API server."""

    uid: str
    kind: _ReviewedKind = _ReviewedKind()
    name: str = ""
    namespace: str = ""
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(ApiStruct, frozen=True, kw_only=True):
    request: AdmissionRequest


_review_decoder = msgspec.json.Decoder(_Review)


def read_review(body: bytes) -> AdmissionRequest:
    """The request of an AdmissionReview. Raises NotAReview."""
    try:
        return read(_review_decoder, body).request
    except msgspec.DecodeError as error:
        raise NotAReview(f"this endpoint takes an AdmissionReview of admission.k8s.io/v1 ({error})") from error


def changes_spec(request: AdmissionRequest) -> bool:
    """Whether the request changes the spec: removing a finalizer must always be allowed."""
    if request.operation == "CREATE":
        return True
    return bool(_spec(request.object) != _spec(request.old_object))


def _spec(raw: msgspec.Raw) -> Any:
    decoded = read_plain(shallow(bytes(raw)))
    return decoded.get("spec") if isinstance(decoded, dict) else None


def answer_to(
    request: AdmissionRequest, warnings: Sequence[str], *, denied: str = "", patch: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """The review with its answer. `patch` is a JSON patch of the object."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": not denied}
    if denied:
        response["status"] = {"code": 422, "reason": "Invalid", "message": denied}
    if warnings:
        response["warnings"] = [shortened(each, WARNING_CHARACTERS) for each in warnings]
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
