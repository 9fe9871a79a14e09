"""Manifests as in published articles: what is wrong with each, and that the corrected text is right."""

import re
from pathlib import Path

import pytest
import yaml

from draco.cli.lint.command import LintResult, check

ARTICLES = Path(__file__).parent / "articles"
EXPECTED = {
    "already-right": set(),
    "basic-slice": {"api-version", "basic", "capacity-as-attribute"},
    "classic": {"api-version", "field-place", "classic-dra", "separator", "claim-source"},
    "flattened-class": {"yaml"},
    "flattened-limits": {"yaml"},
    "memory-as-attribute": {
        "api-version",
        "exactly-missing",
        "attribute-domain",
    },
    "mig-fragment": {"fragment", "exactly-missing", "attribute-domain"},
    "mig-pair": {"exactly-missing"},
    "pod-fragment": {"fragment"},
    "quantity-with-order": {"quantity-comparison"},
    "shared-claim": {"exactly-missing"},
    "taint-by-class": {"api-version", "taint-rule-selector"},
    "template-for-a-job": {"exactly-missing"},
}
LEFT_TO_THE_AUTHOR = {"flattened-class", "flattened-limits", "pod-fragment", "taint-by-class"}
CORRECTED = sorted(EXPECTED.keys() - LEFT_TO_THE_AUTHOR)


def text_of(article: str) -> str:
    return (ARTICLES / f"{article}.yaml").read_text(encoding="utf-8")


def checked(article: str) -> LintResult:
    return check({article: text_of(article)}, kubernetes=36)


def comments(text: str) -> list[str]:
    return sorted(re.findall(r"(?:^|\s)#\s*(.+)$", text, re.MULTILINE))


def test_every_article_has_its_expectation() -> None:
    assert {path.stem for path in ARTICLES.iterdir()} == EXPECTED.keys()


@pytest.mark.parametrize("article", sorted(EXPECTED))
def test_what_an_article_gets_wrong_is_found(article: str) -> None:
    assert {told.rule for told in checked(article).findings} == EXPECTED[article]


@pytest.mark.parametrize("article", CORRECTED)
def test_the_corrected_text_of_an_article_has_nothing_left_to_find(article: str) -> None:
    corrected = checked(article).after[article]
    again = check({article: corrected}, kubernetes=36)
    assert again.findings == []
    assert again.after == {article: corrected}


@pytest.mark.parametrize("article", CORRECTED)
def test_the_corrected_text_keeps_every_comment(article: str) -> None:
    assert comments(checked(article).after[article]) == comments(text_of(article))


@pytest.mark.parametrize("article", CORRECTED)
def test_lines_without_a_finding_stay_as_they_were(article: str) -> None:
    before, after = text_of(article), checked(article).after[article]
    kept = {line.strip() for line in before.splitlines()} & {line.strip() for line in after.splitlines()}
    assert len(kept) >= 0.7 * len({line.strip() for line in before.splitlines()})


@pytest.mark.parametrize("article", sorted(LEFT_TO_THE_AUTHOR))
def test_what_only_the_author_knows_is_left_to_them(article: str) -> None:
    assert any(not told.corrected for told in checked(article).findings)


def test_a_claim_for_memory_is_corrected_to_the_manifest_that_was_meant() -> None:
    claim, pod = yaml.safe_load_all(checked("memory-as-attribute").after["memory-as-attribute"])
    assert claim["apiVersion"] == "resource.k8s.io/v1"
    assert claim["spec"]["devices"]["requests"] == [
        {
            "name": "card",
            "exactly": {
                "deviceClassName": "gpu.nvidia.com",
                "selectors": [
                    {"cel": {"expression": 'device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("60Gi"))'}}
                ],
                "allocationMode": "ExactCount",
                "count": 1,
            },
        }
    ]
    assert pod["spec"]["resourceClaims"] == [{"name": "card", "resourceClaimName": "big-gpu"}]


def test_a_comment_stays_beside_what_it_is_about() -> None:
    lines = [line.strip() for line in checked("memory-as-attribute").after["memory-as-attribute"].splitlines()]
    assert lines[lines.index("# at least this much") + 1] == "selectors:"


def test_a_folded_expression_stays_folded_where_it_was() -> None:
    after = checked("quantity-with-order").after["quantity-with-order"]
    assert (
        "        expression: >\n"
        '          device.driver == "gpu.nvidia.com" &&\n'
        '          device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("48Gi")) >= 0\n'
    ) in after


def test_classic_objects_become_what_took_their_place() -> None:
    device_class, template, pod = yaml.safe_load_all(checked("classic").after["classic"])
    assert device_class["metadata"] == {"name": "gpus.example.com"}
    assert template["spec"]["spec"] == {
        "devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "gpus.example.com"}}]}
    }
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-of-them"}]


def test_lost_line_breaks_are_told_in_a_sentence_that_says_what_to_do() -> None:
    [told] = checked("flattened-class").findings
    assert told.line == 1
    assert "line breaks of this manifest were lost" in told.message


def test_a_rule_that_selects_by_class_is_told_how_to_find_the_device() -> None:
    told = next(one for one in checked("taint-by-class").findings if one.rule == "taint-rule-selector")
    assert (
        'draco selector eval \'device.attributes["gpu.nvidia.com"].uuid == "GPU-00000000-1111-2222-3333-444444444444"\''
    ) in told.message
    assert "DeviceMaintenance" in told.message
