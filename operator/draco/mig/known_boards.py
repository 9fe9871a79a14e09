"""MIG profiles and placements of NVIDIA's boards, as NVML reports them.

Owns the tables only: for capacity planned without having the GPUs (`draco simulate mig`), and for simulated GPUs. Nothing that
runs in a cluster plans from them: it reads NVML, and `draco_local.simulator.compare` holds these tables against it. Sources:
NVIDIA's MIG user guide for names, counts and placements; listings of `nvidia-smi mig -lgip` and `-lgipp` that people published
for ids, memory, multiprocessors and engines. What neither shows is marked "estimated".
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from draco.mig.board import Board, Profile


def _board(*rows: tuple[int, str, int, int, int, int, int, int, int, int, int, tuple[int, ...], int]) -> Board:
    """From a row for each profile, in the order of `fields`."""
    fields = (
        *("id", "name", "slices", "max_instances", "memory_mib", "multiprocessors", "copy_engines", "decoders"),
        *("encoders", "jpeg_engines", "ofa_engines", "starts", "size"),
    )
    return Board(tuple(msgspec.convert(dict(zip(fields, row, strict=True)), Profile) for row in rows))


def _seven_slices(
    names: str, memory_mib: tuple[int, ...], engines: tuple[tuple[int, int, int, int, int], ...]
) -> Board:
    """The common grid of eight memory units and seven compute slices.

    All follow the order 1g, 1g+me, 1g with double memory, 2g, 3g, 4g, 7g; a row of `engines` is multiprocessors, copy engines,
    decoders, JPEG decoders, optical flow accelerators.
    """
    grid = (
        (19, 1, 7, (0, 1, 2, 3, 4, 5, 6), 1),
        (20, 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        (15, 1, 4, (0, 2, 4, 6), 2),
        (14, 2, 3, (0, 2, 4), 2),
        (9, 3, 2, (0, 4), 4),
        (5, 4, 1, (0,), 4),
        (0, 7, 1, (0,), 8),
    )
    return _board(
        *(
            (profile_id, name, slices, most, memory, sms, copies, decoders, 0, jpegs, ofas, starts, size)
            for (profile_id, slices, most, starts, size), name, memory, (sms, copies, decoders, jpegs, ofas) in zip(
                grid, names.split(), memory_mib, engines, strict=True
            )
        )
    )


_A100 = (
    (14, 1, 0, 0, 0),
    (14, 1, 1, 1, 1),
    (14, 1, 1, 0, 0),
    (28, 2, 1, 0, 0),
    (42, 3, 2, 0, 0),
    (56, 4, 2, 0, 0),
    (98, 7, 5, 1, 1),
)
_HOPPER = (
    (16, 1, 1, 1, 0),
    (16, 1, 1, 1, 1),
    (26, 1, 1, 1, 0),
    (32, 2, 2, 2, 0),
    (60, 3, 3, 3, 0),
    (64, 4, 4, 4, 0),
    (132, 8, 7, 7, 1),
)
_B200 = (
    (18, 2, 1, 1, 0),
    (18, 2, 1, 1, 1),
    (30, 2, 1, 1, 0),
    (36, 4, 2, 2, 0),
    (70, 6, 3, 3, 0),  # multiprocessors and decoders of the last three rows are estimated
    (72, 8, 4, 4, 0),
    (148, 16, 7, 7, 1),
)
_QUARTERS, _HALVES = (0, 3, 6, 9), (0, 6)
_RTX_PRO_6000 = _board(
    (14, "1g.24gb", 1, 4, 24192, 46, 1, 1, 1, 1, 0, _QUARTERS, 3),
    (21, "1g.24gb+me", 1, 1, 24192, 46, 1, 1, 1, 1, 1, _QUARTERS, 3),
    (47, "1g.24gb+gfx", 1, 4, 24192, 46, 1, 1, 1, 1, 0, _QUARTERS, 3),
    (65, "1g.24gb+me.all", 1, 1, 24192, 46, 1, 4, 4, 4, 1, _QUARTERS, 3),
    (67, "1g.24gb-me", 1, 4, 24192, 46, 1, 0, 0, 0, 0, _QUARTERS, 3),
    (5, "2g.48gb", 2, 2, 48512, 94, 2, 2, 2, 2, 0, _HALVES, 6),
    (35, "2g.48gb+gfx", 2, 2, 48512, 94, 2, 2, 2, 2, 0, _HALVES, 6),
    (64, "2g.48gb+me.all", 2, 1, 48512, 94, 2, 4, 4, 4, 1, _HALVES, 6),
    (66, "2g.48gb-me", 2, 2, 48512, 94, 2, 0, 0, 0, 0, _HALVES, 6),
    (0, "4g.96gb", 4, 1, 97280, 188, 4, 4, 4, 4, 1, (0,), 12),
    (32, "4g.96gb+gfx", 4, 1, 97280, 188, 4, 4, 4, 4, 1, (0,), 12),
)

# The starts of H200 and B200 are those of the common grid; no listing of theirs is published.
BOARDS: Mapping[str, Board] = MappingProxyType(
    {
        "A100-40GB": _seven_slices(
            "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
            (4864, 4864, 9856, 9856, 19968, 19968, 40192),
            _A100,
        ),
        "A100-80GB": _seven_slices(
            "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
            (9728, 9728, 19968, 19968, 40192, 40192, 80896),
            _A100,
        ),
        "H100-80GB": _seven_slices(
            "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
            (9984, 9984, 20096, 20096, 40448, 40448, 81152),
            _HOPPER,
        ),
        "H200-141GB": _seven_slices(
            "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
            (16384, 16384, 33024, 33024, 71168, 71168, 143104),
            _HOPPER,
        ),
        "B200": _seven_slices(
            "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
            # The last three are estimated; another listing says 20992 for the first.
            (22528, 22528, 45312, 45312, 91136, 91136, 182784),
            _B200,
        ),
        "A30": _board(
            (14, "1g.6gb", 1, 4, 5952, 14, 1, 1, 0, 0, 0, (0, 1, 2, 3), 1),
            (21, "1g.6gb+me", 1, 1, 5952, 14, 1, 1, 0, 1, 1, (0, 1, 2, 3), 1),
            (5, "2g.12gb", 2, 2, 11968, 28, 2, 2, 0, 0, 0, (0, 2), 2),
            (6, "2g.12gb+me", 2, 1, 11968, 28, 2, 2, 0, 1, 1, (0, 2), 2),
            (0, "4g.24gb", 4, 1, 24000, 56, 4, 4, 0, 1, 1, (0,), 4),
        ),
        "RTX-PRO-6000": _RTX_PRO_6000,
    }
)
"""The boards by name."""
