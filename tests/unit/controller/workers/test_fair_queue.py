"""Which question is next: the laws of the queue before the workers."""

from draco.controller.workers.fair_queue import FairQueue, QueuePriority

BURST_S = 20.0
REFILL = 0.25


def a_queue() -> FairQueue[str]:
    return FairQueue(burst_s=BURST_S, refill=REFILL)


def test_what_people_wait_for_comes_first() -> None:
    queue = a_queue()
    for urgency in reversed(QueuePriority):
        queue.put(urgency.name, "team", urgency)
    assert [queue.take(0.0) for _ in range(5)] == ["REVIEW", "FIRST", "SEARCH", "AGAIN", None]


def test_the_namespace_that_has_used_least_is_next_and_the_others_take_turns() -> None:
    queue = a_queue()
    for number in range(3):
        queue.put(f"busy-{number}", "busy", QueuePriority.FIRST)
    queue.put("quiet", "quiet", QueuePriority.FIRST)
    queue.put("new", "new", QueuePriority.FIRST)
    queue.finished("busy", QueuePriority.FIRST, 5.0, 0.0)
    queue.finished("quiet", QueuePriority.FIRST, 1.0, 0.0)
    assert [queue.take(0.0) for _ in range(5)] == ["new", "quiet", "busy-0", "busy-1", "busy-2"]


def test_namespaces_that_have_used_the_same_take_turns() -> None:
    queue = a_queue()
    for number in range(2):
        for name in "ab":
            queue.put(f"{name}{number}", name, QueuePriority.FIRST)
    assert [queue.take(0.0) for _ in range(4)] == ["a0", "b0", "a1", "b1"]


def test_a_namespace_that_has_used_up_its_budget_waits_until_some_is_left() -> None:
    queue = a_queue()
    queue.finished("hostile", QueuePriority.FIRST, BURST_S + 1.0, 0.0)
    queue.put("again", "hostile", QueuePriority.FIRST)
    assert not queue.may_ask("hostile", 0.0)
    assert (queue.take(0.0), queue.due_in_s(0.0)) == (None, 4.0)
    assert queue.take(3.9) is None
    assert queue.take(4.1) == "again"


def test_what_is_being_answered_counts_as_used_until_it_is_known_what_it_took() -> None:
    queue = a_queue()
    queue.hold("team", BURST_S, 0.0)
    assert not queue.may_ask("team", 0.0)
    queue.hold("team", -BURST_S, 0.0)
    queue.finished("team", QueuePriority.FIRST, 0.1, 0.0)
    assert queue.may_ask("team", 0.0)


def test_what_is_said_anew_takes_half_of_one_processor_at_most_and_one_place() -> None:
    queue = a_queue()
    for name in "ab":
        queue.put(name, name, QueuePriority.AGAIN)
    assert queue.take(0.0) == "a"
    assert (queue.take(0.0), queue.due_in_s(0.0)) == (None, None)
    queue.finished("a", QueuePriority.AGAIN, 2.0, 2.0)
    assert (queue.take(3.9), queue.due_in_s(3.0)) == (None, 1.0)
    assert queue.take(4.0) == "b"


def test_of_what_is_said_anew_others_may_stand_behind_the_one_that_is_answered_and_all_of_them_are_rested_for() -> None:
    queue = a_queue()
    for name in "aabb":
        queue.put(f"{name}{len(queue)}", name, QueuePriority.AGAIN)
    queue.put("first", "c", QueuePriority.FIRST)
    assert (queue.take(0.0), queue.as_urgent(QueuePriority.AGAIN)) == ("first", 4)
    taken = [queue.take(0.0), *(queue.take_behind(QueuePriority.AGAIN, 0.0) for _ in range(2))]
    assert (taken, queue.take(0.0)) == (["a0", "b2", "a1"], None)
    for number, name in enumerate("aba"):
        queue.finished(name, QueuePriority.AGAIN, 1.0, float(number))
    assert (queue.take(4.9), queue.take(5.0)) == (None, "b3"), "three seconds were worked, and three are rested"
    assert queue.take_behind(QueuePriority.AGAIN, 5.0) is None


def test_what_is_put_back_is_the_first_of_its_namespace_however_many_wait() -> None:
    queue: FairQueue[str] = FairQueue(most=2)
    for name in ("one", "two"):
        queue.put(name, "team", QueuePriority.FIRST)
    taken = queue.take(0.0)
    assert taken == "one"
    queue.put("three", "team", QueuePriority.FIRST)
    queue.put_back(taken, "team", QueuePriority.FIRST)
    assert [queue.take(0.0) for _ in range(4)] == ["one", "two", "three", None]


def test_what_is_said_anew_leaves_half_of_the_budget_to_what_is_new() -> None:
    queue = a_queue()
    queue.finished("team", QueuePriority.FIRST, BURST_S / 2, 0.0)
    queue.put("again", "team", QueuePriority.AGAIN)
    queue.put("first", "team", QueuePriority.FIRST)
    assert [queue.take(0.0) for _ in range(2)] == ["first", None]
    assert queue.take(1.0) == "again"


def test_a_place_can_be_kept_for_what_is_most_urgent() -> None:
    queue = a_queue()
    queue.put("first", "team", QueuePriority.FIRST)
    assert queue.take(0.0, least_urgent=QueuePriority.REVIEW) is None
    queue.put("review", "team", QueuePriority.REVIEW)
    assert queue.take(0.0, least_urgent=QueuePriority.REVIEW) == "review"


def test_what_nobody_waits_for_any_more_is_not_taken() -> None:
    queue = a_queue()
    queue.put("one", "team", QueuePriority.FIRST)
    queue.discard("one", "team", QueuePriority.FIRST)
    queue.discard("one", "team", QueuePriority.FIRST)
    assert (len(queue), queue.take(0.0)) == (0, None)


def test_namespaces_with_their_whole_budget_are_forgotten() -> None:
    queue = a_queue()
    for number in range(1000):
        queue.finished(f"team-{number}", QueuePriority.FIRST, 1.0, float(number))
    assert len(queue._namespaces) <= 257


def test_a_namespace_has_so_many_places_and_takes_none_of_the_others() -> None:
    queue: FairQueue[str] = FairQueue(most=3)
    assert [queue.put(f"one-{number}", "loud", QueuePriority.FIRST) for number in range(5)] == [True] * 3 + [False] * 2
    assert queue.put("again", "loud", QueuePriority.AGAIN)
    assert queue.put("one", "quiet", QueuePriority.FIRST)
    assert len(queue) == 5
    queue.discard("one-1", "loud", QueuePriority.FIRST)
    assert queue.put("one-5", "loud", QueuePriority.FIRST), "a place that was left is free"
