"""Releases of NVIDIA's driver: their CUDA, and what NVML gained with each.

Owns which release is the first with a function, a field, an event or a struct. Source: the change log in NVML's documentation;
where that is silent, the comment says "estimated".
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pynvml

RELEASES: Final[Mapping[str, str]] = MappingProxyType(
    {"535": "535.261.03", "570": "570.195.03", "580": "580.95.05", "615": "615.71.09"}
)
"""A whole version of each release that is named by its first number alone."""
_CUDA: Final = {535: 12020, 550: 12040, 570: 12080, 580: 13000, 590: 13010, 595: 13020, 610: 13030, 615: 13040}
FIRST_WITH: Final[Mapping[str, int]] = MappingProxyType(
    {
        "nvmlDeviceGetPciInfoExt": 545,
        "nvmlDeviceGetGpuFabricInfoV": 550,
        "nvmlDeviceGetNumaNodeId": 550,
        "nvmlDeviceGetTemperatureV": 570,  # estimated
        "nvmlDeviceGetAddressingMode": 580,
        "nvmlDeviceGetGpuInstanceProfileInfoById": 580,
        "nvmlDeviceGetGpuInstanceProfileInfoByIdV": 580,
        "nvmlDeviceGetRemappedRows_v2": 580,
        "nvmlDeviceGetMemoryLimits_v1": 615,
        "nvmlDeviceSetMemoryLimits_v1": 615,
    }
)
"""The first release with a function of NVML; those that are not here, all have."""
FIELDS: Final[Mapping[int, int]] = MappingProxyType(
    {
        pynvml.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE: 550,
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 565,
    }
)
"""The first release with a field value."""
EVENTS: Final[Mapping[int, int]] = MappingProxyType(
    {
        pynvml.nvmlEventTypeSingleBitEccErrorStorm: 560,
        pynvml.nvmlEventTypeDramRetirementEvent: 560,
        pynvml.nvmlEventTypeDramRetirementFailure: 560,
        pynvml.nvmlEventTypeNonFatalPoisonError: 560,
        pynvml.nvmlEventTypeFatalPoisonError: 560,
        pynvml.nvmlEventTypeGpuUnavailableError: 565,
        pynvml.nvmlEventTypeGpuRecoveryAction: 565,
    }
)
"""The first release with an event type."""
PROFILES_WITHOUT_MIG: Final = 550
"""The first release that tells the MIG profiles of a GPU whose MIG mode is off."""
FABRIC_V3: Final = 580
"""The first release with the third version of the fabric's struct."""


def whole_version(version: str) -> str:
    """A version, or that of a release which is named by its first number alone."""
    return RELEASES.get(version, version)


def release_of(version: str) -> int:
    """The number of a version's release: 580 for 580.95.05; for a text that begins with no number, the newest that is known."""
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else max(_CUDA)


def cuda_of(version: str) -> int:
    """The CUDA version that comes with a driver, as NVML writes it."""
    return max(cuda for first, cuda in _CUDA.items() if first <= max(release_of(version), min(_CUDA)))


def nvml_of(version: str) -> str:
    """The version of the library."""
    return f"{cuda_of(version) // 1000}.{version}"
