"""Rules about selectors, and about attributes in constraints. `expressions` finds the defects of an expression."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from draco.cel import CompileError, compile_selector, new_expressions
from draco.cel.syntax.parse import MAX_LENGTH
from draco.cel.values.bounds import MAX_COST
from draco.linting import objects
from draco.linting.model import Finding, Manifest, SetField, finding
from draco.resources.names import NVIDIA_DRIVER
from draco.selectors import known_names as names
from draco.selectors.accesses import accesses
from draco.selectors.complaint import Severity
from draco.selectors.corrections import corrected
from draco.selectors.demands import as_operand
from draco.selectors.tokens import tokens

_CONSTRAINTS: Final = ("matchAttribute", "distinctAttribute")


def check_selectors(manifests: Sequence[Manifest], kubernetes: int) -> Iterator[Finding]:
    """Defective expressions, as far as visible without devices."""
    for selector in objects.selectors(manifests):
        is_too_long = len(selector.expression) > MAX_LENGTH
        complaints, wanted_text = corrected("" if is_too_long else selector.expression.strip(), selector.driver)
        wanted_text = selector.expression if is_too_long else wanted_text
        if selector.is_of_class and (guarded := _guarded(manifests, selector, wanted_text)):
            driver, wanted_text = guarded
            message = (
                "a class's selectors run on the devices of every driver, and an attribute that another vendor's device lacks "
                f'makes the whole pod fail: begin with `device.driver == "{driver}" &&`'
            )
            yield _finding(selector, "class-without-driver", "warning", message, wanted_text)
        is_changed = wanted_text != selector.expression.strip()
        for complaint in complaints:
            fixed = wanted_text if is_changed and complaint.corrected is not None else None
            yield _finding(selector, complaint.rule, complaint.severity, complaint.message, fixed)
        refusal = _refusal(wanted_text, kubernetes)
        is_explained = any(each.severity == "error" and each.corrected is None for each in complaints)
        if refusal is not None and not (is_explained and refusal[0] == "selector-compiles"):
            yield _finding(selector, *refusal, None)


def _finding(
    selector: objects.WrittenSelector, rule: str, severity: Severity, message: str, fixed: str | None
) -> Finding:
    edits = [] if fixed is None else [SetField(selector.path, fixed)]
    return finding(rule, message, selector.manifest, selector.path, *edits, severity=severity)


@lru_cache(512)
def _refusal(expression: str, kubernetes: int) -> tuple[str, Severity, str] | None:
    """Rule, severity and message for an expression that the API server would refuse; None if it would not."""
    try:
        compiled = compile_selector(expression)
    except CompileError as error:
        return "selector-compiles", "error", f"the selector does not compile: {error}"
    cost = compiled.estimated_cost
    if cost is None or cost > MAX_COST:
        shown = "has no bound" if cost is None else f"may be {cost:,}"
        message = f"the cost of the selector {shown}, and Kubernetes allows no more than {MAX_COST:,}"
        return "selector-cost", "error", message
    try:
        compile_selector(expression, environment=new_expressions(kubernetes, list_attributes=True))
    except CompileError as error:
        message = f"Kubernetes 1.{kubernetes} rejects this selector in a new object, although its scheduler would run it: {error}"
        return "selector-version", "warning", message
    return None


def _guarded(
    manifests: Sequence[Manifest], selector: objects.WrittenSelector, expression: str
) -> tuple[str, str] | None:
    """The driver, and the expression that checks it first; None if a selector of the class does already, or none needs to."""
    spec = objects.mapping(manifests[selector.manifest].tree.get("spec"))
    others = " ".join(map(objects.expression_of, objects.listed(spec.get("selectors"))))
    if "device.driver" in others or "orValue" in expression or "has(" in expression or " in device." in expression:
        return None
    try:
        compiled = compile_selector(expression)
    except CompileError:
        return None
    domains = {path.domain for path in compiled.paths if path.id is not None and path.domain}
    vendors = domains - {names.STANDARD_DOMAIN}
    if len(vendors) != 1:
        return None
    driver = str(vendors.pop())
    return driver, f'device.driver == "{driver}" && {as_operand(expression)}'


def check_constraints(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Attributes in constraints need their domain: without it no device has them."""
    drivers = objects.drivers_of_classes(manifests)
    for claim in objects.claims(manifests):
        asked = objects.asked_of(claim)
        known = {drivers.get(objects.text(one.fields.get("deviceClassName"))) for one in asked} - {None}
        driver = next(iter(known)) if len(known) == 1 else None
        for number, constraint in enumerate(objects.listed(claim.devices.get("constraints"))):
            for field in _CONSTRAINTS:
                attribute = objects.text(objects.mapping(constraint).get(field))
                if not attribute:
                    continue
                read = _read(attribute)
                wanted_name = _qualified(read or attribute, driver)
                if wanted_name == attribute:
                    continue
                path = (*claim.path, "constraints", number, field)
                wrong = f"{field} must name an attribute with its domain"
                if read:
                    wrong = f"{field} takes a name, not an expression"
                elif "/" in attribute:
                    wrong = f"no device publishes {attribute}"
                message = f"{wrong}: write {wanted_name or 'DOMAIN/NAME, such as gpu.nvidia.com/parentUUID'}"
                edits = [SetField(path, wanted_name)] if wanted_name else []
                yield finding("constraint-domain", message, claim.manifest, path, *edits)


def _read(written: str) -> str:
    """The name of the attribute that an expression reads; "" if the text is anything else."""
    found = tokens(written)
    read = next(accesses(found), None)
    if read is None or read.name is None or read.start or read.end < len(found):
        return ""
    return f"{read.domain.name}/{read.name.name}"


def _qualified(attribute: str, driver: str | None) -> str | None:
    """The intended full name; the name itself if it is right or nothing better is known; None if no domain can be inferred."""
    domain, slash, name = attribute.rpartition("/")
    if not slash:
        if name in names.STANDARD:
            return f"{names.STANDARD_DOMAIN}/{name}"
        if driver is None:
            return None
        domain = driver
    if domain in names.CLASSES:
        domain = NVIDIA_DRIVER
    if domain != NVIDIA_DRIVER or name in names.ATTRIBUTES:
        return f"{domain}/{name}"
    meant = name if name in names.STANDARD else names.meant(name)
    if meant is None:
        return f"{domain}/{name}"
    return f"{names.STANDARD_DOMAIN if meant in names.STANDARD else domain}/{meant}"
