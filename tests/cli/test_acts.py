"""What the verbs do, by both ways: to the jobs, to the exit code, and to the audit."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from running import GENEROUS, Result, Run
from story import tell

from factories import add, end, hold, job, silence, start_worker, state_of, take, value
from holdfast.api.plane import ApiOptions
from holdfast.jobs.cancel import cancel
from holdfast.jobs.model import Lock
from holdfast.toolkit.cli import waiting
from holdfast.toolkit.cli.exit_codes import Exit
from holdfast.toolkit.cli.verb import Session


def only(result: Result) -> dict[str, Any]:
    """The one row that a command showed."""
    found = json.loads(result.out)
    return found if isinstance(found, dict) else found[0]


# ---------------------------------------------------------------------------------------------------------------------
# Jobs
# ---------------------------------------------------------------------------------------------------------------------


def test_enqueue_makes_the_job_that_was_asked_for(command: Run, do: Any) -> None:
    made = only(command("job", "enqueue", "export", "-p", "table=orders", "--priority", "-5", "--delay", "1h", "-o", "json"))

    assert (made["kind"], made["payload"], made["priority"]) == ("export", {"table": "orders"}, -5)
    assert do(lambda conn: job(conn, made["id"])).run_after is not None


def test_the_same_key_gives_the_same_job(command: Run) -> None:
    first, second = (only(command("job", "enqueue", "k", "--key", "once", "-o", "json")) for _ in range(2))

    assert first["id"] == second["id"]


def test_retry_cancel_and_recover_do_what_they_say_and_are_on_record(command: Run, do: Any) -> None:
    async def make(conn: Any) -> tuple[int, int, int]:
        failed = await hold(conn, max_attempts=1)
        await end(conn, failed, ValueError("x"))
        stale = await hold(conn)
        await silence(conn, stale)
        return failed.id, await add(conn), stale.id

    failed, pending, stale = do(make)

    assert only(command("job", "retry", str(failed), "--reason", "mended", "-o", "json"))["state"] == "pending"
    assert only(command("job", "cancel", str(pending), "--yes", "--reason", "not needed", "-o", "json"))["state"] == "cancelled"
    assert only(command("job", "recover", str(stale), "--reason", "pod is gone", "-o", "json"))["state"] == "pending"
    audit = json.loads(command("audit", "list", "-o", "json").out)
    assert [(line["action"], line["object"], line["reason"]) for line in audit] == [
        ("jobs.recover", f"job/{stale}", "pod is gone"),
        ("jobs.cancel", f"job/{pending}", "not needed"),
        ("jobs.retry", f"job/{failed}", "mended"),
    ]


def test_one_refusal_does_not_stop_the_others(command: Run, do: Any) -> None:
    first, second = do(add), do(add)

    result = command("job", "cancel", str(first), "999", str(second), "--reason", "x", "--yes", "-o", "name")

    assert result.code == Exit.PARTIAL
    assert result.out.split() == [f"job/{first}", f"job/{second}"]
    assert "there is no job 999" in result.err


def test_what_destroys_is_asked_about_and_nobody_is_there_to_answer(command: Run, do: Any) -> None:
    job_id = do(add)

    for words in (["job", "cancel", str(job_id)], ["drain", "--reason", "x"]):
        result = command(*words)
        assert result.code == Exit.USAGE
        assert "pass --yes" in result.err
    assert do(lambda conn: state_of(conn, job_id)) == "pending"
    assert do(lambda conn: value(conn, "SELECT count(*) FROM holdfast.controls")) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Waiting
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ended_with", "code"), [(None, Exit.OK), (ValueError("x"), Exit.FAILED), ("cancel", Exit.CANCELLED)])
def test_wait_mirrors_the_end_of_the_job(command: Run, do: Any, ended_with: Any, code: Exit) -> None:
    job_id = do(lambda conn: add(conn, max_attempts=1))

    async def finish(conn: Any) -> None:
        if ended_with == "cancel":
            await cancel(conn, job_id, actor="test")
        else:
            await end(conn, await take(conn, job_id), ended_with)

    worker = threading.Timer(0.3, lambda: do(finish))
    worker.start()
    result = command("job", "wait", str(job_id), "--timeout", "60s", "-o", "name")
    worker.join()

    assert result == (code, f"job/{job_id}\n", "")


def test_of_several_the_worst_counts(command: Run, do: Any) -> None:
    async def make(conn: Any) -> list[str]:
        well, ill, gone = await hold(conn), await hold(conn, max_attempts=1), await add(conn)
        await end(conn, well)
        await end(conn, ill, ValueError("x"))
        await cancel(conn, gone, actor="test")
        return [str(well.id), str(ill.id), str(gone)]

    well, ill, gone = do(make)

    assert command("job", "wait", well).code == Exit.OK
    assert command("job", "wait", well, gone).code == Exit.CANCELLED
    assert command("job", "wait", well, gone, ill).code == Exit.FAILED


def test_a_wait_ends_with_its_timeout_and_the_job_goes_on(command: Run, do: Any) -> None:
    result = command("job", "enqueue", "k", "--wait", "--timeout", "0.2s")

    assert result.code == Exit.TIMEOUT
    assert "it continues" in result.err
    assert do(lambda conn: state_of(conn, 1)) == "pending"


def test_who_waits_for_what_nobody_runs_is_told_so_once(command: Run, do: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LONGEST_PAUSE", waiting.FIRST_POLL)
    job = str(do(add))

    result = command("job", "wait", job, "--timeout", "0.5s")

    assert result.err.count(f"job {job} is still pending. It is ready, but no worker is alive; start one for queue") == 1


# ---------------------------------------------------------------------------------------------------------------------
# Many at once
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_failures(do: Any) -> None:
    async def fail(conn: Any) -> None:
        for number in range(3):
            await end(conn, await hold(conn, "export", max_attempts=1), ValueError(f"no table {number}"))

    do(fail)


@pytest.mark.usefixtures("three_failures")
def test_a_bulk_act_says_first_what_it_would_touch(command: Run, do: Any) -> None:
    bulk = ["job", "bulk", "retry", "-f", "state:failed kind:export", "--reason", "mended"]

    seen = only(command(*bulk, "--dry-run", "-o", "json"))
    refused = command(*bulk)

    assert (seen["matched"], seen["by_kind"]) == (3, {"export": 3})
    assert refused.code == Exit.USAGE
    assert "This would retry 3 jobs (3 export), such as 3, 2, 1." in refused.err
    assert do(lambda conn: value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'failed'")) == 3


@pytest.mark.usefixtures("three_failures")
def test_a_bulk_act_touches_no_more_than_was_expected(command: Run, do: Any) -> None:
    result = command("job", "bulk", "retry", "-f", "state:failed", "--reason", "mended", "--expect", "2")

    assert result.code == Exit.CONFLICT
    assert "3 jobs match now, 2 were expected" in result.err


@pytest.mark.usefixtures("three_failures")
def test_without_a_server_a_bulk_act_is_done_by_the_command_itself(direct: Run, do: Any) -> None:
    done = only(direct("job", "bulk", "retry", "-f", "state:failed", "--reason", "mended", "--yes", "-o", "json"))

    assert (done["state"], done["done"], done["failed"]) == ("completed", 3, 0)
    assert do(lambda conn: value(conn, "SELECT count(*) FROM holdfast.jobs WHERE state = 'pending'")) == 3


@pytest.mark.usefixtures("three_failures")
def test_those_who_failed_alike_are_retried_together(direct: Run, do: Any) -> None:
    (group,) = json.loads(direct("failure", "list", "-o", "json").out)

    done = only(direct("failure", "retry", group["fingerprint"], "--reason", "mended", "--yes", "-o", "json"))

    assert group["jobs"] == 3
    assert done["done"] == 3


# ---------------------------------------------------------------------------------------------------------------------
# Pipelines, locks, kinds, tokens, values
# ---------------------------------------------------------------------------------------------------------------------


def test_abort_stops_a_pipeline(command: Run, do: Any) -> None:
    story = do(tell)

    result = command("pipeline", "abort", story.pipeline, "--reason", "wrong day", "--yes", "-o", "json")

    assert only(result)["status"] == "cancelled"
    assert "asked to stop: 2 jobs" in result.err


def test_a_lock_with_a_living_holder_is_not_released(command: Run, do: Any) -> None:
    held = do(lambda conn: hold(conn, locks=[Lock("a/b c")]))

    result = command("lock", "release", "a/b c", "--reason", "x", "--yes")

    assert result.code == Exit.CONFLICT
    assert f"job {held.id} has not ended" in result.err


def test_drain_and_undrain(command: Run) -> None:
    assert command("drain", "--reason", "deploy", "--yes").out == "true\n"
    refused = command("job", "enqueue", "k")
    assert refused.code == Exit.UNAVAILABLE
    assert "Try again in 30 s." in refused.err
    assert command("undrain", "--reason", "deployed").out == "false\n"
    assert command("job", "enqueue", "k").code == Exit.OK


def test_pause_drain_and_resume_a_kind(command: Run) -> None:
    assert only(command("pause", "export", "--reason", "slow", "-o", "json"))["paused"] is True
    assert only(command("drain", "export", "--reason", "slow", "-o", "json"))["drained"] is True
    assert command("resume", "export", "--reason", "fast").code == Exit.OK
    assert "neither paused nor drained" in command("resume", "export", "--reason", "fast").err


def test_a_token_is_shown_once_and_can_be_revoked(command: Run) -> None:
    token = command("auth", "token", "create", "bo", "--role", "ops", "--reason", "new").out.strip()
    token_id = token.split("_")[1]

    assert token.startswith("hf_")
    assert token not in command("auth", "token", "list", "-o", "json").out
    revoked = only(command("auth", "token", "revoke", token_id, "--reason", "left", "--yes", "-o", "json"))
    assert revoked["revoked_at"] is not None


def test_a_token_that_has_expired_is_not_called_live(command: Run, do: Any) -> None:
    for name in ("old", "new", "gone"):
        command("auth", "token", "create", name, "--role", "viewer", "--reason", "r")
    do(lambda conn: conn.execute("UPDATE holdfast.tokens SET expires_at = clock_timestamp() WHERE name = 'old'"))
    do(lambda conn: conn.execute("UPDATE holdfast.tokens SET revoked_at = clock_timestamp() WHERE name = 'gone'"))

    listed = [line.split("\t") for line in command("auth", "token", "list").out.splitlines()]

    assert {line[1]: line[3] for line in listed} | {"ada": "live"} == {
        "old": "expired", "new": "live", "gone": "revoked", "ada": "live",
    }  # fmt: skip


def test_a_value_is_changed_while_everything_runs(command: Run) -> None:
    changed = only(command("config", "set", "cache.metadata.ttl_hours", "12", "--reason", "fresher", "-o", "json"))

    assert (changed["value"], changed["default"]) == (12, 24)


# ---------------------------------------------------------------------------------------------------------------------
# Waiting at a server that does not want to be asked so often
# ---------------------------------------------------------------------------------------------------------------------


class TestPutOff:
    @pytest.fixture
    def options(self) -> ApiOptions:
        return replace(GENEROUS, per_minute=60, burst=2)

    def test_a_wait_outlasts_being_put_off(self, over_http: Run, do: Any) -> None:
        async def make(conn: Any) -> list[str]:
            claims = [await hold(conn) for _ in range(4)]
            for claim in claims:
                await end(conn, claim)
            return [str(claim.id) for claim in claims]

        jobs = do(make)

        waited = over_http("job", "wait", *jobs, "-o", "name")

        assert (waited.code, waited.out.split()) == (Exit.OK, [f"job/{job}" for job in jobs]), waited.err

    def test_but_not_longer_than_it_may(self, over_http: Run, do: Any) -> None:
        job = str(do(add))
        over_http("job", "list")

        assert over_http("job", "wait", job, job, job, "--timeout", "1s").code == Exit.TIMEOUT


def test_a_wait_for_many_looks_at_one_at_a_time(direct: Run, do: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All must end, so the first that has not is enough: forty jobs do not cost forty requests a look."""
    asked: list[str] = []
    get = Session.get

    def counted(session: Session, path: str, **params: Any) -> Any:
        asked.append(path)
        return get(session, path, **params)

    monkeypatch.setattr(Session, "get", counted)
    jobs = [str(do(add)) for _ in range(10)]

    assert direct("job", "wait", *jobs, "--timeout", "1s").code == Exit.TIMEOUT
    assert set(asked) == {f"/api/jobs/{jobs[0]}"}


