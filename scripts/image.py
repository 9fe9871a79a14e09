"""Build the image: `python -m scripts.image [--base debian] [--target simulated] [--output FILE]`.

Owns the engine's command line. Docker builds the image if its daemon answers, otherwise buildah (as root). The base is the
Dockerfile's own, or one made of Debian packages if no registry can be reached. The Dockerfile decides what is in the image.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from draco import __version__
from draco_local.cluster import locks
from draco_local.cluster.programs import binaries
from scripts.image_archive import ImageArchive
from scripts.system_packages import quietly

ROOT: Final = Path(__file__).parent.parent
NAME: Final = "localhost/draco"
"""A name on no registry: a node that lacks the image cannot pull somebody else's instead."""
DEBIAN: Final = "trixie"
PACKAGES: Final = ("python3", "python3-venv", "ca-certificates")
COMPILER: Final = ("gcc", "libc6-dev")
MACHINES_OWN: Final = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pip.conf"))
"""How this machine reaches package indexes. The build sees these files; the image does not contain them."""


def main() -> None:
    """Build, and print where the archive is."""
    parser = argparse.ArgumentParser(description="Build the image of operator and agent as an archive.")
    parser.add_argument(
        "--target", choices=["draco", "simulated"], default="draco", help="simulated: with simulated GPUs"
    )
    parser.add_argument(
        "--base", default="", help="image with Python, or debian to make one [default: the Dockerfile's]"
    )
    parser.add_argument("--tag", help="[default: the version, followed by -simulated if it has simulated GPUs]")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "draco.tar", help="[default: build/draco.tar]")
    asked = parser.parse_args()
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    name = f"{NAME}:{asked.tag or __version__ + ('' if asked.target == 'draco' else f'-{asked.target}')}"
    with engine_here() as engine:
        base = base_in(engine, asked.base)
        engine.build(name, asked.target, arguments(base, compiler_in(engine, asked.base)))
        asked.output.unlink(missing_ok=True)
        engine.save(name, asked.output)
    print(f"{asked.output}: {name}, {asked.output.stat().st_size / 2**20:.0f} MiB")
    if asked.target == "draco":
        archive = ImageArchive(asked.output)
        listed = asked.output.with_suffix(".cdx.json")
        listed.write_bytes(archive.read(archive.config["config"]["Labels"]["dev.draco.sbom"].lstrip("/")))
        print(f"Compressed: less than {archive.compressed_bytes() / 10**6:.0f} MB. Contents: {listed}")


