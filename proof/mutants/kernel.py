"""The mutants of the kernel: mistakes in the protocol that the tests must catch. Called by: `run.py`.

Two mistakes are missing because they are equivalent to the original: releasing locks by job instead of by attempt after
the guarded write (in the same transaction the job's attempt is the holder's), and a fence of `attempt_no` alone (it is
reused only by a failover that loses a commit).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proof.mutants.mutations import Code, Mutant, Schema, Text, Whole
from proof.mutants.worker import WORKER_MUTANTS

from holdfast.jobs import admission, locks, pipelines
from holdfast.jobs import claim as claiming
from holdfast.jobs import finish as finishing
from holdfast.jobs.begin import HAS_BEGUN
from holdfast.jobs.claim import CLAIM_PICKED, SET_CLAIMED
from holdfast.jobs.model import CLAIM_COLUMNS, LOCKS
from holdfast.jobs.states import State

FENCE, STATE_ONLY = "j.attempt_id = %(attempt_id)s", "j.state = 'running'"
NO_TRIGGER = Schema("DROP TRIGGER legal_moves_only ON holdfast.jobs")
FRESH, SAME = "gen_random_uuid()", "md5(j.id::text)::uuid"
CLAIMS = ("claim.CLAIM", "claim.CLAIM_BY_ID", "claim.CLAIM_TIED", "poll.CLAIM_TO_POLL")
NO_MUTEX = Whole("locks.HOLD_KEYS", "SELECT %(keys)s::text[]")
NO_MUTEX_AT_ENQUEUE = Whole("locks.HOLD_LOCK_KEY", "SELECT %(key)s::text")
ON_CONFLICT = "ON CONFLICT" + locks.TAKE_NOW.partition("ON CONFLICT")[2].partition("RETURNING")[0]
# Without the primary key there is no conflict to resolve: the place of a holder that just ends is written beside it.
NO_PERMITS = (
    Schema("ALTER TABLE holdfast.lock_holders DROP CONSTRAINT lock_holders_pkey"),
    Text("locks.TAKE_NOW", ON_CONFLICT, ""),
)
NO_OTHER_PARENT_LIVES = """NOT EXISTS (
    SELECT FROM holdfast.dependencies s JOIN holdfast.jobs p ON p.id = s.parent_id
    WHERE s.job_id = j.id AND p.id <> ALL (%(ids)s::bigint[]) AND p.state NOT IN ('completed', 'failed', 'cancelled'))"""
# The same rows as CLAIM, picked by `id IN (SELECT … LIMIT …)`; the tied jobs are named as CLAIM names them.
UNPAUSED_PENDING = """p.state = 'pending' AND p.run_after IS NULL AND p.queue = ANY (%(queues)s)
               AND (p.kind, true) IN (SELECT k.kind, p.kind_version <= k.version
                                      FROM unnest(%(kinds)s::text[], %(versions)s::int[]) AS k(kind, version))
               AND NOT EXISTS (SELECT FROM holdfast.controls c WHERE c.kind IN (p.kind, '*') AND c.paused_at IS NOT NULL)"""
NAME_TIED = CLAIM_PICKED.partition("UNION ALL")[2]
CLAIMED_BY_SUB_SELECT = f"""
    WITH picked AS (
        SELECT p.id, p.ties FROM holdfast.jobs p WHERE {UNPAUSED_PENDING} AND p.ties & 3 <> 0
        ORDER BY p.priority, p.id LIMIT %(limit)s
    ), claimed AS (
        UPDATE holdfast.jobs j SET {SET_CLAIMED}, run_after = NULL
        WHERE j.ties & 3 = 0 AND j.id IN (
            SELECT p.id FROM holdfast.jobs p WHERE {UNPAUSED_PENDING} AND p.ties & 3 = 0
            ORDER BY p.priority, p.id LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
        RETURNING {CLAIM_COLUMNS}
    )
    SELECT * FROM claimed
    UNION ALL {NAME_TIED}
"""

# No mistake: the kernel never writes such a row. Not in the list: the suite must miss it, or it would catch every mutant
# of the schema, the kernel's guarantees broken or not.
HARMLESS = Mutant("harmless", "the schema accepts an unwanted effect without a time, and the kernel makes none",
                  (Schema("ALTER TABLE holdfast.effects DROP CONSTRAINT unwanted_has_a_time"),))  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Logic
# ---------------------------------------------------------------------------------------------------------------------


def _children_later(original: Any) -> Any:
    async def finish(conn: Any, claim: Any, end: Any) -> None:
        parts = {name: getattr(end, name) for name in type(end).__slots__}
        await original(conn, claim, type(end)(**parts | {"then": (), "join": None}))
        if end.then:
            await pipelines.enqueue_children(conn, claim, end.then, end.join)

    return finish


def _children_first(original: Any) -> Any:
    async def finish(conn: Any, claim: Any, end: Any) -> None:
        if end.then:
            await pipelines.enqueue_children(conn, claim, end.then, end.join)
        parts = {name: getattr(end, name) for name in type(end).__slots__}
        await original(conn, claim, type(end)(**parts | {"then": (), "join": None}))

    return finish


def _publish_later(original: Any) -> Any:
    async def finish(conn: Any, claim: Any, end: Any) -> None:
        parts = {name: getattr(end, name) for name in type(end).__slots__}
        await original(conn, claim, type(end)(**parts | {"publish": None}))
        if end.publish is not None:
            await end.publish(conn)

    return finish


def _unlock_first(original: Any) -> Any:
    """Frees what the job holds before it is known whether the attempt may still write."""

    async def finish(conn: Any, claim: Any, end: Any) -> None:
        if claim.ties & LOCKS and end.state != State.SUBMITTED:
            await conn.execute("DELETE FROM holdfast.lock_holders WHERE job_id = %s", [claim.id])
        await original(conn, claim, end)

    return finish


def _untie_later(original: Any) -> Any:
    """What hangs on the job is seen to in a transaction of its own, after the end was committed."""

    async def finish(conn: Any, claim: Any, end: Any) -> None:
        async with conn.cursor() as cursor:
            await cursor.execute(finishing.FINISH, finishing._parameters(claim, end))
            row = await cursor.fetchone()
            if row is None:
                raise finishing.ClaimLost(claim.id, claim.attempt_id, f"{end.move}")
            async with conn.transaction():
                if end.then:
                    await pipelines.enqueue_children(conn, claim, end.then, end.join)
                if end.publish is not None:
                    await end.publish(conn)
                await finishing.untie(cursor, finishing.Ended(*row[:4]), claim.attempt_id)

    return finish


def _nobody_woken(original: Any) -> Any:
    real = locks.wake_waiters

    async def give_back(*args: Any, **options: Any) -> None:
        async def sleep_on(*_: Any) -> list[Any]:
            return []

        locks.wake_waiters = sleep_on
        try:
            await original(*args, **options)
        finally:
            locks.wake_waiters = real

    return give_back


def _never_over(original: Any) -> Any:
    def retry(claim: Any, *args: Any, **options: Any) -> Any:
        return original(claim._replace(errors=-1), *args, **options)

    return retry


def _nothing_held(_: Any) -> Any:
    async def hold(*_: Any) -> None:
        """Hold nothing before."""

    return hold


def _nothing_untied(_: Any) -> Any:
    async def untie(*_: Any) -> None:
        return None

    return untie


def _take_only_new(original: Any) -> Any:
    async def take(cursor: Any, admission: Any, attempts: Any) -> None:
        if admission.places:
            await original(cursor, admission, attempts)

    return take


def _line_ignored(original: Any) -> Any:
    def may_enter(want: Any, holders: Any, _: Any) -> bool:
        return bool(original(want, holders, ()))

    return may_enter


def _wakes_all_that_fit(_: Any) -> Any:
    def first_in_line(holders: Any, line: Any) -> Any:
        return [want.job_id for want in line if admission.admit({want.job_id: [want]}, holders).jobs]

    return first_in_line


def _nothing_reopened(original: Any) -> Any:
    async def block_where_busy(cursor: Any, jobs: Any) -> Any:
        admitted = await original(cursor, jobs)
        admitted.reopened = []
        return admitted

    return block_where_busy


def _takes_only_its_rejects(original: Any) -> Any:
    def want(job: Any, job_id: Any) -> Any:
        by_claim = tuple(lock for lock in job.locks if lock.when_busy == "wait")
        at_once = tuple(lock for lock in job.locks if lock.when_busy == "reject")
        for some in (by_claim, at_once):
            if some:
                yield from original(replace(job, locks=some), job_id)

    return want


def _errors_get_out(_: Any) -> Any:
    async def claim_tied(conn: Any, worker_id: Any, ids: Any, *, soon: bool = False, begins: bool = True) -> Any:
        return await claiming._claim_tied(conn, worker_id, ids, soon=soon, begins=begins)

    return claim_tied


MUTANTS: tuple[Mutant, ...] = (
    # The fence
    Mutant("finish-without-fence", "finish asks for the state and not for the attempt",
           (Text("finish.FINISH", FENCE, STATE_ONLY),
            Text("finish.FINISH", "AND attempt_id = %(attempt_id)s", "AND state = 'running'")),
           ("test_stale_attempts", "test_finish")),
    Mutant("batch-without-fence", "the batch completion asks for the state and not for the attempt",
           (Text("finish.COMPLETE_PLAIN", "j.attempt_id = mine.attempt_id", STATE_ONLY),),
           ("test_stale_attempts", "test_finish")),
    Mutant("chain-without-fence", "the chained completion asks for the state and not for the attempt",
           (Text("pipelines.COMPLETE_AND_CHAIN", FENCE, STATE_ONLY),), ("test_stale_attempts", "test_pipelines")),
    Mutant("child-without-fence", "children are inserted before the parent's guarded write, by themselves",
           (Code("finish.finish", _children_first),), ("test_stale_attempts", "test_pipelines")),
    Mutant("progress-without-fence", "progress asks for the state and not for the attempt",
           (Text("progress.PROGRESS", "attempt_id = %(attempt_id)s", "state = 'running'"),),
           ("test_stale_attempts", "test_progress")),
    Mutant("checkpoint-without-fence", "a checkpoint asks for the state and not for the attempt",
           (Text("progress.CHECK", "attempt_id = %(attempt_id)s", "state = 'running'"),),
           ("test_stale_attempts", "test_progress")),
    Mutant("effect-without-fence", "an effect can be planned by a replaced attempt",
           (Text("effects.PLAN", "attempt_id = %(attempt_id)s RETURNING", "state = 'running' RETURNING"),),
           ("test_stale_attempts", "test_effects")),
    Mutant("confirm-without-fence", "an effect can be confirmed by an attempt that has ended",
           (Text("effects.CONFIRM", " AND j.attempt_id = %(attempt_id)s", ""),), ("test_stale_attempts", "test_effects")),
    Mutant("adopt-without-fence", "an effect can be adopted by a replaced attempt",
           (Text("effects.ADOPT", "attempt_id = %(attempt_id)s RETURNING", "state = 'running' RETURNING"),),
           ("test_stale_attempts", "test_effects")),
    Mutant("beat-without-fence", "the heartbeat does not notice that its job has another attempt",
           (Text("renew.BEAT", "(SELECT FROM holdfast.jobs j WHERE j.id = mine.id AND j.attempt_id = mine.attempt_id)",
                 "(SELECT FROM holdfast.jobs j WHERE j.id = mine.id AND j.state = 'running')"),),
           ("test_renew", "test_stale_attempts")),
    Mutant("unlock-without-fence", "the locks of a job are freed before its attempt was checked",
           (Code("finish.finish", _unlock_first),), ("test_locks", "test_stale_attempts")),
    Mutant("cancel-keeps-the-fence", "a forced cancel leaves the attempt on the row",
           (Text("cancel.CANCEL", "attempt_id = NULL, worker_id = NULL, ", ""),
            Schema("ALTER TABLE holdfast.jobs DROP CONSTRAINT held_exactly_while_running")),
           ("test_cancel", "test_stale_attempts")),
    Mutant("fence-not-fresh", "every attempt of a job gets the same id",
           tuple(Text(where, FRESH, SAME) for where in CLAIMS),
           ("test_claim", "test_stale_attempts")),
    Mutant("number-given-back", "a release gives its attempt number back",
           (Text("finish.FINISH", "errors = errors", "attempt_no = attempt_no - (%(move)s = 'release')::int, errors = errors"),
            NO_TRIGGER), ("test_retry", "test_finish")),
    Mutant("fence-tokens-in-blocks", "sessions draw fence tokens in blocks, so they do not rise with the claims",
           (Schema("ALTER SEQUENCE holdfast.fence_token CACHE 20"),), ("test_claim",)),
    Mutant("rescue-counts-as-own-end", "after a lost COMMIT, somebody else's taking is read as our own end",
           (Text("finish.HOW_DID_IT_END", " AND actor IS NULL", ""),), ("test_unknown_commit",)),
    # Claim
    Mutant("claim-by-in-subselect", "UPDATE … WHERE id IN (SELECT … LIMIT …)",
           (Whole("claim.CLAIM", CLAIMED_BY_SUB_SELECT),), ("test_claim", "test_claim_races")),
    Mutant("claim-waits", "a claim waits for rows that others are at",
           (Text("claim.CLAIM", " FOR UPDATE SKIP LOCKED", " FOR UPDATE"),), ("test_claim",)),
    Mutant("poll-waits", "a claim to poll waits for rows that others are at",
           (Text("poll.CLAIM_TO_POLL", " FOR UPDATE SKIP LOCKED", " FOR UPDATE"),), ("test_poll",)),
    Mutant("poll-leaves-locks-behind", "a poll does not take over the locks that its job kept",
           (Code("locks.take", _take_only_new),), ("test_poll", "test_locks")),
    Mutant("claim-ignores-pause", "a paused kind is claimed all the same",
           (Text("claim.CLAIM", "c.paused_at IS NOT NULL", "c.paused_at > 'infinity'"),), ("test_control",)),
    Mutant("claim-ignores-versions", "a worker claims jobs that were made for newer code than its own",
           (Text("claim.CLAIM", " AND kind_version <= k.version", ""),), ("test_claim",)),
    Mutant("early-promotion", "a delayed job is promoted before its time",
           (Text("promote.PROMOTE_DUE", "run_after <= (SELECT clock_timestamp())", "run_after IS NOT NULL"),),
           ("test_promote",)),
    # Leases, rescue, recovery
    Mutant("beat-with-now", "a lease is renewed from the start of the transaction",
           (Text("renew.BEAT", "lease_until = clock_timestamp()", "lease_until = now()"),), ("test_renew",)),
    Mutant("rescue-with-now", "a sweep looks at the clock of the start of its transaction",
           (Text("rescue.HOLD_DEAD", "w.lease_until < clock_timestamp()", "w.lease_until < now()"),), ("test_rescue",)),
    Mutant("rescue-by-id", "a rescue takes the job, whatever attempt it has by then",
           (Text("rescue.HOLD_THEIR_JOBS", " FOR UPDATE OF j", ""),
            Text("rescue.RESCUE", " AND j.attempt_id = s.attempt_id", "")), ("test_rescue",)),
    Mutant("rescue-in-any-order", "a rescue takes rows as they come, and meets an abort halfway",
           (Text("rescue.HOLD_THEIR_JOBS", "ORDER BY j.id FOR UPDATE OF j", "ORDER BY j.id DESC FOR UPDATE OF j"),),
           ("test_order_of_rows",)),
    Mutant("ends-in-any-order", "an end holds what hangs on it step by step, and meets a cancel halfway",
           (Code("finish._lock_ties", _nothing_held),), ("test_order_of_rows",)),
    Mutant("rescue-without-lease", "a rescue takes jobs from living workers",
           (Text("rescue.HOLD_DEAD", "w.lease_until < clock_timestamp()", "true"),), ("test_rescue",)),
    Mutant("rescue-without-holding-the-worker", "a worker can renew between the look at its lease and the taking",
           (Text("rescue.HOLD_DEAD", "ORDER BY w.id LIMIT 1 FOR UPDATE SKIP LOCKED", "ORDER BY w.id LIMIT 1"),),
           ("test_rescue",)),
    Mutant("unregistered-never-found", "a job whose worker has no row in workers is never rescued",
           (Text("unregistered.REGISTER_MISSING", "WHERE lived.at IS NOT NULL", "WHERE false"),), ("test_unregistered",)),
    Mutant("unregistered-not-in-the-beat", "no beat says that a worker without a row holds jobs",
           (Text("renew.BEAT", "SELECT holders.id FROM holders\n    WHERE holders.id IS NOT NULL",
                 "SELECT holders.id FROM holders\n    WHERE false"),), ("test_unregistered",)),
    Mutant("unregistered-robbed-at-once", "a worker whose row was lost gets no time to register again",
           (Text("unregistered.REGISTER_MISSING", "clock_timestamp() + usual.lease / 3)", "clock_timestamp())"),),
           ("test_unregistered",)),
    Mutant("unregistered-taken-for-its-own", "a beat accepts the row that stands for a lost one, and nobody knows the worker",
           (Text("unregistered.REGISTER_MISSING", "usual.lease / 3), clock_timestamp()", "usual.lease / 3), NULL"),),
           ("test_unregistered",)),
    Mutant("cascade-one-level-deep", "the end of a job cancels those that wait for it, and not those behind them",
           (Text("dependants.CANCEL_DEPENDANTS", "WHERE parent.has_dependants AND", "WHERE false AND"),),
           ("test_long_cascades", "test_pipelines")),
    Mutant("crash-not-counted", "a crash costs nothing",
           (Text("rescue.RESCUE", "WHEN 'own' THEN j.crashes + 1", "WHEN 'own' THEN j.crashes"),), ("test_rescue",)),
    Mutant("crash-blames-everybody", "a job is quarantined for the crash of another in the same process",
           (Text("rescue.RESCUE", "WHEN company > 1 THEN 'shared'", "WHEN false THEN 'shared'"),), ("test_rescue",)),
    Mutant("crash-of-what-never-began", "a job that was only held pays for the death of its worker",
           (Text("rescue.RESCUE", f"nullif({HAS_BEGUN}, false) AS begun", "true AS begun"),), ("test_begin",)),
    Mutant("crash-never-suspects", "a job that kills its process before a beat sees it run is never counted",
           (Text("rescue.RESCUE", "confirm_start = j.confirm_start OR s.fault = 'unseen'", "confirm_start = j.confirm_start"),),
           ("test_begin",)),
    Mutant("crash-blames-the-only-known-one", "a job is quarantined for one that began after the last beat",
           (Text("rescue.RESCUE", "WHERE begun IS NOT FALSE", "WHERE begun"),), ("test_begin",)),
    Mutant("begin-without-fence", "a replaced attempt begins in the name of its successor",
           (Text("begin.BEGIN", " AND attempt_id = %(attempt_id)s", ""),), ("test_begin",)),
    Mutant("begin-by-beat-without-fence", "a beat begins the successor of an attempt that was replaced",
           (Text("begin.NOTE_BEGUN", " AND j.attempt_id = mine.attempt_id", ""),), ("test_begin",)),
    Mutant("begin-waits-for-an-end", "a beat waits for a transaction that ends an attempt",
           (Text("begin.NOTE_BEGUN", " SKIP LOCKED", " NOWAIT"),), ("test_begin",)),
    Mutant("deadline-from-the-claim", "the time of a job that waits for a lane runs already",
           tuple(Text(where, "CASE WHEN %(begins)s THEN clock_timestamp() + max_runtime END", "clock_timestamp() + max_runtime")
                 for where in CLAIMS), ("test_begin",)),
    Mutant("claim-never-contended", "what another claim had locked and left waits for the next beat",
           (Text("claim.CONTENDED", "SELECT EXISTS (", "SELECT false AND EXISTS ("),),
           ("test_claim",)),
    Mutant("crash-forgets-the-engine", "a rescued poll goes back to the queue and the work is submitted again",
           (Text("rescue.RESCUE", "WHEN j.handle IS NOT NULL THEN 'submitted'", "WHEN false THEN 'submitted'"),),
           ("test_rescue", "test_poll")),
    Mutant("error-budget-ignored", "a job is retried for ever",
           (Code("outcome._retry", _never_over), Schema("ALTER TABLE holdfast.jobs DROP CONSTRAINT pending_has_budget")),
           ("test_retry",)),
    Mutant("recover-the-living", "an operator can take a job from a healthy worker",
           (Text("recover.RECOVER", " AND w.lease_until < clock_timestamp()", ""),), ("test_recover",)),
    Mutant("rerun-resets-the-counts", "a rerun forgets what the job has cost so far",
           (Text("rerun.RERUN", "generation = generation + 1,", "generation = generation + 1, errors = 0, crashes = 0,"),),
           ("test_rerun",)),
    Mutant("rerun-forgets-the-order", "a job that is rerun does not wait for its parents",
           (Text("rerun.WAIT_FOR_PARENTS", "AND c.parents > 0", "AND c.parents < 0"),), ("test_rerun",)),
    Mutant("rerun-counts-a-parent-twice", "two ends of a parent that was rerun count as two parents",
           (Whole("rerun.COUNT_AGAIN", "SELECT %(id)s::bigint"),), ("test_rerun",)),
    Mutant("rerun-does-not-hold-the-parents", "a parent can end between the look at it and the count",
           (Text("rerun.HOLD", " FOR UPDATE", ""),), ("test_rerun",)),
    # One transaction
    Mutant("children-in-a-second-transaction", "children are inserted after the parent's commit",
           (Code("finish.finish", _children_later),), ("test_pipelines", "test_finish")),
    Mutant("publish-in-a-second-transaction", "the result is published after the commit",
           (Code("finish.finish", _publish_later),), ("test_finish",)),
    Mutant("unlock-in-a-second-transaction", "locks, slot and dependants are seen to after the commit",
           (Code("finish.finish", _untie_later),), ("test_locks", "test_finish")),
    Mutant("end-without-history", "the end of an attempt is not written down",
           (Text("finish.FINISH", "%(detail)s\n        FROM ended", "%(detail)s\n        FROM ended WHERE false"),),
           ("test_history", "test_finish")),
    Mutant("batch-ignores-ties", "a batch completion does not ask what hangs on the job",
           (Text("finish.COMPLETE_PLAIN", " AND j.ties = 0", ""),), ("test_finish", "test_pipelines")),
    Mutant("effect-leaves-no-mark", "planning an effect does not mark the job",
           (Text("effects.PLAN", "ties = ties | 8", "ties = ties"),), ("test_effects",)),
    Mutant("effects-kept-for-ever", "what a failed attempt made outside is kept",
           (Text("effects.SETTLE", "%(completed)s AND NOT temporary", "(%(completed)s OR true) AND NOT temporary"),),
           ("test_effects",)),
    # Locks and slots
    Mutant("lock-without-mutex", "lock keys are read without holding them",
           (NO_MUTEX,), ("test_locks",)),
    Mutant("limit-by-count", "permits are counted, and nothing makes the count exact",
           (NO_MUTEX, *NO_PERMITS), ("test_locks", "test_lock_races")),
    Mutant("lock-by-not-exists", "a lock is free if NOT EXISTS says so",
           (NO_MUTEX_AT_ENQUEUE, *NO_PERMITS), ("test_locks", "test_enqueue", "test_lock_races")),
    Mutant("refused-job-stays", "a job that was refused for its lock is there all the same, if the caller commits",
           (Whole("locks.UNMAKE", "SELECT %(job_id)s::bigint"),), ("test_enqueue",)),
    Mutant("nobody-woken", "whoever gives back a lock wakes nobody",
           (Code("locks.give_back", _nobody_woken),), ("test_locks",)),
    Mutant("readers-pass-a-writer", "a claim looks at who holds the key, and not at who waits for it",
           (Code("admission._may_enter", _line_ignored),), ("test_lock_queues",)),
    Mutant("wakes-past-a-writer", "a wake-up passes a waiter that does not fit and goes on to the next",
           (Code("locks.first_in_line", _wakes_all_that_fit),), ("test_lock_queues",)),
    Mutant("woken-loses-its-place", "a woken job stands in no line until it is claimed",
           (Text("locks.WAKE", "SET woken_at = clock_timestamp()", "SET waiting = false"),), ("test_lock_queues",)),
    Mutant("woken-keeps-its-place-for-ever", "a woken job that nobody claims keeps everybody else out",
           (Text("locks.LINE", "AND w.woken_at > clock_timestamp() - interval '10 seconds'", ""),
            Text("locks.READ_KEYS", "AND w.woken_at > clock_timestamp() - interval '10 seconds'", "")), ("test_lock_queues",)),
    Mutant("paused-waiter-keeps-others-out", "a waiter of a paused kind stands in the line",
           (Text("locks.LINE", "c.paused_at IS NOT NULL", "c.paused_at > 'infinity'"),
            Text("locks.READ_KEYS", "c.paused_at IS NOT NULL", "c.paused_at > 'infinity'")), ("test_lock_queues",)),
    Mutant("cancelled-waiter-wakes-nobody", "those behind a waiter that is cancelled are not woken",
           (Text("locks.STOP_WAITING", "RETURNING key", "RETURNING 'nothing'"),), ("test_lock_queues",)),
    Mutant("left-line-wakes-nobody", "a waiter that goes to the line of another key wakes nobody in the one it leaves",
           (Code("locks.block_where_busy", _nothing_reopened),), ("test_lock_queues",)),
    Mutant("reject-holds-and-waits", "of a job with one `reject` lock the others are waited for",
           (Code("locks.want", _takes_only_its_rejects),), ("test_locks",)),
    Mutant("lost-slot-race-is-an-error", "a claim that the unique index refuses fails",
           (Code("claim.claim_tied", _errors_get_out),), ("test_slots",)),
    Mutant("cancel-keeps-locks", "a cancelled job keeps its locks",
           (Code("cancel.untie", _nothing_untied),), ("test_cancel", "test_locks")),
    Mutant("slot-demotes-a-running-holder", "a claim takes the slot from a job that runs",
           (Text("slots.READ_CURRENT", "AND is_current", "AND is_current AND false"),
            Text("slots.DEMOTE_ENDED", " AND state IN ('completed', 'failed', 'cancelled')", "")), ("test_slots",)),
    Mutant("slot-without-mutex", "who decides to wait for a slot is not seen by the end that looks who waits",
           (Whole("slots.HOLD_SLOTS", "SELECT %(slots)s::text[]"),), ("test_slots",)),
    Mutant("slot-twin-not-held", "the waiting twin may start before the trigger that was merged into it commits",
           (Text("enqueue.HOLD_WAITING_TWIN", " FOR UPDATE", ""),), ("test_slots", "test_enqueue")),
    Mutant("slot-follow-up-not-woken", "the end of a slot's job wakes nobody",
           (Text("slots.WAKE_FOLLOW_UP", "waiting_for = 'slot'", "waiting_for = 'nothing'"),), ("test_slots",)),
    # Dependants
    # With its row held before, a snapshot would see every parent that has ended; so the two go together.
    Mutant("fan-in-from-a-snapshot", "a fan-in is not held, and counts its parents in a snapshot and not on its row",
           (Text("dependants.HOLD_DEPENDANTS", " ORDER BY j.id FOR UPDATE OF j", " ORDER BY j.id"),
            Text("dependants.COUNT_DOWN", "CASE WHEN parents_left = (f.by_id -> j.id::text)::int",
                 f"CASE WHEN {NO_OTHER_PARENT_LIVES}")),
           ("test_pipelines",)),
    Mutant("parents-not-held", "a parent can end between the look and the tie",
           (Text("enqueue.TIE_TO_PARENTS", " ORDER BY id FOR UPDATE", " ORDER BY id"),), ("test_pipelines", "test_enqueue")),
    Mutant("parents-not-marked", "a parent does not know that somebody waits for it",
           (Text("enqueue.TIE_TO_PARENTS", "ties = ties | 4", "ties = ties"),), ("test_pipelines",)),
    Mutant("ended-parent-counted-again", "a dependency is kept on a parent that ends in this very transaction",
           (Text("enqueue.ADD_DEPENDENCIES", " AND p.state NOT IN ('completed', 'failed', 'cancelled')", ""),),
           ("test_pipelines",)),
    # The schema's own walls
    Mutant("no-unique-step", "one parent may have two children for one step",
           (Schema("DROP INDEX holdfast.one_child_per_step"),), ("test_enqueue_races",)),
    Mutant("idempotency-without-unique", "an idempotency key is looked up, and nothing else",
           (Schema("DROP INDEX holdfast.one_job_per_idempotency_key"),), ("test_enqueue", "test_enqueue_races")),
    Mutant("unique-without-index", "a unique key is looked up, and nothing else",
           (Schema("DROP INDEX holdfast.one_waiting_per_unique_key"),), ("test_enqueue_races",)),
    Mutant("slot-without-index", "a waiting twin in a slot is looked up, and nothing else",
           (Schema("DROP INDEX holdfast.one_waiting_per_slot"),), ("test_slots",)),
    Mutant("drain-ignored", "a kind that is being drained takes new jobs",
           (Text("enqueue.ENQUEUE", "AND drained_at IS NOT NULL", "AND drained_at > 'infinity'"),), ("test_control",)),
    *WORKER_MUTANTS,
)  # fmt: skip
