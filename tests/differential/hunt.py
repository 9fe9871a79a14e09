"""Look for selectors that Draco and Kubernetes answer differently: `python -m tests.differential.hunt --selectors 5000`.

Prints each difference as a case for `kept/cel`, with the seed that reproduces it. Exits with 1 if there was one.
"""

import json
import random
import secrets
import sys

import click

from tests.differential.cel_cases import a_device, an_expression
from tests.differential.selector_answers import BREAKDOWN, draco_says, kubernetes_says, without_luck
from tests.oracle.programs import oracle

DEVICES_EACH = 3


@click.command()
@click.option("--selectors", default=2000, show_default=True, help="How many selectors to try, each on three devices.")
@click.option("--seed", type=int, help="Repeat a run; without it, a new one.")
def main(selectors: int, seed: int | None) -> None:
    """Compare the answers to random selectors."""
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    source = random.Random(seed)
    compared = different = 0
    with oracle("cel") as go:
        for _ in range(selectors):
            expression = an_expression(source)
            cases = [{"expression": expression, "device": a_device(source)} for _ in range(DEVICES_EACH)]
            for case, wanted in zip(cases, kubernetes_says(go, *cases), strict=True):
                if BREAKDOWN in wanted.get("error", ""):
                    continue
                compared += 1
                said = draco_says(case)
                if without_luck(case, said) != without_luck(case, wanted):
                    different += 1
                    click.echo(f"{json.dumps(case)}\n  Kubernetes: {wanted}\n  Draco:      {said}")
                    break
    click.echo(f"{compared} answers compared with --seed {seed}: {different} selectors differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