class Docker:
    """The command line of Docker Engine."""

    command: tuple[str, ...] = ("docker",)

    def has(self, image: str) -> bool:
        """Whether the engine has an image."""
        return answers(*self.command, "image", "inspect", image)

    def make_base(self, image: str, further: Sequence[str] = ()) -> None:
        """Make an image of Debian packages: those of every base, and further ones."""
        with tempfile.TemporaryDirectory() as folder:
            debian(Path(folder) / "base.tar", further)
            (Path(folder) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n", encoding="utf-8")
            quietly([*self.command, "build", "--quiet", "--tag", image, folder])

    def fetch(self, image: str) -> None:
        """Pull an image if the engine does not have it; on failure, exit with a way that needs no registry."""
        if self.has(image):
            return
        done = subprocess.run([*self.command, "pull", "--quiet", image], capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["no message"]
            engine, reason = self.command[0].capitalize(), said[-1].removeprefix("Error: ")
            sys.exit(
                f"{engine} cannot pull {image}, which the build needs ({reason}). If no registry answers, build on "
                'Debian packages: make image IMAGE_ARGS="--base debian".'
            )

    def build(self, image: str, target: str, arguments: Sequence[str]) -> None:
        """Build one target of the Dockerfile."""
        quietly([*self.command, "build", "--quiet", "--target", target, "--tag", image, *arguments, str(ROOT)])

    def remove(self, image: str) -> None:
        """Remove an image's name, and the layers that no other image has."""
        quietly([*self.command, "rmi", image])

    def push(self, image: str, to: str) -> str:
        """Push an image to a registry under another name; returns its digest there."""
        quietly([*self.command, "tag", image, to])
        quietly([*self.command, "push", "--quiet", to])
        shown = [*self.command, "image", "inspect", "--format", "{{range .RepoDigests}}{{println .}}{{end}}", to]
        digests = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()
        [digest] = [each.rpartition("@")[2] for each in digests if each.startswith(f"{to.rpartition(':')[0]}@")]
        return digest

    def save(self, image: str, archive: Path) -> None:
        """Write an image as a file."""
        quietly([*self.command, "save", "--output", str(archive), image])


class Buildah(Docker):
    """Buildah, with a store of its own: it needs no daemon and changes no network."""

    def __init__(self) -> None:
        if not shutil.which("buildah"):
            sys.exit("No image builder found: start Docker, or run `apt-get install --no-install-recommends buildah`.")
        if os.geteuid() != 0:
            sys.exit("Buildah needs root here: start Docker, or run this as root.")
        self.store = binaries.cache_folder() / "images"
        self.command = (
            "buildah",
            "--storage-driver",
            "overlay",
            "--root",
            f"{self.store}/root",
            "--runroot",
            f"{self.store}/run",
        )

    def clean_up(self) -> None:
        """Remove what builds leave mounted: stages that are only copied from, and everything of a build that was killed."""
        answers(*self.command, "rm", "--all")
        answers("umount", f"{self.store}/root/overlay")

    def has(self, image: str) -> bool:
        """Whether the store has an image."""
        return answers(*self.command, "inspect", image)

    def build(self, image: str, target: str, arguments: Sequence[str]) -> None:
        """Build one target of the Dockerfile; reuse the layers of the last build if nothing changed."""
        seen = [word for path in MACHINES_OWN if path.exists() for word in ("--volume", f"{path}:{path}:ro")]
        options = ["--layers", "--timestamp", "0", "--isolation", "chroot", *seen, *arguments]
        quietly([*self.command, "build", "--quiet", *options, "--target", target, "--tag", image, str(ROOT)])

    def push(self, image: str, to: str) -> str:
        """Push an image to a registry under another name; returns its digest there. A registry on this machine may lack TLS."""
        local = ["--tls-verify=false"] if to.startswith(("127.0.0.1:", "localhost:")) else []
        with tempfile.NamedTemporaryFile() as digest:
            quietly([*self.command, "push", "--quiet", *local, "--digestfile", digest.name, image, f"docker://{to}"])
            return Path(digest.name).read_text(encoding="utf-8").strip()

    def save(self, image: str, archive: Path) -> None:
        """Write an image as a file."""
        quietly([*self.command, "push", "--quiet", image, f"docker-archive:{archive}:{image}"])


def debian(archive: Path, further: Sequence[str]) -> None:
    """Write a root file system with Python, made of Debian packages."""
    if not shutil.which("mmdebstrap"):
        sys.exit(
            "A base of Debian packages needs mmdebstrap: run `apt-get install --no-install-recommends mmdebstrap`."
        )
    quietly(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join((*PACKAGES, *further))}",
            DEBIAN,
            str(archive),
        ]
    )


@contextlib.contextmanager
def engine_here() -> Iterator[Docker]:
    """The image builder of this machine, for one program at a time; exits if there is none."""
    if answers("docker", "info"):
        yield Docker()
        return
    buildah = Buildah()

    def waiting(holder: str) -> None:
        print(f"Waiting for process {holder}, which builds an image ...", flush=True)

    with locks.waited_for(buildah.store / ".lock", waiting):
        try:
            yield buildah
        finally:
            buildah.clean_up()


def base_in(engine: Docker, wanted: str) -> str:
    """The name of the wanted base, "" for the Dockerfile's own. Makes "debian" or pulls another if the engine lacks it."""
    if wanted == "debian":
        return made_of_debian(engine, "base")
    engine.fetch(wanted or dockerfiles_own("BASE"))
    return wanted


def compiler_in(engine: Docker, wanted: str) -> str:
    """The name of the base with a compiler, "" for the Dockerfile's own. Makes or pulls it if the engine lacks it."""
    if wanted == "debian":
        return made_of_debian(engine, "compiler", COMPILER)
    engine.fetch(dockerfiles_own("COMPILER"))
    return ""


def dockerfiles_own(argument: str) -> str:
    """The Dockerfile's default of an argument."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    [value] = [line.partition("=")[2] for line in lines if line.startswith(f"ARG {argument}=")]
    return value


def made_of_debian(engine: Docker, kind: str, further: Sequence[str] = ()) -> str:
    """The name of an image of Debian packages. Makes it if the engine lacks it."""
    name = f"localhost/draco-{kind}:{DEBIAN}"
    if not engine.has(name):
        engine.make_base(name, further)
    return name


def arguments(base: str, compiler: str = "") -> list[str]:
    """The Dockerfile's arguments: its bases, unless they are "", and the commit that the image is built from."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    given = {
        "REVISION": git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        "COMMITTED": git("log", "-1", "--format=%ct") or "0",
        **({"BASE": base} if base else {}),
        **({"COMPILER": compiler} if compiler else {}),
    }
    return [word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")]


def answers(*command: str) -> bool:
    """Whether a command exists and succeeds."""
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


if __name__ == "__main__":
    main()
