"""The observer finds each planted violation, raises no false alarm, and shares no code with the product."""

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from draco_local.cluster.controlplane import ControlPlane
from tests.adversary.cluster.cluster import access_of
from tests.adversary.cluster.observer import hardware, laws
from tests.adversary.cluster.observer.api import Api
from tests.adversary.cluster.observer.fairness import Fairness
from tests.adversary.cluster.observer.observer import Node, Observer
from tests.adversary.cluster.observer.programs import Programs
from tests.adversary.cluster.observer.watching import learn
from tests.adversary.cluster.observer.world import World, part_of
from tests.requests import call

FOLDER = Path(__file__).parent / "observer"
DRIVER = "gpu.nvidia.com"
GPU = "GPU-11111111-1111-1111-1111-111111111111"
OTHER = "GPU-22222222-2222-2222-2222-222222222222"
CLAIM, POD = "00000000-0000-4000-8000-00000000000{}", "pod-{}"
Document = dict[str, Any]


def test_the_observer_imports_nothing_of_the_product() -> None:
    roots = set()
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                roots |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                roots.add(node.module or "")
    foreign = {name for name in roots if name.partition(".")[0] not in sys.stdlib_module_names | {"aiohttp"}}
    assert foreign
    assert all(name.startswith("tests.adversary.cluster.observer") for name in foreign), foreign


def a_slice(*devices: Document, pool: str = "node", number: int = 1, generation: int = 1) -> Document:
    spec: Document = {"driver": DRIVER, "nodeName": pool, "devices": list(devices)}
    spec["pool"] = {"name": pool, "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{pool}-{number}", "uid": f"slice-{pool}-{number}", "resourceVersion": "1"},
        "spec": spec,
    }


def whole(name: str = "gpu-0", gpu: str = GPU, **more: Any) -> Document:
    return {"name": name, "attributes": {"type": {"string": "gpu"}, "uuid": {"string": gpu}}, **more}


def partition(name: str, first: int, last: int, gpu: str = GPU, **more: Any) -> Document:
    counters = {f"memory-slice-{unit}": {"value": "1"} for unit in range(first, last + 1)}
    drawn = [{"counterSet": "gpu-0-counter-set", "counters": counters}]
    return {"name": name, "attributes": {"parentUUID": {"string": gpu}}, "consumesCounters": drawn, **more}


def with_media(name: str, first: int, *, engines: str = "1") -> Document:
    one = partition(name, first, first)
    one["consumesCounters"][0]["counters"]["ofa-engines"] = {"value": engines}
    return one


def a_claim(number: int, *devices: str, pool: str = "node", revision: int = 5, **more: Any) -> Document:
    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": each, **more} for each in devices]
    metadata = {"name": f"c{number}", "namespace": "default", "uid": CLAIM.format(number)}
    return {
        "metadata": metadata | {"resourceVersion": str(revision)},
        "status": {"allocation": {"devices": {"results": results}}} if devices else {},
    }


def a_request(device: str = "gpu-0", *, ready: str = "True", uid: str = "dm", **spec: Any) -> Document:
    return {
        "metadata": {"name": uid, "uid": uid, "resourceVersion": "4"},
        "spec": {"deviceSelector": {"driver": DRIVER, "pool": "node", "device": device}, **spec},
        "status": {
            "conditions": [{"type": "ReadyForWork", "status": ready}],
            "devices": [
                {"driver": DRIVER, "pool": "node", "device": device},
                {"driver": DRIVER, "pool": "node", "device": "gpu-0", "overlaps": f"{DRIVER}/node/{device}"},
            ],
        },
    }


def a_rule(
    name: str = "draco-maintenance-x", *, owner: str = "", effect: str = "NoSchedule", **selector: str
) -> Document:
    metadata: Document = {"name": name, "uid": name, "resourceVersion": "3"}
    if owner:
        metadata["ownerReferences"] = [{"kind": "DeviceMaintenance", "name": owner, "uid": owner}]
    return {"metadata": metadata, "spec": {"deviceSelector": selector, "taint": {"key": "k", "effect": effect}}}


def tainted(device: Document) -> Document:
    return {**device, "taints": [{"key": "k", "effect": "NoSchedule"}]}


def a_world(*objects: tuple[str, Document]) -> World:
    world = World()
    for kind, one in objects:
        learn(world, kind, one)
    return world


