"""The schemas of `draco layout show -o json` and `draco layout plan -o json`. Fields are only added under one schema name."""

from enum import StrEnum

from draco.resources.api.base import OutputStruct

SHOW_SCHEMA = "draco.dev/layout/v1"
PLAN_SCHEMA = "draco.dev/layout-plan/v1"


class Use(StrEnum):
    """The use of an instance. `coming`: allocated to a claim, but not created yet."""

    CLAIM = "claim"
    COMING = "coming"
    WARM = "warm"
    LAYOUT = "layout"
    FOREIGN = "foreign"
    ORPHAN = "orphan"


class Division(StrEnum):
    """Whether a GPU is divided. `unreported`: it can be, but its agent does not report its state."""

    ON = "on"
    OFF = "off"
    INCAPABLE = "incapable"
    UNREPORTED = "unreported"


class InstanceView(OutputStruct, frozen=True, kw_only=True):
    """An instance, or the placement of one: `size` memory units from `start`.

    `claims` are "namespace/name"; `holder` prevents its destruction. `uuid` is "" without a compute instance.
    """

    profile: str
    start: int
    size: int
    use: Use
    claims: list[str] = []
    holder: str = ""
    device: str = ""
    uuid: str = ""


class FitView(OutputStruct, frozen=True, kw_only=True):
    """How many more of a profile fit if nothing else is placed, and where one may start now."""

    profile: str
    count: int
    starts: list[int] = []


class GpuView(OutputStruct, frozen=True, kw_only=True):
    """One GPU. `units` is 0 if its board is unknown; `claims` have the whole GPU.

    `state` is Ready, Changing, Dirty or NeedsReset. `fits` is the free room, `fits_without_warm` the room after warm instances
    give way. Claims get that room only in mode Dynamic.
    """

    device: str
    uuid: str
    product: str
    memory: str
    division: Division
    units: int = 0
    board: str = ""
    state: str = ""
    message: str = ""
    policy: str = ""
    mode: str = ""
    claims: list[str] = []
    parts: list[InstanceView] = []
    fits: list[FitView] = []
    fits_without_warm: list[FitView] = []


class NodeLayoutView(OutputStruct, frozen=True, kw_only=True):
    """One node with its GPUs."""

    name: str
    gpus: list[GpuView]


class LayoutView(OutputStruct, frozen=True, kw_only=True):
    """The document of `show`."""

    schema: str = SHOW_SCHEMA
    server: str = ""
    nodes: list[NodeLayoutView]
    notes: list[str] = []
    """What could not be read, and the consequence."""


class LayoutOutcome(StrEnum):
    """What happens to a GPU: the strongest outcome that applies.

    `cannot`: the policy cannot be applied there. `reset`: it needs a reset, which the policy permits now or in a window. `waits`:
    something in use must go first. `unknown`: its agent has not reported enough. `changes`: instances, the mode or how claims get
    the GPU change right away. `older policy`: the policy selects the GPU, but an older one has it.
    """

    CANNOT = "cannot"
    RESET = "reset"
    WAITS = "waits"
    UNKNOWN = "unknown"
    CHANGES = "changes"
    OLDER = "older policy"
    UNCHANGED = "unchanged"


class PlaceView(OutputStruct, frozen=True, kw_only=True):
    """A profile at a memory unit."""

    profile: str
    start: int


class WaitView(OutputStruct, frozen=True, kw_only=True):
    """An obstacle, "1g.10gb at 0" or "the whole GPU", and who has it: `claims`, `holder`, or if both are empty its maker."""

    what: str
    claims: list[str] = []
    holder: str = ""


class GpuPlanView(OutputStruct, frozen=True, kw_only=True):
    """What a policy change does to one GPU. `before` and `policy` are its policies before and after, "" for none.

    `makes` and `destroys` happen right away, `makes_later` after a reset or once the obstacles in `waits` are gone. `mode_change`
    is "on", "off" or "". `promised` placements stay free for claims whose pods have not started. `message` gives the reason of
    `cannot` or a remark.
    """

    node: str
    device: str
    uuid: str
    outcome: LayoutOutcome
    before: str = ""
    policy: str = ""
    mode: str = ""
    mode_change: str = ""
    keeps: list[PlaceView] = []
    destroys: list[PlaceView] = []
    makes: list[PlaceView] = []
    makes_later: list[PlaceView] = []
    waits: list[WaitView] = []
    promised: list[WaitView] = []
    message: str = ""


class PolicyPlanView(OutputStruct, frozen=True, kw_only=True):
    """One policy of the files, or a `deleted` one, whose `gpus` are those it has had.

    `problem` says why it cannot be applied as it is, `message` is a remark.
    """

    name: str
    mode: str
    layout: str = ""
    new: bool
    unchanged: bool = False
    deleted: bool = False
    gpus: int
    problem: str = ""
    message: str = ""


class PlanView(OutputStruct, frozen=True, kw_only=True):
    """The whole plan. `applicable` decides the exit status: no policy has a problem, no GPU is `cannot`."""

    schema: str = PLAN_SCHEMA
    server: str = ""
    applicable: bool
    policies: list[PolicyPlanView]
    gpus: list[GpuPlanView]
    notes: list[str] = []
