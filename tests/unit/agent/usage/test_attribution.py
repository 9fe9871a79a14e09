"""Whose the processes on a device are: by cgroup and claim, each counted once."""

from draco.agent.hardware.gpus import Instance
from draco.agent.hardware.nvml_usage import DeviceUse, ProcessUse
from draco.agent.record.contents import ClaimPod, Partition, PreparationState, PreparedClaim, PreparedDevice
from draco.agent.usage import attribution
from draco.agent.usage.attribution import ContainerUse, ProcessPlace, attributed
from draco.resources.names import ClaimUid, GpuUuid

GPU = GpuUuid("GPU-0")
MIG = "MIG-0"


def a_claim(name: str, *pods: str, share: str = "", part: str = "", namespace: str = "team") -> PreparedClaim:
    """A prepared claim with GPU-0, or the instance `part` of it; the UID of each pod is its name with a u before."""
    partition = Partition(profile_id=19, start=0, size=1, uuid=part) if part else None
    device = PreparedDevice(
        request="gpu", pool="node", device="gpu-0", gpu=GPU, minor=0, share_id=share, partition=partition
    )
    return PreparedClaim(
        uid=ClaimUid(f"uid of {name}"),
        namespace=namespace,
        name=name,
        state=PreparationState.PREPARED,
        devices=[device],
        pods=tuple(ClaimPod(name=pod, uid=f"u{pod}") for pod in pods),
    )


def a_gpu(*processes: ProcessUse, used: int = 1000) -> DeviceUse:
    return DeviceUse(gpu=GPU, total_bytes=80_000, used_bytes=used, utilization=90, processes=processes)


def place(pod: str, name: str = "main") -> ProcessPlace:
    return ProcessPlace(f"u{pod}", f"{pod} {name}", name)


def told(found: list[ContainerUse]) -> dict[tuple[str, str, str, str], tuple[int, int | None, int | None]]:
    """Processes, memory and utilization by namespace, claim, pod and container."""
    return {
        (one.namespace, one.claim.name if one.claim else "", one.pod, one.place.name): (
            one.processes,
            one.memory_bytes,
            one.utilization,
        )
        for one in found
    }


def test_processes_of_one_container_count_together() -> None:
    gpu = a_gpu(ProcessUse(1, 10, 20), ProcessUse(2, 30, 5), ProcessUse(3, 7, 0))
    places = {1: place("a"), 2: place("a"), 3: place("a", "sidecar")}
    assert told(attributed([gpu], places, [a_claim("train", "a")], {})) == {
        ("team", "train", "a", "main"): (2, 40, 25),
        ("team", "train", "a", "sidecar"): (1, 7, 0),
    }


def test_claims_that_share_a_gpu_get_only_what_their_own_pods_use() -> None:
    gpu = a_gpu(ProcessUse(1, 10, 20), ProcessUse(2, 30, 5))
    places = {1: place("a"), 2: place("b")}
    claims = [a_claim("one", "a", share="s1"), a_claim("two", "b", share="s2", namespace="other")]
    assert told(attributed([gpu], places, claims, {})) == {
        ("team", "one", "a", "main"): (1, 10, 20),
        ("other", "two", "b", "main"): (1, 30, 5),
    }


def test_a_process_of_nobody_is_counted_as_such() -> None:
    gpu = a_gpu(ProcessUse(1, 10, 20), ProcessUse(2, 30, 5), ProcessUse(3, 1, 0))
    claims = [a_claim("train", "a")]
    found = attributed([gpu], {1: place("a"), 2: place("stranger")}, claims, {})
    assert told(found) == {
        ("team", "train", "a", "main"): (1, 10, 20),
        ("", "", "ustranger", "main"): (1, 30, 5),
        ("", "", "", ""): (1, 1, 0),
    }


def test_a_pod_that_came_later_is_known_by_what_the_api_server_says() -> None:
    gpu = a_gpu(ProcessUse(1, 10, 20))
    claim = a_claim("shared", "a")
    later = {claim.uid: [ClaimPod(name="b", uid="ub")]}
    assert ("team", "shared", "b", "main") in told(attributed([gpu], {1: place("b")}, [claim], later))


def test_a_pod_with_two_claims_on_a_gpu_uses_both_and_counts_once() -> None:
    claims = [a_claim("one", "a", share="s1"), a_claim("two", "a", share="s2")]
    [use] = attributed([a_gpu(ProcessUse(1, 10, 20))], {1: place("a")}, claims, {})
    assert use.claim is None
    assert {one.name for one in use.claims} == {"one", "two"}
    assert (use.namespace, use.pod, use.memory_bytes) == ("team", "a", 10)