PARTS = ("slice", a_slice(whole(), partition("a", 0, 3), partition("b", 4, 7), partition("c", 2, 5)))
HELD_TWICE = {
    "one device": (True, [a_claim(1, "gpu-0"), a_claim(2, "gpu-0")]),
    "a whole and its part": (True, [a_claim(1, "gpu-0"), a_claim(2, "a")]),
    "parts that overlap": (True, [a_claim(1, "a"), a_claim(2, "c")]),
    "parts that do not": (False, [a_claim(1, "a"), a_claim(2, "b")]),
    "one that only looks": (False, [a_claim(1, "gpu-0"), a_claim(2, "gpu-0", adminAccess=True)]),
    "a device that nobody published": (True, [a_claim(1, "x"), a_claim(2, "x")]),
}


@pytest.mark.parametrize("case", HELD_TWICE)
def test_no_device_is_held_twice(case: str) -> None:
    wrong, claims = HELD_TWICE[case]
    world = a_world(PARTS, *(("claim", each) for each in claims))
    assert bool(list(laws.held_twice(world))) is wrong


def test_a_claim_means_the_board_that_its_device_stood_for_when_it_got_it() -> None:
    world = a_world(PARTS, ("claim", a_claim(1, "gpu-0")))
    moved = a_slice(whole("gpu-0", OTHER), whole("gpu-1", GPU), generation=2)
    moved["metadata"]["resourceVersion"] = "7"
    learn(world, "slice", moved)
    learn(world, "claim", a_claim(2, "gpu-1", revision=9))
    assert [each.law for each in laws.held_twice(world)] == ["held twice"]
    assert [each.law for each in laws.name_moved(world)] == ["name moved"]


def test_a_pool_whose_slices_were_deleted_begins_anew() -> None:
    world = a_world(("slice", a_slice(whole(), generation=7)))
    world.slices.clear()
    learn(world, "slice", a_slice(whole("gpu-0", OTHER), generation=1))
    learn(world, "claim", a_claim(1, "gpu-0"))
    assert [device.device for device, _ in world.published()] == ["gpu-0"]
    old = a_slice(whole("gpu-9"), number=2, generation=0)
    learn(world, "slice", old)
    assert [device.device for device, _ in world.published()] == ["gpu-0"], (
        "what is older than the newest does not count"
    )


class Given:
    """Claims that get parts of a board while a request covers it."""

    def __init__(self) -> None:
        self.late = laws.Latecomers()
        self.world = a_world(PARTS, ("request", a_request()))
        self.late.requested(self.world.requests["dm"], 100.0)

    def told(self, claim: Document, at: float) -> list[str]:
        learn(self.world, "claim", claim)
        self.late.allocated(self.world, claim, at, grace_s=1.0)
        return [each.law for each in self.late.weighed(at + 2.0)]


def test_no_claim_is_given_what_has_been_ready_for_a_while() -> None:
    given = Given()
    assert not given.told(a_claim(1, "a"), 105.0), "it was on its way"
    assert given.told(a_claim(2, "a"), 107.0) == ["given while ready"]
    assert not given.told(a_claim(3, "a", tolerations=[{"operator": "Exists"}]), 108.0), "it tolerates the taint"


def test_a_claim_may_be_given_what_is_not_ready_any_more_though_the_watch_says_so_late() -> None:
    given = Given()
    learn(given.world, "claim", a_claim(1, "a", revision=9))
    given.late.allocated(given.world, given.world.claims[CLAIM.format(1)], 110.0, grace_s=0.0)
    finished = a_request(ready="False")
    finished["metadata"]["resourceVersion"] = "8"
    given.late.requested(finished, 110.5)
    assert not list(given.late.weighed(113.0))


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        (a_rule(owner="dm"), False),
        (a_rule(owner="gone"), True),
        (a_rule(owner="done"), True),
        (a_rule(), True),
        (a_rule(owner="someone-elses"), False),
        (a_rule("someone-elses"), False),
    ],
)
def test_each_rule_of_dracos_has_an_owner_that_wants_it(rule: Document, wrong: bool) -> None:
    done = a_request(uid="done", finished=True)
    done["status"]["phase"] = "Completed"
    world = a_world(("request", a_request()), ("request", done), ("rule", rule))
    learn(world, "rule", a_rule("someone-elses"))
    assert bool(list(laws.orphan_rule(world))) is wrong


