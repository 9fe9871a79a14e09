"""What a shared device publishes, and what may be asked of it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.allocation.fleet.state import amount
from draco.resources.api.sharing import Enforcement, SharedGpu, SharingMode
from draco.resources.api.slices import Device, DeviceCapacity
from draco.resources.written.slice_limits import slice_refusals
from draco.sharing.terms import TermsError, as_shareable, shared_gpu_of, terms_for, terms_of
from tests.builders import a_device, a_slice

GIB = 1 << 30
MODES = [
    SharedGpu(uuid="", policy="", mode=SharingMode.MEMORY),
    SharedGpu(uuid="", policy="", mode=SharingMode.MEMORY, step="1Gi"),
    SharedGpu(uuid="", policy="", mode=SharingMode.MEMORY, step="1Gi", minimum="2Gi", default="10Gi"),
    SharedGpu(uuid="", policy="", mode=SharingMode.MEMORY, step="2Gi", enforcement=Enforcement.DRIVER_LIMIT),
    SharedGpu(uuid="", policy="", mode=SharingMode.COUNT, count=4),
    SharedGpu(uuid="", policy="", mode=SharingMode.UNLIMITED),
]


def a_whole_gpu(memory: str = "81559Mi", **more: str) -> Device:
    amounts = {"memory": memory, **more}
    return a_device(capacity={name: DeviceCapacity(value=value) for name, value in amounts.items()})


def by_memory(**amounts: Any) -> SharedGpu:
    return SharedGpu(uuid="GPU-0", policy="p", mode=SharingMode.MEMORY, **amounts)


def policies(device: Device) -> dict[str, Any]:
    return {name: msgspec.to_builtins(each.request_policy) for name, each in device.capacity.items()}


@pytest.mark.parametrize("form", MODES, ids=lambda form: f"{form.mode}-{form.step}-{form.default}")
def test_every_capacity_of_a_shareable_device_says_what_a_share_takes_of_it(form: SharedGpu) -> None:
    plain = a_whole_gpu(multiprocessors="132", copyEngines="8")
    device = as_shareable(plain, terms_for(form, plain))
    assert device.allow_multiple_allocations
    for name, capacity in device.capacity.items():
        policy = capacity.request_policy
        assert policy is not None, f"{name} would be consumed whole by the first share"
        assert policy.default is not None
        assert policy.valid_range is not None
        assert amount(policy.valid_range.min) <= amount(policy.default) <= amount(capacity.value)
    assert not list(slice_refusals(a_slice(devices=[device]).spec, ()))


def test_memory_is_counted_in_steps_from_a_minimum() -> None:
    plain = a_whole_gpu()
    device = as_shareable(plain, terms_for(by_memory(step="1Gi", minimum="2Gi", default="10Gi"), plain))
    assert policies(device) == {"memory": {"default": "10Gi", "validRange": {"min": "2Gi", "step": "1Gi"}}}


def test_without_a_default_a_claim_that_knows_nothing_of_shares_gets_all_that_can_be_shared() -> None:
    plain = a_whole_gpu("81559Mi")  # 79.65 GiB
    assert terms_for(by_memory(step="1Gi"), plain).default == 79 * GIB
    assert terms_for(by_memory(), plain).default == 81559 << 20


def test_a_number_of_shares_is_a_capacity_of_its_own() -> None:
    plain = a_whole_gpu()
    device = as_shareable(plain, terms_for(SharedGpu(uuid="", policy="", mode=SharingMode.COUNT, count=4), plain))
    assert device.capacity["shares"].value == "4"
    assert policies(device)["shares"] == {"default": "1", "validRange": {"min": "1", "step": "1"}}
    assert policies(device)["memory"] == {"default": "0", "validRange": {"min": "0", "step": "1Mi"}}


@pytest.mark.parametrize(
    ("amounts", "why"),
    [
        ({"default": "100Gi"}, "spec.default 100Gi is more than its memory, 81559Mi"),
        ({"minimum": "100Gi"}, "spec.minimum 100Gi is more than its memory, 81559Mi"),
        ({"step": "100Gi"}, "spec.minimum 100Gi is more than its memory, 81559Mi"),
        (
            {"step": "4Gi", "minimum": "1Gi", "default": "10Gi"},
            "is not spec.minimum 1Gi plus a multiple of spec.step 4Gi",
        ),
    ],
)
def test_terms_that_a_device_cannot_have_are_named(amounts: dict[str, str], why: str) -> None:
    with pytest.raises(TermsError, match=why):
        terms_for(by_memory(**amounts), a_whole_gpu())


def test_a_device_whose_memory_is_unknown_is_not_shared_by_memory() -> None:
    with pytest.raises(TermsError, match="its memory is unknown"):
        terms_for(by_memory(), a_device())


@pytest.mark.parametrize("form", MODES, ids=lambda form: f"{form.mode}-{form.step}-{form.default}")
def test_what_is_published_tells_how_it_is_shared(form: SharedGpu) -> None:
    plain = a_whole_gpu()
    terms = terms_for(form, plain)
    device = as_shareable(plain, terms)
    assert terms_of(device) == terms
    told = shared_gpu_of("GPU-0", [device])
    assert told is not None
    assert (told.mode, terms_for(told, plain)) == (form.mode, terms)


def test_a_device_for_one_claim_has_no_terms() -> None:
    assert terms_of(a_whole_gpu()) is None
    assert shared_gpu_of("GPU-0", [a_whole_gpu()]) is None


@given(memory=st.integers(1, 300_000), step=st.integers(1, 100_000), minimum=st.none() | st.integers(1, 100_000))
def test_the_default_is_always_one_that_kubernetes_accepts(memory: int, step: int, minimum: int | None) -> None:
    form = by_memory(step=f"{step}Mi", minimum=f"{minimum}Mi" if minimum else "")
    try:
        terms = terms_for(form, a_whole_gpu(f"{memory}Mi"))
    except TermsError:
        assert (minimum or step) > memory
        return
    assert terms.minimum <= terms.default <= memory << 20
    assert (terms.default - terms.minimum) % terms.step == 0
    assert (memory << 20) - terms.default < terms.step
