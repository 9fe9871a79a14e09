"""The README's pictures show the commands' output: `draco status` and `draco layout show` on a test cluster.

Owns the scene and the comparison. DRACO_WRITE_PICTURES=1 in the environment rewrites the pictures. Ages and ports are not
compared.
"""

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from draco_local.cli.demo import TOO_BIG
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.test_tutorial import plain, shell, typed

__all__ = ["shell"]  # a fixture

PICTURES = Path(__file__).parents[2] / "docs" / "images"
WRITE = os.environ.get("DRACO_WRITE_PICTURES") == "1"
NODE = "gpu-node-0"
SCENE = (
    """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: train}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        selectors: [{cel: {expression: 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:52:00.0"'}}]
---
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  nodeSelector: {kubernetes.io/hostname: gpu-node-0}
  resourceClaims: [{name: gpu, resourceClaimName: train}]
  containers: [{name: main, image: busybox, resources: {claims: [{name: gpu}]}}]
---
"""
    + TOO_BIG
)
POLICY = """
apiVersion: draco.dev/v1alpha1
kind: MigPolicy
metadata: {{name: {name}}}
spec:
  mode: Static
  nodeSelector: {{matchLabels: {{kubernetes.io/hostname: gpu-node-0}}}}
  deviceSelectors: [{{cel: {{expression: 'device.attributes["resource.kubernetes.io"].pciBusID == "{bus}"'}}}}]
  layouts: [{{name: chosen, instances: {instances}}}]
  layout: chosen
---
"""
POLICIES = [
    POLICY.format(
        name="notebooks",
        bus="0000:1b:00.0",
        instances="[{profile: 3g.40gb, start: 4}, {profile: 2g.20gb, start: 0}, {profile: 1g.10gb, count: 2}]",
    ),
    POLICY.format(name="inference", bus="0000:43:00.0", instances="[{profile: 4g.40gb}, {profile: 3g.40gb}]"),
]
PART = """
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: {name}}}
spec:
  devices:
    requests:
    - name: part
      exactly:
        deviceClassName: mig.nvidia.com
        selectors: [{{cel: {{expression: 'device.attributes["gpu.nvidia.com"].profile == "{profile}"'}}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  resourceClaims: [{{name: part, resourceClaimName: {name}}}]
  containers: [{{name: main, image: busybox, resources: {{claims: [{{name: part}}]}}}}]
"""
PARTS = [PART.format(name=name, profile=profile) for name, profile in (("chat", "4g.40gb"), ("alice", "2g.20gb"))]
_WIDTH, _HEIGHT, _MARGIN = 8.4, 19, 16
"""Size of a character in units of the picture, and the margin around the text."""


@pytest.fixture
def scene(cluster: Kubectl, shell: dict[str, str]) -> Iterator[dict[str, str]]:
    """A GPU in use, one in maintenance, two divided, and a claim that waits."""
    typed(f"kubectl apply -f - <<'EOF'\n{''.join(POLICIES)}EOF", shell)
    eventually(lambda: "4g.40gb" in typed(f"draco layout show {NODE}", shell), what="the GPUs are divided")
    typed(f"kubectl apply -f - <<'EOF'\n{''.join([SCENE, *PARTS])}EOF", shell)
    typed(f"draco maintain start mend-board --driver gpu.nvidia.com --pool {NODE} --device gpu-3", shell)
    yield shell
    cluster.run("delete", "pods,resourceclaims", "--all", "-n", "default", "--grace-period=1", "--wait=true")
    cluster.run("delete", "devicemaintenances,migpolicies", "--all", "--wait=true")


def drawn(text: str) -> str:
    """The text in a terminal, as SVG. Indentation becomes a position, because some programs drop a text's spaces."""
    lines = text.rstrip().splitlines()
    width, height = max(map(len, lines)) * _WIDTH + 2 * _MARGIN, len(lines) * _HEIGHT + 2 * _MARGIN
    picture = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="draco status">',
        "<style>text{font:14px monospace;fill:#e6e6e6}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#161616"/>',
    ]
    for number, line in enumerate(lines, start=1):
        words = line.lstrip()
        x, y = _MARGIN + (len(line) - len(words)) * _WIDTH, _MARGIN + number * _HEIGHT - 5
        shown = html.escape(words).replace(" ", "\xa0")
        picture += [f'<text x="{x:g}" y="{y:g}" textLength="{len(words) * _WIDTH:g}">{shown}</text>'] if words else []
    return "\n".join([*picture, "</svg>", ""])


def words_of(picture: str) -> str:
    """What a picture says."""
    return plain(html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture))).replace("\xa0", " "))


def compare(name: str, picture: str, *, until: str = "\n") -> bool:
    """Compare the texts up to these words. An AssertionError shows the difference."""
    path = PICTURES / name
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(picture, encoding="utf-8")
    shown, drawn_before = words_of(picture), words_of(path.read_text("utf-8"))
    assert shown.partition(until)[0] == drawn_before.partition(until)[0]
    return True


@pytest.mark.since(36)  # the picture shows the missing features
@pytest.mark.local_provider  # the picture shows its address and nodes
@pytest.mark.simulated_nodes
def test_the_pictures_show_what_is_printed(scene: dict[str, str]) -> None:
    def is_as_drawn() -> bool:
        status = typed("draco status", scene)
        shown = ("1 maintenance", "mend-board (in maintenance)", "1 pending", "3 in use by pods")
        upper_half, _, _ = status.partition("\nTAINT RULES")  # the rest is too wide
        return all(each in status for each in shown) and compare("status.svg", drawn(upper_half))

    eventually(is_as_drawn, what="draco status is as in docs/images/status.svg", within_s=180)

    def is_divided_as_drawn() -> bool:
        picture = typed(f"draco layout show {NODE} -o svg", scene)
        is_complete = all(f"default/{each}" in picture for each in ("chat", "alice"))
        return is_complete and compare(
            "layout.svg", picture, until=" gpu-3 "
        )  # other GPUs may still be in MIG mode from another test

    eventually(is_divided_as_drawn, what="the GPUs are divided as in docs/images/layout.svg", within_s=180)
