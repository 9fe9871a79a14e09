"""Generate docs/reference from the source, so that it cannot be wrong.

Owns the pages of commands, kinds, chart values, metrics, log events, messages, XIDs and phases, and the chart's README.
`make docs` runs it; a test compares what it would write with what is committed.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import yaml

from draco import cli
from draco.health.table import KINDS, FaultEnd, FaultKind
from draco.resources.api.health import HealthEffect
from scripts import messages
from scripts.maintenance_phases import PHASES

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "operator" / "draco", ROOT / "local" / "draco_local")
REFERENCE = ROOT / "docs" / "reference"
CHART = ROOT / "charts" / "draco"
NOTE = "<!-- Written by `make docs`; do not edit. -->\n\n"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def pages() -> dict[str, str]:
    """Each page's text by its file name."""
    try:
        return {
            "commands.md": NOTE + commands(),
            "kinds.md": NOTE + kinds(),
            "chart-values.md": NOTE + chart_values(),
            "metrics.md": NOTE + metrics(),
            "log-events.md": NOTE + log_events(),
            "messages.md": NOTE + messages.page(),
            "xids.md": NOTE + xids(),
            "maintenance-phases.md": NOTE + maintenance_phases(),
        }
    finally:
        messages.forget()


WHAT_IS_DONE = {
    HealthEffect.RECORD: "It is recorded",
    HealthEffect.ANNOUNCE: "A taint without effect",
    HealthEffect.NO_SCHEDULE: "No new claims",
}
WHAT_ENDS = {
    FaultEnd.LOOK: "is not seen in {clean} readings",
    FaultEnd.RESET: "a reset, a driver reload, or a reboot",
    FaultEnd.REBOOT: "the node reboots",
}


def done(kind: FaultKind) -> str:
    """Draco's reaction to a fault, and how long it lasts."""
    until = WHAT_ENDS[kind.ends].format(clean=kind.clean)
    what = WHAT_IS_DONE[kind.effect]
    until = f"it {until}" if kind.ends is FaultEnd.LOOK else until
    after = "" if kind.after == 1 else f", from reading {kind.after} in a row on,"
    return f"{what}{after} until {until}"


def xids() -> str:
    """What each XID means and Draco's reaction, from the agent's own table."""
    kinds = sorted((kind for kind in KINDS.values() if kind.code is not None), key=lambda kind: kind.code or 0)
    shown = (
        (
            f'<a id="{kind.code}"></a>{kind.code}',
            kind.what[0].upper() + kind.what[1:],
            done(kind),
            "yes" if kind.spreads else "no" if kind.effect is HealthEffect.NO_SCHEDULE else "",
        )
        for kind in kinds
    )
    others = (
        (kind.name, kind.family.value, kind.what[0].upper() + kind.what[1:], done(kind))
        for kind in KINDS.values()
        if kind.code is None
    )
    head = ("XID", "what happened", "what Draco does", "also if reported for one MIG instance")
    return f"""# XIDs and other faults

Errors that the NVIDIA driver reports by number, and other faults that the agent finds, with its reaction to each unless a
HealthPolicy changes it. For XIDs, the agent follows the immediate action of NVIDIA's catalogue (October 2025). An XID that is not
listed gets a taint without effect, until the next reset. What the number of an XID does not say, NVML's recovery action does, if
the driver has it (565 and later). [How faults are kept and what ends them](../concepts/health.md),
[what to do about one](../runbooks/troubleshooting.md).

{table(head, shown)}
## Other faults

{table(("fault", "family", "what happened", "what Draco does"), others)}"""


def maintenance_phases() -> str:
    """The state machine of DeviceMaintenance, from the operator's own table."""
    rows = (
        (f"`{each.phase}`" if each.phase else "as it was", f"`{each.reason}`", each.seen, each.written)
        for each in PHASES
    )
    head = ("phase", "reason", "what is seen", "what is written")
    return f"""# Phases of a DeviceMaintenance

A phase is computed from the current state, whatever it was before: the first row below whose "what is seen" matches decides. The
status has the reason in the condition that decides. [What the phases are for](../concepts/maintenance.md).

{table(head, rows)}"""


