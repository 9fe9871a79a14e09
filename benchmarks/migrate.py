"""How long `draco migrate convert` takes for 1,000 manifests: half of them ask for GPUs, all of them do.

They are Deployments with a node selector, and the others are Services. Reading, converting, editing the texts and checking each
edited text all count. The figure is CPU time, the fastest of several runs.
"""

import sys
import time
from typing import Final

from benchmarks.table import Row, tell
from draco.cli.migrate.workloads import ConvertedTexts, converted

MANIFESTS: Final = 1_000
TARGET_S: Final = 5.0
TIMES: Final = 3
DEPLOYMENT: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: serve-{number}
  namespace: team
spec:
  replicas: 2
  selector:
    matchLabels:
      app: serve-{number}
  template:
    metadata:
      labels:
        app: serve-{number}
    spec:
      nodeSelector:
        nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
      containers:
      - name: server  # the model server
        image: registry.k8s.io/pause:3.10
        args: ["--model", "m{number}"]
        resources:
          limits:
            cpu: "4"
            memory: 16Gi
            nvidia.com/gpu: {gpus}
"""
SERVICE: Final = """\
apiVersion: v1
kind: Service
metadata:
  name: serve-{number}
  namespace: team
spec:
  selector:
    app: serve-{number}
  ports:
  - port: 8000
"""


def manifests(asking_each: int) -> dict[str, str]:
    """Files by name, of which each `asking_each`-th asks for GPUs."""
    return {
        f"{number}.yaml": (SERVICE if number % asking_each else DEPLOYMENT).format(number=number, gpus=1 + number % 4)
        for number in range(MANIFESTS)
    }


def measured(texts: dict[str, str]) -> tuple[float, ConvertedTexts]:
    """Seconds of CPU time, and what was converted."""
    start = time.process_time()
    found = converted(texts)
    return time.process_time() - start, found


def main() -> int:
    """Measure each share of manifests that ask."""
    rows = []
    for kind, asking_each in (("half of them ask for GPUs", 2), ("all ask for GPUs", 1)):
        runs = [measured(manifests(asking_each)) for _ in range(TIMES)]
        seconds, found = min(seconds for seconds, _ in runs), runs[0][1]
        print(f"{kind}: {seconds:.1f} s, {found.changed} converted", flush=True)
        figure = f"migrate convert: {MANIFESTS} manifests, {kind}"
        rows.append(Row(figure, f"{seconds:.1f} s", "-", f"<= {TARGET_S:.0f} s", seconds <= TARGET_S))
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
