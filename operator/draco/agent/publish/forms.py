"""In which form a GPU is published: for one claim alone, or for several, and on which terms.

Owns what this node knows better than the operator: what its GPUs can enforce, and which claims are prepared here. `withdrawals`
delays a change of the form, `sharing.terms` has the terms. Pure.
"""

from collections.abc import Iterable, Mapping

from draco.agent.record.contents import PreparedClaim
from draco.resources.api.draco import GpuSharing
from draco.resources.api.sharing import SharedGpu
from draco.resources.api.slices import Device
from draco.resources.names import GpuUuid
from draco.sharing.enforcement import possible
from draco.sharing.terms import TermsError, alike, as_shareable, form_of, terms_for


def can_have(sharing: GpuSharing, whole: Device, form: SharedGpu) -> bool:
    """Whether the GPU, `whole` as a device, has what the form asks; taken for granted while that is unknown."""
    try:
        terms_for(form, whole)
    except TermsError:  # the operator says why in the policy's status
        return False
    return possible(sharing).get(form.enforcement) is not False


def as_shared(device: Device, form: SharedGpu | None) -> Device:
    """The device for several claims, if it is to be shared; a MIG device that is too small for the form for one."""
    terms = form_of(form, device.name)
    if terms is None:
        return device
    try:
        return as_shareable(device, terms_for(terms, device))
    except TermsError:
        return device


def held_forms(
    wanted: Mapping[GpuUuid, SharedGpu], shown: Mapping[GpuUuid, SharedGpu | None], claims: Iterable[PreparedClaim]
) -> dict[GpuUuid, SharedGpu]:
    """The wanted forms, but the shown one of a GPU on which claims are prepared in that form.

    The operator asks for another form only when no claim holds the GPU; this is for one that does not know of shares, or of all
    claims.
    """
    forms = dict(wanted)
    for device in (device for claim in claims for device in claim.devices if not device.admin):
        form = shown.get(device.gpu)
        if device.gpu not in shown or alike(form, wanted.get(device.gpu)):
            continue
        if form is not None and device.share_id:
            forms[device.gpu] = form
        elif form is None and not device.share_id:
            forms.pop(device.gpu, None)
    return forms