def test_of_two_claims_of_a_pod_a_container_uses_the_one_that_it_was_given() -> None:
    claims = [a_claim("one", "a", share="s1"), a_claim("two", "a", share="s2"), a_claim("other", "b", share="s3")]
    gpu = a_gpu(ProcessUse(1, 10, 20), ProcessUse(2, 30, 5), ProcessUse(3, 1, 0))

    def given(name: str, *uids: str) -> ProcessPlace:
        return ProcessPlace("ua", f"a {name}", name, frozenset(uids))

    places = {1: given("x", "uid of one"), 2: given("y", "uid of two"), 3: given("liar", "uid of other")}
    found = attributed([gpu], places, claims, {})
    assert told(found)["team", "one", "a", "x"] == (1, 10, 20)
    assert told(found)["team", "two", "a", "y"] == (1, 30, 5)
    assert told(found)["team", "", "a", "liar"] == (1, 1, 0), "another pod's claim is not its own"


def test_a_claim_reserved_for_a_group_has_the_pods_that_no_other_claim_has() -> None:
    claims = [a_claim("group", share="s1"), a_claim("one", "a", share="s2")]
    gpu = a_gpu(ProcessUse(1, 10, 20), ProcessUse(2, 30, 5))
    assert set(told(attributed([gpu], {1: place("a"), 2: place("member")}, claims, {}))) == {
        ("team", "one", "a", "main"),
        ("team", "group", "umember", "main"),
    }


def test_a_claim_whose_device_nobody_uses_is_there() -> None:
    assert told(attributed([a_gpu()], {}, [a_claim("idle", "a")], {})) == {("team", "idle", "a", ""): (0, 0, 0)}


def test_the_only_user_has_the_devices_memory_where_the_driver_does_not_tell_it_by_process() -> None:
    instance = Instance(gpu=GPU, gi=1, profile_id=19, start=0, size=1, ci=0, uuid=MIG)
    device = DeviceUse(gpu=GPU, instance=instance, used_bytes=500, processes=(ProcessUse(1, None, None),))
    claim = a_claim("part", "a", part=MIG)
    assert told(attributed([device], {1: place("a")}, [claim], {})) == {("team", "part", "a", "main"): (1, 500, None)}
    both = DeviceUse(gpu=GPU, used_bytes=500, processes=(ProcessUse(1, None, 0), ProcessUse(2, 1, 0)))
    found = told(attributed([both], {1: place("a")}, [a_claim("train", "a")], {}))
    assert found["team", "train", "a", "main"] == (1, None, 0), "unknown, because another one is there"


def test_the_load_of_a_mig_device_is_that_of_its_only_user_and_no_load_is_nobodys() -> None:
    instance = Instance(gpu=GPU, gi=1, profile_id=19, start=0, size=1, ci=0, uuid=MIG)
    claims = [a_claim("one", "a", part=MIG, share="s1"), a_claim("two", "b", part=MIG, share="s2")]

    def users(load: int | None, *pods: str) -> list[int | None]:
        processes = tuple(ProcessUse(pid, 1, None) for pid, _ in enumerate(pods))
        device = DeviceUse(gpu=GPU, instance=instance, utilization=load, processes=processes)
        found = attributed([device], {pid: place(pod) for pid, pod in enumerate(pods)}, claims, {})
        return [use.utilization for use in sorted(found, key=lambda use: use.pod)]

    assert users(70, "a") == [70, 0]
    assert users(70, "a", "b") == [None, None], "NVML does not tell whose it is"
    assert users(0, "a", "b") == [0, 0]
    assert users(None, "a") == [None, None], "a board before Hopper"


def test_more_users_than_can_be_named_are_counted_as_of_nobody() -> None:
    most = attribution.MOST_USERS
    gpu = a_gpu(*(ProcessUse(pid, pid, 0) for pid in range(1, most + 3)))
    places = {pid: place(f"p{pid}") for pid in range(1, most + 3)}
    found = attributed([gpu], places, [], {})
    assert len(found) == most + 1
    assert sum(one.processes for one in found) == most + 2
    assert sum(one.memory_bytes or 0 for one in found) == sum(range(1, most + 3))
    assert told(found)["", "", "", ""] == (2, 3, 0)
