"""Problems of claims themselves: each kind of problem, on a small cluster of GPUs and one network card."""

import msgspec
import pytest

from draco.allocation.fleet.fleet import Fleet
from draco.cel import compile_selector
from draco.explanation.explain import explain
from draco.explanation.model import PendingReason, Problem, ProblemKind
from draco.explanation.problems.claims import problems_of
from draco.resources.api.claims import (
    CapacityRequirements,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceSubRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from draco.resources.api.slices import CapacityRange, CapacityRequestPolicy, Device, DeviceAttribute, DeviceCapacity
from tests.builders import a_node, a_slice
from tests.unit.explanation.clusters import A100, ATTRIBUTES, CAPACITY, GPU, H100, a_class, a_fleet, asking, selectors


def the_problems(claim: ResourceClaim, fleet: Fleet | None = None) -> list[Problem]:
    return problems_of(fleet or a_fleet(), [claim])


def the_problem(claim: ResourceClaim, fleet: Fleet | None = None) -> Problem:
    [problem] = the_problems(claim, fleet)
    return problem


def test_a_claim_that_can_be_met_has_no_problems() -> None:
    assert the_problems(asking(f'{ATTRIBUTES}.productName == "{H100}"', count=2)) == []


def test_a_class_that_does_not_exist_is_told_with_the_closest_one() -> None:
    problem = the_problem(asking(device_class="gpu.nvida.com"))
    assert (problem.kind, problem.fatal, problem.request) == (ProblemKind.CLASS_MISSING, True, "gpu")
    assert problem.text == "DeviceClass gpu.nvida.com does not exist"
    assert problem.remedy == "write deviceClassName: gpu.nvidia.com"


def test_a_class_that_selects_nothing_is_told_with_the_reason() -> None:
    problem = the_problem(asking(device_class="mig"))
    assert problem.kind is ProblemKind.SELECTOR_NEVER_TRUE
    assert problem.text.startswith("selector #0 of class mig: no device has")


def test_a_class_whose_selectors_are_met_two_by_two_and_never_all_at_once_selects_nothing() -> None:
    new, old = f'{ATTRIBUTES}.productName == "{H100}"', f'{ATTRIBUTES}.productName == "{A100}"'
    first, second = f"{ATTRIBUTES}.index == 0", f"{ATTRIBUTES}.index == 1"
    fleet = a_fleet()
    fleet.put_class(
        a_class(
            *("none", f'device.driver == "{GPU}"', f"{new} || {first}", f"{old} || {second}"),
            f"({old} && {second}) || ({new} && {first})",
        )
    )
    told = problems_of(fleet, [asking(device_class="none")])
    assert [each.kind for each in told] == [ProblemKind.CLASS_SELECTS_NOTHING]
    assert told[0].text == "DeviceClass none selects none of the 5 published devices"


def test_it_is_said_where_the_class_has_to_change_and_not_the_claim() -> None:
    fleet = a_fleet()
    fleet.put_class(a_class("typo", 'device.driver == "gpu.nvida.com"'))
    told = the_problems(asking(device_class="typo"), fleet)
    assert told[0].remedy == f'change the DeviceClass typo, not the claim: write device.driver == "{GPU}"'


def test_a_selector_that_does_not_compile_is_told_in_the_words_of_kubernetes() -> None:
    problem = the_problem(asking("device.drivers == 1"))
    assert (problem.kind, problem.fatal) == (ProblemKind.SELECTOR_INVALID, True)
    assert problem.text == "selector #0 of claim default/c does not compile: 1:7: undefined field 'drivers'"


def test_an_empty_selector_is_told_without_a_syntax_error() -> None:
    problem = the_problem(asking(""))
    assert (problem.kind, problem.fatal) == (ProblemKind.SELECTOR_INVALID, True)
    assert problem.text == "selector #0 of claim default/c has no CEL expression"


def test_what_is_wrong_with_a_template_is_said_of_the_template() -> None:
    constraint = DeviceConstraint(match_attribute="a.example.com/b")
    spec = ResourceClaimSpec(
        devices=DeviceClaim(
            requests=[
                DeviceRequest(name="gpu", exactly=asking("device.drivers == 1").spec.devices.requests[0].exactly)
            ],
            constraints=[constraint],
        )
    )
    claim = msgspec.structs.replace(asking(), spec=spec)
    said = [each.text for each in problems_of(a_fleet(), [claim], kind="claim template")]
    assert any(each.startswith("selector #0 of claim template default/c does not compile") for each in said)
    assert any(each.startswith("constraint #0 of claim template default/c compares the attribute a") for each in said)
    assert "of claim default/c" not in " ".join(said)


@pytest.mark.parametrize(
    ("written", "said", "meant"),
    [
        ('device.driver == "a" and true', "there is no `and` in CEL", 'device.driver == "a" && true'),
        (
            f"{ATTRIBUTES}.driverVersion.isGreaterThan(version('8.0.0'))",
            "there is no function version",
            f"{ATTRIBUTES}.driverVersion.isGreaterThan(semver('8.0.0'))",
        ),
    ],
)
def test_what_the_compiler_refuses_is_told_as_what_was_meant(written: str, said: str, meant: str) -> None:
    found = problems_of(a_fleet(), [asking(written)])
    [problem] = [each for each in found if each.kind is ProblemKind.SELECTOR_INVALID]
    assert problem.text == f"selector #0 of claim default/c does not compile: {said}"
    assert problem.remedy == f"write {meant}"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (f"{CAPACITY}.memory >= 40", f'{CAPACITY}.memory.compareTo(quantity("40Gi")) >= 0'),
        (f'{CAPACITY}.memory >= quantity("40Gi")', f'{CAPACITY}.memory.compareTo(quantity("40Gi")) >= 0'),
        (f'{CAPACITY}.memory == "40Gi"', f'{CAPACITY}.memory.compareTo(quantity("40Gi")) == 0'),
        (f"{ATTRIBUTES}.memory > 40", f'{CAPACITY}.memory.compareTo(quantity("40Gi")) > 0'),
        (
            f'{ATTRIBUTES}.driverVersion == "570.86.15"',
            f'{ATTRIBUTES}.driverVersion.compareTo(semver("570.86.15")) == 0',
        ),
        (f"{ATTRIBUTES}.productname == '{H100}'", f"{ATTRIBUTES}.productName == '{H100}'"),
        (
            'device.attributes["nvidia.com"].productName.startsWith("NVIDIA")',
            f'{ATTRIBUTES}.productName.startsWith("NVIDIA")',
        ),
    ],
)
def test_the_remedy_is_the_selector_as_it_was_meant(wrong: str, right: str) -> None:
    told = the_problems(asking(wrong))
    assert told[0].remedy == f"write {right}"
    compile_selector(right)
    assert the_problems(asking(right)) == []


