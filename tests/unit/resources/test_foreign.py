"""Reading what others wrote, at any nesting depth and with any bytes."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.resources.api.claims import AllocatedDeviceStatus, OpaqueConfiguration, ResourceClaim
from draco.resources.api.foreign import DEEPEST, DEEPEST_OPAQUE, read, read_plain, shallow, shallow_value

VERY_DEEP = 100_000
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=30,
)


def nested(depth: int, innermost: Any = 1) -> Any:
    """Objects and lists nested alternately."""
    value = innermost
    for level in range(depth):
        value = [value, "]{"] if level % 2 else {"a": value}
    return value


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(values, st.integers(0, 6))
def test_what_is_cut_off_is_what_is_deeper_in_text_as_in_values(value: Any, deepest: int) -> None:
    cut = json.loads(shallow(json.dumps(value).encode(), deepest))
    assert cut == shallow_value(value, deepest)
    assert depth_of(cut) <= deepest
    assert depth_of(value) > deepest or cut == value


@given(st.binary(), st.integers(0, 3))
def test_what_is_no_json_stays_none(written: bytes, deepest: int) -> None:
    def is_json(text: bytes) -> bool:
        try:
            read_plain(text)
        except msgspec.DecodeError:
            return False
        return True

    assert is_json(written) or not is_json(shallow(written, deepest)) or shallow(written, deepest) != written


@pytest.mark.parametrize("depth", [DEEPEST - 10, 900, 5_000, VERY_DEEP])
def test_an_object_is_read_however_deep_a_part_of_it_is(depth: int) -> None:
    head = b'{"metadata": {"name": "a"}, "unknown": '
    claim = read(msgspec.json.Decoder(ResourceClaim), head + b'{"a":' * depth + b"1" + b"}" * (depth + 1))
    assert claim.metadata.name == "a"


@pytest.mark.parametrize("struct", [OpaqueConfiguration, AllocatedDeviceStatus])
def test_what_belongs_to_a_driver_is_kept_as_deep_as_is_read(struct: type[msgspec.Struct]) -> None:
    field = "parameters" if struct is OpaqueConfiguration else "data"
    for depth in (0, 1, DEEPEST_OPAQUE, DEEPEST_OPAQUE + 1, 500):
        written = {"driver": "a", "pool": "b", "device": "c", field: nested(depth)}
        kept = getattr(msgspec.convert(written, struct), field)
        assert depth_of(kept) == min(depth, DEEPEST_OPAQUE)
        assert depth > DEEPEST_OPAQUE or kept == nested(depth)


@pytest.mark.parametrize("written", [b"", b"{", b'{"a": "\xff"}', b"\xff", b"[" * VERY_DEEP, b"nonsense", b"1e999"])
def test_bytes_that_are_no_json_are_one_kind_of_error(written: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_plain(written)
