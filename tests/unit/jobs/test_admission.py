"""Who enters a lock: `admission.admit` decides it from what is wanted and what is taken, without a database."""

from __future__ import annotations

import random
from itertools import product

import pytest

from holdfast.jobs.admission import HEAD, Admission, Holder, Want, admit, first_in_line
from holdfast.jobs.model import JobId

EXCLUSIVE, SHARED = 1, None


def want(job_id: int, *keys: str, most: int | None = EXCLUSIVE) -> tuple[JobId, list[Want]]:
    return JobId(job_id), [Want(JobId(job_id), key, most) for key in keys]


def holds(job_id: int, key: str, permit: int = 1, most: int | None = EXCLUSIVE) -> Holder:
    return Holder(key, permit, most, JobId(job_id))


def waits(job_id: int, key: str = "t", most: int | None = EXCLUSIVE, priority: int = 0) -> Want:
    return Want(JobId(job_id), key, most, priority)


def admitted(*wants: tuple[JobId, list[Want]], holders: list[Holder] | None = None) -> Admission:
    return admit(dict(wants), holders or [])


def test_a_free_lock_is_given_with_its_first_permit() -> None:
    result = admitted(want(1, "t"))

    assert result.jobs == [1]
    assert result.places == [Holder("t", 1, EXCLUSIVE, JobId(1))]
    assert result.waiting == []


def test_an_exclusive_lock_has_one_holder() -> None:
    result = admitted(want(2, "t"), holders=[holds(1, "t")])

    assert (result.jobs, result.places) == ([], [])
    assert result.waiting == [Want(JobId(2), "t", EXCLUSIVE)]


def test_of_two_that_come_together_the_first_enters() -> None:
    result = admitted(want(5, "t"), want(4, "t"))

    assert result.jobs == [5]
    assert [waiting.job_id for waiting in result.waiting] == [4]


def test_any_number_share_a_shared_lock() -> None:
    result = admitted(*(want(number, "t", most=SHARED) for number in range(1, 8)))

    assert result.jobs == list(range(1, 8))
    assert [place.permit for place in result.places] == list(range(1, 8))


def test_permits_are_given_out_up_to_their_number() -> None:
    result = admitted(*(want(number, "t", most=3) for number in range(1, 6)))

    assert result.jobs == [1, 2, 3]
    assert [waiting.job_id for waiting in result.waiting] == [4, 5]


def test_a_freed_permit_in_the_middle_is_given_again() -> None:
    result = admitted(want(9, "t", most=3), holders=[holds(1, "t", 1, 3), holds(3, "t", 3, 3)])

    assert [place.permit for place in result.places] == [2]


@pytest.mark.parametrize(("held", "wanted"), list(product([EXCLUSIVE, 2, 3, SHARED], repeat=2)))
def test_whoever_asks_for_less_company_gets_it(held: int | None, wanted: int | None) -> None:
    """One holder and one newcomer go together exactly if both allow two."""
    result = admitted(want(2, "t", most=wanted), holders=[holds(1, "t", most=held)])

    assert bool(result.jobs) == (EXCLUSIVE not in (held, wanted))


def test_a_writer_waits_until_all_readers_have_left() -> None:
    readers = [holds(1, "t", 1, SHARED), holds(2, "t", 2, SHARED)]

    assert admitted(want(3, "t"), holders=readers).jobs == []
    assert admitted(want(3, "t"), holders=readers[:1]).jobs == []
    assert admitted(want(3, "t"), holders=[]).jobs == [3]


def test_a_job_gets_all_of_its_locks_or_none() -> None:
    result = admitted(want(2, "a", "b", "c"), want(3, "a"), holders=[holds(1, "b")])

    assert result.jobs == [3], "job 2 took nothing, so `a` is free"
    assert [waiting.key for waiting in result.waiting] == ["b"]


def test_what_a_job_holds_already_is_not_taken_twice() -> None:
    result = admitted(want(1, "t", "u"), holders=[holds(1, "t")])

    assert result.jobs == [1]
    assert [place.key for place in result.places] == ["u"]


def test_a_job_without_locks_just_enters() -> None:
    assert admitted(want(1)).jobs == [1]


def test_nobody_enters_past_a_waiter_that_does_not_fit() -> None:
    reader, writer = holds(1, "t", most=SHARED), waits(2)

    assert admit(dict([want(3, "t", most=SHARED)]), [reader], [writer]).jobs == []
    assert admit(dict([want(1, "t", most=SHARED)]), [], [writer]).jobs == [1], "the older one goes first"
    assert admit(dict([want(3, "u", most=SHARED)]), [reader], [writer]).jobs == [3], "another key has another line"


def test_a_waiter_that_fits_keeps_its_place_and_lets_others_in_beside_it() -> None:
    assert admit(dict([want(3, "t", most=SHARED)]), [], [waits(2, most=SHARED)]).jobs == [3]
    assert admit(dict([want(3, "t", most=2)]), [], [waits(2, most=2)]).jobs == [3]
    assert admit(dict([want(4, "t", most=2)]), [], [waits(2, most=2), waits(3, most=2)]).jobs == []


def test_of_a_batch_those_behind_one_that_must_wait_wait_too() -> None:
    result = admitted(want(2, "t"), want(3, "t", most=SHARED), holders=[holds(1, "t", most=SHARED)])

    assert (result.jobs, [one.job_id for one in result.waiting]) == ([], [2, 3])


def test_a_job_does_not_stand_in_its_own_way() -> None:
    assert admit(dict([want(2, "t")]), [], [waits(2), waits(3)]).jobs == [2]


def test_who_stands_behind_more_than_was_read_waits() -> None:
    line = [waits(number, most=SHARED) for number in range(1, HEAD + 1)]

    assert admit(dict([want(HEAD + 1, "t", most=SHARED)]), [], line).jobs == []
    assert admit(dict([want(HEAD, "t", most=SHARED)]), [], line).jobs == [HEAD]


@pytest.mark.parametrize("seed", range(200))
def test_those_that_a_wake_up_finds_are_those_that_a_claim_lets_in(seed: int) -> None:
    """The sweep, the wake-up and the claim agree, whatever the mix."""
    chance = random.Random(seed)
    holders: list[Holder] = []
    for number in range(1, chance.randint(1, 4)):
        most = chance.choice([1, 2, 3, None])
        holders += admit(dict([want(number, "t", most=most)]), holders).places
    line = [waits(number, most=chance.choice([1, 2, 3, None])) for number in range(10, 10 + chance.randint(1, 6))]

    woken = first_in_line(holders, line)

    assert woken == [one.job_id for one in line if admit({one.job_id: [one]}, holders, line).jobs]
    assert woken == admit({one.job_id: [one] for one in line}, holders).jobs