def readme_of_chart() -> str:
    """The chart's page in chart repositories: how to install it, and its values."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    head = f"# {chart['name']}\n\n{NOTE}{chart['description']}\n\n"
    facts = [
        ("chart", chart["version"]),
        ("Draco", chart["appVersion"]),
        ("Kubernetes", chart["kubeVersion"].removesuffix("-0")),
    ]
    text = (CHART / "README.template.md").read_text(encoding="utf-8")
    return head + table(["", "version"], facts) + "\n" + text.replace("{{ values }}\n", table(VALUES, value_rows()))


VALUES = ("value", "default", "meaning")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [
        head,
        ["---"] * len(head),
        *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- commands ---


def commands() -> str:
    """Every command with its arguments and options."""
    parts = ["# Commands\n\n`draco` and `kubectl draco` are the same program.\n"]
    root = click.Context(cli.root, info_name="draco")
    for name in cli.root.list_commands(root):
        command = cli.root.get_command(root, name)
        assert command is not None
        parts += described(command, click.Context(command, info_name=name, parent=root))
    return "\n".join(parts)


def described(command: click.Command, context: click.Context) -> Iterator[str]:
    """The section of one command, and of those below it."""
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    yield f"## {context.command_path}\n"
    yield f"{paragraphs(command.help)}\n"
    yield f"```\n{context.command_path} [OPTIONS]{' ' if usage else ''}{usage}\n```\n"
    rows = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    if rows:
        yield table(["option", "meaning"], ((f"`{name}`", tidy(text)) for name, text in rows))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from described(inner, click.Context(inner, info_name=name, parent=context))


KEPT = "\b\n"


def paragraphs(text: str | None) -> str:
    """Help text with one line for each paragraph; paragraphs that click keeps unchanged, as code."""
    clean = inspect.cleandoc(text or "").replace("\f", "")
    return "\n\n".join(
        f"```\n{part.removeprefix(KEPT).strip()}\n```" if part.startswith(KEPT) else tidy(part)
        for part in re.split(r"\n\s*\n", clean)
    )


def tidy(text: str) -> str:
    """One line, single spaces."""
    return " ".join(text.split())


# --- kinds ---


def kinds() -> str:
    """Every field of Draco's kinds, from the CustomResourceDefinitions."""
    parts = ["# Kinds\n\nGroup `draco.dev`. The definitions are in [crds/](../../crds).\n"]
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        names = definition["names"]
        for version in definition["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            parts.append(f"## {names['kind']}\n")
            parts.append(f"{tidy(schema.get('description', ''))}\n")
            short = ", ".join(f"`{name}`" for name in [names["plural"], *names.get("shortNames", [])])
            parts.append(
                f"`{definition['group']}/{version['name']}`, {definition['scope'].lower()}-scoped, for kubectl {short}.\n"
            )
            for part in ("spec", "status"):
                rows = list(fields(schema["properties"].get(part, {}), part))
                if rows:
                    parts.append(f"### {names['kind']} {part}\n")
                    parts.append(table(["field", "type", "meaning"], rows))
    return "\n".join(parts)


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Path, type and meaning of each field below a schema, parents first."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        inner = field.get("items", {})
        is_list = field.get("type") == "array"
        told = [tidy(field.get("description", ""))]
        told += [f"One of {', '.join(f'`{one}`' for one in field['enum'])}."] if "enum" in field else []
        told += [f"Default `{json.dumps(field['default'])}`."] if field.get("default") not in (None, {}, []) else []
        told += [
            f"Rule: {tidy(rule['message'])}." for rule in field.get("x-kubernetes-validations", ()) if "message" in rule
        ]
        kind = f"list of {kind_of(inner)}" if is_list else kind_of(field)
        yield f"`{where}`", kind + (", required" if name in required else ""), " ".join(part for part in told if part)
        yield from fields(inner if is_list else field, f"{where}[]" if is_list else where)


def kind_of(schema: dict[str, Any]) -> str:
    """The type of a field as a reader thinks of it."""
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        return f"map to {kind_of(values)}"
    return str(schema.get("format") or schema.get("type") or "any")


# --- chart values ---


def chart_values() -> str:
    """Every value of the chart with its default and the comment above it."""
    head = "# Chart values\n\nValues of [charts/draco](../../charts/draco). The chart refuses unknown values.\n\n"
    return head + table(VALUES, value_rows())


def value_rows() -> list[tuple[str, str, str]]:
    """Name, default and meaning of each value."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    rows: list[tuple[str, str, str]] = []
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        entry = re.match(r"(?P<indent> *)(?P<key>[A-Za-z]\w*):(?: (?P<value>.*))?$", line)
        if line.lstrip().startswith("#"):
            comment.append(line.strip("# "))
        elif entry:
            indent = len(entry["indent"])
            path = [*(step for step in path if step[0] < indent), (indent, entry["key"])]
            if comment:
                value = f"`{entry['value']}`" if entry["value"] else ""
                rows.append((f"`{'.'.join(key for _, key in path)}`", value, " ".join(comment)))
            comment = []
        elif not line.strip():
            comment = []
    return rows


# --- metrics and log events, from the calls that create them ---


class Metric(NamedTuple):
    """One metric as its page shows it."""

    name: str
    kind: str
    labels: str
    meaning: str


def metrics() -> str:
    """Every metric: any call in the source that pairs a `draco_…` name with its help."""
    found = {
        metric.name: metric
        for _, nodes in modules()
        for lists in [named_lists(nodes)]
        for node in nodes
        for metric in metrics_in(node, lists)
    }
    rows = [(f"`{one.name}`", one.kind, one.labels, one.meaning) for _, one in sorted(found.items())]
    head = "# Metrics\n\nServed in Prometheus' format at `/metrics`.\n\n"
    return head + table(["metric", "type", "labels", "meaning"], rows)


def metrics_in(node: ast.AST, lists: Mapping[str, Sequence[str]]) -> Iterator[Metric]:
    """The metrics that one expression names. `lists` are the lists of labels that have a name in its module."""
    match node:
        case ast.Call(func=function, args=[ast.Constant(str(name)), ast.Constant(str(meaning)), *rest]) if is_metric(
            name
        ):
            kind = ast.unparse(function).rsplit(".", 1)[-1].removesuffix("MetricFamily").lower()
            if kind == "on_scrape":
                kind = "counter" if name.endswith("_total") else "gauge"
            labels = [*rest[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "labels")]
            yield Metric(name, kind, ", ".join(f"`{label}`" for one in labels for label in texts(one, lists)), meaning)


def is_metric(name: str) -> bool:
    """Whether a text is a metric's name."""
    return re.fullmatch(r"draco_[a-z_]+", name) is not None


def texts(node: ast.expr, lists: Mapping[str, Sequence[str]] = MappingProxyType({})) -> list[str]:
    """The texts in a literal list, which may consist of `lists`."""
    match node:
        case ast.Constant(value):
            return [str(value)]
        case ast.Name(name) | ast.Starred(ast.Name(name)):
            return [*lists.get(name, ())]
        case ast.List(inner) | ast.Tuple(inner):
            return [text for one in inner for text in texts(one, lists)]
    return []


def named_lists(nodes: Iterable[ast.AST]) -> Mapping[str, Sequence[str]]:
    """The texts of a module's literal lists, by name."""
    found: dict[str, Sequence[str]] = {}
    for node in nodes:
        match node:
            case ast.AnnAssign(target=ast.Name(name), value=ast.List() | ast.Tuple() as value):
                found[name] = texts(value, found)
    return found


def log_events() -> str:
    """Every log event: the calls of a logger whose first argument is a dotted name."""
    found: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for path, nodes in modules():
        for node in nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr=level, value=logger), args=[ast.Constant(str(event)), *_]) if (
                    level in LEVELS and "log" in ast.unparse(logger) and re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", event)
                ):
                    levels, named, parts = found.setdefault(event, (set(), set(), set()))
                    parts.add(path.with_suffix("").parts[0])
                    levels.add(level)
                    named.update(keyword.arg for keyword in node.keywords if keyword.arg and keyword.arg != "exc_info")
    rows = [
        (
            f"`{event}`",
            ", ".join(sorted(parts)),
            ", ".join(sorted(levels)),
            ", ".join(f"`{one}`" for one in sorted(named)),
        )
        for event, (levels, named, parts) in sorted(found.items())
    ]
    head = (
        "# Log events\n\nEach line of the log is one event with fields. Names are stable: search and alert on them.\n\n"
    )
    return head + table(["event", "part", "level", "fields"], rows)


def modules() -> Iterator[tuple[Path, Sequence[ast.AST]]]:
    """The nodes of every module that is not generated, under its path from its package."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            if "_pb2" not in path.name:
                yield path.relative_to(package), messages.nodes_of(path)


def main() -> None:
    """Write the pages and the chart's README."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    (CHART / "README.md").write_text(readme_of_chart(), encoding="utf-8")


if __name__ == "__main__":
    main()