@pytest.mark.parametrize(
    ("expression", "kind", "text"),
    [
        (
            f"has({ATTRIBUTES}.productNam)",
            ProblemKind.UNKNOWN_ATTRIBUTE,
            f"no device publishes the attribute {GPU}/productNam",
        ),
        (
            f'"memmory" in device.capacity["{GPU}"] && {CAPACITY}.memmory == quantity("1")',
            ProblemKind.UNKNOWN_CAPACITY,
            f"no device publishes the capacity {GPU}/memmory (did you mean {GPU}/memory?)",
        ),
        (
            'device.driver == "gpu.nvidia.co"',
            ProblemKind.UNKNOWN_DRIVER,
            "no device has the driver gpu.nvidia.co; the drivers are gpu.nvidia.com, nic.example.com",
        ),
    ],
)
def test_a_guarded_name_that_nobody_publishes_is_told_with_the_one_meant(
    expression: str, kind: ProblemKind, text: str
) -> None:
    problem = the_problems(asking(expression))[0]
    assert problem.kind is kind
    assert problem.text == f"selector #0 of claim default/c: {text}"


@pytest.mark.parametrize(
    ("expression", "text", "remedy"),
    [
        (
            f'{CAPACITY}.memory.compareTo(quantity("100Gi")) >= 0',
            f"no device of class {GPU} has {CAPACITY}.memory >= 100Gi; the largest is 80Gi",
            f'write {CAPACITY}.memory.compareTo(quantity("80Gi")) >= 0',
        ),
        (
            f"{ATTRIBUTES}.index < 0",
            f"no device of class {GPU} has {ATTRIBUTES}.index < 0; the smallest is 0",
            f"write {ATTRIBUTES}.index <= 0",
        ),
        (
            f'{ATTRIBUTES}.driverVersion.isGreaterThan(semver("600.0.0"))',
            f"no device of class {GPU} has {ATTRIBUTES}.driverVersion > 600.0.0; the largest is 570.86.15",
            f'write {ATTRIBUTES}.driverVersion.compareTo(semver("570.86.15")) >= 0',
        ),
        (
            f'{ATTRIBUTES}.productName == "H100"',
            f'no device of class {GPU} has {ATTRIBUTES}.productName == "H100"; there is "{A100}", "{H100}"',
            f'write {ATTRIBUTES}.productName == "{H100}"',
        ),
        (
            f"{ATTRIBUTES}.productName == 5",
            (
                f'{ATTRIBUTES}.productName is a string ("{A100}", "{H100}") and is compared with an int, 5, so no device of '
                f"class {GPU} meets it"
            ),
            "",
        ),
        (
            f"!{ATTRIBUTES}.ecc",
            f"no device of class {GPU} has {ATTRIBUTES}.ecc == false; there is true",
            "",
        ),
        ("1 == 2", "1 == 2 is false for every device", ""),
        (
            f'{ATTRIBUTES}.productName == "a" && {ATTRIBUTES}.productName == "b"',
            f'{ATTRIBUTES}.productName == "a" and {ATTRIBUTES}.productName == "b" can never both be true',
            "",
        ),
        (
            f"{ATTRIBUTES}.index > 3 && {ATTRIBUTES}.index <= 3",
            f"{ATTRIBUTES}.index > 3 and {ATTRIBUTES}.index <= 3 can never both be true",
            "",
        ),
        (
            f'{ATTRIBUTES}.productName == "{H100}" && {CAPACITY}.memory.compareTo(quantity("40Gi")) == 0',
            (
                f'no device of class {GPU} meets both {ATTRIBUTES}.productName == "{H100}" (met by 2) and '
                f'{CAPACITY}.memory.compareTo(quantity("40Gi")) == 0 (met by 2)'
            ),
            "",
        ),
        (
            f'{ATTRIBUTES}.productName.matches("H200")',
            (
                f'no device of class {GPU} meets {ATTRIBUTES}.productName.matches("H200") ({ATTRIBUTES}.productName is '
                f'"{A100}", "{H100}")'
            ),
            "",
        ),
        ('device.driver == "nic.example.com"', f"no device of class {GPU} is of the driver nic.example.com", ""),
    ],
)
def test_a_selector_that_can_never_be_true_is_told_with_what_there_is(expression: str, text: str, remedy: str) -> None:
    problem = the_problem(asking(expression))
    assert (problem.kind, problem.fatal) == (ProblemKind.SELECTOR_NEVER_TRUE, True)
    assert problem.text == f"selector #0 of claim default/c: {text}"
    assert problem.remedy == remedy