def a_spec(*devices: tuple[str, list[str]], uid: str = "1", node: str = "node") -> hardware.Spec:
    edits = [
        {"containerEdits": {"env": [f"DRACO_DEVICE={uuid}"], "deviceNodes": [{"path": path} for path in paths]}}
        for uuid, paths in devices
    ]
    return hardware.spec_of(node, uid, {"devices": edits})


CAP = "/dev/nvidia-caps/nvidia-cap{}"
GIVEN = {
    "one board": (True, a_spec((GPU, ["/dev/nvidia0"])), a_spec((GPU, ["/dev/nvidia0"]), uid="2")),
    "one device file": (True, a_spec((GPU, ["/dev/nvidia0"])), a_spec((OTHER, ["/dev/nvidia0"]), uid="2")),
    "a board and a part of it": (
        True,
        a_spec((GPU, ["/dev/nvidia0"])),
        a_spec(("MIG-1", ["/dev/nvidia0", CAP.format(3)]), uid="2"),
    ),
    "one capability": (
        True,
        a_spec(("MIG-1", ["/dev/nvidia0", CAP.format(3)])),
        a_spec(("MIG-2", ["/dev/nvidia0", CAP.format(3)]), uid="2"),
    ),
    "two parts": (
        False,
        a_spec(("MIG-1", ["/dev/nvidia0", CAP.format(3)])),
        a_spec(("MIG-2", ["/dev/nvidia0", CAP.format(4)]), uid="2"),
    ),
    "two nodes": (False, a_spec((GPU, ["/dev/nvidia0"])), a_spec((OTHER, ["/dev/nvidia0"]), uid="2", node="other")),
    "one that only looks": (False, a_spec((GPU, ["/dev/nvidia0"])), a_spec((GPU, ["/dev/nvidia0"]), uid="admin")),
}


@pytest.mark.parametrize("case", GIVEN)
def test_no_two_specs_give_the_same(case: str) -> None:
    wrong, *specs = GIVEN[case]
    assert bool(list(hardware.given_twice(specs, {"admin"}))) is wrong


def test_a_spec_gives_the_board_that_it_names() -> None:
    state: Document = {"gpus": [{"uuid": GPU, "minor": 1}, {"uuid": OTHER, "minor": 0}]}
    spec = a_spec((GPU, ["/dev/nvidia0"]))
    assert list(hardware.wrong_board([spec], {"node": state}))
    state["gpus"].reverse()
    state["gpus"][0]["minor"], state["gpus"][1]["minor"] = 1, 0
    assert not list(hardware.wrong_board([spec], {"node": state}))


def test_what_is_published_of_a_lost_board_is_tainted() -> None:
    states = {"node": {"gpus": [{"uuid": GPU, "error": 15}], "missing": [{"uuid": OTHER}]}}

    def told(*devices: Document) -> list[str]:
        world = a_world(("slice", a_slice(*devices)))
        return [each.key.split()[1] for each in hardware.lost_but_obtainable(world, states)]

    assert told(whole(), partition("a", 0, 3), whole("gpu-1", OTHER)) == ["node/gpu-0", "node/a", "node/gpu-1"]
    assert not told(tainted(whole()), tainted(partition("a", 0, 3)), tainted(whole("gpu-1", OTHER)))
    assert not told(whole("gpu-2", "GPU-3"))


def test_a_program_that_ends_or_logs_an_error_is_told(tmp_path: Path) -> None:
    said = [
        {"level": "info", "event": "fine"},
        {"level": "error", "event": "broken"},
        {"event": "e", "exception": "..."},
    ]
    log = tmp_path / "agent.log"
    log.write_text(
        "".join(json.dumps(each) + "\n" for each in said) + "Traceback (most recent call last):\n  half a line"
    )
    program = subprocess.Popen([sys.executable, "-c", "pass"])
    program.wait()
    programs = Programs(lambda _: False)
    programs.started("agent", program.pid, tmp_path / "later.log")
    (tmp_path / "later.log").write_text(log.read_text())
    found = sorted(each.law for each in programs.look())
    assert found == ["error logged"] * 3 + ["program ended"]
    assert not list(programs.look()), "each is told once"
    assert programs.ended() == ["agent"]


