"""The schemas of `draco layout show -o json` and `draco layout plan -o json`, which the screens print too.

Owns the structs and their field names: fields are only ever added under one schema name. Computes nothing.
"""

from enum import StrEnum

from draco.resources.api.base import OutputStruct

SHOW_SCHEMA = "draco.dev/layout/v1"
"""Name of the document of `show`. Fields are only ever added under one name."""
PLAN_SCHEMA = "draco.dev/layout-plan/v1"
"""Name of the document of `plan`. Fields are only ever added under one name."""


class Use(StrEnum):
    """What a part of a GPU is there for; `coming`: a claim has it, and its instance is not made yet."""

    CLAIM = "claim"
    COMING = "coming"
    WARM = "warm"
    LAYOUT = "layout"
    FOREIGN = "foreign"
    ORPHAN = "orphan"


class Division(StrEnum):
    """Whether a GPU is divided. `unreported`: it can be, and its agent does not say how it is now."""

    ON = "on"
    OFF = "off"
    INCAPABLE = "incapable"
    UNREPORTED = "unreported"


class InstanceView(OutputStruct, frozen=True, kw_only=True):
    """An instance, or the place of one: `size` memory units from `start`.

    `claims` are "namespace/name", `holder` is who keeps it from being destroyed. `uuid` is "" without a compute instance.
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
    """How many more of a profile there is room for, if nothing else comes, and where one may start now."""

    profile: str
    count: int
    starts: list[int] = []


class GpuView(OutputStruct, frozen=True, kw_only=True):
    """One GPU. `units` is 0 where its board is not known; `claims` have the GPU as a whole.

    `state` is Ready, Changing, Dirty or NeedsReset. `fits` is what there is room for, `fits_without_warm` once its warm
    instances have given way. Claims can have that in mode Dynamic; in others, or without a policy, it is room and no more.
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
    """Everything that `show` shows."""

    schema: str = SHOW_SCHEMA
    server: str = ""
    nodes: list[NodeLayoutView]
    notes: list[str] = []
    """What could not be read, and what that means."""


class LayoutOutcome(StrEnum):
    """What becomes of a GPU: the strongest that is true of it.

    `cannot`: the policy cannot be applied there. `reset`: it needs one, which the policy permits now or in a window. `waits`:
    something in use has to go first. `unknown`: its agent has not reported enough. `changes`: instances, the mode
    or how claims get the GPU change right away. `older policy`: the policy selects the GPU, and an older one has it.
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
    """Something in the way, "1g.10gb at 0" or "the whole GPU", and who has it: `claims`, `holder`, or else its maker."""

    what: str
    claims: list[str] = []
    holder: str = ""


class GpuPlanView(OutputStruct, frozen=True, kw_only=True):
    """What a policy change does to one GPU. `before` and `policy` are who has it before and after, "" for nobody.

    `makes` and `destroys` come about at once, `makes_later` after a reset or when what is in `waits` is gone. `mode_change` is
    "on", "off" or "". `promised` are places that stay free for claims whose pods have not started. `message` says why it cannot
    be, or what else is to be known.
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
    """One policy of the files, or one that is `deleted`, whose `gpus` are those it has had.

    `problem` says why it cannot be applied as it is, `message` what else is to be known of it.
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
    """Everything that `plan` says. `applicable` is what the exit status says: no policy has a problem, no GPU is `cannot`."""

    schema: str = PLAN_SCHEMA
    server: str = ""
    applicable: bool
    policies: list[PolicyPlanView]
    gpus: list[GpuPlanView]
    notes: list[str] = []
