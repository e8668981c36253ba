"""Admission to a lock: `admission.admit` decides from wants, holders and waiters, without a database."""

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


def test_free_lock_is_granted_with_its_first_permit() -> None:
    result = admitted(want(1, "t"))

    assert result.jobs == [1]
    assert result.places == [Holder("t", 1, EXCLUSIVE, JobId(1))]
    assert result.waiting == []


def test_an_exclusive_lock_has_one_holder() -> None:
    result = admitted(want(2, "t"), holders=[holds(1, "t")])

    assert (result.jobs, result.places) == ([], [])
    assert result.waiting == [Want(JobId(2), "t", EXCLUSIVE)]


def test_first_of_two_is_admitted() -> None:
    result = admitted(want(5, "t"), want(4, "t"))

    assert result.jobs == [5]
    assert [waiting.job_id for waiting in result.waiting] == [4]


def test_shared_lock_has_any_number_of_holders() -> None:
    result = admitted(*(want(number, "t", most=SHARED) for number in range(1, 8)))

    assert result.jobs == list(range(1, 8))
    assert [place.permit for place in result.places] == list(range(1, 8))


def test_permits_are_granted_up_to_their_number() -> None:
    result = admitted(*(want(number, "t", most=3) for number in range(1, 6)))

    assert result.jobs == [1, 2, 3]
    assert [waiting.job_id for waiting in result.waiting] == [4, 5]


def test_freed_permit_is_granted_again() -> None:
    result = admitted(want(9, "t", most=3), holders=[holds(1, "t", 1, 3), holds(3, "t", 3, 3)])

    assert [place.permit for place in result.places] == [2]


@pytest.mark.parametrize(("held", "wanted"), list(product([EXCLUSIVE, 2, 3, SHARED], repeat=2)))
def test_strictest_permit_count_applies(held: int | None, wanted: int | None) -> None:
    """One holder and one newcomer go together exactly if both allow two."""
    result = admitted(want(2, "t", most=wanted), holders=[holds(1, "t", most=held)])

    assert bool(result.jobs) == (EXCLUSIVE not in (held, wanted))


def test_exclusive_waits_for_all_shared_holders() -> None:
    readers = [holds(1, "t", 1, SHARED), holds(2, "t", 2, SHARED)]

    assert admitted(want(3, "t"), holders=readers).jobs == []
    assert admitted(want(3, "t"), holders=readers[:1]).jobs == []
    assert admitted(want(3, "t"), holders=[]).jobs == [3]


def test_a_job_gets_all_of_its_locks_or_none() -> None:
    result = admitted(want(2, "a", "b", "c"), want(3, "a"), holders=[holds(1, "b")])

    assert result.jobs == [3], "job 2 took nothing, so `a` is free"
    assert [waiting.key for waiting in result.waiting] == ["b"]


def test_held_lock_is_not_taken_twice() -> None:
    result = admitted(want(1, "t", "u"), holders=[holds(1, "t")])

    assert result.jobs == [1]
    assert [place.key for place in result.places] == ["u"]


def test_job_without_locks_is_admitted() -> None:
    assert admitted(want(1)).jobs == [1]


def test_no_job_passes_a_waiter_that_does_not_fit() -> None:
    reader, writer = holds(1, "t", most=SHARED), waits(2)

    assert admit(dict([want(3, "t", most=SHARED)]), [reader], [writer]).jobs == []
    assert admit(dict([want(1, "t", most=SHARED)]), [], [writer]).jobs == [1], "the older one goes first"
    assert admit(dict([want(3, "u", most=SHARED)]), [reader], [writer]).jobs == [3], "another key has another line"


def test_waiter_that_fits_keeps_its_place_and_admits_others() -> None:
    assert admit(dict([want(3, "t", most=SHARED)]), [], [waits(2, most=SHARED)]).jobs == [3]
    assert admit(dict([want(3, "t", most=2)]), [], [waits(2, most=2)]).jobs == [3]
    assert admit(dict([want(4, "t", most=2)]), [], [waits(2, most=2), waits(3, most=2)]).jobs == []


def test_jobs_of_a_batch_behind_a_waiting_job_wait() -> None:
    result = admitted(want(2, "t"), want(3, "t", most=SHARED), holders=[holds(1, "t", most=SHARED)])

    assert (result.jobs, [one.job_id for one in result.waiting]) == ([], [2, 3])


def test_job_does_not_block_itself() -> None:
    assert admit(dict([want(2, "t")]), [], [waits(2), waits(3)]).jobs == [2]


def test_job_behind_more_waiters_than_were_read_waits() -> None:
    line = [waits(number, most=SHARED) for number in range(1, HEAD + 1)]

    assert admit(dict([want(HEAD + 1, "t", most=SHARED)]), [], line).jobs == []
    assert admit(dict([want(HEAD, "t", most=SHARED)]), [], line).jobs == [HEAD]


@pytest.mark.parametrize("seed", range(200))
def test_wake_and_claim_admit_the_same_jobs(seed: int) -> None:
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