def test_workers_are_made_quiet_and_awake_again(command: Run, do: Any) -> None:
    first, second = do(lambda conn: start_worker(conn, "pod-a")), do(lambda conn: start_worker(conn, "pod-b"))

    quiet = command("worker", "quiet", first, f"worker/{second}", "--reason", "the node goes")
    listed = command("worker", "list")
    awake = command("worker", "quiet", first, "--undo", "--reason", "it stays")

    assert (quiet.code, awake.code) == (0, 0)
    assert {line.split("\t")[2] for line in listed.out.splitlines()} == {"quiet"}
    assert awake.out.split("\t")[2] == "alive"
    assert command("worker", "quiet", "00000000-0000-4000-8000-000000000000", "--reason", "r").code == Exit.NOT_FOUND
    assert command("worker", "quiet", first).code == Exit.USAGE


# ---------------------------------------------------------------------------------------------------------------------
# Small words
# ---------------------------------------------------------------------------------------------------------------------


def test_drain_can_be_asked_for_turned_on_and_off(direct: Run) -> None:
    assert only(direct("drain", "status", "-o", "json")) == {"enabled": False, "reason": None, "actor": None}
    assert direct("drain", "on").code == Exit.USAGE, "it is audited with its reason"
    direct("drain", "on", "--reason", "deploy", "--yes")
    assert only(direct("drain", "status", "-o", "json"))["reason"] == "deploy"
    direct("drain", "off", "--reason", "deployed")
    assert only(direct("drain", "status", "-o", "json"))["enabled"] is False


