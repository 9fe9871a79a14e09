"""Estimated cost: the same numbers as Kubernetes 1.37 for the same expressions."""

import pytest

from draco.cel.checking.check import check
from draco.cel.checking.cost import estimated_cost
from draco.cel.syntax.parse import parse
from draco.cel.values.bounds import MAX_COST


def cost(expression: str) -> int | None:
    return estimated_cost(check(parse(expression)))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("true", 0),
        ('device.driver == "dra.example.com"', 4),
        ('device.attributes["a"].b == 1', 5),
        ("device.attributes.a.b == 1", 5),
        ('"a" in device.attributes', 3),
        ("has(device.attributes.a.b)", 3),
        ('device.capacity["a"].b.compareTo(quantity("10Gi")) >= 0', 7),
        ('device.capacity["a"].b == quantity("1")', 6),
        ('device.attributes["a"].b.startsWith("abc") && device.driver.matches("a.*b")', 14),
        ('device.attributes["a"].?b.orValue("x") == "y"', 6),
        ('cel.bind(d, device.attributes["a"], d.x == 1 && d.y == 2)', 19),
        ("device.attributes.all(d, device.attributes[d].exists(k, v, v == 1))", 6403),
        ('device.attributes["a"].list.exists(x, x == "a")', 389),
        ('device.driver.split(".").map(x, x.upperAscii()).join("-") == "a"', None),
        ('device.driver.replace("a", "bb").contains("bb")', 28),
        ("[3, 1, 2].sort() == [1, 2, 3]", 50),
        ('["b", "a"].sortBy(x, x)[0] == "a"', 81),
        ("lists.range(3).sum() == 3", 18),
        ("[1, 1].distinct().reverse().size() == 1", 46),
        ("[[1], [2]].flatten() == [1, 2]", 54),
        ("sets.equivalent([1, 2], [2, 1])", 29),
        ('{"a": 1}.transformMap(k, v, v + 1) == {"a": 2}', 97),
        ('semver("1.0.0").isLessThan(device.attributes["a"].v)', 6),
        ('cidr("10.0.0.0/8").containsIP("10.0.0.1")', 6),
        ("ip.isCanonical(device.driver)", 15),
        ('url("https://a/b").getHost() == "a"', 4),
        ("format.dns1123Label().validate(device.driver).hasValue()", 228),
        ('"%s-%d".format([device.driver, 1]) == "a"', 14),
        ('strings.quote(device.driver) == "a"', 10),
        ('device.attributes["a"].b.includes("x")', 68),
        ("[1, 2].filter(x, x > 1).exists(x, x == 2)", 64),
        ('true ? device.driver == "a" : device.attributes["a"].b', 4),
        ('dyn(device.driver) == "a"', 4),
        ('string(bytes(device.driver)) == "a"', 36),
        ('device.driver.find("a+") == "a"', 10),
    ],
)
def test_the_estimate_is_that_of_kubernetes(expression: str, expected: int | None) -> None:
    assert cost(expression) == expected


def test_a_loop_in_a_loop_in_a_loop_is_over_the_limit() -> None:
    ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    estimate = cost(
        f"{ten}.all(a, {ten}.all(b, {ten}.all(c, {ten}.all(d, {ten}.all(e, {ten}.all(f, a + b + c + d + e + f > 0))))))"
    )
    assert estimate is not None
    assert estimate > MAX_COST