def test_a_selector_that_does_not_compile_is_told_in_the_words_of_the_field_also_if_only_its_author_can_correct_it() -> (
    None
):
    problem = the_problem(asking('device.name == "gpu-0"'))
    assert "sees no device.name, only driver, attributes and capacity" in problem.text
    assert problem.remedy.startswith("choose a device by an attribute such as its uuid")


def test_a_selector_with_several_parts_that_no_device_meets_gets_one_remedy_with_all_changes() -> None:
    name, memory = f'{ATTRIBUTES}.productName.startsWith("H100")', f"{CAPACITY}.memory.compareTo(quantity"
    first, second = the_problems(asking(f'{name} && {memory}("100Gi")) >= 0'))
    assert (first.remedy, second.remedy) == (
        f'write {ATTRIBUTES}.productName == "{H100}" && {memory}("80Gi")) >= 0',
        "",
    )
    changed = first.remedy.removeprefix("write ")
    assert the_problems(asking(changed)) == []


def test_more_devices_than_any_node_has_are_told() -> None:
    problem = the_problem(asking(count=3))
    assert (problem.kind, problem.fatal) == (ProblemKind.TOO_MANY_DEVICES, True)
    assert problem.text == "request gpu wants 3 devices on one node, and no node has more than 2 that it selects"


def test_more_devices_than_a_claim_may_have_are_told() -> None:
    many = asking(count=33)
    assert "claim default/c asks for 33 devices, and the maximum is 32" in [each.text for each in the_problems(many)]


def test_constraints_on_what_no_selected_device_has_are_told() -> None:
    told = the_problems(
        asking(
            constraints=[
                DeviceConstraint(match_attribute=f"{GPU}/memory"),
                DeviceConstraint(match_attribute=f"{GPU}/productName", requests=["gpu"]),
            ]
        )
    )
    assert [(each.kind, each.remedy) for each in told] == [
        (ProblemKind.UNKNOWN_ATTRIBUTE, f"{GPU}/memory is a capacity; constraints compare attributes only")
    ]


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (
            msgspec.structs.replace(
                asking(), spec=ResourceClaimSpec(devices=DeviceClaim(requests=[DeviceRequest(name="gpu")]))
            ),
            "asks for nothing (unsupported request type?)",
        ),
        (asking(allocation_mode="Some"), "unsupported count mode Some"),
        (asking(constraints=[DeviceConstraint()]), "empty constraint (unsupported constraint type?)"),
    ],
)
def test_what_only_a_newer_kubernetes_stores_is_told_as_its_scheduler_would(claim: ResourceClaim, said: str) -> None:
    assert the_problems(claim) == []
    told = explain(a_fleet(), [claim])
    assert told.reason is PendingReason.INVALID
    assert told.summary.startswith("The scheduler gives up on every node: claim default/c")
    assert said in told.summary
    assert "None" not in told.summary


