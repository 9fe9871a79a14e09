"""The law of leftovers: at rest, nothing waits, and memory is bounded."""

import subprocess
import sys

import pytest

from tests.adversary.cluster.observer.kept import MOST_MIB, WAITING, Kept, Scraped, kept_at_rest
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.processes import memory_mib

AT_REST = """# HELP draco_worker_waiting Questions that wait for their turn.
# TYPE draco_worker_waiting gauge
draco_worker_waiting 0.0
draco_worker_restarts_total 3.0
draco_queue_depth{reconciler="pending"} 0.0
draco_queue_depth{reconciler="allocation"} 0.0
"""


def test_a_replica_with_nothing_to_do_keeps_nothing() -> None:
    assert not list(kept_at_rest({"operator-a": Scraped(AT_REST, MOST_MIB), "operator-b": Scraped(AT_REST, 0.0)}))


def test_a_replica_that_does_not_say_what_waits_is_told() -> None:
    found = {each.key for each in kept_at_rest({"operator-a": Scraped("", 0.0)})}
    assert found == {f"operator-a {gauge}" for gauge in WAITING}


def test_the_memory_of_a_process_is_that_of_all_below_it() -> None:
    size = 64 << 20
    hold = f"import sys; kept = bytearray(b'x' * {size}); print(flush=True); sys.stdin.read()"
    # Measure it under a shell, which takes almost no memory: the tests' other child processes come and go.
    shell = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", hold]
    parent = subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert memory_mib(parent.pid) > size / (1 << 20)
        parent.communicate()
    assert memory_mib(parent.pid) == 0.0


@pytest.mark.parametrize("gauge", ["draco_worker_waiting", 'draco_queue_depth{reconciler="allocation"}'])
def test_what_waits_is_told_with_its_gauge(gauge: str) -> None:
    [wrong] = kept_at_rest({"operator-a": Scraped(AT_REST.replace(f"{gauge} 0.0", f"{gauge} 2.0"), 1.0)})
    assert wrong.key == f"operator-a {gauge}"
    assert "2.0" in wrong.text


def test_memory_beyond_the_bound_is_told() -> None:
    [wrong] = kept_at_rest({"operator-a": Scraped(AT_REST, MOST_MIB + 1.0)})
    assert wrong.key == "operator-a memory"


def test_what_waits_now_and_then_is_not_kept() -> None:
    kept, waits, empty = Kept(), Suspicion("kept", "waiting", "3"), Suspicion("kept", "depth", "1")
    assert kept.look([waits, empty]) == [waits, empty]
    assert kept.look([waits]) == [waits]
    assert kept.look([waits, empty]) == [waits]
    assert kept.look([]) == kept.look([waits]) == []


def test_the_pods_that_a_replica_gave_the_gate_are_counted() -> None:
    reviews = 'draco_admission_reviews_total{outcome="clean"} 7.0\ndraco_admission_reviews_total{outcome="gated"} 3.0\n'
    assert (Scraped(reviews, 0.0).gated, Scraped(AT_REST, 0.0).gated) == (3, 0)
