"""Texts that others wrote, made fit to be shown.

Owns one question: what of a text may reach a terminal, an Event or a log. Names of processes, selectors and messages can hold
escape sequences that rewrite a screen, line breaks that forge a line, and marks that turn the order of letters around. Pure.
"""


def shown(text: str) -> str:
    """The text on one line: white space as spaces, whatever else is not printable as its code."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else _code(each) for each in text)


def shown_lines(text: str) -> str:
    """The same of a text of several lines, which are ours."""
    return "\n".join(map(shown, text.split("\n")))


def shown_document(text: str) -> str:
    """A document in JSON that means the same, without what is not printable."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _code(each) for each in text)


def _code(character: str) -> str:
    """As JSON has it: what lies beyond four digits as two halves."""
    halves = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{halves[at : at + 2].hex()}" for at in range(0, len(halves), 2))