def test_a_constraint_on_what_some_selected_device_has_is_fine_whatever_the_first_has() -> None:
    for second, told in ((DeviceAttribute(string="a"), 0), (DeviceAttribute(strings=["b"]), 1)):
        fleet = a_fleet()
        linked = [
            Device(name="gpu-0", attributes={"links": DeviceAttribute(strings=["a"])}),
            Device(name="gpu-1", attributes={"links": second}),
        ]
        fleet.put_slice(a_slice("n3", linked))
        claim = asking(constraints=[DeviceConstraint(match_attribute=f"{GPU}/links")])
        assert len(the_problems(claim, fleet)) == told


def test_an_amount_of_a_capacity_that_no_selected_device_has_is_told() -> None:
    problem = the_problem(asking(capacity=CapacityRequirements(requests={"memori": "1Gi"})))
    assert (problem.kind, problem.remedy) == (ProblemKind.UNKNOWN_CAPACITY, "ask for memory")
    other = the_problem(asking(capacity=CapacityRequirements(requests={"encoders": "1"})))
    assert other.remedy == "leave it out: these devices have memory"
    unified = Fleet.of(slices=[a_slice("n1", [Device(name="unified")])], nodes=[a_node("n1")], classes=[a_class(GPU)])
    none = the_problem(asking(capacity=CapacityRequirements(requests={"memory": "40Gi"})), unified)
    assert none.remedy == "leave it out: these devices have none"


def test_one_alternative_that_is_wrong_does_not_doom_the_claim() -> None:
    claim = asking()
    devices = DeviceClaim(
        requests=[
            DeviceRequest(
                name="gpu",
                first_available=[
                    DeviceSubRequest(name="big", device_class_name=GPU, selectors=selectors(f"{ATTRIBUTES}.index > 7")),
                    DeviceSubRequest(name="any", device_class_name=GPU),
                ],
            )
        ]
    )
    problem = the_problem(msgspec.structs.replace(claim, spec=ResourceClaimSpec(devices=devices)))
    assert (problem.request, problem.fatal) == ("gpu/big", False)


def test_where_nothing_is_published_selectors_are_not_to_blame() -> None:
    fleet = Fleet.of(classes=[a_class(GPU, f'device.driver == "{GPU}"')], nodes=[a_node()])
    assert the_problems(asking(f"{ATTRIBUTES}.index == 3"), fleet) == []


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ("gpu.nvidia.con", "create it; the cluster has any, gpu.nvidia.com, mig"),
        ("gpu.nvidia.comm", "write deviceClassName: gpu.nvidia.com"),
        ("vfio.gpu.nvidia.com", "create it; the cluster has any, gpu.nvidia.com, mig"),
    ],
)
def test_a_class_is_no_other_class_unless_it_is_a_slip(asked: str, remedy: str) -> None:
    assert the_problem(asking(device_class=asked)).remedy == remedy


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (f'{ATTRIBUTES}.productName in ["NVIDIA H100", "H100 80GB HBM"]', f'{ATTRIBUTES}.productName == "{H100}"'),
        (f'{ATTRIBUTES}.productName.startsWith("NVIDIA H-100 80GB")', f'{ATTRIBUTES}.productName == "{H100}"'),
        (f'{ATTRIBUTES}.productName.contains("H100-80GB-HBM3")', f'{ATTRIBUTES}.productName == "{H100}"'),
        (
            f'{ATTRIBUTES}.ecc && {ATTRIBUTES}.productName.endsWith("A100-SMX4-40GB")',
            f'{ATTRIBUTES}.ecc && {ATTRIBUTES}.productName == "{A100}"',
        ),
        (f'{ATTRIBUTES}.productName.contains("zzz")', ""),
    ],
)
def test_the_nearest_value_is_told_however_it_is_asked_for(written: str, meant: str) -> None:
    problem = the_problem(asking(written))
    assert problem.kind is ProblemKind.SELECTOR_NEVER_TRUE
    assert problem.remedy == (f"write {meant}" if meant else "")


