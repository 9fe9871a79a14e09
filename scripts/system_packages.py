"""Install the Debian packages that this machine lacks for the tests: those of real nodes, with --kind those of kind.

Needs root only when something is missing.
"""

import os
import shutil
import subprocess
import sys

from draco_local.cluster.kindnode import engine
from draco_local.cluster.kindnode.docker import Docker
from draco_local.cluster.realnode import check


def main() -> None:
    """Install what is missing, quietly."""
    needs = _kind_lacks if "--kind" in sys.argv[1:] else check.missing_packages
    packages = needs()
    if not packages:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if os.geteuid() != 0:
        sys.exit(f"These tests need programs that this machine lacks: run `sudo {' '.join(command)}`.")
    if not shutil.which("apt-get"):
        sys.exit(f"These tests need programs that this machine lacks: install {', '.join(packages)}.")
    print(f"Installing {', '.join(packages)} ...", flush=True)
    quietly(["apt-get", "update"])
    quietly(command)
    left = needs()
    if left:
        sys.exit(f"{', '.join(left)} did not provide what the tests need.")


def _kind_lacks() -> list[str]:
    """Nothing if Docker answers: it builds images, and has or pulls what kind needs."""
    if Docker().answers():
        return []
    return [*engine.missing_packages(), *([] if shutil.which("buildah") else ["buildah"])]


def quietly(command: list[str]) -> None:
    """Run a command and show its output only if it fails."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}`{' '.join(command)}` failed: the lines above say why.")


if __name__ == "__main__":
    main()
