"""Which object the note under a key is about, and when it is withdrawn."""

from typing import cast

import pytest

from draco.kube.errors import Unreachable
from draco.kube.events.notes import Notes, NotesByKey
from draco.resources.api.core import ObjectReference


class Said:
    """Notes that are only recorded, by UID."""

    def __init__(self, *adopted: ObjectReference) -> None:
        self.adopted = list(adopted)
        self.texts: dict[str, str] = {each.uid: "from before" for each in adopted}
        self.is_down = False

    async def adopt(self) -> list[ObjectReference]:
        return self.adopted

    async def say(self, regarding: ObjectReference, note: str, *, type: str | None) -> float:  # noqa: A002 - the field's name
        self.texts[regarding.uid] = f"{type}: {note}"
        return 1200.0

    async def withdraw(self, regarding: ObjectReference) -> None:
        if self.is_down:
            raise Unreachable("down")
        self.texts.pop(regarding.uid, None)


def a_rule(uid: str) -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Rule", name="rule", uid=uid)


def by_name(said: Said) -> NotesByKey[str]:
    return NotesByKey(cast("Notes", said), lambda each: each.name)


async def test_what_was_said_is_taken_back_by_its_key() -> None:
    notes = by_name(said := Said())
    assert await notes.say(a_rule("one"), "hits", type="Normal") == 1200
    assert (said.texts, [*notes.said]) == ({"one": "Normal: hits"}, ["rule"])
    await notes.withdraw("rule")
    await notes.withdraw("another")
    assert (said.texts, notes.said) == ({}, {})


async def test_what_was_said_of_another_object_of_this_name_does_not_stay() -> None:
    notes = by_name(said := Said())
    await notes.say(a_rule("one"), "hits")
    await notes.say(a_rule("two"), "hits")
    assert said.texts == {"two": "None: hits"}
    await notes.withdraw_unless_of(a_rule("two"))
    assert said.texts == {"two": "None: hits"}
    await notes.withdraw_unless_of(a_rule("three"))
    assert (said.texts, notes.said) == ({}, {})


async def test_what_another_process_said_is_taken_over_but_not_in_the_place_of_what_this_one_has_said() -> None:
    notes = by_name(said := Said(a_rule("one")))
    assert await notes.adopt() == ["rule"]
    await notes.withdraw("rule")
    assert said.texts == {}
    await notes.say(a_rule("two"), "hits")
    await notes.adopt()
    assert notes.said["rule"].uid == "two"


async def test_what_could_not_be_taken_back_is_the_next_time() -> None:
    notes = by_name(said := Said())
    await notes.say(a_rule("one"), "hits")
    said.is_down = True
    with pytest.raises(Unreachable):
        await notes.withdraw("rule")
    said.is_down = False
    await notes.withdraw("rule")
    assert said.texts == {}
