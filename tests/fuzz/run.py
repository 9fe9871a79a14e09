"""One fuzz run: random texts for one target, for some time, keeping those that got a new kind of answer.

Owns the loop and the two laws of every target: it answers within `PATIENCE_S`, and raises no unexpected exception.
"""

import contextlib
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NamedTuple

from tests.fuzz.mutation import changed

PATIENCE_S = 10.0
"""Ten times what the slowest input takes on an idle machine."""
KEPT = 2_000


class Target(NamedTuple):
    """Something that reads texts. `read` returns the answer, and raises only if a law was broken."""

    name: str
    read: Callable[[str], str]
    corpus: Sequence[str]
    tokens: Sequence[str]


class Broken(Exception):
    """A text that broke a law."""

    def __init__(self, target: str, text: str, seed: int) -> None:
        super().__init__(f"{target} did not answer as it should (DRACO_SEED={seed}): {text!r}")
        self.text = text


class Done(NamedTuple):
    """The result of a run: how many texts were read, and how many kinds of answers came."""

    texts: int
    kinds: int


def fuzz(target: Target, *, seconds: float, seed: int) -> Done:
    """Read the corpus, then random texts until the time is up, at least one. Raises Broken for the first bad one."""
    source = random.Random(f"{target.name} {seed}")
    corpus = list(target.corpus)
    kinds: set[str] = set()
    texts = 0
    end = time.monotonic() + seconds
    waiting = list(corpus)
    while waiting or texts <= len(target.corpus) or time.monotonic() < end:
        new = not waiting
        text = changed(source, source.choice(corpus), corpus, target.tokens) if new else waiting.pop()
        kind = _kind(_answer(target, text, seed))
        texts += 1
        if kind not in kinds:
            kinds.add(kind)
            if new and len(corpus) < KEPT:
                corpus.append(text)
    return Done(texts, len(kinds))


def _answer(target: Target, text: str, seed: int) -> str:
    try:
        with _patience():
            return target.read(text)
    except Exception as error:
        raise Broken(target.name, text, seed) from error


def _kind(answer: str) -> str:
    """An answer without quotations and numbers, so that one sentence is one kind."""
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"|`[^`]*`", "*", answer[:2_000])[:200]


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {PATIENCE_S:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