@pytest.mark.parametrize("waits", [True, False])
def test_an_agent_says_that_its_driver_hangs_only_where_calls_wait(tmp_path: Path, waits: bool) -> None:
    log = tmp_path / "agent.log"
    programs = Programs(lambda _: False, lambda name: waits and name == "agent-one")
    programs.started("agent-one", os.getpid(), log)
    log.write_text(json.dumps({"level": "error", "event": "nvml.hangs"}) + "\n")
    assert bool(list(programs.look())) is not waits


@pytest.mark.parametrize("excused", [True, False])
def test_an_operator_may_lose_its_lease_and_end_only_where_it_could_do_nothing(tmp_path: Path, excused: bool) -> None:
    log = tmp_path / "operator-a.log"
    program = subprocess.Popen([sys.executable, "-c", "pass"])
    program.wait()
    could_do_nothing = excused
    programs = Programs(lambda name: name == "operator-a" and could_do_nothing)
    programs.started("operator-a", program.pid, log)
    said = [{"level": "warning", "event": "loop.held", "seconds": 9.1}, {"level": "error", "event": "election.lost"}]
    log.write_text("".join(json.dumps(each) + "\n" for each in said))
    found = list(programs.look())
    could_do_nothing = False
    found += programs.look()
    assert [each.law for each in found] == ([] if excused else ["error logged", "program ended"])
    assert excused or '"seconds": 9.1' in found[0].text, "with what held its loop"
    assert programs.ended() == ["operator-a"], "it is started again"


