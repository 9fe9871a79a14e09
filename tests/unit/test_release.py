"""A release has one version, wherever it is written."""

import shutil
from pathlib import Path

import pytest

from scripts import release

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that contain the version, all with 0.1.0."""
    for name in ("operator/draco/__init__.py", "charts/draco/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.1.0\n")
    return tmp_path


def test_a_tag_of_the_version_that_everything_says_is_released(tree: Path) -> None:
    assert release.wrong_versions("v0.1.0", tree) == []


def test_a_tag_of_another_version_is_refused_with_each_place_to_change(tree: Path) -> None:
    assert release.wrong_versions("v0.2.0", tree) == [
        "operator/draco/__init__.py says 0.1.0, the tag 0.2.0.",
        "version in charts/draco/Chart.yaml says 0.1.0, the tag 0.2.0.",
        "appVersion in charts/draco/Chart.yaml says 0.1.0, the tag 0.2.0.",
        "CHANGELOG.md has no section 0.2.0: rename the heading Unreleased.",
    ]
