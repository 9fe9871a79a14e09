"""Where released programs are, and which checksum is theirs."""

import pytest

from draco_local.cluster.programs.download import digest, releases, url

SHA = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("module", "program", "file", "checksums", "member"),
    [
        (
            "kubernetes-1.36.3",
            "kubectl",
            "https://dl.k8s.io/release/v1.36.3/bin/linux/arm64/kubectl",
            "https://dl.k8s.io/release/v1.36.3/bin/linux/arm64/kubectl.sha256",
            "",
        ),
        (
            "etcd-3.6.8",
            "etcd",
            "https://github.com/etcd-io/etcd/releases/download/v3.6.8/etcd-v3.6.8-linux-arm64.tar.gz",
            "https://github.com/etcd-io/etcd/releases/download/v3.6.8/SHA256SUMS",
            "etcd-v3.6.8-linux-arm64/etcd",
        ),
        (
            "helm-4.3.1",
            "helm",
            "https://get.helm.sh/helm-v4.3.1-linux-arm64.tar.gz",
            "https://get.helm.sh/helm-v4.3.1-linux-arm64.tar.gz.sha256sum",
            "linux-arm64/helm",
        ),
        (
            "containerd-2.1.9",
            "ctr",
            "https://github.com/containerd/containerd/releases/download/v2.1.9/containerd-static-2.1.9-linux-arm64.tar.gz",
            "https://github.com/containerd/containerd/releases/download/v2.1.9/containerd-static-2.1.9-linux-arm64.tar.gz.sha256sum",
            "bin/ctr",
        ),
    ],
)
def test_each_project_has_its_own_place_and_its_own_checksums(
    module: str, program: str, file: str, checksums: str, member: str
) -> None:
    (release,) = releases(module, [program], machine="aarch64")
    assert (url(release, release.path), url(release, release.checksums)) == (file, checksums)
    assert release.programs == {program: member}


def test_programs_of_one_archive_are_fetched_together_and_those_of_kubernetes_one_by_one() -> None:
    (archive,) = releases("containerd-2.1.9", ["containerd", "ctr"], machine="x86_64")
    assert archive.programs == {"containerd": "bin/containerd", "ctr": "bin/ctr"}
    assert len(releases("kubernetes-1.36.3", ["kubectl", "kubelet"], machine="x86_64")) == 2


def test_nothing_is_published_for_a_machine_that_nobody_knows() -> None:
    assert releases("kubernetes-1.36.3", ["kubectl"], machine="m68k") == []


def test_a_mirror_keeps_each_site_in_a_folder_of_its_name() -> None:
    (release,) = releases("helm-4.3.1", ["helm"], machine="x86_64")
    assert url(release, release.path, mirror="http://mirror/of/ours/") == (
        "http://mirror/of/ours/get.helm.sh/helm-v4.3.1-linux-amd64.tar.gz"
    )


@pytest.mark.parametrize(
    "text",
    [
        SHA,
        f"{SHA}\n",
        f"{SHA.upper()}  helm.tar.gz\n",
        f"{SHA} *helm.tar.gz\n",
        f"{'f' * 64}  other.tar.gz\n{SHA}  ./release/helm.tar.gz\n",
    ],
)
def test_checksums_are_read_as_their_publishers_write_them(text: str) -> None:
    assert digest(text, "helm.tar.gz") == SHA


@pytest.mark.parametrize("text", ["", "<html>sign in first</html>", f"{SHA}  other.tar.gz", SHA[:-1], f"{SHA}0"])
def test_what_is_no_checksum_of_the_file_is_none(text: str) -> None:
    assert digest(text, "helm.tar.gz") is None
