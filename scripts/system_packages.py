"""Install the Debian packages that real nodes need and that this machine lacks. Needs root only when something is missing."""

import os
import shutil
import subprocess
import sys

from draco_local.cluster.realnode.check import missing_packages


def main() -> None:
    """Install what is missing, quietly."""
    packages = missing_packages()
    if not packages:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if os.geteuid() != 0:
        sys.exit(f"The tests on real nodes need programs that this machine lacks: run `sudo {' '.join(command)}`.")
    if not shutil.which("apt-get"):
        sys.exit(f"The tests on real nodes need programs that this machine lacks: install {', '.join(packages)}.")
    print(f"Installing {', '.join(packages)} ...", flush=True)
    quietly(["apt-get", "update"])
    quietly(command)
    left = missing_packages()
    if left:
        sys.exit(f"{', '.join(left)} did not provide what real nodes need.")


def quietly(command: list[str]) -> None:
    """Run a command and show what it said only if it failed."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}`{' '.join(command)}` failed: the lines above say why.")


if __name__ == "__main__":
    main()
