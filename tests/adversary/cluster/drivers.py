"""The driver's files on a node and NVIDIA's toolkit in the agent's image: installed, upgraded, taken away, broken.

Owns the files. Which driver is loaded is in the state of the node's GPUs; a reload and a reboot load what is installed.
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
"""What nvidia-ctk says, in short: all libraries that there are."""


class DriverFiles:
    """Those of one node, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "driver"
        self.image = folder / "image"

    def install(self, version: str = VERSION) -> None:
        """Put the files of a version in the place of what is there."""
        self.remove()
        a_driver(self.root, version=version)

    def remove(self) -> None:
        """Take them away, as while another driver is installed: the folder stays."""
        self.root.mkdir(parents=True, exist_ok=True)
        for each in self.root.iterdir():
            shutil.rmtree(each)

    def toolkit(self, which: str) -> None:
        """Have a toolkit in the image that "works", or that "fails"; or none, with "gone"."""
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
        """The version that is there; "" when none is."""
        found = next(self.root.rglob("libnvidia-ml.so.1"), None)
        return found.readlink().name.partition(".so.")[2] if found else ""


def loaded(gpus: Path) -> str:
    """The version of the loaded driver."""
    return state.load(gpus).driver.version


def load(gpus: Path, version: str) -> None:
    """Have it be the one that was loaded at boot."""
    with state.mutate(gpus) as node:
        node.driver.version = version
