"""The chart as a release packs it, by the real helm."""

import shutil
from pathlib import Path

import yaml

from scripts import release
from tests.component.chart.rendering import helm

ROOT = Path(__file__).parents[3]


def test_a_packed_chart_keeps_its_comments_and_names_the_image(tmp_path: Path) -> None:
    digest = f"sha256:{'a' * 64}"
    packed = release.package("registry.example.com/draco", digest)
    shutil.unpack_archive(packed, tmp_path)
    values = (tmp_path / "draco" / "values.yaml").read_text(encoding="utf-8")
    original = (ROOT / "charts/draco/values.yaml").read_text(encoding="utf-8")
    changed = {line for line in values.splitlines() if line not in original.splitlines()}
    assert changed == {'  repository: "registry.example.com/draco"', f'  digest: "{digest}"'}
    assert values.count("#") == original.count("#")
    about = yaml.safe_load((tmp_path / "draco" / "Chart.yaml").read_text(encoding="utf-8"))
    [offered] = yaml.safe_load(about["annotations"][release.IMAGES])
    assert offered == {"name": "draco", "image": f"registry.example.com/draco@{digest}"}
    shown = helm("template", "draco", packed)
    assert shown.returncode == 0, shown.stderr
    made = [each for each in yaml.safe_load_all(shown.stdout) if each and each["kind"] in {"Deployment", "DaemonSet"}]
    pods = [each["spec"]["template"]["spec"] for each in made]
    assert [each["image"] for pod in pods for each in pod["containers"]] == [f"registry.example.com/draco@{digest}"] * 2


def test_a_chart_that_is_packed_without_an_image_names_none(tmp_path: Path) -> None:
    shutil.unpack_archive(release.package("", ""), tmp_path)
    assert yaml.safe_load((tmp_path / "draco" / "values.yaml").read_text(encoding="utf-8"))["image"]["repository"] == ""
    assert release.IMAGES not in (tmp_path / "draco" / "Chart.yaml").read_text(encoding="utf-8")
