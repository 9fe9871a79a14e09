"""Lines for a terminal: an explanation for people who want to know it all.

Owns the layout; the sentences are `wording`'s. Wraps and colours nothing: that is whoever prints them.
"""

from collections.abc import Iterator

from draco.explanation.model import Explanation
from draco.explanation.wording import node_text, problem_text


def report(told: Explanation) -> list[str]:
    """The whole explanation, line by line; indented by two blanks for each level."""
    return list(_lines(told))


def _lines(told: Explanation) -> Iterator[str]:
    yield told.summary
    for request in told.requests:
        yield ""
        yield f"Request {request.request} of claim {request.claim} (class {request.device_class}, {request.wanted} wanted)"
        for count in request.causes:
            yield f"  {count.devices:>6} {count.text}"
    if told.nodes:
        yield ""
        yield "Nodes"
        for cause in told.nodes:
            yield f"  {node_text(cause)}"
    if told.problems:
        yield ""
        yield "What is wrong with the request"
        for problem in told.problems:
            yield f"  {problem_text(problem)}"
    if told.nearest:
        yield ""
        yield "It would fit if"
        for miss in told.nearest:
            where = f" (then on node {miss.node})" if miss.node else ""
            yield f"  {miss.text}{where}"
