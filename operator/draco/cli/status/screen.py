"""The text of a `ClusterStatus`. Colours only repeat what the words say. Computes nothing."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draco.cli.tables import table
from draco.overview.status_schema import ClaimState, ClaimView, ClusterStatus, DeviceState, DeviceView, NodeView
from draco.resources.api.health import FaultFamily
from draco.resources.api.maintenance import MaintenancePhase
from draco.resources.names import REASON_AGENT_LOST, TAINT_FAMILIES
from draco.resources.texts import agreeing, counted, listed

MOST_NODES = 16
"""Above this number of nodes, healthy ones are only counted."""
MOST_DEVICES = 32
"""Above this number of devices, those that are free or in use are only counted."""
MOST_CLAIMS = 10
NO_NODE = "(no single node)"

STYLES = {
    DeviceState.FREE: "green",
    DeviceState.IN_USE: "cyan",
    DeviceState.BLOCKED: "blue",
    DeviceState.TAINTED: "yellow",
    DeviceState.OFFLINE: "red",
    DeviceState.UNHEALTHY: "red",
    DeviceState.MAINTENANCE: "magenta",
    ClaimState.PENDING: "yellow",
    ClaimState.DELETING: "yellow",
}
CLAIM_WORDS = {
    ClaimState.PENDING: "pending",
    ClaimState.ALLOCATED: "allocated",
    ClaimState.RESERVED: "in use",
    ClaimState.DELETING: "being deleted",
}
_PHASE_WORDS: Mapping[str, str] = {
    MaintenancePhase.REHEARSED: "rehearsed, not isolated yet",
    MaintenancePhase.ISOLATED: "isolated",
    MaintenancePhase.DRAINING: "draining",
    MaintenancePhase.IN_MAINTENANCE: "in maintenance",
    MaintenancePhase.VERIFYING: "verifying",
    MaintenancePhase.FAILED: "failed",
}
_FAMILIES = frozenset(FaultFamily)
_COUNTED = (
    DeviceState.FREE,
    DeviceState.IN_USE,
    DeviceState.BLOCKED,
    DeviceState.TAINTED,
    DeviceState.MAINTENANCE,
    DeviceState.UNHEALTHY,
    DeviceState.OFFLINE,
)


def show(status: ClusterStatus, console: Console) -> None:
    """Print the screen; in large clusters, healthy nodes and devices are only counted."""
    _headline(status, console)
    _nodes(status.nodes, console, fold=len(status.nodes) > MOST_NODES)
    _devices(status.device_list, console, fold=len(status.device_list) > MOST_DEVICES)
    _rest(status, console, most=MOST_CLAIMS, fold=True)


def show_wide(status: ClusterStatus, console: Console) -> None:
    """Print the screen with every device and every claim."""
    _headline(status, console)
    _nodes(status.nodes, console, fold=False)
    _devices(status.device_list, console, fold=False)
    _rest(status, console, most=len(status.claim_list), fold=False)


def _rest(status: ClusterStatus, console: Console, *, most: int, fold: bool) -> None:
    _claims(status, console, most=most)
    _rules(status, console, fold=fold)
    _maintenance(status, console)
    _policies(status, console)
    _tenants(status, console)
    _notes(status, console)


def _headline(status: ClusterStatus, console: Console) -> None:
    ready = sum(node.ready for node in status.nodes if node.name)
    named = sum(1 for node in status.nodes if node.name)
    states = [f"{number} {state}" for state in _COUNTED if (number := status.devices.of(state))]
    claims = status.claims
    claim_states = [
        f"{number} {word}"
        for number, word in (
            (claims.pending - claims.unused, "pending"),
            (claims.unused, "not used by any pod yet"),
            (claims.allocated, "allocated, but used by no pod"),
            (claims.reserved, "in use by pods"),
            (claims.deleting, "being deleted"),
        )
        if number
    ]
    console.print(Text(f"Cluster  {status.server or '-'}"))
    table = _table("", "", "")
    table.show_header = False
    table.add_row("Nodes", str(named), f"{ready} ready" + (f", {named - ready} not ready" if ready < named else ""))
    table.add_row("Devices", str(status.devices.total), ", ".join(states))
    within = f" (only namespace {status.namespace})" if status.namespace else ""
    table.add_row("Claims", str(claims.total), ", ".join(claim_states) + within)
    console.print(table)


def _nodes(nodes: Iterable[NodeView], console: Console, *, fold: bool) -> None:
    _section("NODES", console)
    shown = [node for node in nodes if node.devices.total or node.gpus is not None or (node.name and not node.ready)]
    if not shown:
        console.print("No node publishes devices. Is a DRA driver (for Draco: its agent) running on the GPU nodes?")
        return
    columns = [
        state
        for state in _COUNTED
        if state not in {DeviceState.BLOCKED, DeviceState.OFFLINE} or any(node.devices.of(state) for node in shown)
    ]
    folded = [node for node in shown if fold and _in_order(node)]
    titles = [state.upper() for state in columns]
    table = _table("NODE", "STATE", "DEVICES", *titles, numbers=range(2, 3 + len(titles)))
    for node in shown:
        if node not in folded:
            cells = [_number(node.devices.of(state), state) for state in columns]
            table.add_row(node.name or NO_NODE, _node_state(node), str(node.devices.total), *cells)
    if folded:
        sums = [_number(sum(node.devices.of(state) for node in folded), state) for state in columns]
        total = sum(node.devices.total for node in folded)
        table.add_row(f"({len(folded)} others)", Text("Ready", "green"), str(total), *sums)
    console.print(table)


def _in_order(node: NodeView) -> bool:
    """Whether the node has nothing to show but numbers."""
    devices = node.devices
    return (
        node.ready
        and not node.agent
        and node.schedulable
        and devices.free + devices.in_use + devices.blocked == devices.total
    )


def _node_state(node: NodeView) -> Text:
    if not node.name:
        return Text("-")
    if not node.ready:
        return Text("NotReady", "red")
    if node.agent:
        return Text("Ready, agent lost" if node.agent == REASON_AGENT_LOST else "Ready, agent not ready", "red")
    return Text("Ready", "green") if node.schedulable else Text("Ready, cordoned", "yellow")


def _devices(devices: Sequence[DeviceView], console: Console, *, fold: bool) -> None:
    plain = {DeviceState.FREE, DeviceState.IN_USE, DeviceState.BLOCKED}
    shown = [view for view in devices if view.state not in plain] if fold else devices
    if shown:
        drivers = len({view.driver for view in devices}) > 1
        table = _table("NODE", *(["DRIVER"] if drivers else []), "DEVICE", "PRODUCT", "STATE", "DETAIL")
        node = None
        for view in shown:
            table.add_row(
                "" if view.node == node else view.node or NO_NODE,
                *([view.driver] if drivers else []),
                view.device,
                view.product or "-",
                Text(view.state, STYLES[view.state]),
                _detail(view),
            )
            node = view.node
        _section("DEVICES OUT OF SERVICE" if fold else "DEVICES", console)
        console.print(table)
    if fold:
        console.print("Devices that are free or in use are counted above; list every one with -o wide.", style="dim")
    if sick := next((view for view in shown if view.health not in {"", "Healthy"}), None):
        console.print(f"Since when, and what to do: draco health {sick.node}/{sick.device}", style="dim")
    if any(view.state is DeviceState.BLOCKED for view in devices):
        console.print(
            "Blocked: their hardware is in use by others. How GPUs are divided: draco layout show", style="dim"
        )


def _detail(view: DeviceView) -> str:
    parts = []
    if view.maintenance:
        parts.append(f"DeviceMaintenance {view.maintenance} ({_PHASE_WORDS.get(view.maintenance_phase, 'pending')})")
    if view.health not in {"", "Healthy"}:
        parts.append(f"health {view.health.lower()}" + (f": {view.message.rstrip('.')}" if view.message else ""))
    if view.taints:
        parts.append(" ".join(map(_taint_words, view.taints)))
    if view.claims:
        parts.append(f"claim {', '.join(view.claims)}")
    if view.claims_on_parts:
        parts.append(f"on partitions: claim {_some(view.claims_on_parts)}")
    return "; ".join(parts)


def _taint_words(taint: str) -> str:
    """The taint as text; a fault taint of an agent as the fault."""
    key, _, rest = taint.partition("=")
    family, (fault, _, effect) = key.removeprefix(TAINT_FAMILIES), rest.rpartition(":")
    if not key.startswith(TAINT_FAMILIES) or family not in _FAMILIES:
        return taint
    return f"fault {fault}, announced only" if effect == "None" else f"fault {fault} ({key}:{effect})"


def _claims(status: ClusterStatus, console: Console, *, most: int) -> None:
    rank = [ClaimState.PENDING, ClaimState.DELETING, ClaimState.ALLOCATED, ClaimState.RESERVED]
    ordered = sorted(status.claim_list, key=lambda view: (rank.index(view.state), not view.waiting))
    if not ordered:
        return
    table = _table("NAMESPACE", "CLAIM", "STATE", "PODS", "DEVICES")
    for view in ordered[:most]:
        table.add_row(
            view.namespace,
            view.name,
            Text(CLAIM_WORDS[view.state], STYLES.get(view.state, "")),
            _pods(view),
            ", ".join(name.partition("/")[2] for name in view.devices) or "-",
        )
    _section("CLAIMS", console)
    console.print(table)
    if len(ordered) > most:
        console.print(f"and {len(ordered) - most} more; list every one with -o wide.", style="dim")
    if first := next((view for view in ordered if view.waiting), None):
        ask = f"kubectl events -n {first.namespace} --for resourceclaim/{first.name}"
        console.print(f"Why a claim is pending: {ask}", style="dim")


def _pods(view: ClaimView) -> str:
    if view.waiting:
        return f"{_some(view.waiting)} ({agreeing(len(view.waiting), 'waits', 'wait')})"
    if view.state is ClaimState.PENDING:
        return "none uses it yet"
    return _some(view.consumers) if view.consumers else "-"


def _rules(status: ClusterStatus, console: Console, *, fold: bool) -> None:
    if not status.taint_rules:
        return
    table = _table("RULE", "TAINT", "SELECTS", "DEVICES", "CLAIMS", "PODS")
    # Rules that extend another to partitions, or belong to a request, are only counted: one GPU can have dozens.
    shown = [rule for rule in status.taint_rules if not (fold and (rule.extends or rule.maintenance))]
    for rule in shown:
        table.add_row(rule.name, rule.taint, rule.selector, _some(rule.devices), _some(rule.claims), _some(rule.pods))
    _section("TAINT RULES", console)
    if shown:
        console.print(table)
    for rule in shown:
        if rule.budgets:
            allow = agreeing(len(rule.budgets), "allows", "allow")
            console.print(
                f"- {rule.name}: PodDisruptionBudget {_some(rule.budgets)} {allow} fewer evictions than NoExecute makes; "
                f"see `draco taint preview {rule.name}`.",
                style="yellow",
            )
    if folded := len(status.taint_rules) - len(shown):
        rules = counted(folded, "rule")
        console.print(
            f"{rules} of DeviceMaintenances and of Draco's extensions; list every one with -o wide.", style="dim"
        )


def _maintenance(status: ClusterStatus, console: Console) -> None:
    if status.maintenance:
        table = _table("REQUEST", "PHASE", "DEVICES", "STILL IN USE", "PODS", "WAITS FOR", "REASON", "DETAIL")
        for item in status.maintenance:
            words = (str(item.in_use), str(len(item.pods)), item.waits_for or "-", item.reason or "-", item.message)
            table.add_row(item.name, item.phase, _some(item.devices), *words)
        _section("MAINTENANCE", console)
        console.print(table)
        console.print("What to do next: draco maintain status NAME", style="dim")
    if status.budgets:
        table = _table("BUDGET", "LIMIT", "STATE", "GPUS", "OUT OF SERVICE", "WAITING", "DETAIL", numbers=range(3, 6))
        for budget in status.budgets:
            state = Text("paused", "yellow") if budget.paused else Text("in force")
            numbers = (_counted(budget.devices), _counted(budget.out_of_service), _counted(budget.waiting))
            table.add_row(budget.name, budget.limit or "-", state, *numbers, budget.message)
        _section("MAINTENANCE BUDGETS", console)
        console.print(table)


def _policies(status: ClusterStatus, console: Console) -> None:
    if status.mig_policies:
        _mig_policies(status, console)
    if status.sharing_policies:
        table = _table("POLICY", "MODE", "GPUS", "SHARED", "WAITING", "FAILED", "DETAIL", numbers=range(2, 6))
        for policy in status.sharing_policies:
            counts = (
                _counted(policy.shared, "green"),
                _counted(policy.waiting, "yellow"),
                _counted(policy.failed, "red"),
            )
            table.add_row(policy.name, policy.mode, _counted(policy.gpus), *counts, policy.message)
        _section("SHARING POLICIES", console)
        console.print(table)


def _mig_policies(status: ClusterStatus, console: Console) -> None:
    table = _table("POLICY", "MODE", "GPUS", "APPLIED", "CHANGING", "FAILED", "DETAIL", numbers=range(2, 6))
    for policy in status.mig_policies:
        table.add_row(
            policy.name,
            f"{policy.mode}, {policy.layout}" if policy.layout else policy.mode,
            _counted(policy.gpus),
            _counted(policy.applied, "green"),
            _counted(policy.changing, "yellow"),
            _counted(policy.failed, "red"),
            policy.message,
        )
    _section("MIG POLICIES", console)
    console.print(table)
    console.print("How each GPU is divided: draco layout show", style="dim")


def _tenants(status: ClusterStatus, console: Console) -> None:
    if status.limits:
        table = _table("LIMIT", "PER", "NAMESPACES", "NEAREST", "USED", "WAITING", "DETAIL", numbers=(2, 5))
        for limit in status.limits:
            words = (limit.nearest or "-", limit.used or "-", _counted(limit.waiting, "yellow"), limit.message)
            table.add_row(limit.name, limit.per, _counted(limit.namespaces), *words)
        _section("DEVICE LIMITS", console)
        console.print(table)
    if status.reservations:
        table = _table(
            "NAMESPACE", "RESERVATION", "COUNT", "RESERVED", "IN USE", "EXPIRES", "DETAIL", numbers=range(2, 5)
        )
        for each in status.reservations:
            numbers = (str(each.count), _counted(each.reserved), _counted(each.in_use))
            table.add_row(each.namespace, each.name, *numbers, each.expires_at or "-", each.message)
        _section("DEVICE RESERVATIONS", console)
        console.print(table)


def _notes(status: ClusterStatus, console: Console) -> None:
    if status.warnings:
        _section("WARNINGS", console)
        for warning in status.warnings:
            console.print(f"- {warning}", style="yellow")
    if status.missing:
        _section("MISSING", console)
        for item in status.missing:
            console.print(f"- {item.name}: {item.consequence} {item.remedy}".rstrip())
        console.print(
            "The operator and the agents notice a change within five minutes; nothing needs a restart.", style="dim"
        )


def _section(title: str, console: Console) -> None:
    console.print()
    console.print(title, style="bold")


def _table(*columns: str, numbers: Collection[int] = ()) -> Table:
    # Style the header's text, not its cell: a cell style would colour the padding too.
    return table(*(Text(column, "dim") for column in columns), numbers=numbers)


def _number(number: int, state: DeviceState) -> Text:
    return _counted(number, STYLES[state])


def _counted(number: int, style: str = "") -> Text:
    return Text(str(number), style) if number else Text("-", "dim")


def _some(names: Sequence[str]) -> str:
    return listed(names) or "none"
