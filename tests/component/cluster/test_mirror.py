"""Programs fetched from mirrors on loopback: a good one, one with wrong files, and unresponsive ones."""

import hashlib
import io
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
import yarl
from click.testing import CliRunner

from draco_local.cli.cluster import command
from draco_local.cluster import controlplane
from draco_local.cluster.errors import BinariesMissing
from draco_local.cluster.programs import binaries, download
from draco_local.cluster.programs.download import ReleasedFile, WrongChecksum, releases
from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES
from draco_local.cluster.progress import LineProgress
from tests.component.cluster import mirror as mirrors
from tests.component.cluster.machine import BARE, Machine
from tests.component.cluster.mirror import Mirror

PROGRAM = b"#!/bin/sh\necho Kubernetes v1.36.3\n"
BUILDS = """#!/bin/sh
case "$1" in version) echo "go version go1.99.0 linux/amd64"; exit;; list) exit;; esac
for argument; do
  case "$before" in -o) out="$argument";; esac
  before="$argument"
done
[ ! -e "$out" ] || { echo "build output already exists and is not an object file"; exit 1; }
printf '#!/bin/sh\\necho built\\n' > "$out"; chmod +x "$out"
"""


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """A mirror with files of known checksums."""
    with mirrors.running() as mirror:
        monkeypatch.setattr(download, "sums", lambda _: mirror.sums)
        yield mirror


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine whose stand-in for Go builds everything instantly."""
    go = tmp_path / "go" / "go"
    go.parent.mkdir()
    go.write_text(BUILDS)
    go.chmod(0o755)
    return {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
        "PATH": f"{go.parent}:{os.environ['PATH']}",
    }


def published(program: str) -> ReleasedFile:
    (release,) = releases(binaries.module_of(program), [program], machine=platform.machine())
    return release


def file_of(program: str) -> str:
    return f"/{published(program).origin}"


def left(environ: dict[str, str]) -> set[str]:
    """Everything in the cache, leftovers included."""
    cache = binaries.cache_folder(environ)
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if not path.is_dir()}


def test_a_released_program_is_fetched_and_nothing_is_built(mirror: Mirror, environ: dict[str, str]) -> None:
    wanted = {program: PROGRAM + program.encode() for program in ("kube-apiserver", "kubectl", "etcd", "helm")}
    for program, content in wanted.items():
        mirror.publish(published(program), {program: content})
    found = binaries.find(*wanted, environ=environ, mirror=mirror.url)
    assert {program: path.read_bytes() for program, path in found.items()} == wanted
    assert all(os.access(path, os.X_OK) for path in found.values())
    assert len(left(environ)) == 4
    asked = len(mirror.asked)
    assert binaries.find(*wanted, environ=environ, mirror=mirror.url) == found
    assert len(mirror.asked) == asked


def test_what_another_process_provides_meanwhile_is_no_hindrance(
    mirror: Mirror, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {"containerd": PROGRAM, "ctr": PROGRAM}
    (release,) = releases(binaries.CONTAINERD_MODULE, list(programs), machine=platform.machine())
    mirror.publish(release, programs)
    folder = binaries.cache_folder(environ) / "bin" / binaries.CONTAINERD_MODULE
    ask = binaries._offered

    def asked(*arguments: Any, **named: Any) -> Any:
        folder.mkdir(parents=True)
        (folder / "ctr").write_bytes(PROGRAM)
        (folder / "ctr").chmod(0o755)
        return ask(*arguments, **named)

    monkeypatch.setattr(binaries, "_offered", asked)
    assert binaries.find(*programs, environ=environ, mirror=mirror.url) == {name: folder / name for name in programs}
    assert (folder / "containerd").read_bytes() == PROGRAM


def test_the_mirror_may_stand_in_the_environment(mirror: Mirror, environ: dict[str, str]) -> None:
    mirror.publish(published("kubectl"), {"kubectl": PROGRAM})
    environ[binaries.MIRROR] = mirror.url
    assert binaries.find("kubectl", environ=environ)["kubectl"].read_bytes() == PROGRAM


def test_a_program_that_its_checksum_does_not_vouch_for_is_refused_and_not_kept(
    mirror: Mirror, environ: dict[str, str]
) -> None:
    mirror.publish(published("kubectl"), {"kubectl": PROGRAM})
    mirror.publish(published("kube-scheduler"), {"kube-scheduler": PROGRAM})
    mirror.files[file_of("kubectl")] = PROGRAM + b"rm -rf /\n"
    with pytest.raises(WrongChecksum) as told:
        binaries.find("kube-scheduler", "kubectl", environ=environ, mirror=mirror.url)
    sentence = str(told.value)
    assert sentence.startswith(
        f"{mirror.url}{file_of('kubectl')} does not match the checksum that Draco has of it (its SHA-256 "
    )
    assert sentence.endswith("try again, name another --mirror, or build with --mirror none.")
    assert "\n" not in sentence
    assert left(environ) == set()


def test_a_site_that_vouches_for_what_it_serves_is_not_believed(mirror: Mirror, environ: dict[str, str]) -> None:
    """Whoever can replace a program there can replace the checksum beside it."""
    mirror.publish(published("kubectl"), {"kubectl": PROGRAM})
    exchanged = PROGRAM + b"rm -rf /\n"
    mirror.files[file_of("kubectl")] = exchanged
    for beside in (".sha256", ".sha256sum"):
        mirror.files[f"{file_of('kubectl')}{beside}"] = hashlib.sha256(exchanged).hexdigest().encode()
    with pytest.raises(WrongChecksum):
        binaries.find("kubectl", environ=environ, mirror=mirror.url)
    assert left(environ) == set()


def test_what_has_no_sum_is_not_even_asked_for(mirror: Mirror, environ: dict[str, str]) -> None:
    mirror.publish(published("helm"), {"helm": PROGRAM})
    mirror.sums.clear()
    told = io.StringIO()
    found = binaries.find("helm", environ=environ, mirror=mirror.url, progress=LineProgress(told))
    assert "built" in found["helm"].read_text()
    assert mirror.asked == []
    (line,) = [line for line in told.getvalue().splitlines() if "Not available as released" in line]
    assert line.endswith("so they are built: Draco knows no checksum of helm 4.3.1's release.")


def test_what_the_mirror_lacks_is_built_and_the_rest_is_fetched(mirror: Mirror, environ: dict[str, str]) -> None:
    mirror.publish(published("kubectl"), {"kubectl": PROGRAM})
    mirror.publish(published("etcd"), {"etcd": PROGRAM})
    del mirror.files[file_of("etcd")]
    told = io.StringIO()
    found = binaries.find("kubectl", "etcd", environ=environ, mirror=mirror.url, progress=LineProgress(told))
    assert found["kubectl"].read_bytes() == PROGRAM
    assert "built" in found["etcd"].read_text()
    (line,) = [line for line in told.getvalue().splitlines() if "Not available as released" in line]
    assert line == (
        f" • Not available as released programs, so they are built: {mirror.url}{file_of('etcd')} answers 404 Not Found."
    )


def test_a_silent_mirror_is_waited_for_once_and_not_long(
    mirror: Mirror, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = ("kube-apiserver", "kube-scheduler", "kubectl", "etcd", "helm")
    for program in programs:
        mirror.publish(published(program), {program: PROGRAM})
    mirror.silent = {file_of(program) for program in programs}
    assert download._ANSWER_WITHIN_S <= 5
    monkeypatch.setattr(download, "_ANSWER_WITHIN_S", 2.0)
    assert download.offers([published(program) for program in programs], mirror=mirror.url)[0] == []
    spread_s = max(mirror.asked_at_s) - min(mirror.asked_at_s)
    assert spread_s < 2.0 * (len(programs) - 1), "it waits for one after another"
    told = io.StringIO()
    found = binaries.find(*programs, environ=environ, mirror=mirror.url, progress=LineProgress(told))
    assert all("built" in path.read_text() for path in found.values())
    (line,) = [line for line in told.getvalue().splitlines() if "Not available as released" in line]
    assert line == f" • Not available as released programs, so they are built: {mirror.url} does not answer in time."


def test_a_download_that_stalls_is_given_up_and_the_program_built(
    mirror: Mirror, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.publish(published("kubectl"), {"kubectl": PROGRAM})
    mirror.stalled = {file_of("kubectl")}
    monkeypatch.setattr(download, "_STALLED_AFTER_S", 0.3)
    told = io.StringIO()
    found = binaries.find("kubectl", environ=environ, mirror=mirror.url, progress=LineProgress(told))
    assert "built" in found["kubectl"].read_text()
    assert (
        f"{mirror.url}{file_of('kubectl')} does not answer in time, so kubernetes 1.36.3 is built." in told.getvalue()
    )


def test_an_archive_that_is_damaged_or_lacks_the_program_is_not_used(mirror: Mirror, environ: dict[str, str]) -> None:
    release = published("etcd")
    mirror.publish(release._replace(programs={"etcd": "elsewhere/etcd"}), {"etcd": PROGRAM})
    assert "built" in binaries.find("etcd", environ=environ, mirror=mirror.url)["etcd"].read_text()
    mirror.publish(published("helm")._replace(programs={"helm": ""}), {"helm": b"no archive at all"})
    assert "built" in binaries.find("helm", environ=environ, mirror=mirror.url)["helm"].read_text()


def test_a_site_that_leads_away_from_https_is_not_followed() -> None:
    def answer(*ways: str) -> aiohttp.ClientResponse:
        *history, last = [SimpleNamespace(url=yarl.URL(way), status=200) for way in ways]
        last.history = history
        return cast("aiohttp.ClientResponse", last)

    download._check(answer("https://dl.k8s.io/kubectl", "https://cdn.dl.k8s.io/kubectl"), "https://dl.k8s.io/kubectl")
    for ways in (("https://a/f", "http://a/f"), ("https://a/f", "http://b/f", "https://a/f")):
        with pytest.raises(download.DownloadFailed, match="redirects to an address without https"):
            download._check(answer(*ways), ways[0])


def test_nobody_is_asked_who_is_not_wanted(mirror: Mirror, environ: dict[str, str]) -> None:
    assert "built" in binaries.find("kubectl", environ=environ, mirror=download.NONE)["kubectl"].read_text()
    assert mirror.asked == []


def test_a_version_that_cannot_be_built_here_can_be_fetched(mirror: Mirror, environ: dict[str, str]) -> None:
    (release,) = releases("kubernetes-1.36.1", ["kubectl"], machine=platform.machine())
    mirror.publish(release, {"kubectl": PROGRAM})
    found = binaries.find("kubectl", kubernetes="1.36.1", environ=environ, mirror=mirror.url)
    assert found["kubectl"].read_bytes() == PROGRAM
    with pytest.raises(BinariesMissing, match=r"1\.36\.2 cannot be built here"):
        binaries.find("kubectl", kubernetes="1.36.2", environ=environ, mirror=mirror.url)


def test_a_cluster_comes_up_from_a_mirror(
    mirror: Mirror, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (*controlplane.ALL, "kubectl")
    for program, path in binaries.find(*names, kubernetes=DEFAULT_KUBERNETES).items():
        mirror.publish(published(program), {program: path})
    machine.environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    for name, value in machine.environ.items():
        monkeypatch.setenv(name, value)
    up = CliRunner().invoke(command, ["up", "--name", "a", "--mirror", mirror.url, *BARE])
    try:
        assert up.exit_code == 0, up.output
        assert "Downloading kubernetes 1.36.3 (kube-apiserver, " in up.stderr
        assert "Building" not in up.stderr
    finally:
        machine.must("down", "--name", "a")


def test_a_cluster_is_not_begun_with_a_program_of_a_wrong_checksum(
    mirror: Mirror, machine: Machine, tmp_path: Path
) -> None:
    """With the checksums that come with Draco, not a test's."""
    for program in (*controlplane.ALL, "kubectl"):
        mirror.publish(published(program), {program: PROGRAM})
    machine.environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    refused = machine.draco("up", "--name", "a", "--mirror", mirror.url, *BARE)
    assert refused.returncode == 1
    assert f"Error: {mirror.url}/" in refused.stderr.splitlines()[-1]
    assert " does not match the checksum that Draco has of it" in refused.stderr.splitlines()[-1]
    assert machine.mentioned() == []
    machine.must("down", "--name", "a")
