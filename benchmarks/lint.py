"""How long `draco lint` takes for 1,000 manifests that are applied together: right, one of ten wrong, all wrong.

Half of them are templates and half are pods that use them. Each wrong template has a mistake that is corrected: a quantity that
is compared as text, a form of v1beta1, a number in quotes. Reading, rules, corrections and the corrected text all count. The
figure is CPU time, the fastest of several runs.
"""

import sys
import time
from typing import Final

from benchmarks.table import Row, tell
from draco.cli.lint.command import LintResult, check

MANIFESTS: Final = 1_000
TARGET_S: Final = 5.0
TIMES: Final = 3
KUBERNETES: Final = 36
RIGHT: Final = """\
        exactly:
          deviceClassName: gpu.nvidia.com
          selectors:
          - cel:
              expression: device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{number}Gi")) >= 0
"""
WRONG: Final = (
    RIGHT.replace('.compareTo(quantity("{number}Gi")) >= 0', ' >= "{number}Gi"'),
    "        deviceClassName: gpu.nvidia.com\n        count: 1\n",
    '        exactly:\n          deviceClassName: gpu.nvidia.com\n          count: "2"\n',
)


def manifests(wrong_each: int) -> dict[str, str]:
    """Files by name. The first of each `wrong_each` templates is wrong; none for 0."""
    texts = {}
    for number in range(MANIFESTS // 2):
        is_wrong = wrong_each and number % wrong_each == 0
        request = (WRONG[number % len(WRONG)] if is_wrong else RIGHT).format(number=16 + number % 64)
        texts[f"{number}.yaml"] = (
            "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\n"
            f"metadata:\n  name: gpu-{number}\n  namespace: team\n"
            f"spec:\n  spec:\n    devices:\n      requests:\n      - name: gpu\n{request}"
            "---\n"
            f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: train-{number}\n  namespace: team\n"
            "spec:\n  containers:\n  - name: main\n    image: busybox\n    resources:\n      claims:\n      - name: gpu\n"
            f"  resourceClaims:\n  - name: gpu\n    resourceClaimTemplateName: gpu-{number}\n"
        )
    return texts


def checked(texts: dict[str, str]) -> tuple[float, LintResult]:
    """Seconds of CPU time, and what was found."""
    start = time.process_time()
    found = check(texts, kubernetes=KUBERNETES)
    return time.process_time() - start, found


def main() -> int:
    """Measure each share of wrong ones."""
    rows = []
    for kind, wrong_each in (("right", 0), ("one template of ten wrong", 10), ("all templates wrong", 1)):
        texts = manifests(wrong_each)
        runs = [checked(texts) for _ in range(TIMES)]
        seconds, found = min(seconds for seconds, _ in runs), runs[0][1]
        corrected = sum(each.corrected for each in found.findings)
        print(f"{kind}: {seconds:.1f} s, {len(found.findings)} findings, {corrected} corrected", flush=True)
        figure = f"lint: {MANIFESTS} manifests, {kind}"
        rows.append(Row(figure, f"{seconds:.1f} s", "-", f"<= {TARGET_S:.0f} s", seconds <= TARGET_S))
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
