"""Random changes of texts, modelled on how hostile and careless texts differ from good ones.

Owns the ways of changing a text. Every choice is drawn from the `Random` that is passed in.
"""

import random
from collections.abc import Sequence

LONGEST = 20_000
"""Characters: twice the longest selector that the API takes."""
CHARACTERS = "\0\t\n\r \"'`\\(){}[]<>,.:;!?&|=+-*/%#@$^~_0129azAZ\x7f\u00e9\u0660\u2028\ud7ff\ufeff\U0001f600"


def changed(source: random.Random, text: str, others: Sequence[str], tokens: Sequence[str]) -> str:
    """The text after one to four changes. `others` are spliced in; `tokens` have a meaning in such a text."""
    for _ in range(source.randint(1, 4)):
        text = source.choice(_WAYS)(source, text, source.choice(others), source.choice(tokens))[:LONGEST]
    return text


def _dropped(source: random.Random, text: str, _other: str, _token: str) -> str:
    start, end = _span(source, text)
    return text[:start] + text[end:]


def _doubled(source: random.Random, text: str, _other: str, _token: str) -> str:
    start, end = _span(source, text)
    return text[:end] + text[start:end] * source.choice([1, 1, 2, 50]) + text[end:]


def _spliced(source: random.Random, text: str, other: str, _token: str) -> str:
    start, end = _span(source, text)
    from_, to = _span(source, other)
    return text[:start] + other[from_:to] + text[end:]


def _joined(source: random.Random, text: str, other: str, token: str) -> str:
    return f"{text}{token}{other}" if source.random() < 0.5 else f"{other}{token}{text}"


def _with_token(source: random.Random, text: str, _other: str, token: str) -> str:
    start, end = _span(source, text) if source.random() < 0.5 else (_place(source, text),) * 2
    return text[:start] + token + text[end:]


def _with_character(source: random.Random, text: str, _other: str, _token: str) -> str:
    place = _place(source, text)
    return text[:place] + source.choice(CHARACTERS) + text[place + source.randrange(2) :]


def _with_number(source: random.Random, text: str, _other: str, _token: str) -> str:
    start, end = _span(source, text)
    power = source.choice([0, 7, 8, 31, 32, 53, 63, 64, 128, 400])
    return f"{text[:start]}{source.choice(['', '-'])}{(1 << power) + source.choice([-1, 0, 1])}{text[end:]}"


def _nested(source: random.Random, text: str, _other: str, _token: str) -> str:
    depth = source.choice([2, 20, 300, 3_000])
    before, after = source.choice(
        [("(", ")"), ("[", "]"), ("{", "}"), ('{"a":', "}"), ("!", ""), ("-", ""), ("[{", "}]")]
    )
    start, end = _span(source, text)
    return text[:start] + before * depth + text[start:end] + after * depth + text[end:]


def _span(source: random.Random, text: str) -> tuple[int, int]:
    start = _place(source, text)
    return start, min(len(text), start + source.choice([1, 2, 5, 20, 200]))


def _place(source: random.Random, text: str) -> int:
    return source.randint(0, len(text))


_WAYS = (_dropped, _doubled, _spliced, _joined, _with_token, _with_token, _with_character, _with_number, _nested)