def test_a_program_that_was_killed_on_purpose_is_not_told(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", "pass"])
    program.wait()
    programs = Programs(lambda _: False)
    programs.started("agent", program.pid, tmp_path / "agent.log")
    programs.killed("agent")
    assert not list(programs.look())


def told(note: str, *, about: str = "p", reason: str = "ClaimPending") -> tuple[str, Document]:
    return "event", {
        "metadata": {"name": "e", "uid": "e", "resourceVersion": "1"},
        "regarding": {"uid": about},
        "reason": reason,
        "note": note,
    }


def test_of_two_partitions_with_the_one_engine_of_a_board_only_one_can_be_had() -> None:
    one, other, without = with_media("a", 0), with_media("b", 3), with_media("c", 5, engines="0")
    parts = [part_of(each) for each in (one, other, without)]
    assert parts[0] is not None
    assert [each is not None and parts[0].overlaps(each) for each in parts] == [True, True, False]


def test_time_in_which_the_observer_did_not_run_does_not_count() -> None:
    fairness = Fairness()
    assert fairness.step(10.0) == 0.0
    assert fairness.step(10.25) == 0.25
    assert fairness.step(60.0) == 0.5


@pytest.fixture
def observer(api_server: ControlPlane, crds: None, tmp_path: Path) -> Iterator[Observer]:
    """An observer on a real API server, with a node whose files are in `tmp_path`."""
    (tmp_path / "cdi").mkdir()
    found = Observer(access_of(api_server), {"node": Node(tmp_path / "cdi", tmp_path / "gpus.json")})
    found.start()
    yield found
    found.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_observer_that_cannot_take_an_answer_says_so_instead_of_waiting(
    api_server: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_deep(*_: Any, **__: Any) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(Api, "call", too_deep)
    found = Observer(access_of(api_server), {"node": Node(tmp_path / "cdi", tmp_path / "gpus.json")})
    with pytest.raises(RuntimeError, match="the observer failed"):
        found.start()


def create(plane: ControlPlane, path: str, document: Document, *, status: Document | None = None) -> Document:
    made = call(plane, "POST", path, document)
    if status is None:
        return made
    return call(plane, "PUT", f"{path}/{made['metadata']['name']}/status", {**made, "status": status})


RESOURCE, RULES = "/apis/resource.k8s.io/v1", "/apis/resource.k8s.io/v1beta2/devicetaintrules"
REQUESTS = "/apis/draco.dev/v1alpha1/devicemaintenances"


@pytest.fixture
def field(api_server: ControlPlane, namespace: str) -> Iterator[ControlPlane]:
    """An API server, cleaned afterwards of everything that another test's operator would work on."""
    yield api_server
    planted = [f"{RULES}/draco-{namespace}-{each}" for each in ("orphan", "owned")]
    planted += [f"{RESOURCE}/resourceslices/{namespace}-{number}" for number in (0, 1)]
    planted += [f"{REQUESTS}/{namespace}", "/apis/coordination.k8s.io/v1/namespaces/draco-system/leases/draco-operator"]
    for each in planted:
        call(api_server, "DELETE", each)
    call(api_server, "DELETE", f"{RESOURCE}/namespaces/{namespace}/resourceclaims")


def test_what_is_planted_on_a_real_api_server_is_found(
    field: ControlPlane, observer: Observer, namespace: str, tmp_path: Path
) -> None:
    plane, resource, pool = field, RESOURCE, namespace
    devices = [partition("half", 0, 3), partition("part", 2, 5), whole("gpu-0"), whole("gpu-1", OTHER)]
    published = a_slice(*({**each, "consumesCounters": []} for each in devices), pool=pool)["spec"]
    for device, slices in zip(published["devices"], ("0123", "2345", "01234567", ""), strict=True):
        counters = {f"memory-slice-{unit}": {"value": "1"} for unit in slices}
        device["consumesCounters"] = [{"counterSet": "set", "counters": counters}] if counters else None
    published["nodeName"] = "node"
    counted = {key: value for key, value in published.items() if key != "devices"}
    most = {f"memory-slice-{unit}": {"value": "1"} for unit in range(8)}
    counted["sharedCounters"] = [{"name": "set", "counters": most}]
    for number, spec in enumerate((published, counted)):
        spec["pool"] = {"name": pool, "generation": 1, "resourceSliceCount": 2}
        create(plane, f"{resource}/resourceslices", {"metadata": {"name": f"{pool}-{number}"}, "spec": spec})
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "draco-system"}}
    call(plane, "PATCH", "/api/v1/namespaces/draco-system?fieldManager=tests", system)
    leases = "/apis/coordination.k8s.io/v1/namespaces/draco-system/leases"
    now = datetime.now(UTC) + timedelta(seconds=40)  # the holder need not renew during this test
    spec = {
        "holderIdentity": "somebody",
        "leaseDurationSeconds": 15,
        "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    create(plane, leases, {"metadata": {"name": "draco-operator"}, "spec": spec})

    request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    for name, device in {"whole": "gpu-0", "one": "half", "two": "part", "fine": "gpu-1"}.items():
        document = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": device}]
        path = f"{resource}/namespaces/{namespace}/resourceclaims"
        create(plane, path, document, status={"allocation": {"devices": {"results": results}}})
    selector = {"driver": DRIVER, "pool": pool, "device": "gpu-0"}
    ready = {"type": "ReadyForWork", "status": "True"}
    document = {"apiVersion": "draco.dev/v1alpha1", "kind": "DeviceMaintenance"}
    document |= {"metadata": {"name": pool}, "spec": {"deviceSelector": selector}}
    made = create(plane, REQUESTS, document, status={"conditions": [ready]})
    taint = {"key": "draco.dev/maintenance", "effect": "NoSchedule"}
    for name, uid in {f"draco-{pool}-orphan": "nobody", f"draco-{pool}-owned": made["metadata"]["uid"]}.items():
        owner = {"apiVersion": "draco.dev/v1alpha1", "kind": "DeviceMaintenance", "name": pool, "uid": uid}
        spec = {"deviceSelector": {**selector, "device": "nothing"}, "taint": taint}
        create(plane, RULES, {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec})
    for number in (1, 2):
        edits = {"env": [f"DRACO_DEVICE={GPU}"], "deviceNodes": [{"path": "/dev/nvidia0"}]}
        document = {"devices": [{"name": "d", "containerEdits": edits}]}
        (tmp_path / "cdi" / f"draco-{DRIVER}-{CLAIM.format(number)}.json").write_text(json.dumps(document))

    wanted = {"held twice", "ready but held", "ready but obtainable", "orphan rule", "prepared twice", "wrong files"}
    wanted |= {"bare at work"}
    deadline = time.monotonic() + 60
    while not wanted <= {each.law for each in observer.violations} and time.monotonic() < deadline:
        time.sleep(0.2)
    found = {each.law: each for each in observer.violations}
    assert found.keys() == wanted
    said = "\n".join(each.text for each in observer.violations)
    assert f"{namespace}/fine" not in said
    assert f"{pool}-owned" not in said
    assert any("claim" in line for line in found["held twice"].story), "the story goes with it"
