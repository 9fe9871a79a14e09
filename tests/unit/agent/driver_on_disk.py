"""A driver root with every kind of file that NVIDIA's installer leaves, for tests of what containers get."""

import os
import shutil
from pathlib import Path

VERSION = "580.95.05"
FOLDER = "usr/lib/x86_64-linux-gnu"
LIBRARIES = (
    *("libcuda", "libcudadebugger", "libnvcuvid", "libnvidia-allocator", "libnvidia-cfg", "libnvidia-encode"),
    *("libnvidia-fbc", "libnvidia-glcore", "libnvidia-gpucomp", "libnvidia-nvvm", "libnvidia-opencl"),
    *("libnvidia-opticalflow", "libnvidia-ptxjitcompiler", "libnvidia-rtcore", "libnvidia-tls", "libnvoptix"),
    *("libEGL_nvidia", "libGLESv2_nvidia", "libGLX_nvidia", "vdpau/libvdpau_nvidia"),
)
OTHERS = (
    *("libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-wayland.so.1.1.20", "libc.so.6", "libGL.so.1.7.0"),
    "libnvidia-container.so.1.17.8",
)
"""Files of the driver with a version number of their own, and files of other packages."""
FILES = (
    *(
        "usr/bin/nvidia-smi",
        "usr/bin/nvidia-debugdump",
        "usr/bin/nvidia-persistenced",
        "usr/bin/nvidia-cuda-mps-control",
    ),
    *("usr/bin/nvidia-cuda-mps-server", "usr/bin/nvidia-imex", "usr/bin/nvidia-imex-ctl", "usr/bin/python3"),
    *(f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", f"lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"),
    *("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket", "usr/share/vulkan/icd.d/nvidia_icd.json"),
    *("usr/share/glvnd/egl_vendor.d/10_nvidia.json", "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"),
)

_MACHINE = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
A_LIBRARY = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + bytes([3, 0, _MACHINE, 0])
"""The first bytes of a shared library for this machine."""


def a_driver(root: Path, *, nvml: Path | None = None, version: str = VERSION) -> None:
    """Create the files below `root`; all are empty, except NVML if a library is given."""
    folder = root / FOLDER
    for name in (
        *(f"{FOLDER}/{each}.so.{version}" for each in LIBRARIES),
        *(f"{FOLDER}/{each}" for each in OTHERS),
        *FILES,
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch(mode=0o755)
    target = folder / f"libnvidia-ml.so.{version}"
    target.touch() if nvml is None else shutil.copy(nvml, target)
    for link, to in (
        ("libnvidia-ml.so.1", target.name),
        ("libcuda.so.1", f"libcuda.so.{version}"),
        ("libcuda.so", "libcuda.so.1"),
        ("libnvidia-opticalflow.so.1", f"libnvidia-opticalflow.so.{version}"),
        ("libc.so", "libc.so.6"),
    ):
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(to)
