"""The driver's files on a node and NVIDIA's toolkit in the agent's image: installed, upgraded, removed, broken.

Owns the files. The state of the node's GPUs has the loaded driver; a reload or reboot loads the installed one.
"""

import shutil
import sys
from pathlib import Path

from draco_local.simulator.gpus import state
from tests.unit.agent.driver_on_disk import VERSION, a_driver

VERSIONS = (VERSION, "595.58.03", "595.71.05")
PROGRAM = """#!{python}
import json, pathlib, sys
root = pathlib.Path(sys.argv[sys.argv.index("--driver-root") + 1])
files = [str(each) for each in sorted(root.rglob("*")) if ".so." in each.name and not each.is_symlink()]
mounts = [{{"hostPath": each, "containerPath": each.removeprefix(str(root)), "options": ["ro"]}} for each in files]
hook = sys.argv[sys.argv.index("--nvidia-cdi-hook-path") + 1]
hooks = [{{"hookName": "createContainer", "path": hook, "args": ["nvidia-cdi-hook", "update-ldcache"]}}]
print(json.dumps({{"containerEdits": {{"mounts": mounts, "hooks": hooks}}}}))
"""
"""A short nvidia-ctk: it lists all existing libraries."""


class DriverFiles:
    """The driver files of one node, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "driver"
        self.image = folder / "image"

    def install(self, version: str = VERSION) -> None:
        """Install a version's files in place of any others."""
        self.remove()
        a_driver(self.root, version=version)

    def remove(self) -> None:
        """Remove the files but keep the folder, as during a driver installation."""
        self.root.mkdir(parents=True, exist_ok=True)
        for each in self.root.iterdir():
            shutil.rmtree(each)

    def toolkit(self, which: str) -> None:
        """Set the image's toolkit: one that "works", one that "fails", or none ("gone")."""
        self.image.mkdir(parents=True, exist_ok=True)
        texts = {"works": PROGRAM.format(python=sys.executable), "fails": "#!/bin/sh\nexit 1\n"}
        for name in ("nvidia-ctk", "nvidia-cdi-hook"):
            program = self.image / name
            if which not in texts:
                program.unlink(missing_ok=True)
                continue
            fresh = program.with_suffix(".tmp")
            fresh.write_text(texts[which])
            fresh.chmod(0o755)
            fresh.replace(program)

    @property
    def installed(self) -> str:
        """The installed version; "" if there is none."""
        found = next(self.root.rglob("libnvidia-ml.so.1"), None)
        return found.readlink().name.partition(".so.")[2] if found else ""


def loaded(gpus: Path) -> str:
    """The version of the loaded driver."""
    return state.load(gpus).driver.version


def load(gpus: Path, version: str) -> None:
    """Set the version that was loaded at boot."""
    with state.mutate(gpus) as node:
        node.driver.version = version
