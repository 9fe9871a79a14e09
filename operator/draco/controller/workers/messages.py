"""The protocol between the operator and its fleet process: messages, their framing on a pipe, and texts for missing answers.

Owns the structs, the frames (four bytes of length, then MessagePack; both ends are always of the same release) and the sentences
about questions that exceeded their budget or failed.
"""

import os
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from draco.explanation.model import Problem
from draco.mig_policy.releases import ClaimRelease
from draco.placing.groups.group import ClaimGroup, GroupMember, GroupPlacement
from draco.placing.preempting.victim_selection import PreemptionInput, PreemptionPlan
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.names import PoolKey

MEMORY_MIB = 384
"""What a child may use beyond the memory it shares at first."""
MOST_STEPS = 1_000_000
"""Steps after which Kubernetes, and so Draco, ends an evaluation."""
MOST_BYTES = 256 << 20
"""Maximum size of a message: one batch of changes is always smaller, however large the objects are."""
MOST_ANSWER_BYTES = 16 << 20
_LENGTH_BYTES = 4


class NotAMessage(Exception):
    """A pipe delivered something that is no message, or is too long for one."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all messages."""


class ExplainPending(Message, frozen=True):
    """Asks why a pod's claims are not allocated."""

    pod: Pod
    claims: list[ResourceClaim]
    scheduler: str
    minor: int | None


class CheckClaim(Message, frozen=True):
    """Asks what is wrong with a claim itself. `kind` is what its author wrote: "claim", or "claim template"."""

    claim: ResourceClaim
    kind: str = "claim"


class FindRelease(Message, frozen=True):
    """Asks which movable claims, each with how many may go together, are in a pod's way."""

    pod: Pod
    claims: list[ResourceClaim]
    movable: list[tuple[ObjectKey, int]]


class PlaceClaims(Message, frozen=True):
    """Asks where groups go, each after those before it. `held` are extra claims to count; nodes of `spread` are filled evenly."""

    groups: list[ClaimGroup]
    held: list[ResourceClaim]
    spread: list[PoolKey] = []


class PlanPreemption(Message, frozen=True):
    """Asks whose pods must leave so that a group gets devices. `held` and `spread` as in PlaceClaims."""

    wanted: PreemptionInput
    held: list[ResourceClaim]
    spread: list[PoolKey] = []


Question: TypeAlias = ExplainPending | CheckClaim | FindRelease | PlaceClaims | PlanPreemption


def _members(question: Question) -> list[GroupMember]:
    """The claims that a question is about, with their pods, if any."""
    match question:
        case CheckClaim():
            return [GroupMember([question.claim])]
        case PlaceClaims():
            return [member for group in question.groups for member in group.members]
        case PlanPreemption():
            return question.wanted.group.members
    return [GroupMember(question.claims, [question.pod])]


def claims_of(question: Question) -> list[ResourceClaim]:
    """The claims that a question is about."""
    return [claim for member in _members(question) for claim in (*member.claims, *member.others)]


def pods_of(question: Question) -> list[Pod]:
    """The pods of the claims, if any."""
    return [pod for member in _members(question) for pod in member.pods]


class UnmetDevices(Message, frozen=True):
    """Devices that a claim wants and no node could provide even when idle; a new node would need them.

    `claim` is its index in the question. Class, product and profile are names that the cluster publishes or Draco knows, "" for
    any other: nothing that tenants write gets here.
    """

    claim: int
    device_class: str
    product: str
    profile: str
    count: int


class PendingAnswer(Message, frozen=True):
    """Answers ExplainPending: text, main cause in one word, what a new node would need, and whom the text applies to."""

    text: str
    reason: str
    unmet: list[UnmetDevices] = []
    names_subject: bool = False
    names_group: bool = False


class ClaimProblems(Message, frozen=True):
    """The answer to CheckClaim."""

    problems: list[Problem]


class ReleaseAnswer(Message, frozen=True):
    """The answer to FindRelease."""

    release: ClaimRelease | None


class PlacementAnswer(Message, frozen=True):
    """The answer to PlaceClaims: a placement for each group."""

    placements: list[GroupPlacement]


class PreemptionAnswer(Message, frozen=True):
    """The answer to PlanPreemption; None if no eviction helps."""

    plan: PreemptionPlan | None


class CostlySelector(Message, frozen=True):
    """The costliest selector: number `number`, counted from 0, of a request, or of a class if there is no request."""

    claim: int
    request: str
    device_class: str
    number: int
    steps: int


class OverBudget(Message, frozen=True):
    """No answer: over budget. `selector` is the costliest, if one explains it."""

    selector: CostlySelector | None
    devices: int


