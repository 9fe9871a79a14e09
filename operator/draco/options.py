"""Options that several commands share, and their value types. Wrong values are refused before the command does anything."""

import math
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

_DRIVER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_DRIVER = 63
_PORT = re.compile(r"[0-9]{1,5}")
_LONGEST_S = 365 * 24 * 3600


def _names_a_host(text: str) -> bool:
    """Whether a resolver would accept the text as a name, known or not."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return text.isprintable()


class Seconds(click.FloatRange):
    """A finite number of seconds, from `min` to one year."""

    name = "seconds"

    def __init__(self, *, min: float, min_open: bool = False) -> None:  # noqa: A002 - as click names it
        super().__init__(min=min, max=_LONGEST_S, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises BadParameter."""
        read: float = super().convert(value, param, ctx)
        if not math.isfinite(read):
            self.fail(f"{value!r} is not a number of seconds, such as 2.5.", param, ctx)
        return read


class ListenAddress(click.ParamType[tuple[str, int]]):
    """HOST:PORT, with [HOST] for IPv6; an empty HOST means every address."""

    name = "host:port"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Raises BadParameter."""
        if isinstance(value, tuple):
            return value
        host, colon, port = value.rpartition(":")
        if not (colon and _PORT.fullmatch(port) and int(port) < 1 << 16 and _names_a_host(host)):
            self.fail(f"{value!r} is not HOST:PORT, such as 0.0.0.0:8080.", param, ctx)
        return host.strip("[]"), int(port)


class DriverName(click.ParamType[str]):
    """A DRA driver's name, as the API server accepts it in `spec.driver` of a ResourceSlice."""

    name = "driver"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Raises BadParameter."""
        if len(value) > _LONGEST_DRIVER or not _DRIVER.fullmatch(value):
            self.fail(
                f"{value!r} cannot name a driver: use a DNS subdomain (lower-case letters, digits, '-' and '.') of at most "
                f"{_LONGEST_DRIVER} characters, such as gpu.example.com.",
                param,
                ctx,
            )
        return value


class HostPath(click.ParamType[str]):
    """The absolute path of a file on the node, "" for none; it names one place, without `..`."""

    name = "path"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Raises BadParameter."""
        if value and (not value.startswith("/") or {"..", "."} & {*value.split("/")} or not value.isprintable()):
            self.fail(
                f"{value!r} is not an absolute path without '.' and '..', such as /opt/lib/libvgpu.so.", param, ctx
            )
        return value


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where metrics are served over TLS.

    `certificates` is a folder with tls.crt and tls.key (a mounted Secret); `name` is the DNS name that scrapers use, "" if
    unknown.
    """

    host: str = "0.0.0.0"  # noqa: S104 - scrapes come from other hosts
    port: int = 8443
    certificates: Path
    name: str = ""


def option(name: str, *names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that can also be set in the environment: --cdi-dir as DRACO_CDI_DIR."""
    variable = "DRACO_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, *names, envvar=variable, **settings)


def both_or_neither(**options: object) -> bool:
    """Whether all of these options, which need each other, were given. Raises UsageError if only some were."""
    given = [value is not None for value in options.values()]
    if any(given) and not all(given):
        names = " and ".join(f"--{name.replace('_', '-')}" for name in options)
        raise click.UsageError(f"{names} need each other.")
    return all(given)


def with_metrics(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the options of metrics over TLS, as its argument `metrics`, which is None without them."""

    @option(
        "--metrics-listen",
        show_envvar=True,
        type=ListenAddress(),
        help="Address of /metrics over TLS, for clients whose token may get it. Default: --listen serves it to anyone.",
    )
    @option(
        "--metrics-certificates",
        show_envvar=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder with the tls.crt and tls.key of --metrics-listen.",
    )
    @option(
        "--metrics-name",
        show_envvar=True,
        default="",
        help="DNS name that scrapers expect in that certificate; a mismatch is logged.",
    )
    @wraps(function)
    def command(
        *,
        metrics_listen: tuple[str, int] | None,
        metrics_certificates: Path | None,
        metrics_name: str,
        **options: Any,
    ) -> Any:
        both_or_neither(metrics_listen=metrics_listen, metrics_certificates=metrics_certificates)
        metrics = None
        if metrics_listen and metrics_certificates:
            host, port = metrics_listen
            metrics = MetricsSettings(host=host, port=port, certificates=metrics_certificates, name=metrics_name)
        return function(metrics=metrics, **options)

    return command
