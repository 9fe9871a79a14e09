"""Why a place is worse than the best one, in words that match their numbers."""

import pytest

from draco.placing.scoring.score import PlacementScore, why_worse


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (PlacementScore(loss=1), "1 compute slice instead of 0"),
        (PlacementScore(loss=2), "2 compute slices instead of 0"),
        (PlacementScore(units_left=1), "1 unit instead of 0"),
        (PlacementScore(units_left=2), "2 units instead of 0"),
        (PlacementScore(gpus=1), "1 GPU instead of 0"),
        (PlacementScore(gpus=2), "2 GPUs instead of 0"),
        (PlacementScore(), "It is as good"),
    ],
)
def test_what_is_lost_elsewhere_is_counted(score: PlacementScore, said: str) -> None:
    assert said in why_worse(score, PlacementScore())
