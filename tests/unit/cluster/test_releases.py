"""Where released programs come from, and which of them Draco may fetch."""

import re
from collections.abc import Sequence

import pytest

from draco_local.cluster.programs import binaries, build, multicall
from draco_local.cluster.programs.download import SUMS, releases, sums, url
from draco_local.cluster.programs.versions import KUBERNETES_VERSIONS

NOT_KNOWN = {"kubernetes-1.37.2", "kubeadm-1.37.2", binaries.HELM_MODULE}
"""Programs whose checksum nobody but their own site publishes: they are built instead."""


@pytest.mark.parametrize(
    ("module", "program", "file", "member"),
    [
        ("kubernetes-1.36.3", "kubectl", "https://dl.k8s.io/release/v1.36.3/bin/linux/arm64/kubectl", ""),
        (
            "etcd-3.6.8",
            "etcd",
            "https://github.com/etcd-io/etcd/releases/download/v3.6.8/etcd-v3.6.8-linux-arm64.tar.gz",
            "etcd-v3.6.8-linux-arm64/etcd",
        ),
        ("helm-4.3.1", "helm", "https://get.helm.sh/helm-v4.3.1-linux-arm64.tar.gz", "linux-arm64/helm"),
        (
            "containerd-2.1.9",
            "ctr",
            "https://github.com/containerd/containerd/releases/download/v2.1.9/containerd-static-2.1.9-linux-arm64.tar.gz",
            "bin/ctr",
        ),
    ],
)
def test_each_project_has_its_own_place(module: str, program: str, file: str, member: str) -> None:
    (release,) = releases(module, [program], machine="aarch64")
    assert url(release) == file
    assert release.programs == {program: member}


def test_programs_of_one_archive_are_fetched_together_and_those_of_kubernetes_one_by_one() -> None:
    (archive,) = releases("containerd-2.1.9", ["containerd", "ctr"], machine="x86_64")
    assert archive.programs == {"containerd": "bin/containerd", "ctr": "bin/ctr"}
    assert len(releases("kubernetes-1.36.3", ["kubectl", "kubelet"], machine="x86_64")) == 2


def test_nothing_is_published_for_a_machine_that_nobody_knows() -> None:
    assert releases("kubernetes-1.36.3", ["kubectl"], machine="m68k") == []


def test_a_mirror_keeps_each_site_in_a_folder_of_its_name() -> None:
    (release,) = releases("helm-4.3.1", ["helm"], machine="x86_64")
    assert url(release, mirror="http://mirror/of/ours/") == (
        "http://mirror/of/ours/get.helm.sh/helm-v4.3.1-linux-amd64.tar.gz"
    )


def test_sums_are_written_as_sha256sum_reads_them() -> None:
    lines = [line for line in SUMS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[0-9a-f]{64}  (dl\.k8s\.io|github\.com)/\S+", line)] == []
    assert len(sums(SUMS)) == len(lines), "a file stands there twice"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_is_pinned_has_a_sum_or_is_built(machine: str) -> None:
    kubernetes = [f"kubernetes-{version}" for version in KUBERNETES_VERSIONS]
    wanted: dict[str, Sequence[str]] = {
        **dict.fromkeys(kubernetes, multicall.PROGRAMS),
        **{f"kubeadm-{version}": ["kubeadm"] for version in KUBERNETES_VERSIONS},
        binaries.ETCD_MODULE: ["etcd"],
        binaries.CONTAINERD_MODULE: ["containerd", "ctr"],
        binaries.HELM_MODULE: ["helm"],
    }
    known = sums(SUMS)
    files = {module: releases(module, programs, machine=machine) for module, programs in wanted.items()}
    assert {
        module for module, published in files.items() if not all(each.origin in known for each in published)
    } == NOT_KNOWN
    for module in (*NOT_KNOWN, binaries.KIND_MODULE, binaries.COREDNS_MODULE):
        folder = build.MODULES / module.replace("kubeadm", "kubernetes")
        assert " h1:" in (folder / "go.sum").read_text(), f"nothing vouches for {module}"
