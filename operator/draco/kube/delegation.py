"""Authorizes readers of an endpoint by asking the API server about the caller's token and rights.

Owns the two questions (TokenReview and SubjectAccessReview), the cached answers, and rate limits. Anyone who reaches the port can
send unknown tokens, so lookups are limited per address and in total. Also owns serving metrics over TLS to authorized readers;
`endpoints` has the endpoint itself.
"""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import structlog
from cachetools import LRUCache, TTLCache
from prometheus_client import CollectorRegistry

from draco.certificates import Certificate, CertificateMetrics
from draco.endpoints import Refusal, metrics_app, serving
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Forbidden, Unauthorized
from draco.kube.rate_limit import Budget, RateLimit
from draco.options import MetricsSettings
from draco.resources.kinds import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS

log = structlog.get_logger(__name__)

_ANONYMOUS = Refusal(401, "send a bearer token of the cluster that may get /metrics")
_UNKNOWN = Refusal(401, "the cluster does not know this token, or no longer")
_SAID_EVERY_S = 60.0


class ReviewLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long an answer is valid, and how many lookups are allowed.

    Each address may make `burst` lookups, then one per `every_s`; all addresses together have `at_once` in parallel, and
    `most_burst`, then one per `most_every_s`. Addresses that were admitted before do not share that last budget, so strangers
    cannot use it up.
    """

    allowed_s: float = 60.0
    refused_s: float = 10.0
    remembered: int = 256
    burst: int = 5
    every_s: float = 2.0
    most_burst: int = 20
    most_every_s: float = 0.1
    at_once: int = 8
    timeout_s: float = 5.0


class DelegatedAccess:
    """Authorizes reads of a non-resource path. Separate caches, so that unknown tokens cannot push out `allowed` readers."""

    def __init__(self, client: Client, clock: Clock, limits: ReviewLimits | None = None) -> None:
        self._client = client
        self._clock = clock
        self._limits = limits = limits or ReviewLimits()
        self._allowed: TTLCache[str, bool] = TTLCache(limits.remembered, limits.allowed_s, clock.monotonic)
        self._refused: TTLCache[str, Refusal] = TTLCache(limits.remembered, limits.refused_s, clock.monotonic)
        self._welcome: LRUCache[str, bool] = LRUCache(limits.remembered)
        self._budgets: LRUCache[str, Budget] = LRUCache(limits.remembered)
        self._each = RateLimit(limits.burst, limits.every_s)
        self._together = RateLimit(limits.most_burst, limits.most_every_s).unspent(clock.monotonic())
        self._asking = 0
        self._said_at: float | None = None

    async def __call__(self, *, authorization: str, address: str, verb: str, path: str) -> Refusal | None:
        """Why the caller is refused; None if it is allowed."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return _ANONYMOUS
        key = hashlib.sha256(f"{verb} {path} {token}".encode(errors="replace")).hexdigest()
        if self._allowed.get(key):
            return None
        if (known := self._refused.get(key)) is not None:
            return known
        if not self._may_ask(address, self._clock.monotonic()):
            return Refusal(429, "too many tokens to look up; try again in some seconds", retry_after_s=5)
        self._asking += 1
        try:
            refusal = await self._ask(token, verb, path)
        except ApiError as error:
            return self._unanswered(error)
        finally:
            self._asking -= 1
        if refusal is None:
            self._allowed[key] = self._welcome[address] = True
        else:
            self._refused[key] = refusal
        return refusal

    def _may_ask(self, address: str, now: float) -> bool:
        budget = self._budgets.get(address) or self._each.unspent(now)
        may_ask = not budget.wait_s(now)
        self._budgets[address] = budget.spent(now) if may_ask else budget
        if not may_ask or self._welcome.get(address):
            return may_ask
        if self._asking >= self._limits.at_once or self._together.wait_s(now):
            return False
        self._together = self._together.spent(now)
        return True

    async def _ask(self, token: str, verb: str, path: str) -> Refusal | None:
        timeout_s = self._limits.timeout_s
        known = (await self._client.create(TOKEN_REVIEWS, {"spec": {"token": token}}, timeout_s=timeout_s)).status
        if not known.authenticated:
            return _UNKNOWN
        user = msgspec.to_builtins(known.user)
        question = {
            **{name: user[name] for name in ("uid", "groups", "extra") if name in user},
            "user": known.user.username,
            "nonResourceAttributes": {"verb": verb, "path": path},
        }
        review = await self._client.create(SUBJECT_ACCESS_REVIEWS, {"spec": question}, timeout_s=timeout_s)
        if review.status.allowed:
            return None
        return Refusal(
            403,
            f"{known.user.username} may not {verb} {path}: bind it to a role with nonResourceURLs [{path}] and verbs [{verb}], "
            "such as draco-metrics-reader",
        )

    def _unanswered(self, error: ApiError) -> Refusal:
        now = self._clock.monotonic()
        if self._said_at is None or now - self._said_at > _SAID_EVERY_S:
            self._said_at = now
            log.warning("metrics.unauthorized", error=str(error))
        if isinstance(error, Forbidden | Unauthorized):
            return Refusal(
                500,
                "Draco may not check your token: its role needs create on tokenreviews and subjectaccessreviews",
            )
        return Refusal(503, "the API server could not check your token; try again", retry_after_s=5)


@asynccontextmanager
async def serving_metrics(
    settings: MetricsSettings,
    metrics: Callable[[], CollectorRegistry],
    *,
    certificates: CertificateMetrics,
    client: Client,
    clock: Clock,
) -> AsyncIterator[int]:
    """Serve metrics over TLS until the context ends; yields the port. Raises PortTaken.

    `metrics` is called for each scrape; `certificates` shows problems of the certificate. Without a usable one no request is
    served; the program goes on and keeps looking for one.
    """
    certificate = Certificate(settings.certificates, use="metrics", name=settings.name)
    app = metrics_app(metrics, DelegatedAccess(client, clock))
    async with (
        certificate.kept_fresh(certificates, sleep=clock.sleep, now=clock.now),
        serving(
            app,
            settings.host,
            settings.port,
            tls=certificate.context,
            what="metrics over TLS",
            option="--metrics-listen",
        ) as port,
    ):
        yield port
