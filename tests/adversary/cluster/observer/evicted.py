"""The laws of Draco's evictions: a pod is evicted for pods of a higher priority, or with its group that lost a pod.

Owns their conditions as seen from outside: which pods wait, which held Draco's devices, what policies permit, and that pods that
start together or share a claim leave together. `taking` judges drains and taints, and asks this module about other causes. Does
no I/O.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.adversary.cluster.observer.allocators import DRACO, HOST, allocator, is_for_draco
from tests.adversary.cluster.observer.members import claims_of, consumers, key_of
from tests.adversary.cluster.observer.needless import Eviction, Needless
from tests.adversary.cluster.observer.reservations import priority_of, reservation_of
from tests.adversary.cluster.observer.service import part_now
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Object, World, condition, is_live, name, results

REMEMBERED_S = 30.0
"""How long a waiting pod or a permission may cause an eviction afterwards: a leader may sleep for 20 s."""
WATCHES_DIFFER_BY_S = 10.0
SEEN_AFTER_S = 5.0
"""The operator may not know newer pods or newer bindings."""
IN_PART_S = 20.0
"""How long the others of a group may stay after the first one left."""
SHORT_FOR_S = 8.0
"""How long the adversary's operators let a group lack a pod."""
EARLY_S = 3.0
"""How much of that time the observer may have missed."""
KEPT_S = 120.0


class Use(NamedTuple):
    """A claim that a pod, or a PodGroup for its pods, holds, and the time span."""

    claim: Object
    since: float
    until: float


class Went(NamedTuple):
    """A pod that left, and the other pods then: without a node, lately without one, and on a node."""

    at: float
    pod: Object
    unbound: tuple[Object, ...]
    lately: tuple[Object, ...]
    bound: tuple[Object, ...]


