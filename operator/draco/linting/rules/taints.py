"""Rules about DeviceTaintRules: what they can select, and selectors of earlier versions. Source: KEP-5055."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from draco.cel.syntax.parse import MAX_LENGTH
from draco.linting.model import Finding, Json, Manifest, TreePath, finding
from draco.linting.objects import expression_of, listed, mapping, of_kind, text
from draco.resources.api.taints import DeviceTaint, DeviceTaintRuleSpec
from draco.selectors.corrections import corrected
from draco.selectors.known_names import CLASSES
from draco.selectors.tokens import replaced, tokens

SELECTORS_BEFORE_1_35: Final = ("deviceClassName", "selectors")
_EXACT: Final = ("driver", "pool", "device")


def _search(selector: Json) -> str:
    """The command that finds the devices that the old selector was meant for."""
    for one in listed(selector.get("selectors")):
        expression = expression_of(one)
        if expression and len(expression) <= MAX_LENGTH:
            driver = CLASSES.get(text(selector.get("deviceClassName")))
            return f"`draco selector eval {_quoted(corrected(expression.strip(), driver)[1])}`"
    return "`draco selector eval`"


def _quoted(expression: str) -> str:
    """The expression as an argument for a shell, with strings in double quotes where that changes nothing."""
    for token in reversed(tokens(expression)):
        if token.kind == "string" and token.text.startswith("'") and not {'"', "\\", "\n"} & set(token.text):
            expression = replaced(expression, token.start, token.end, f'"{token.text.strip(chr(39))}"')
    return shlex.quote(expression)


def check_taint_rules(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Check the device selector of each rule."""
    for index, manifest in of_kind(manifests, "DeviceTaintRule"):
        spec = mapping(manifest.tree.get("spec"))
        path: TreePath = ("spec", "deviceSelector")
        selector = mapping(spec.get("deviceSelector"))
        exact = [field for field in _EXACT if selector.get(field)]
        if gone := [field for field in SELECTORS_BEFORE_1_35 if field in selector]:
            message = (
                f"a taint rule has no {' and no '.join(gone)}: since 1.35 it selects only by driver, pool and device; name all "
                f"three, as {_search(selector)} shows them, or write a DeviceMaintenance of Draco"
            )
            yield finding("taint-rule-selector", message, index, (*path, gone[0]))
        if exact or gone or selector or spec.keys() - {"deviceSelector", "taint"}:
            continue  # what is unknown in it is reported by another rule
        if "deviceSelector" in spec:
            message = "the empty deviceSelector taints every device of every driver: name driver, pool and device"
            yield finding("taint-rule-everything", message, index, path, severity="warning")
        else:
            effect = text(mapping(spec.get("taint")).get("effect"))
            said = DeviceTaintRuleSpec(taint=DeviceTaint(key="", effect=effect)).without_selector
            message = f"the rule {said}: name driver, pool and device"
            yield finding("taint-rule-everything", message, index, ("spec",))
