"""Which policies permit preemption."""

from draco.mig_policy.matching import preempting_policies
from draco.resources.api.draco import Allocator, PreemptionPermit
from tests.builders import a_mig_policy


def test_a_policy_permits_it_only_if_it_says_so_and_draco_allocates() -> None:
    lower = PreemptionPermit.LOWER_PRIORITY
    policies = [
        a_mig_policy("permits", allocator=Allocator.OPERATOR, preemption=lower),
        a_mig_policy("says-nothing", allocator=Allocator.OPERATOR),
        a_mig_policy("schedulers", preemption=lower),
    ]
    assert preempting_policies(policies) == {"permits"}
