"""A driver as it is installed on a node: a folder with libraries, programs and firmware under NVIDIA's names.

Owns which files there are. NVML, nvidia-smi and nvidia-cuda-mps-control are the simulated ones; libcuda can be loaded and finds
no device; all others are empty, since nothing that runs on simulated GPUs opens them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from draco_local.simulator.driver import library

LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")
EMPTY: Final = (
    *("libcudadebugger", "libnvcuvid", "libnvidia-allocator", "libnvidia-cfg", "libnvidia-encode", "libnvidia-fbc"),
    *("libnvidia-gpucomp", "libnvidia-nvvm", "libnvidia-opencl", "libnvidia-opticalflow", "libnvidia-ptxjitcompiler"),
    *("libnvidia-glcore", "libnvidia-glsi", "libnvidia-tls", "libnvoptix", "libGLX_nvidia", "libEGL_nvidia"),
)
"""Libraries of which only the names matter."""
LINKS: Final = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-opencl.so.1")
NVIDIA_SMI: Final = Path("usr/bin/nvidia-smi")
MPS_CONTROL: Final = Path("usr/bin/nvidia-cuda-mps-control")
PROGRAMS: Final = ("nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-server")
FIRMWARE: Final = ("gsp_ga10x.bin", "gsp_tu10x.bin")
_SCRIPT: Final = "#!/bin/sh\necho 'NVIDIA {version}: these GPUs are simulated'\n"
_CUDA: Final = """
int cuInit(unsigned int flags) { (void)flags; return 100; /* no device */ }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
"""


def install(root: Path, version: str, *, cache: Path) -> None:
    """Put the driver's files below `root`, and remove those of another version. NotCompiled without a C compiler."""
    shutil.rmtree(root / LIBRARIES, ignore_errors=True)
    shutil.rmtree(root / "lib/firmware", ignore_errors=True)
    for file, content in _files(version):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(content)
    for program in PROGRAMS:
        (root / "usr/bin" / program).chmod(0o755)
    install_nvidia_smi(root, cache=cache)
    (root / MPS_CONTROL).unlink(missing_ok=True)  # daemons may be running it
    shutil.copy(library.make_mps_control(cache, version), root / MPS_CONTROL)
    shutil.copy(library.make(cache), root / LIBRARIES / f"libnvidia-ml.so.{version}")
    shutil.copy(library.make_other("libcuda.so.1", _CUDA, cache), root / LIBRARIES / f"libcuda.so.{version}")
    for link in LINKS:
        (root / LIBRARIES / link).symlink_to(f"{link.removesuffix('.1')}.{version}")
    (root / LIBRARIES / "libcuda.so").symlink_to("libcuda.so.1")


def install_nvidia_smi(root: Path, *, cache: Path) -> None:
    """Put nvidia-smi below `root`, in place of an older one that may be running. NotCompiled without a C compiler."""
    remove_nvidia_smi(root)
    shutil.copy(library.make_nvidia_smi(cache), root / NVIDIA_SMI)


def remove_nvidia_smi(root: Path) -> None:
    """Take nvidia-smi out of the driver."""
    (root / NVIDIA_SMI).unlink(missing_ok=True)


def _files(version: str) -> Iterator[tuple[Path, str]]:
    for name in EMPTY:
        yield LIBRARIES / f"{name}.so.{version}", ""
    for name in PROGRAMS:
        yield Path("usr/bin", name), _SCRIPT.format(version=version)
    for name in FIRMWARE:
        yield Path("lib/firmware/nvidia", version, name), ""
    yield Path("usr/share/glvnd/egl_vendor.d/10_nvidia.json"), "{}\n"
    yield Path("usr/share/vulkan/icd.d/nvidia_icd.json"), "{}\n"
