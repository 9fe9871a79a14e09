"""The chart as a release packs it, by the real helm."""

import shutil
from pathlib import Path

from scripts import release

ROOT = Path(__file__).parents[3]


def test_a_packed_chart_keeps_its_comments_and_names_the_image(tmp_path: Path) -> None:
    digest = f"sha256:{'a' * 64}"
    packed = release.package("registry.example.com/draco", digest)
    shutil.unpack_archive(packed, tmp_path)
    values = (tmp_path / "draco" / "values.yaml").read_text(encoding="utf-8")
    original = (ROOT / "charts/draco/values.yaml").read_text(encoding="utf-8")
    changed = {line for line in values.splitlines() if line not in original.splitlines()}
    assert changed == {"  repository: registry.example.com/draco", f'  digest: "{digest}"'}
    assert values.count("#") == original.count("#")
