"""The effects ledger: an effect is recorded before it is created, and cleaned until the removal is confirmed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from factories import EXPIRED, clock, column, end, everything, hold, job, lose, replace, rows, state_of, submit, take, value
from holdfast.errors import ClaimLost, PayloadInvalid, UsageError
from holdfast.jobs.cancel import cancel
from holdfast.jobs.effects import Effect, adopt, clean, confirm, left_behind, plan
from holdfast.jobs.outcome import Cancel, Done, Fail, Retry, Snooze


async def _states(conn: Any) -> dict[int, str]:
    return dict(await rows(conn, "SELECT id, state FROM holdfast.effects ORDER BY id"))


async def _all_due(conn: Any) -> None:
    await conn.execute("UPDATE holdfast.effects SET clean_after = clock_timestamp() WHERE state = 'unwanted'")


async def test_effect_is_recorded_before_it_is_created(conn: Any) -> None:
    """Promise 7."""
    claim = await hold(conn)

    query = await plan(conn, claim, "trino.query", detail={"catalog": "hive"})

    ((job_id, attempt_id, token, kind, detail, state),) = await rows(
        conn, "SELECT job_id, attempt_id::text, fence_token, kind, detail, state FROM holdfast.effects"
    )
    assert (job_id, attempt_id, token) == (claim.id, claim.attempt_id, claim.fence_token)
    assert (kind, detail, state) == ("trino.query", {"catalog": "hive"}, "planned")
    assert query.tag.startswith(f"trino.query-{claim.id}-{claim.fence_token}-"), "it can be found outside by its tag"
    assert await column(conn, claim.id, "ties") == 8


async def test_every_effect_has_its_own_tag(conn: Any) -> None:
    claim = await hold(conn)

    tags = {(await plan(conn, claim, "query")).tag for _ in range(5)}

    assert len(tags) == 5
    assert (await plan(conn, claim, "query", tag="mine")).tag == "mine"


async def test_attempt_can_plan_the_same_effect_again(conn: Any) -> None:
    """As it does when the answer to the first time was lost."""
    claim = await hold(conn)
    first = await plan(conn, claim, "query", tag="mine", detail={"a": 1})
    before = await everything(conn)

    assert await plan(conn, claim, "query", tag="mine", detail={"a": 1}) == first

    assert await everything(conn) == before


async def test_tag_conflict_names_its_owner_and_the_fix(conn: Any) -> None:
    mine, other = await hold(conn), await hold(conn)
    await plan(conn, mine, "query", tag="mine", adoptable=True)

    with pytest.raises(UsageError, match=f"belongs to job {mine.id}; use a tag that contains the id of this job"):
        await plan(conn, other, "query", tag="mine")
    with pytest.raises(UsageError, match="was planned for the kind query; use another tag for table"):
        await plan(conn, mine, "table", tag="mine")
    again = await replace(conn, mine)
    with pytest.raises(UsageError, match="was planned by an earlier attempt; adopt its effect"):
        await plan(conn, again, "query", tag="mine")


async def test_replaced_attempt_cannot_plan_its_tag_again(conn: Any) -> None:
    lost = await hold(conn)
    await plan(conn, lost, "query", tag="mine")
    await replace(conn, lost)

    with pytest.raises(ClaimLost):
        await plan(conn, lost, "query", tag="mine")


async def test_confirm_stores_the_handle(conn: Any) -> None:
    claim = await hold(conn)
    query = await plan(conn, claim, "query")

    made = await confirm(conn, claim, query, {"id": "q1"})
    again = await confirm(conn, claim, query, {"id": "q2"})

    assert (made.state, made.handle, again.handle) == ("made", {"id": "q1"}, {"id": "q2"})


async def test_values_that_cannot_be_stored_are_refused(conn: Any) -> None:
    claim = await hold(conn)
    query = await plan(conn, claim, "query")
    before = await everything(conn)

    with pytest.raises(PayloadInvalid, match="tag"):
        await plan(conn, claim, "query", tag="a\x00")
    with pytest.raises(PayloadInvalid, match="effect's detail"):
        await plan(conn, claim, "query", detail={"a": float("nan")})
    with pytest.raises(PayloadInvalid, match="handle"):
        await confirm(conn, claim, query, "\x00")

    assert await everything(conn) == before


# ---------------------------------------------------------------------------------------------------------------------
# What becomes of it
# ---------------------------------------------------------------------------------------------------------------------

FATES: dict[str, tuple[object, str, str, str]] = {
    # how the attempt ends → what becomes of a plain, a temporary and an adoptable effect
    "completed": (Done(), "kept", "unwanted", "kept"),
    "failed": (Fail("no"), "unwanted", "unwanted", "unwanted"),
    "cancelled": (Cancel("no"), "unwanted", "unwanted", "unwanted"),
    "retried": (Retry("busy"), "unwanted", "unwanted", "made"),
    "snoozed": (Snooze(timedelta(seconds=1)), "unwanted", "unwanted", "made"),
}


@pytest.mark.parametrize(("ended_with", "plain", "temporary", "adoptable"), FATES.values(), ids=FATES.keys())
async def test_outcome_of_the_attempt_decides_which_effects_are_kept(
    conn: Any, ended_with: object, plain: str, temporary: str, adoptable: str
) -> None:
    claim = await hold(conn)
    made = [
        await plan(conn, claim, "table"),
        await plan(conn, claim, "staging", temporary=True),
        await plan(conn, claim, "query", adoptable=True),
    ]
    for effect in made:
        await confirm(conn, claim, effect, effect.kind)

    await end(conn, claim, ended_with)

    assert list((await _states(conn)).values()) == [plain, temporary, adoptable]


async def test_submit_leaves_effects_unchanged(conn: Any) -> None:
    claim = await hold(conn)
    await plan(conn, claim, "table"), await plan(conn, claim, "staging", temporary=True)

    await submit(conn, claim)

    assert set((await _states(conn)).values()) == {"planned"}


@pytest.mark.parametrize("adoptable", [False, True])
async def test_forced_cancel_leaves_all_effects_to_the_cleaners(conn: Any, adoptable: bool) -> None:
    """E-50."""
    claim = await hold(conn)
    await plan(conn, claim, "query", adoptable=adoptable)

    await cancel(conn, claim.id, actor="ada", force=True)

    assert set((await _states(conn)).values()) == {"unwanted"}


async def test_job_and_effects_end_in_one_transaction(conn: Any) -> None:
    claim = await hold(conn)
    await plan(conn, claim, "query")

    await end(conn, claim, Fail("no"))

    same = "SELECT j.xmin::text = e.xmin::text FROM holdfast.jobs j JOIN holdfast.effects e ON e.job_id = j.id"
    assert await value(conn, same) is True


# ---------------------------------------------------------------------------------------------------------------------
# Adopting
# ---------------------------------------------------------------------------------------------------------------------


async def test_next_attempt_finds_and_adopts_effects(conn: Any) -> None:
    """E-07: submit, crash, and no second query."""
    first = await hold(conn)
    query = await plan(conn, first, "query", adoptable=True)
    second = await replace(conn, first)

    (left,) = await left_behind(conn, second)
    adopted = await adopt(conn, second, left, "found by its tag")

    assert (left.tag, left.state) == (query.tag, "planned")
    assert (adopted.attempt_id, adopted.fence_token) == (second.attempt_id, second.fence_token)
    assert (adopted.state, adopted.handle) == ("made", "found by its tag")
    assert await left_behind(conn, second) == []
    await end(conn, second, Done())
    assert await _states(conn) == {query.id: "kept"}


async def test_adopt_keeps_a_known_handle(conn: Any) -> None:
    first = await hold(conn)
    await confirm(conn, first, await plan(conn, first, "query", adoptable=True), "q1")
    second = await replace(conn, first)
    (left,) = await left_behind(conn, second)

    assert (await adopt(conn, second, left)).handle == "q1"


async def test_unadopted_effects_are_cleaned_when_the_job_has_ended(conn: Any) -> None:
    first = await hold(conn)
    lost = await plan(conn, first, "query", adoptable=True)
    second = await replace(conn, first)
    made = await plan(conn, second, "query", adoptable=True)

    await end(conn, second, Done())

    assert await _states(conn) == {lost.id: "unwanted", made.id: "kept"}


async def test_unwanted_effect_cannot_be_adopted(conn: Any) -> None:
    first = await hold(conn)
    pod = await plan(conn, first, "pod")
    second = await replace(conn, first)

    assert await left_behind(conn, second) == []
    with pytest.raises(ClaimLost):
        await adopt(conn, second, pod)
    assert await _states(conn) == {pod.id: "unwanted"}


async def test_effect_of_another_job_cannot_be_adopted(conn: Any) -> None:
    other = await hold(conn)
    query = await plan(conn, other, "query", adoptable=True)
    mine = await hold(conn)
    before = await _states(conn)

    with pytest.raises(ClaimLost):
        await adopt(conn, mine, query)

    assert await _states(conn) == before
    assert await value(conn, "SELECT attempt_id::text FROM holdfast.effects") == other.attempt_id


async def test_batch_completion_sees_effects_planned_after_the_claim(conn: Any) -> None:
    from holdfast.jobs.finish import complete_plain

    claim = await hold(conn)
    await plan(conn, claim, "staging", temporary=True)

    assert await complete_plain(conn, [claim], [None]) == set()

    await end(conn, claim)
    assert set((await _states(conn)).values()) == {"unwanted"}


# ---------------------------------------------------------------------------------------------------------------------
# Cleaning
# ---------------------------------------------------------------------------------------------------------------------


async def _unwanted(conn: Any, kind: str = "query") -> Effect:
    claim = await hold(conn)
    effect = await plan(conn, claim, kind)
    await confirm(conn, claim, effect, f"handle of {kind}")
    await end(conn, claim, Fail("no"))
    return effect


class Cleaner:
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), []

    async def __call__(self, effect: Effect) -> bool:
        self.asked.append(effect)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, BaseException):
            raise answer
        return bool(answer)


async def test_cleaner_gets_tag_and_handle(conn: Any) -> None:
    effect = await _unwanted(conn)
    cleaner = Cleaner(True)

    assert await clean(conn, {"query": cleaner}) == 1

    assert [(e.tag, e.handle) for e in cleaner.asked] == [(effect.tag, "handle of query")]
    ((state, clean_after, gone_at, error),) = await rows(
        conn, "SELECT state, clean_after, gone_at, error FROM holdfast.effects"
    )
    assert (state, clean_after, error) == ("gone", None, None)
    assert gone_at is not None
    assert await clean(conn, {"query": cleaner}) == 0


@pytest.mark.parametrize("answer", [False, ConnectionError("reset"), ValueError("a\x00b"), ValueError("\ud800")])
async def test_a_cleaner_is_called_until_it_confirms(conn: Any, answer: Any) -> None:
    """Whatever it says or raises, the effect is tried again, later each time."""
    await _unwanted(conn)
    cleaner = Cleaner(answer, answer, True)
    for delay in (2, 4):
        before = await clock(conn)
        assert await clean(conn, {"query": cleaner}) == 0
        after = await clock(conn)
        clean_after = await value(conn, "SELECT clean_after FROM holdfast.effects")
        assert before <= clean_after - timedelta(seconds=delay) <= after
        await conn.execute("UPDATE holdfast.effects SET clean_after = clean_after + interval '1 hour'")
        assert await clean(conn, {"query": cleaner}) == 0, "not before its time"
        await _all_due(conn)

    assert await clean(conn, {"query": cleaner}) == 1
    assert len(cleaner.asked) == 3


async def test_the_last_error_of_a_cleaner_can_be_read(conn: Any) -> None:
    await _unwanted(conn)

    await clean(conn, {"query": Cleaner(ConnectionError("reset"))})

    assert await value(conn, "SELECT error FROM holdfast.effects") == "ConnectionError: reset"


async def test_failing_cleaner_does_not_stop_others(conn: Any) -> None:
    bad, good = await _unwanted(conn, "bad"), await _unwanted(conn, "good")

    assert await clean(conn, {"bad": Cleaner(RuntimeError("no")), "good": Cleaner(True)}) == 1

    assert await _states(conn) == {bad.id: "unwanted", good.id: "gone"}


async def test_effect_without_a_cleaner_here_waits_for_another_worker(conn: Any) -> None:
    effect = await _unwanted(conn, "exotic")

    assert await clean(conn, {"query": Cleaner()}) == 0

    assert await _states(conn) == {effect.id: "unwanted"}
    assert await value(conn, "SELECT clean_tries FROM holdfast.effects") == 0


async def test_kept_or_used_effects_are_never_cleaned(conn: Any) -> None:
    kept, used = await hold(conn), await hold(conn)
    await plan(conn, kept, "query"), await plan(conn, used, "query")
    await end(conn, kept, Done())

    cleaner = Cleaner()
    assert await clean(conn, {"query": cleaner}) == 0

    assert cleaner.asked == []


async def test_two_cleaners_never_take_the_same_effect(connect: Any) -> None:
    conn, other = await connect(), await connect()
    await _unwanted(conn)

    async def slow(effect: Effect) -> bool:
        assert await clean(other, {"query": Cleaner()}) == 0, "somebody else has it in hand"
        return True

    assert await clean(conn, {"query": slow}) == 1


async def test_dead_cleaner_is_replaced_and_cannot_confirm(connect: Any) -> None:
    conn, other = await connect(), await connect()
    effect = await _unwanted(conn)

    async def paused_for_too_long(_: Effect) -> bool:
        # Its lease is over before it began: another takes the effect, finds it still there, and will come back.
        assert await clean(other, {"query": Cleaner(False)}) == 0
        return True

    await clean(conn, {"query": paused_for_too_long}, lease=EXPIRED)

    assert await _states(conn) == {effect.id: "unwanted"}, "the late confirmation is refused"


async def test_refused_confirmation_is_not_counted(connect: Any) -> None:
    conn, other = await connect(), await connect()
    await _unwanted(conn)

    async def paused_for_too_long(_: Effect) -> bool:
        assert await clean(other, {"query": Cleaner(False)}) == 0
        return True

    assert await clean(conn, {"query": paused_for_too_long}, lease=EXPIRED) == 0


async def test_late_failure_of_a_cleaner_keeps_the_confirmation_of_its_successor(connect: Any) -> None:
    conn, other = await connect(), await connect()
    effect = await _unwanted(conn)

    async def paused_for_too_long(_: Effect) -> bool:
        assert await clean(other, {"query": Cleaner(True)}) == 1
        return False

    assert await clean(conn, {"query": paused_for_too_long}, lease=EXPIRED) == 0

    assert await _states(conn) == {effect.id: "gone"}


async def test_cleaning_goes_in_batches_oldest_first(conn: Any) -> None:
    first, second = await _unwanted(conn), await _unwanted(conn)
    cleaner = Cleaner()

    assert await clean(conn, {"query": cleaner}, limit=1) == 1

    assert [e.id for e in cleaner.asked] == [first.id]
    assert await _states(conn) == {first.id: "gone", second.id: "unwanted"}


async def test_effect_of_a_lost_attempt_is_cleaned_while_its_successor_runs(conn: Any) -> None:
    first = await hold(conn)
    await plan(conn, first, "query")
    await lose(conn, first)
    await take(conn, first.id)

    assert await clean(conn, {"query": Cleaner(True)}) == 1

    assert await state_of(conn, first.id) == "running"
    assert (await job(conn, first.id)).attempt_no == 2
