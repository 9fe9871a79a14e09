"""Generate the message classes of kubelet's gRPC API from the .proto files.

Calls protoc. Writes `*_pb2.py` and `*_pb2.pyi` in `operator/draco/agent/plugin/api`, which are committed; a test runs
it into an empty folder and compares. Service stubs are not generated: `draco.agent.plugin.wire` builds them, typed, from the
same descriptors.

Usage: python scripts/generate_protos.py [OUTPUT_ROOT]   (default: operator)
"""

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PROTOS = ROOT / "operator/draco/agent/plugin/proto"
PACKAGE_FOLDER = "draco/agent/plugin/api"


def generate(output_root: Path) -> list[Path]:
    """Generate below `output_root`; returns the files written, sorted.

    The .proto files are given to protoc under the package's folder, so that generated modules are imported, and their
    descriptors registered, under names that cannot collide with another project's `v1`.
    """
    folder = output_root / PACKAGE_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name for path in PROTOS.glob("*.proto"))
    code = protoc.main(
        [
            "protoc",
            f"-I{PACKAGE_FOLDER}={PROTOS}",
            f"--python_out={output_root}",
            f"--pyi_out={output_root}",
            *(f"{PACKAGE_FOLDER}/{name}" for name in names),
        ]
    )
    if code != 0:
        raise SystemExit(f"protoc failed with exit code {code}; its message is above")
    stems = [name.removesuffix(".proto") for name in names]
    return sorted(folder / f"{stem}_pb2{suffix}" for stem in stems for suffix in (".py", ".pyi"))


if __name__ == "__main__":
    generate(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "operator")
