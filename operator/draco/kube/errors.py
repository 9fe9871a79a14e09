"""Errors of requests to the API server, as distinct exceptions.

Owns the hierarchy and the parsing of a Status. `retry` decides what is worth retrying.
"""

import re
from collections.abc import Mapping

import msgspec

from draco.resources.api.foreign import read
from draco.resources.errors import DracoError


class KubeError(DracoError):
    """Base of the kube layer's deliberate errors. The message is one sentence for a person."""


class KubeconfigError(KubeError):
    """The kubeconfig or the in-cluster credentials are missing or cannot be used."""


class ApiError(KubeError):
    """A failed request: HTTP `status` (0 without an answer), `reason` of the Status object, Retry-After in seconds if any."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class NotFound(ApiError):
    """404: no such object, or no such kind on this server."""


class AlreadyExists(ApiError):
    """409 on create: the name is taken."""


class Conflict(ApiError):
    """409: the object changed since it was read, a precondition failed, or another manager owns the field."""


class Expired(ApiError):
    """410: the resource version or the continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object breaks a rule of its kind. Retrying the same object is pointless."""


class Forbidden(ApiError):
    """403: these credentials lack the right."""


class NamespaceTerminating(Forbidden):
    """403 on create: the namespace is being deleted and accepts nothing new."""


class Unauthorized(ApiError):
    """401: the server does not accept these credentials, or no longer does."""


class TooManyRequests(ApiError):
    """429: the server sheds load, or an eviction would break a disruption budget."""


class DisruptionRefused(TooManyRequests):
    """429 of an eviction: a PodDisruptionBudget forbids it now."""


class ServerError(ApiError):
    """5xx: the server, or a proxy before it, failed."""


class StoreFull(ServerError):
    """500: etcd has reached its quota and takes no writes. Reads still work."""


class Unreachable(ApiError):
    """No (complete) answer: refused, timed out, or cut. Whether the server acted on the request is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class _Cause(msgspec.Struct):
    reason: str = ""


class _StatusDetails(msgspec.Struct):
    causes: list[_Cause] = []
    retry_after_seconds: float = msgspec.field(default=0, name="retryAfterSeconds")


class ApiStatus(msgspec.Struct):
    """The part of a meta/v1 Status that describes the error."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _StatusDetails | None = None


_BY_CODE: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}

_STORE_FULL = "database space exceeded"
_SECONDS = re.compile(r"[0-9]{1,6}")
_status_decoder = msgspec.json.Decoder(ApiStatus)


def from_status(status: ApiStatus, *, retry_after_s: float | None = None) -> ApiError:
    """The typed error for a Status."""
    if retry_after_s is None and status.details and status.details.retry_after_seconds:
        retry_after_s = status.details.retry_after_seconds
    if status.code == 409 and status.reason == "AlreadyExists":
        kind: type[ApiError] = AlreadyExists
    elif status.code == 403 and status.details and _Cause("NamespaceTerminating") in status.details.causes:
        kind = NamespaceTerminating
    elif status.code == 429 and status.details and _Cause("DisruptionBudget") in status.details.causes:
        kind = DisruptionRefused
    elif status.code in _BY_CODE:
        kind = _BY_CODE[status.code]
    elif _STORE_FULL in status.message:
        why = (
            "the cluster's etcd is full and takes no writes: compact and defragment it and run `etcdctl alarm disarm`, or raise "
            f"its --quota-backend-bytes ({status.message})"
        )
        return StoreFull(status.code, status.reason, why, retry_after_s)
    else:
        kind = ServerError if status.code >= 500 else ApiError
    message = status.message or f"the API server answered {status.code} {status.reason}".rstrip()
    return kind(status.code, status.reason, message, retry_after_s)


def from_response(code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The typed error for an HTTP error response, with or without a Status body."""
    try:
        status = read(_status_decoder, body)
    except msgspec.MsgspecError:
        # A proxy, a load balancer or the server's own panic handler answers in plain text.
        text = body[:300].decode(errors="replace").strip()
        status = ApiStatus(message=f"the API server answered {code}: {text}" if text else "")
    status.code = code  # the real code, whatever the body says
    return from_status(status, retry_after_s=_seconds(headers.get("Retry-After", "")))


def _seconds(retry_after: str) -> float | None:
    # The API server always sends seconds; HTTP's date form comes only from proxies and is ignored.
    return float(retry_after) if _SECONDS.fullmatch(retry_after) else None
