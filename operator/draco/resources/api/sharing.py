"""SharingPolicy, and the form of a GPU that a node is to share; its schema is in `crds/`, and a test compares the two."""

from enum import StrEnum

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.meta import Condition, LabelSelector, ObjectStruct


class SharingMode(StrEnum):
    """What bounds the shares of a device: its memory, a number, or nothing."""

    MEMORY = "Memory"
    COUNT = "Count"
    UNLIMITED = "Unlimited"


class Enforcement(StrEnum):
    """What holds a share to its memory: nothing, NVIDIA's driver, MPS, or a library in its containers."""

    NONE = "None"
    DRIVER_LIMIT = "DriverLimit"
    MPS = "MPS"
    LIBRARY = "Library"


class SharingSettings(ApiStruct, frozen=True, kw_only=True):
    """How claims share a GPU, as an administrator writes it. Amounts of memory are quantities, "" for what its size makes of it.

    `mig_devices`: its MIG devices are shared, too.
    """

    mode: SharingMode
    step: str = ""
    minimum: str = ""
    default: str = ""
    count: int | None = None
    mig_devices: bool = False
    enforcement: Enforcement = Enforcement.NONE


class SharedGpu(SharingSettings, frozen=True, kw_only=True):
    """How a GPU is published for several claims. `policy` is "" where only published devices tell of it."""

    uuid: str
    policy: str


class SharingPolicySpec(SharingSettings, frozen=True, kw_only=True):
    """Selected GPUs, and how claims share them."""

    node_selector: LabelSelector | None = None
    device_selectors: list[DeviceSelector] = []


class SharingPolicyNode(ApiStruct, frozen=True, kw_only=True):
    """State of a policy on one node."""

    name: str
    gpus: int | None = None
    shared: int | None = None
    waiting: int | None = None
    failed: int | None = None
    message: str = ""


class SharingPolicyConflict(ApiStruct, frozen=True, kw_only=True):
    """An older policy that also selects GPUs of this one."""

    policy: str
    gpus: int


class SharingPolicyStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `waiting` GPUs are not published as the policy asks yet."""

    observed_generation: int = 0
    gpus: int | None = None
    shared: int | None = None
    waiting: int | None = None
    failed: int | None = None
    message: str = ""
    conflicts: list[SharingPolicyConflict] = []
    nodes: list[SharingPolicyNode] = []
    conditions: list[Condition] = []


class SharingPolicy(ObjectStruct, frozen=True, kw_only=True):
    """How several claims share selected GPUs."""

    spec: SharingPolicySpec
    status: SharingPolicyStatus = SharingPolicyStatus()