class Evictions:
    """Told of each change of pods, claims and policies."""

    def __init__(self, world: World) -> None:
        self.preempted = self.released = 0
        """Number of pods evicted for others, and with groups that lost a pod."""
        self._world = world
        self._went: dict[str, Went] = {}
        self._uses: dict[str, dict[str, Use]] = {}
        """By the pod's UID, or the key of its PodGroup, and the claim's UID."""
        self._claims: dict[str, tuple[Object, float]] = {}
        """Claims, deleted ones too, and when they were allocated or last changed."""
        self._freed: dict[str, tuple[Object, float]] = {}
        """Claims that lost their devices, and when."""
        self._lately: dict[str, tuple[Object, float]] = {}
        self._seen_at: dict[str, float] = {}
        self._bound_at: dict[str, float] = {}
        self._permitted: list[tuple[Object, float]] = []
        self._together: list[Went] = []
        self.needless = Needless(world, self._gpus_of)

    def policy_changed(self, before: Object | None, now: float) -> None:
        """A policy was written or deleted. Its previous content was valid until now."""
        if before is not None:
            self._permitted = [each for each in self._permitted if now - each[1] < KEPT_S] + [(before, now)]

    def claim_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A claim was written or deleted."""
        one = after or before
        assert one is not None
        uid = one["metadata"]["uid"]
        got = after is not None and bool(results(after))
        if after is not None and got and uid in self._claims and results(self._claims[uid][0]):
            self._claims[uid] = (after, self._claims[uid][1])
        else:
            if before is not None and results(before):
                self._freed[uid] = (before, now)
            self._claims[uid] = (one, now)
        users = consumers(after) if after is not None and got else set()
        for pod in users:
            known = self._uses.setdefault(pod, {}).get(uid)
            self._uses[pod][uid] = Use(one, known.since if known else now, float("inf"))
        for pod, uses in self._uses.items():
            if uid in uses and pod not in users and uses[uid].until > now:
                uses[uid] = uses[uid]._replace(until=now)

    def pod_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A pod was written or deleted."""
        one = after or before
        assert one is not None
        uid = one["metadata"]["uid"]
        self._seen_at.setdefault(uid, now)
        if one["spec"].get("nodeName"):
            self._bound_at.setdefault(uid, now)
        if before is not None and _waits_for_a_node(before) and (after is None or not _waits_for_a_node(after)):
            self._lately[uid] = (before, now)
        if (after is None or after["metadata"].get("deletionTimestamp")) and uid not in self._went:
            there = [each for each in self._world.pods.values() if is_live(each) and each["metadata"]["uid"] != uid]
            lately = [each for each, at in self._lately.values() if now - at < REMEMBERED_S]
            self._went[uid] = Went(
                now,
                one,
                tuple(each for each in there if _waits_for_a_node(each)),
                tuple(lately),
                tuple(each for each in there if not _waits_for_a_node(each)),
            )

    def why_not(self, uid: str) -> str:
        """Why Draco may not have evicted this pod; "" if it may."""
        went = self._went.get(uid)
        if went is None or condition(went.pod, "DisruptionTarget").get("reason") != "EvictionByEvictionAPI":
            return "it was not evicted for others"
        own = [use.claim for use in self._used(went) if is_for_draco(use.claim) and allocator(use.claim) == DRACO]
        if not own:
            return "it held nothing that Draco gave it, so nobody gets anything by its going"
        if any(claim["metadata"]["uid"] in self._uses.get(key_of(went.pod), {}) for claim in own):
            return "what it held its PodGroup keeps"
        why = self._not_preempted(went, own)
        if not why:
            self.preempted += 1
            self._note(went, own)
        elif not self._not_released(went, own):
            self.released += 1
        else:
            return f"{why}, and {self._not_released(went, own)}"
        self._together.append(went)
        return ""

    def weighed(self, now: float, *, grace_s: float, undisturbed: Callable[[float], bool]) -> Iterator[Suspicion]:
        """Pods that left without those that belong to them, although nothing interfered."""
        for went in [each for each in self._together if now - each.at >= IN_PART_S + grace_s]:
            self._together.remove(went)
            left = name(went.pod)
            if stay := [name(each) for each in self._belonging(went) if self._stays(each)]:
                text = f"pod {left} left for others, or with its group, and {', '.join(sorted(stay))} did not leave with it"
                if undisturbed(went.at - SEEN_AFTER_S):
                    yield Suspicion("left in part", went.pod["metadata"]["uid"], text)
        yield from self.needless.weighed(now, grace_s=grace_s, undisturbed=undisturbed)
        self._forget(now)

    def _note(self, went: Went, own: list[Object]) -> None:
        """Let `needless` judge the eviction of a lone pod."""
        uid = went.pod["metadata"]["uid"]
        self.needless.left(uid)
        gainers = [each for each in (*went.unbound, *went.lately) if self._may_gain(each, went, own)]
        meant = frozenset(key_of(each) or name(each) for each in gainers)
        members = [each for each in went.unbound if (key_of(each) or name(each)) in meant]
        claims = frozenset(claim["metadata"]["uid"] for pod in members for claim in self._waits_for(pod, went.at))
        is_shared = any(len(claim["status"].get("reservedFor") or []) > 1 for claim in own)
        if not key_of(went.pod) and not is_shared and members:
            gpus = frozenset(gpu for claim in own for gpu in self._gpus_of(claim))
            self.needless.evicted(Eviction(went.at, went.pod, gpus, meant, claims))

    def _gpus_of(self, claim: Object) -> set[str]:
        parts = (
            part_now(self._world, DeviceName(each["driver"], each["pool"], each["device"])) for each in results(claim)
        )
        return {part.gpu for part in parts if part is not None}

    def _not_preempted(self, went: Went, own: list[Object]) -> str:
        if not all(self._permits(claim, went.at, _preempts) for claim in own):
            return "no policy of what it held lets Draco evict pods for others"
        for pod in (*went.unbound, *went.lately):
            if self._may_gain(pod, went, own):
                return ""
        its = self._counts_as(went, own)
        for uid, one in self._world.reservations.items():
            waits = any(reservation_of(each) == uid and not results(each) for each, _ in self._claims.values())
            if waits and (priority_of(one) or 0) > its:
                return ""
        return f"nobody of a higher priority than {its} waited that could use it"

    def _counts_as(self, went: Went, own: list[Object]) -> int:
        """The priority that counts: its group's lowest, or a higher one of the reservation that gets its devices back."""
        key = key_of(went.pod)
        group = [each for each in (*went.bound, *went.unbound, *went.lately) if key and key_of(each) == key]
        lowest = min(map(_priority, [went.pod, *group]))
        reserved = [self._world.reservations.get(reservation_of(claim)) for claim in own]
        return max([lowest, *(priority_of(each) or 0 for each in reserved if each is not None)])

    def _may_gain(self, pod: Object, went: Went, own: list[Object]) -> bool:
        """Whether the eviction may have been for this pod."""
        group = [pod]
        if key := key_of(pod):
            known = [each for each in went.unbound if went.at - self._seen_at[each["metadata"]["uid"]] >= SEEN_AFTER_S]
            group += [each for each in known if key_of(each) == key and self._waited(each, went.at)]
        if min(map(_priority, group)) <= self._counts_as(went, own) or pod["spec"].get("preemptionPolicy") == "Never":
            return False
        pools = {each["pool"] for claim in own for each in results(claim)}
        node = (pod["spec"].get("nodeSelector") or {}).get(HOST)
        is_there = not node or node in pools or bool(key_of(went.pod)) or bool(key)
        return is_there and self._waited(pod, went.at)

    def _not_released(self, went: Went, own: list[Object]) -> str:
        key = key_of(went.pod)
        if not key:
            return "it is in no group"
        if not all(self._permits(claim, went.at, _releases) for claim in own):
            return "no policy has groups leave that lost a pod"
        if not all(any(each["kind"] == "Pod" for each in _owners(claim)) for claim in own):
            return "it has a claim that was not made for it"
        others = [each for each in (*went.unbound, *went.lately) if key_of(each) == key]
        if not any(self._waited(each, went.at) and self._is_old(each, went.at) for each in others):
            return "no pod of its group waited for so long"
        return ""

    def _is_old(self, pod: Object, at: float) -> bool:
        return at - self._seen_at.get(pod["metadata"]["uid"], at) >= SHORT_FOR_S - EARLY_S

    def _waited(self, pod: Object, at: float) -> bool:
        """Whether the pod had a claim of Draco's without devices then, or a moment before."""
        return any(True for _ in self._waits_for(pod, at))

    def _waits_for(self, pod: Object, at: float) -> Iterator[Object]:
        uid, names = pod["metadata"]["uid"], set(claims_of(self._world.pods.get(pod["metadata"]["uid"], pod)))
        for claim, since in self._claims.values():
            mine = name(claim) in names or any(each.get("uid") == uid for each in _owners(claim))
            if mine and is_for_draco(claim) and (not results(claim) or since >= at - WATCHES_DIFFER_BY_S):
                yield claim

    def _permits(self, claim: Object, at: float, says: Callable[[Object], bool]) -> bool:
        """Whether a policy permits it for each device, or did so a moment ago."""
        lately = [policy for policy, until in self._permitted if until >= at - REMEMBERED_S]
        found = [each for each in (*self._world.policies.values(), *lately) if says(each["spec"])]
        return all(any(self._selects(policy, each) for policy in found) for each in results(claim))

    def _selects(self, policy: Object, result: Object) -> bool:
        spec = policy["spec"]
        node = ((spec.get("nodeSelector") or {}).get("matchLabels") or {}).get(HOST)
        if node and node != result["pool"]:
            return False
        part = part_now(self._world, DeviceName(result["driver"], result["pool"], result["device"]))
        buses = {
            str(((device.get("attributes") or {}).get("resource.kubernetes.io/pciBusID") or {}).get("string"))
            for key, device in self._world.published()
            if part and key.pool == result["pool"] and getattr(part_now(self._world, key), "gpu", "") == part.gpu
        }
        texts = [each["cel"]["expression"] for each in spec.get("deviceSelectors") or []]
        return not buses or all(any(bus in text for bus in buses) for text in texts)

    def _used(self, went: Went) -> list[Use]:
        seen = [use for use in self._uses_of(went.pod).values() if use.until > went.at - WATCHES_DIFFER_BY_S]
        return seen or list(self._used_unseen(went))

    def _used_unseen(self, went: Went) -> Iterator[Use]:
        """Claims of a bound pod that were never seen reserved for it. Kubernetes reserves them before binding.

        The watch of claims may resume only after the pod has gone.
        """
        names = set(claims_of(went.pod)) if went.pod["spec"].get("nodeName") else set()
        had = [each for each in self._claims.values() if results(each[0])]
        had += [(claim, until) for claim, until in self._freed.values() if until > went.at - WATCHES_DIFFER_BY_S]
        yield from (Use(claim, at, float("inf")) for claim, at in had if name(claim) in names)

    def _uses_of(self, pod: Object) -> dict[str, Use]:
        """The claims, by UID, that are reserved for the pod or, among its own, for its PodGroup."""
        names, its_groups = set(claims_of(pod)), self._uses.get(key_of(pod), {})
        of_group = {uid: use for uid, use in its_groups.items() if name(use.claim) in names}
        return of_group | self._uses.get(pod["metadata"]["uid"], {})

    def _belonging(self, went: Went) -> Iterator[Object]:
        """Pods that had been bound for a while and belong to its group or share a claim with it."""
        mine = {use.claim["metadata"]["uid"] for use in self._used(went)}
        for pod in went.bound:
            uid, key = pod["metadata"]["uid"], key_of(pod)
            if went.at - self._bound_at.get(uid, went.at) < SEEN_AFTER_S:
                continue
            shared = [use for claim, use in self._uses_of(pod).items() if claim in mine]
            shares = any(use.since < went.at - SEEN_AFTER_S and use.until > went.at for use in shared)
            if (key and key == key_of(went.pod)) or shares:
                yield pod

    def _stays(self, pod: Object) -> bool:
        """Whether it is still there without a PodDisruptionBudget that may have refused its eviction."""
        now = self._world.pods.get(pod["metadata"]["uid"])
        guarded = {each["metadata"]["namespace"] for each in self._world.pod_budgets.values()}
        return now is not None and is_live(now) and pod["metadata"]["namespace"] not in guarded

    def _forget(self, now: float) -> None:
        there = self._world.pods.keys()
        self._went = {uid: each for uid, each in self._went.items() if now - each.at < KEPT_S}
        self._lately = {uid: each for uid, each in self._lately.items() if now - each[1] < KEPT_S}
        self._claims = {
            uid: each for uid, each in self._claims.items() if uid in self._world.claims or now - each[1] < KEPT_S
        }
        self._freed = {uid: each for uid, each in self._freed.items() if now - each[1] < KEPT_S}
        known = there | self._went.keys() | self._lately.keys()
        self._seen_at = {uid: at for uid, at in self._seen_at.items() if uid in known}
        self._bound_at = {uid: at for uid, at in self._bound_at.items() if uid in known}
        self._uses = {
            uid: each
            for uid, each in self._uses.items()
            if uid in known or any(now - use.until < KEPT_S for use in each.values())
        }


def _preempts(spec: Object) -> bool:
    return spec.get("allocator") == "Operator" and spec.get("preemption") == "LowerPriority"


def _releases(spec: Object) -> bool:
    return spec.get("allocator") == "Operator" and (spec.get("gangs") or {}).get("onPartialLoss") == "Release"


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)


def _owners(one: Object) -> list[Object]:
    return one["metadata"].get("ownerReferences") or []


def _waits_for_a_node(pod: Object) -> bool:
    return is_live(pod) and not pod["spec"].get("nodeName")