def a_claim_of(*requests: DeviceRequest) -> ResourceClaim:
    return msgspec.structs.replace(asking(), spec=ResourceClaimSpec(devices=DeviceClaim(requests=list(requests))))


def renamed(name: str, claim: ResourceClaim) -> DeviceRequest:
    return msgspec.structs.replace(claim.spec.devices.requests[0], name=name)


def test_of_several_requests_those_whose_selector_it_is_are_named_once() -> None:
    wrong = asking(f'{ATTRIBUTES}.productName == "H200"')
    claim = a_claim_of(renamed("a", wrong), renamed("b", asking()), renamed("c", wrong))
    problem = the_problem(claim)
    assert problem.text.startswith("selector #0 of requests a, c of claim default/c: no device of class")


def test_the_nearest_mig_profile_has_as_many_slices_whatever_its_memory() -> None:
    profiles = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "1g.10gb+me"]
    fleet = a_fleet()
    parts = [Device(name=f"p-{n}", attributes={"profile": DeviceAttribute(string=p)}) for n, p in enumerate(profiles)]
    fleet.put_slice(a_slice("n3", parts))
    for written, near in (
        ("2g.10gb", "2g.20gb"),
        ("3g.20gb", "3g.40gb"),
        ("1g.5gb+me", "1g.10gb+me"),
        ("7g.40gb", "3g.40gb"),
    ):
        has = f'"profile" in {ATTRIBUTES} && {ATTRIBUTES}.profile == "{written}"'
        assert the_problem(asking(has), fleet).remedy == f"write {has.replace(written, near)}"


def test_a_value_that_a_scheduler_may_read_is_not_said_to_be_nowhere() -> None:
    twice = {"model": DeviceAttribute(string="old"), f"{GPU}/model": DeviceAttribute(string="new")}
    fleet = Fleet.of(
        slices=[a_slice("n1", [Device(name="gpu-0", attributes=twice)])],
        nodes=[a_node("n1")],
        classes=[a_class(GPU, f'device.driver == "{GPU}"'), a_class("old", f'{ATTRIBUTES}.model == "old"')],
    )
    problems = [
        the_problem(asking(f'{ATTRIBUTES}.model == "old"'), fleet),
        the_problem(asking(device_class="old"), fleet),
    ]
    for problem in problems:
        assert (problem.kind, problem.fatal) == (ProblemKind.PUBLISHED_TWICE, False)
        assert f"{GPU}/n1/gpu-0 fits by its value of model and not by that of {GPU}/model" in problem.text
        assert problem.remedy == "have its driver publish one of the two"
    assert the_problems(asking(f'{ATTRIBUTES}.model == "new"'), fleet) == []
    assert the_problem(asking(f'{ATTRIBUTES}.model == "none"'), fleet).kind is ProblemKind.SELECTOR_NEVER_TRUE


def test_an_amount_that_no_device_has_is_told_beside_a_count_that_no_node_has() -> None:
    capacity = CapacityRequirements(requests={"memory": "90Gi"})
    count, amount = the_problems(asking(capacity=capacity, count=3))
    assert count.kind is ProblemKind.TOO_MANY_DEVICES
    assert amount.text == "request gpu asks for 90Gi of memory, and no device that it selects has more than 80Gi"
    assert amount.remedy == "ask for 80Gi"


def test_an_amount_that_is_rounded_up_past_the_whole_is_corrected_to_one_that_fits() -> None:
    policy = CapacityRequestPolicy(default="1Gi", valid_range=CapacityRange(min="1Gi", step="1Gi"))
    memory = DeviceCapacity(value="81559Mi", request_policy=policy)
    shared = Device(name="gpu-0", allow_multiple_allocations=True, capacity={"memory": memory})
    fleet = Fleet.of(
        slices=[a_slice("n1", [shared], driver=GPU)],
        nodes=[a_node("n1")],
        classes=[a_class(GPU, f'device.driver == "{GPU}"')],
    )

    def asking_for(amount: str) -> ResourceClaim:
        return asking(capacity=CapacityRequirements(requests={"memory": amount}))

    problem = the_problem(asking_for("81559Mi"), fleet)
    assert problem.text == (
        "request gpu asks for 81559Mi of memory, and no device that it selects has more than 81559Mi, of which "
        "a claim can have 79Gi"
    )
    assert problem.remedy == "ask for 79Gi"
    assert the_problems(asking_for("79Gi"), fleet) == []
