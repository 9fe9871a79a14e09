"""Answers that are outdated when they arrive, and the questions that were asked after them."""

from collections.abc import Callable
from typing import cast

import pytest

from draco.controller.allocation.writing.writes import REMEDY
from draco.controller.workers.messages import Answer, PlacementAnswer, Question
from draco.kube.errors import Forbidden, Invalid
from draco.resources.api.meta import ObjectKey
from tests.builders import MOMENT
from tests.unit.controller.allocation.test_asking_again import Lab, a_place, asked, form
from tests.unit.controller.allocation.test_what_decisions_rest_on import another, gone, one_by_one, owns

REFUSED = Forbidden(403, "Forbidden", "a policy forbids it")


def while_asked(lab: Lab, happens: Callable[[], object]) -> None:
    """Call this during the first question to the workers; they find a place for every claim."""

    def answer(question: Question) -> PlacementAnswer:
        lab.workers.instead = cast("Callable[[Question], Answer | None]", a_place)
        happens()
        return a_place(question)

    lab.workers.instead = answer


def unprotected(lab: Lab, *names: str) -> None:
    for name in names:
        another(lab.view.claims, name, finalizers=[])


def deleted(lab: Lab, name: str) -> None:
    """Somebody deletes the claim, and another finalizer keeps it for now."""
    another(lab.view.claims, name, deletion_timestamp=MOMENT, resource_version="2")


@pytest.mark.parametrize("happens", [deleted, gone], ids=["it is to go", "it is gone"])
async def test_a_claim_that_is_deleted_while_it_is_asked_about_is_not_written(
    happens: Callable[[Lab, str], None],
) -> None:
    lab = Lab()
    while_asked(lab, lambda: happens(lab, "waits"))
    await lab.look()
    assert (lab.writes, len(lab.workers.asked)) == (0, 1)


async def test_of_a_group_nothing_is_written_when_a_claim_of_it_is_deleted_while_it_is_asked_about() -> None:
    lab = Lab()
    gone(lab, "waits")
    form(lab, smaller=False)
    while_asked(lab, lambda: deleted(lab, "one"))
    await lab.look()
    assert lab.writes == 0


@pytest.mark.parametrize("happens", [deleted, gone], ids=["it is to go", "it is gone"])
async def test_who_was_asked_about_behind_a_claim_that_is_deleted_by_then_is_asked_about_again(
    happens: Callable[[Lab, str], None],
) -> None:
    lab = Lab()
    gone(lab, "waits")
    lab.wait("early", creation_timestamp=lab.clock.now())
    lab.wait("late")
    one_by_one(lab, placed="early")
    answers = lab.workers.instead

    def answer(question: Question) -> Answer | None:
        happens(lab, "early")
        lab.workers.instead = answers
        return answers(question)

    lab.workers.instead = answer
    await lab.look()
    assert asked(lab) == [["early", "late"], ["late"]]


async def test_who_was_asked_about_behind_one_whose_gpus_have_gone_back_is_asked_about_again() -> None:
    lab = Lab()
    while_asked(lab, lambda: owns(lab, gives_out=lambda devices: False))

    def given_again(question: Question) -> PlacementAnswer:
        owns(lab, gives_out=lambda devices: True)
        return a_place(question)

    await lab.allocations.reconcile("")
    assert lab.writes == 0
    lab.workers.instead = given_again
    await lab.look()
    assert lab.writes == 1


@pytest.mark.parametrize("error", [REFUSED, Invalid(422, "Invalid", "resourceclaims/binding")])
async def test_a_claim_whose_finalizer_is_refused_is_left_alone_ever_longer_however_much_changes(
    error: Exception,
) -> None:
    lab = Lab()
    lab.refusal = error
    unprotected(lab, "waits")
    for number in range(200):
        lab.change(number)
        await lab.look()
        lab.clock.pass_without_a_turn(1)
    assert 5 <= lab.writes <= 7
    assert REMEDY in lab.allocations.writes.trouble


async def test_of_a_group_nothing_is_written_when_the_finalizer_of_one_claim_is_refused() -> None:
    lab = Lab()
    gone(lab, "waits")
    form(lab, smaller=False)
    unprotected(lab, "one")
    lab.refusal = REFUSED
    lab.workers.instead = a_place
    await lab.look()
    assert (lab.writes, lab.allocations.writes.is_refused(ObjectKey("default", "one"))) == (1, True)
    assert not lab.allocations.writes.is_refused(ObjectKey("default", "other"))


async def test_a_refused_claim_that_is_to_go_is_not_looked_at_again() -> None:
    lab = Lab()
    lab.refusal = REFUSED
    lab.workers.instead, lab.workers.cpu_s = a_place, 0.1
    await lab.look()
    assert lab.has_reason
    deleted(lab, "waits")
    await lab.look()
    assert not lab.has_reason
