"""`--with-taint`: one device taint as it is written on a command line.

Owns the form, which is `kubectl taint`'s with the devices behind an @: KEY[=VALUE]:EFFECT[@DRIVER/POOL/DEVICE].
"""

import difflib
import re
from typing import Any, Final

import click

from draco.resources.api.meta import ObjectMeta
from draco.resources.api.taints import EFFECTS, DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector

FORM: Final = "KEY[=VALUE]:EFFECT[@DEVICES]"
_EXAMPLE: Final = "suspect=true:NoSchedule@gpu.nvidia.com/node-1/gpu-0"
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_FIELDS: Final = ("driver", "pool", "device")


class TaintOption(click.ParamType[DeviceTaintRule]):
    """Reads a taint into a rule that puts it on the devices it names; on all if it names none."""

    name = "taint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DeviceTaintRule:
        """The rule, named after its text."""
        text, at, devices = str(value).partition("@")
        head, colon, effect = text.rpartition(":")
        if not colon:
            self.fail(f"'{value}' has no effect; write {FORM}, for example {_EXAMPLE}.", param, ctx)
        if effect not in EFFECTS:
            near = difflib.get_close_matches(effect, EFFECTS, n=1, cutoff=0.4)
            meant = f"did you mean {near[0]}?" if near else f"effects are {', '.join(EFFECTS)}."
            self.fail(f"'{effect}' is no effect of a device taint; {meant}", param, ctx)
        key, _, taint_value = head.partition("=")
        if not _is_key(key):
            self.fail(f"'{key}' is no key of a taint; write for example example.com/suspect.", param, ctx)
        if taint_value and not _NAME.fullmatch(taint_value):
            self.fail(f"'{taint_value}' is no value of a taint: letters, digits, '-', '_' and '.' only.", param, ctx)
        selector = self._selector(devices, param, ctx) if at else DeviceTaintSelector()
        return DeviceTaintRule(
            metadata=ObjectMeta(name=f"with-taint {value}", uid=f"with-taint {value}"),
            spec=DeviceTaintRuleSpec(
                taint=DeviceTaint(key=key, value=taint_value, effect=effect), device_selector=selector
            ),
        )

    def _selector(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> DeviceTaintSelector:
        if "=" in text:
            fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
            unknown = [name for name in fields if name not in _FIELDS]
            if unknown:
                self.fail(f"'{unknown[0]}' selects no devices; use {', '.join(_FIELDS)}.", param, ctx)
        else:
            driver, _, rest = text.partition("/")
            pool, slash, device = rest.rpartition("/")  # pools may have slashes in their names
            if not slash or not all((driver, pool, device)):
                self.fail(
                    f"'{text}' names no devices; write DRIVER/POOL/DEVICE with * for any, or pool=NAME,device=NAME.",
                    param,
                    ctx,
                )
            fields = {"driver": driver, "pool": pool, "device": device}
        return DeviceTaintSelector(**{name: None if value in {"", "*"} else value for name, value in fields.items()})


def _is_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or bool(_DOMAIN.fullmatch(domain)))
