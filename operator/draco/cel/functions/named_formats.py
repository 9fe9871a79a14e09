"""Kubernetes' named string formats, `format.dns1123Label().validate(name)`, and their error texts."""

import base64
import re
from collections.abc import Callable
from datetime import date
from typing import Final

from draco.cel.functions.costs import VALIDATING
from draco.cel.functions.overloads import row
from draco.cel.functions.urls import url_complaint
from draco.cel.values.values import NONE, NamedFormat, Optional

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = f"{_LABEL}(\\.{_LABEL})*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = f"({_QUALIFIED})?"
_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character"
)
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_LABEL_1035_RULE: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character"
)
_QUALIFIED_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character"
)
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_DATETIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?([Zz]|[+-][0-9]{2}:?[0-9]{2})",
    re.ASCII,
)


def _too_long(most: int) -> str:
    return f"must be no more than {most} bytes"


def _rule(text: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{text} (e.g. {shown}regex used for validation is '{pattern}')"


def _check(text: str, pattern: str, most: int, complaint: str) -> list[str]:
    complaints = [_too_long(most)] if len(text.encode("utf-8", "surrogatepass")) > most else []
    return complaints if re.fullmatch(pattern, text) else [*complaints, complaint]


def _label(text: str) -> list[str]:
    dots = len(text) and re.fullmatch(_SUBDOMAIN, text)
    complaint = "must not contain dots" if dots else _rule(_LABEL_RULE, _LABEL, "my-name", "123-abc")
    return _check(text, _LABEL, 63, complaint)


def _subdomain(text: str) -> list[str]:
    return _check(text, _SUBDOMAIN, 253, _rule(_SUBDOMAIN_RULE, _SUBDOMAIN, "example.com"))


def _label_1035(text: str) -> list[str]:
    return _check(text, _LABEL_1035, 63, _rule(_LABEL_1035_RULE, _LABEL_1035, "my-name", "abc-123"))


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Check a prefix. It may end in a dash, because more text follows."""
    return lambda text: check(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)


def _label_value(text: str) -> list[str]:
    return _check(text, _VALUE, 63, _rule(_VALUE_RULE, _VALUE, "MyValue", "my_value", "12345"))


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        rule = _rule("a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                     "alphanumeric character", _QUALIFIED, "MyName", "my.name", "123-abc")  # fmt: skip
        return [f"{rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    complaints = []
    if len(parts) == 2:
        if not parts[0]:
            complaints.append("prefix part must be non-empty")
        else:
            complaints += [f"prefix part {complaint}" for complaint in _subdomain(parts[0])]
    name = parts[-1]
    if not name:
        complaints.append("name part must be non-empty")
    elif len(name.encode("utf-8", "surrogatepass")) > 63:
        complaints.append(f"name part {_too_long(63)}")
    if not re.fullmatch(_QUALIFIED, name):
        complaints.append(_rule(_QUALIFIED_RULE, _QUALIFIED, "MyName", "my.name", "123-abc"))
    return complaints


def _uri(text: str) -> list[str]:
    complaint = url_complaint(text)
    return [complaint] if complaint else []


def _byte(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        text = ""
    return [] if text else ["invalid base64"]


def _date(text: str) -> list[str]:
    return [] if _DATE.fullmatch(text) and _is_date(text) else ["invalid date"]


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _datetime(text: str) -> list[str]:
    match = _DATETIME.fullmatch(text)
    fine = match and _is_date(text[:10]) and int(match[4]) < 24 and int(match[5]) < 60 and int(match[6]) < 60
    return [] if fine else ["invalid datetime"]


FORMATS: Final = {
    "dns1123Label": NamedFormat("DNS1123Label", _label, 30),
    "dns1123Subdomain": NamedFormat("DNS1123Subdomain", _subdomain, 60),
    "dns1035Label": NamedFormat("DNS1035Label", _label_1035, 30),
    "qualifiedName": NamedFormat("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": NamedFormat("DNS1123LabelPrefix", _prefix(_label), 30),
    "dns1123SubdomainPrefix": NamedFormat("DNS1123SubdomainPrefix", _prefix(_subdomain), 60),
    "dns1035LabelPrefix": NamedFormat("DNS1035LabelPrefix", _prefix(_label_1035), 30),
    "labelValue": NamedFormat("LabelValue", _label_value, 40),
    "uri": NamedFormat("URI", _uri, 1103),
    "uuid": NamedFormat("uuid", lambda text: [] if _UUID.fullmatch(text) else ["does not match the UUID format"], 70),
    "byte": NamedFormat("byte", _byte, 84),
    "date": NamedFormat("date", _date, 71),
    "datetime": NamedFormat("datetime", _datetime, 71),
}


def _named(name: str) -> Optional:
    return Optional(FORMATS[name]) if name in FORMATS else NONE


def _validate(one: NamedFormat, text: str) -> Optional:
    complaints = one.check(text)
    return Optional(complaints) if complaints else NONE


OVERLOADS: Final = {
    "standard": (
        row("format-named", "format.named(string) -> optional(format)", _named),
        row("format-validate", "format.validate(string) -> optional(list(string))", _validate, cost=VALIDATING),
        *(row(f"format.{name}", f"format.{name}() -> format", lambda one=one: one) for name, one in FORMATS.items()),
    )
}