class OutOfMemory(Message, frozen=True):
    """No answer: over the memory budget."""


class Failed(Message, frozen=True):
    """No answer: the child failed, died, or was too late."""

    why: str


NoAnswer: TypeAlias = OverBudget | OutOfMemory | Failed
"""Why there is no answer; a child that sends one exits, because its fleet is in an undefined state."""


class NotReached(Message, frozen=True):
    """Not started: the questions before it used the time of the whole row. Its cost is unknown."""


Answer: TypeAlias = PendingAnswer | ClaimProblems | ReleaseAnswer | PlacementAnswer | PreemptionAnswer | NoAnswer


class PutObject(Message, frozen=True):
    """An object's current state, in MessagePack."""

    kind: str
    body: bytes


class Remove(Message, frozen=True):
    """A deleted object."""

    kind: str
    key: ObjectKey


class Changes(Message, frozen=True):
    """Changes of the cluster. With them everything up to `version` has been sent."""

    changes: list[PutObject | Remove]
    version: int


class AskQuestions(Message, frozen=True):
    """A row of numbered questions about the cluster as of `version` or later, answered one after the other.

    Each has the whole budget, but once they have used as much together, no further one is started. `is_last` asks why the budget
    was exceeded.
    """

    questions: list[tuple[int, Question]]
    version: int
    cpu_s: float
    wall_s: float
    is_last: bool


class Reply(Message, frozen=True):
    """The answer to the question of this number, about the cluster as of `version`, and its CPU time."""

    number: int
    answer: Answer | NotReached
    version: int
    cpu_s: float


class SkippedObject(Message, frozen=True):
    """An object that cannot be read; a scheduler that cannot read it would leave it out, too."""

    kind: str
    key: ObjectKey
    error: str


Inward: TypeAlias = Changes | AskQuestions
Outward: TypeAlias = Reply | SkippedObject
M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()
_inward = msgspec.msgpack.Decoder(Inward)
_outward = msgspec.msgpack.Decoder(Outward)


def frame(message: Message) -> bytes:
    """The message framed for a pipe."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def write(pipe: int, message: Message) -> None:
    """Write the whole message to a pipe."""
    view = memoryview(frame(message))
    while view:
        view = view[os.write(pipe, view) :]


def inward(body: bytes) -> Inward:
    """Decode a message to the fleet process or one of its children. Raises NotAMessage."""
    return _decoded(_inward, body)


def outward(body: bytes) -> Outward:
    """Decode a message from there. Raises NotAMessage."""
    return _decoded(_outward, body)


def _decoded(decoder: "msgspec.msgpack.Decoder[M]", body: bytes) -> M:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise NotAMessage(f"this is not a message ({error})") from error


class FrameReader:
    """Splits the data of a pipe into message bodies of at most `most` bytes."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies completed by this data. Raises NotAMessage as soon as a length is too large."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            length = int.from_bytes(self._buffer[start:begin], "big")
            if length > self._most:
                raise NotAMessage(f"a message of {length:,} bytes is announced; none has more than {self._most:,}")
            end = begin + length
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[begin:end])
            start = end
        del self._buffer[:start]


TOO_COSTLY = "TooCostly"
"""The main cause in one word, for a question over budget."""
UNKNOWN = "Unknown"


def refusal(answer: NoAnswer, claims: Sequence[ResourceClaim], cpu_s: float) -> str:
    """The text for claims without an answer, whose budget was `cpu_s`."""
    if isinstance(answer, Failed):
        return f"the check failed ({answer.why}); Draco tries again later"
    if isinstance(answer, OutOfMemory):
        return f"checking it needs more than {MEMORY_MIB} MiB of memory; split the claim"
    if answer.selector is None:
        return f"checking it needs more than {cpu_s:g} s of CPU time on {answer.devices} devices; split the claim"
    return f"{_which(answer.selector, claims)} takes {_steps(answer.selector)} on each of {answer.devices} devices; simplify it"


def _which(selector: CostlySelector, claims: Sequence[ResourceClaim]) -> str:
    if selector.device_class:
        return f"selector #{selector.number} of class {selector.device_class}"
    claim = claims[selector.claim].metadata.key
    return f"selector #{selector.number} of request {selector.request} of claim {claim}"


def _steps(selector: CostlySelector) -> str:
    if selector.steps >= MOST_STEPS:
        return f"{MOST_STEPS:,} steps, the most that Kubernetes allows,"
    rounded = round(selector.steps, 2 - len(str(selector.steps)))
    return f"about {rounded:,} steps"
