"""The statements that Trino and Spark get for each action. `make test-real` is where they run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast.engines.trino.options import TrinoOptions
from holdfast.errors import UsageError
from holdfast.services.maintenance.engines.actions import (
    Action,
    ComputeStatistics,
    ExpireSnapshots,
    RemoveOrphanFiles,
    RewriteDataFiles,
    RewriteManifests,
)
from holdfast.services.maintenance.engines.interface import (
    ActionUnsupported,
    EngineFailed,
    TableConflict,
    TableRef,
    TableRefused,
)
from holdfast.services.maintenance.engines.spark import SparkMaintenance
from holdfast.services.maintenance.engines.spark_connect import ConnectLink, Operation, _Reading, error_of
from holdfast.services.maintenance.engines.trino import TrinoMaintenance
from maintenance_factories import STATS

REF = TableRef("lake", "sales", "orders")
WEEK = 7 * 86400
TRINO = TrinoMaintenance(TrinoOptions("http://127.0.0.1:1", "me"), {"lake": "iceberg"})


class Clock:
    """A Spark that is only asked for the time: 2024-03-10 00:00 UTC."""

    def run(self, sql, tag, work, cancelled):
        assert sql == "SELECT unix_micros(current_timestamp())"
        return [(1_710_028_800_000_000,)]


SPARK = SparkMaintenance(Clock(), {"lake": "ice"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "sql"),
    [
        (
            RewriteDataFiles(target_file_size=128 << 20, where="part = 1"),
            'ALTER TABLE "iceberg"."sales"."orders" EXECUTE optimize(file_size_threshold => \'134217728B\') WHERE part = 1',
        ),
        (RewriteManifests(), 'ALTER TABLE "iceberg"."sales"."orders" EXECUTE optimize_manifests'),
        (
            ExpireSnapshots(WEEK, 3),
            'ALTER TABLE "iceberg"."sales"."orders" EXECUTE '
            "expire_snapshots(retention_threshold => '604800s', retain_last => 3)",
        ),
        (
            RemoveOrphanFiles(),
            'ALTER TABLE "iceberg"."sales"."orders" EXECUTE remove_orphan_files(retention_threshold => \'604800s\')',
        ),
        (ComputeStatistics(("id", "it's")), "ANALYZE \"iceberg\".\"sales\".\"orders\" WITH (columns = ARRAY['id', 'it''s'])"),
    ],
    ids=lambda value: value.name if isinstance(value, Action) else "",
)
def test_trino(action, sql):
    assert TRINO.statement(REF, action) == sql


@pytest.mark.parametrize(
    ("action", "sql"),
    [
        (
            RewriteDataFiles("sort", ("-id", "part"), where="text = 'a'"),
            "CALL `ice`.system.rewrite_data_files(table => 'sales.orders', strategy => 'sort', options => map("
            "'min-input-files', '5', 'delete-file-threshold', '1'), "
            "sort_order => 'id DESC, part ASC', where => 'text = \\'a\\'')",
        ),
        (RewriteManifests(), "CALL `ice`.system.rewrite_manifests(table => 'sales.orders', use_caching => false)"),
        (
            ExpireSnapshots(WEEK, 2),
            "CALL `ice`.system.expire_snapshots(table => 'sales.orders', "
            "older_than => TIMESTAMP '2024-03-03 00:00:00.000000Z', retain_last => 2)",
        ),
        (
            RemoveOrphanFiles(),
            "CALL `ice`.system.remove_orphan_files(table => 'sales.orders', "
            "older_than => TIMESTAMP '2024-03-03 00:00:00.000000Z', prefix_mismatch_mode => 'ERROR')",
        ),
        (ComputeStatistics(), "CALL `ice`.system.compute_table_stats(table => 'sales.orders')"),
    ],
    ids=lambda value: value.name if isinstance(value, Action) else "",
)
def test_spark(action, sql):
    assert SPARK.statement(REF, action) == sql


def test_metadata_tables_are_named_in_each_dialect():
    assert TRINO.metadata_table(REF, "files") == '"iceberg"."sales"."orders$files"'
    assert SPARK.metadata_table(TableRef("lake", "a.b", "t"), "files") == "`ice`.`a`.`b`.`t`.files"


@pytest.mark.parametrize(
    ("engine", "action", "said"),
    [
        (TRINO, RewriteDataFiles("sort", ("id",)), "sort_by"),
        (TRINO, RewriteDataFiles(min_input_files=2), "min_input_files"),
        (TRINO, RewriteManifests(min_input_manifests=5), "min_input_manifests"),
        (SPARK, RewriteManifests(target_size=1 << 20), "target_size"),
        (SPARK, RemoveOrphanFiles(3600, force=True), "below 24 hours"),
    ],
)
def test_what_an_engine_does_not_have_is_refused(engine, action, said):
    """A parameter is never ignored."""
    with pytest.raises(ActionUnsupported, match=said):
        engine.statement(REF, action)


def test_a_dry_run_deletes_nothing():
    assert "dry_run => true" in SPARK.statement(REF, RemoveOrphanFiles(), dry_run=True)
    assert "dry_run" not in SPARK.statement(REF, RemoveOrphanFiles())
    with pytest.raises(ActionUnsupported, match="no dry_run of remove_orphan_files; add the catalog to"):
        TRINO.statement(REF, RemoveOrphanFiles(), dry_run=True)


def test_spark_also_removes_the_delete_files_that_a_rewrite_has_applied():
    assert SPARK.afterwards(REF, RewriteDataFiles(), STATS) == {}
    assert SPARK.afterwards(REF, RewriteDataFiles(), replace(STATS, delete_files=3)) == {
        "rewrite_position_delete_files": "CALL `ice`.system.rewrite_position_delete_files(table => 'sales.orders', "
        "options => map('rewrite-all', 'true'))"
    }


def test_trino_may_use_ages_below_its_own_minimum_for_the_procedures_that_have_one():
    statement = TRINO.statement(REF, ExpireSnapshots(60))

    assert TRINO._session(statement) == {"iceberg.expire_snapshots_min_retention": "0s"}
    assert TRINO._session(TRINO.statement(REF, RewriteManifests())) == {}


def test_the_operation_of_an_attempt_is_known_to_every_process():
    attempt = "0b6e5d5c-9a0c-4c53-8f43-0d3b3f6c6f11"

    first, again = (Operation.of(f"holdfast-{attempt}", "expire_snapshots") for _ in range(2))

    assert first == again
    assert first.session == attempt
    assert first.id != Operation.of(f"holdfast-{attempt}", "rewrite_manifests").id


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("org.apache.iceberg.exceptions.ValidationException: Missing required files to delete", TableConflict),
        ("[TABLE_OR_VIEW_NOT_FOUND] The table cannot be found", TableRefused),
        ("failed to connect to all addresses", EngineFailed),
    ],
)
def test_what_spark_says_decides_whether_another_attempt_is_made(said, kind):
    assert type(error_of(Exception(said))) is kind


@pytest.mark.parametrize(
    ("said", "released"), [("it ended badly", True), ("UNAVAILABLE", False), ("[INVALID_CURSOR.DISCONNECTED]", False)]
)
def test_spark_keeps_an_operation_that_may_still_run(said, released):
    """A successor must find it, so only an operation that has ended is released."""
    calls = []

    class Fails(_Reading):
        def _read(self) -> None:
            raise OSError(said)

    reading = Fails(SimpleNamespace(release=calls.append), Operation("session", "id"), "SELECT 1", "tag")
    reading.read()

    assert isinstance(reading.failure, EngineFailed)
    assert bool(calls) is released


def test_an_address_that_is_not_of_spark_connect_is_refused():
    with pytest.raises(UsageError, match="use sc://host:port"):
        ConnectLink("http://127.0.0.1:1")
