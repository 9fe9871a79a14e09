from pathlib import Path

import pytest

from draco_local.cluster.errors import MissingRequirement
from draco_local.cluster.realnode import cgroup
from draco_local.cluster.realnode.cgroup import Hierarchies, hierarchies


def test_version_1_has_one_hierarchy_for_each_controller_and_perhaps_a_unified_one() -> None:
    found = hierarchies(
        "a /sys/fs/cgroup/cpu cgroup rw 0 0\n"
        "b /sys/fs/cgroup/cpuset cgroup rw 0 0\n"
        "c /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    )
    assert found.version == 1
    assert found.roots == (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpuset"))
    assert found.unified == (Path("/sys/fs/cgroup/unified"),)


def test_version_2_has_one_hierarchy() -> None:
    found = hierarchies("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\ntmpfs /run tmpfs rw 0 0\n")
    assert (found.version, found.roots) == (2, (Path("/sys/fs/cgroup"),))


def test_a_machine_without_cgroups_is_told_what_to_mount() -> None:
    with pytest.raises(MissingRequirement, match="mount cgroup2"):
        hierarchies("tmpfs /run tmpfs rw 0 0\n")


def test_a_new_cpuset_of_version_1_gets_its_parents_processors_and_memory(tmp_path: Path) -> None:
    def kernel_makes(folder: Path, content: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            (folder / name).write_text(content)

    kernel_makes(tmp_path / "cpuset", "0-3\n")
    kernel_makes(tmp_path / "cpuset/cluster", "\n")
    kernel_makes(tmp_path / "cpuset/cluster/real-1", "\n")
    cgroup.create(Hierarchies(version=1, roots=(tmp_path / "cpuset",)), "cluster", "real-1")
    for level in ("cluster", "cluster/real-1"):
        assert (tmp_path / "cpuset" / level / "cpuset.cpus").read_text() == "0-3"
        assert (tmp_path / "cpuset" / level / "cpuset.mems").read_text() == "0-3"


def test_version_2_passes_controllers_down_to_the_node(tmp_path: Path) -> None:
    for level in (".", "cluster", "cluster/real-1"):
        (tmp_path / level).mkdir(exist_ok=True)
        (tmp_path / level / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma\n")
        (tmp_path / level / "cgroup.subtree_control").write_text("")
    cgroup.create(Hierarchies(version=2, roots=(tmp_path,)), "cluster", "real-1")
    for level in (".", "cluster", "cluster/real-1"):
        assert (
            tmp_path / level / "cgroup.subtree_control"
        ).read_text() == "+pids"  # the last write; a real file would accumulate them


def test_removing_takes_the_deepest_first_in_every_hierarchy_and_leaves_other_clusters(tmp_path: Path) -> None:
    found = Hierarchies(version=1, roots=(tmp_path / "cpu",), unified=(tmp_path / "unified",))
    for root in (*found.roots, *found.unified):
        (root / "mine/real-1/kubepods/pod1/container").mkdir(parents=True)
        (root / "theirs/real-1").mkdir(parents=True)
    cgroup.remove(found, "mine")
    assert sorted(tmp_path.glob("*/*")) == [tmp_path / "cpu/theirs", tmp_path / "unified/theirs"]


def test_removing_one_node_leaves_the_others_of_its_cluster(tmp_path: Path) -> None:
    found = Hierarchies(version=2, roots=(tmp_path,))
    (tmp_path / "mine/real-1/kubepods").mkdir(parents=True)
    (tmp_path / "mine/real-2/kubepods").mkdir(parents=True)
    cgroup.remove(found, "mine", "real-1")
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["real-2"]


def test_removing_what_does_not_exist_does_nothing(tmp_path: Path) -> None:
    cgroup.remove(Hierarchies(version=2, roots=(tmp_path,)), "mine")