def test_since_leaves_out_what_is_older(direct: Run, do: Any) -> None:
    async def make(conn: Any) -> tuple[int, int]:
        made = []
        for ago in ("2 hours", "1 minute"):
            claim = await hold(conn, ago, max_attempts=1)
            await end(conn, claim, ValueError(ago))
            await conn.execute(
                f"UPDATE holdfast.jobs SET created_at = created_at - interval '{ago}', "
                f"finished_at = finished_at - interval '{ago}' WHERE id = %s",
                [claim.id],
            )
            made.append(int(claim.id))
        return made[0], made[1]

    old, new = do(make)

    assert direct("job", "list", "-o", "name").out.split() == [f"job/{new}", f"job/{old}"]
    assert direct("job", "list", "--since", "1h", "-o", "name").out.split() == [f"job/{new}"]
    assert direct("job", "list", "-f", "state:failed age:>1h", "-o", "name").out.split() == [f"job/{old}"]
    assert direct("job", "list", "-f", "age:<1h", "-o", "name").out.split() == [f"job/{new}"]
    assert direct("job", "list", "--search", "2 HOURS", "-o", "name").out.split() == [f"job/{old}"]
    assert "age:>1h" in direct("job", "list", "-f", "age:1h").err
    seen = only(direct("job", "bulk", "retry", "-f", "age:>1h", "--reason", "try", "--dry-run", "-o", "json"))
    assert [job["id"] for job in seen["sample"]] == [old]
    assert [one["newest"] for one in json.loads(direct("failure", "list", "--since", "1h", "-o", "json").out)] == [[new]]
    direct("job", "retry", str(new), "--reason", "mended")
    assert json.loads(direct("audit", "list", "--since", "1h", "-o", "json").out)[0]["reason"] == "mended"
    assert direct("audit", "list", "--since", "0s", "-o", "name").out == ""


def test_a_filter_that_a_list_does_not_have_is_not_passed_over(direct: Run) -> None:
    """A list of everything would be taken for the answer."""
    refused = direct("job", "list", "-f", "finger:0123456789abcdef")

    assert (refused.code, "'finger:0123456789abcdef' is not a filter" in refused.err) == (Exit.USAGE, True)


def test_a_migration_can_be_tried_dry(run: Run, database: str) -> None:
    back = run("db", "migrate", "--to", "0009", "--dry-run", "--dsn", database)

    assert "Would revert: " in back.out
    assert "nothing to do" in run("db", "migrate", "--dry-run", "--dsn", database).out, "and it was not taken back"
    assert "0010" in back.out


def test_completion_is_written_where_the_shell_looks(run: Run, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    installed = run("completion", "install", "bash")

    assert installed.code == Exit.OK
    assert "_HOLDFAST_COMPLETE" in run("completion", "show", "zsh").out
    assert "holdfast" in (tmp_path / ".bashrc").read_text()
    assert run("completion", "install", "dos").code == Exit.USAGE
