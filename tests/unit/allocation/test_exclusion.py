"""What excludes what on one GPU: the table in code, the one that people read, and what is said of a claim in the way."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from draco.allocation.configurations import VERSION, TimeSlice, refused, time_slice
from draco.allocation.exclusion import (
    Beside,
    ClaimedDevice,
    DeviceSettings,
    Exclusion,
    Way,
    beside,
    exclusion,
    waits_for,
)
from draco.allocation.mps import MpsSettings
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_claim, as_shares, configured

PAGE = Path(__file__).parents[3] / "docs/concepts/sharing.md"
HEADING = "## What excludes what on one GPU"
PARTS = (Way.PART, Way.PART_SHARE, Way.PART_ADMIN)
SHARES = (Way.SHARE, Way.PART_SHARE)
ADMINS = (Way.ADMIN, Way.PART_ADMIN)
LONG = DeviceSettings(TimeSlice.LONG)


def tables() -> list[dict[tuple[str, str], str]]:
    """The section's tables, each as its cells by row and column."""
    section = PAGE.read_text("utf-8").split(HEADING)[1].split("\n## ")[0]
    found = []
    for block in section.split("\n\n"):
        if block.lstrip().startswith("|"):
            header, _, *lines = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in block.split("\n")]
            found.append(
                {(line[0], column): cell for line in lines for column, cell in zip(header[1:], line[1:], strict=True)}
            )
    return found


def test_people_read_the_table_of_the_code() -> None:
    assert tables()[0] == {(one.value, other.value): beside(one, other).value for one, other in product(Way, Way)}


def use(way: Way, device: str = "", units: int = 0b11, settings: DeviceSettings = LONG) -> ClaimedDevice:
    is_part = way in PARTS
    return ClaimedDevice(
        gpu="GPU-0",
        device=device or ("gpu-0-mig-1g10gb-19-0" if is_part else "gpu-0"),
        units=units if is_part else None,
        is_share=way in SHARES,
        is_admin=way in ADMINS,
        settings=settings,
    )


@pytest.mark.parametrize(("one", "other"), list(product(Way, Way)))
def test_two_claims_go_together_as_the_table_says(one: Way, other: Way) -> None:
    rule = beside(one, other)
    same = exclusion(use(one), use(other))
    assert (same is None) == (rule not in {Beside.NEVER, Beside.APART})
    if one in PARTS and other in PARTS:
        over = exclusion(use(one), use(other, "gpu-0-mig-1g10gb-19-1", 0b110))
        assert over is not None
        assert not over.settings
        assert exclusion(use(one), use(other, "gpu-0-mig-1g10gb-19-2", 0b1100)) is None
    differs = exclusion(use(one), use(other, settings=DeviceSettings()))
    assert (differs is not None and differs.settings) == (one is other and one in SHARES)
    assert exclusion(use(one), ClaimedDevice(gpu="GPU-1", device="gpu-1", settings=DeviceSettings())) is None


def config_on(way: Way, sharing: dict[str, Any]) -> Any:
    """A claim that has a device in this way, with a configuration of the device's kind."""
    part = way in PARTS
    device = "gpu-0-mig-1g10gb-19-0" if part else "gpu-0"
    made = a_claim(on=[f"node-0/{device}"], admin_access=way in ADMINS or None)
    made = as_shares(made, "s1") if way in SHARES else made
    return configured(
        made, {"apiVersion": VERSION, "kind": "MigDeviceConfig" if part else "GpuConfig", "sharing": sharing}
    )


@pytest.mark.parametrize("way", Way)
def test_people_read_what_a_configuration_may_ask_for(way: Way) -> None:
    shown = tables()[1]
    interval = {} if way in PARTS else {"timeSlicingConfig": {"interval": "Long"}}
    for row, sharing in (
        ("a time slice", {"strategy": "TimeSlicing", **interval}),
        ("MPS", {"strategy": "MPS"}),
    ):
        claim, cell = config_on(way, sharing), shown[row, way.value]
        is_refused = refused(claim, NVIDIA_DRIVER) is not None
        assert is_refused == (cell == "refused"), row
        if row == "a time slice" and not is_refused:
            has_effect = time_slice(claim, claim.results[0]) is not TimeSlice.DEFAULT
            assert has_effect == (cell != "without effect")
        if cell.startswith("yes"):
            assert (way in SHARES) == (cell == "yes, the same for all shares")


def test_the_claim_in_the_way_is_named_and_what_ends_that() -> None:
    alone, part = use(Way.ALONE), use(Way.PART)
    assert Exclusion(alone, part).by("a/new", "a/old", "u1") == (
        "Claim a/new was allocated gpu-0, but gpu-0-mig-1g10gb-19-0 is still prepared for claim a/old (uid u1); it can be "
        "prepared when kubelet has unprepared that one."
    )
    assert Exclusion(alone, alone).by("a/new", "a/old", "u1", "its pods are gone.") == (
        "Claim a/new was allocated gpu-0, which is still prepared for claim a/old (uid u1); its pods are gone."
    )
    mps = MpsSettings(percentage=50, limit_mib=1024, multi_user=True)
    share, other = use(Way.SHARE), use(Way.SHARE, settings=DeviceSettings(mps=mps, together=("GPU-0", "GPU-1")))
    assert Exclusion(share, other, settings=True).by("a/new", "a/old", "u1") == (
        "Claim a/new cannot be prepared: it asks for time slices of Long on gpu-0, and claim a/old has another share of it with "
        "MPS (50 % of the threads, 1024Mi for each client, several users, 2 GPUs together); give it the same configuration in a "
        "new claim, or wait until that one has ended."
    )
    assert (
        Exclusion(share, other, settings=True)
        .in_itself("a/new")
        .endswith(
            "on another; make a new claim with the same configuration for both, or with different GPUs by the constraint "
            "distinctAttribute: gpu.nvidia.com/uuid."
        )
    )


def test_a_change_names_the_claims_for_which_it_waits() -> None:
    assert waits_for(["a/b"]) == "waits for claim a/b"
    assert waits_for(["a/1", "a/2", "a/3", "a/4"]) == "waits for claims a/1, a/2, a/3 and 1 more"
