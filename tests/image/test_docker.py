"""The README's commands for a machine with Docker, kind and helm, typed as shown: build, load, install, test.

If no Docker with the node image answers, the test uses the private engine of kind's clusters. It has images of Debian's packages
under the names of the Dockerfile's base images, and its containers reach package indexes through a proxy.
"""

import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.kindnode.engine import PrivateEngine
from draco_local.cluster.programs import binaries
from draco_local.cluster.programs.versions import DEFAULT_KUBERNETES
from draco_local.cluster.progress import SilentProgress
from draco_local.cluster.providers.kind import KindCluster, config
from draco_local.cluster.state import ClusterSpec, Record
from scripts import image
from tests.doubles.wayout import a_way_out
from tests.e2e.test_tutorial import ROOT, steps

SILENT = SilentProgress()
WANTED = ClusterSpec(provider="kind", kubernetes=DEFAULT_KUBERNETES, nodes=0, operator=False)
BUILDS_WITHIN_S = 900.0
KEPT_FOR = "168h"
"""How long the private engine keeps images of earlier builds, whose unchanged layers the next build reuses."""

pytestmark = pytest.mark.real_node


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user with Docker, kind, helm and a cluster."""
    record = Record(f"readme-{uuid.uuid4().hex[:8]}")
    record.folder.mkdir(parents=True)
    with ExitStack() as afterwards:
        afterwards.callback(shutil.rmtree, record.folder)
        private = PrivateEngine()
        afterwards.callback(private.release, record.folder, SILENT)
        docker, node_image, kind = KindCluster(record, WANTED)._prepared(SILENT)
        programs = {**binaries.find("kubectl", "helm"), "kind": Path(kind)}
        for name, program in programs.items():
            (tmp_path / name).symlink_to(program)
        environment = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "KIND_CLUSTER_NAME": record.name,
            "KUBECONFIG": str(tmp_path / "kubeconfig"),
        }
        wanted = tmp_path / "kind.yaml"
        wanted.write_text(yaml.safe_dump(config(WANTED, address=docker.address)))
        made: list[str | Path] = ["--name", record.name, "--kubeconfig", tmp_path / "kubeconfig"]
        afterwards.callback(docker.run, [kind, "delete", "cluster", *made])
        docker.run([kind, "create", "cluster", *made, "--config", wanted, "--image", node_image, "--wait", "180s"])
        if docker.socket:
            environment |= afterwards.enter_context(building(private, docker, tmp_path))
        yield environment
        docker.has("rmi", "localhost/draco:dev")


@contextmanager
def building(private: PrivateEngine, docker: Docker, folder: Path) -> Iterator[dict[str, str]]:
    """Give the private engine the base images and its builds network access. Returns the environment in which it is `docker`."""
    engine = image.Docker()
    engine.command = ("docker", "--host", f"unix://{docker.socket}")
    bases = {
        image.dockerfiles_own("BASE"): image.made_of_debian(engine, "base"),
        image.dockerfiles_own("COMPILER"): image.made_of_debian(engine, "compiler", image.COMPILER),
    }
    own = folder / "base" / "own"
    own.mkdir(parents=True)
    for path in image.MACHINES_OWN:
        if path.exists():
            (own / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, own / path.relative_to("/"))
    for name, made in bases.items():
        (own.parent / "Dockerfile").write_text(f"FROM {made}\nCOPY own /\n")
        docker.run(["docker", "build", "--quiet", "--tag", name, own.parent])
    with a_way_out(str(private._addresses().host)) as proxy:
        (folder / "config.json").write_text(
            json.dumps({"proxies": {"default": {"httpProxy": proxy, "httpsProxy": proxy}}})
        )
        yield {"DOCKER_HOST": f"unix://{docker.socket}", "DOCKER_CONFIG": str(folder)}
    docker.has("rmi", *bases)
    docker.has("image", "prune", "--force", "--filter", f"until={KEPT_FOR}")


def test_the_readmes_lines_build_load_and_install(shell: dict[str, str]) -> None:
    def typed(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=shell,
            capture_output=True,
            text=True,
            timeout=BUILDS_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    page = (ROOT / "README.md").read_text(encoding="utf-8")
    section = page[page.index("## Install on a cluster") :]
    [block] = [
        each for each in re.findall(r"^```console\n.*?^```$", section, re.MULTILINE | re.DOTALL) if "docker" in each
    ]
    commands = [step.command for step in steps(block)]
    assert [command.split()[0] for command in commands] == ["docker", "kind", "helm"]
    for command in commands:
        typed(command)
    [check] = [step.command for step in steps(section) if step.command.startswith("helm test ")]
    assert "Succeeded" in typed(check)
