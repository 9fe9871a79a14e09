"""Build the image twice and compare: `python -m scripts.image_reproducible [--base debian]`.

The first build uses the engine's cache, the second does not.

Owns the comparison: the digests of the uncompressed layers and, if they differ, the files that differ. Both are built on one
base, because a base made of Debian packages contains the versions of the day on which it was made.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts import image
from scripts.image_archive import ImageArchive

MOST = 20


def main() -> None:
    """Build and compare. Exits with 1 if the images differ."""
    parser = argparse.ArgumentParser(
        description="Build the image twice, the second time without cache, and compare the layers."
    )
    parser.add_argument("--base", default="", help="as for `make image`")
    asked = parser.parse_args()
    with image.engine_here() as engine, tempfile.TemporaryDirectory() as folder:
        options = image.arguments(image.base_in(engine, asked.base), image.compiler_in(engine, asked.base))
        built = []
        for time, further in (("first", []), ("second", ["--no-cache"])):
            archive = Path(folder) / f"{time}.tar"
            name = f"{image.NAME}:{time}-of-two"
            engine.build(name, "draco", [*options, *further])
            engine.save(name, archive)
            engine.remove(name)
            built.append(ImageArchive(archive))
        one, other = built
        if one.digests != other.digests:
            sys.exit("\n".join(["Two builds of one commit differ:", *differences(one, other)]))
        print("Two builds of one commit have the same layers:", *one.digests, sep="\n")


def differences(one: ImageArchive, other: ImageArchive) -> Iterator[str]:
    """What differs, file by file."""
    if len(one.digests) != len(other.digests):
        yield f"one has {len(one.digests)} layers, the other {len(other.digests)}"
        return
    for layer, (digest, again) in enumerate(zip(one.digests, other.digests, strict=True)):
        if digest == again:
            continue
        files, of_other = one.files(layer), other.files(layer)
        differing = sorted(name for name in files | of_other if files.get(name) != of_other.get(name))
        for name in differing[:MOST]:
            yield f"layer {layer}: {name}: {files.get(name)} and {of_other.get(name)}"
        if len(differing) > MOST:
            yield f"layer {layer}: {len(differing) - MOST} more files"
        if not differing:
            yield f"layer {layer}: the order of its files"


if __name__ == "__main__":
    main()
