import os
from ctypes import CDLL
from pathlib import Path
from types import SimpleNamespace

import pytest

from draco_local.cluster.errors import MissingRequirement
from draco_local.cluster.realnode import check
from draco_local.cluster.realnode.check import may_lower_oom_score, missing_packages, require


def test_each_missing_program_is_named_by_its_debian_package(tmp_path: Path) -> None:
    present = {"cc", "ip", "nft", "nsenter", "unshare", "mount", "umount", "busybox"}
    missing = missing_packages(lambda name: name if name in present else None, cni_bin=tmp_path, header=tmp_path)
    assert missing == ["runc", "containernetworking-plugins", "iptables"]


def test_a_machine_with_everything_misses_nothing(tmp_path: Path) -> None:
    for plugin in ("ptp", "host-local", "portmap"):
        (tmp_path / plugin).touch()
    assert missing_packages(lambda name: name, cni_bin=tmp_path, header=tmp_path) == []


def test_without_root_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingRequirement, match="need root"):
        require(tmp_path)


def test_the_missing_packages_come_with_the_line_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(check, "missing_packages", lambda: ["runc", "nftables"])
    with pytest.raises(MissingRequirement, match="apt-get install --no-install-recommends runc nftables"):
        require(tmp_path)


def test_state_that_a_node_could_not_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(check, "missing_packages", list)
    with pytest.raises(MissingRequirement, match="below /var"):
        require(Path("/var/lib/clusters/a"))


def test_a_machine_on_which_nothing_more_can_be_watched_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(check, "missing_packages", list)
    monkeypatch.setattr(check, "_HIDDEN", ())
    asked: list[int] = []
    monkeypatch.setattr(check, "can_watch", asked.append)
    with pytest.raises(MissingRequirement, match=r"run `sysctl fs.inotify.max_user_instances=1024`"):
        require(tmp_path, nodes=2)
    assert asked == [32]


def test_what_may_be_watched_is_tried_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hasattr(CDLL(None), "inotify_init")
    open_before = set(Path("/proc/self/fd").iterdir())
    answers = iter([os.dup(0), os.dup(0), os.dup(0), -1])  # not real inotify instances, which other programs use
    monkeypatch.setattr(check, "CDLL", lambda _: SimpleNamespace(inotify_init=lambda: next(answers)))
    assert check.can_watch(2)
    assert not check.can_watch(2)
    assert set(Path("/proc/self/fd").iterdir()) <= open_before  # earlier tests' descriptors may be closed meanwhile


@pytest.mark.parametrize(("effective", "may"), [("000001ffffffffff", True), ("000001fffeffffff", False)])
def test_the_capability_to_lower_oom_scores_is_bit_24(effective: str, may: bool) -> None:
    assert may_lower_oom_score(f"Name:\tcat\nCapPrm:\t0\nCapEff:\t{effective}\n") is may
