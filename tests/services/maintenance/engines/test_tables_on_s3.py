"""The embedded engine on S3, with the endpoint and the key of the shared stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from holdfast.services.maintenance.engines.actions import ExpireSnapshots, RemoveOrphanFiles, RewriteDataFiles
from holdfast.services.maintenance.engines.interface import Fence
from holdfast.services.maintenance.opening import file_properties, open_catalogs, open_engine
from holdfast.services.maintenance.settings import MaintenanceSettings
from holdfast.settings import settings_class
from iceberg_tables import REF, create, end_threads, fill, rows_of

KEY = {"s3_region": "us-east-1", "s3_access_key_id": "a" * 16, "s3_secret_access_key": "b" * 16}


def given(**values: Any) -> MaintenanceSettings:
    made = settings_class()(**values)
    assert isinstance(made, MaintenanceSettings)
    return made


@pytest.fixture
def bucket() -> Iterator[str]:
    """An S3 server with the bucket `lake`; its address."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    end_threads()
    server.stop()


@pytest.mark.more
def test_every_file_of_a_table_on_s3_is_maintained(bucket: str, database: str, fence: Fence):
    found = given(**KEY, s3_endpoint=bucket, iceberg_catalogs={"lake": {"type": "embedded", "warehouse": "s3://lake/tables"}})
    s3 = boto3.client("s3", endpoint_url=bucket, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
    s3.create_bucket(Bucket="lake")
    catalogs, engine = open_catalogs(found, database), open_engine("pyiceberg", found, database)
    writer = catalogs.open_for_writers("lake")
    create(writer, REF)
    there = fill(writer, 6)
    s3.put_object(Bucket="lake", Key="tables/sales/orders/data/orphan.parquet", Body=b"x")

    rewritten = engine.run(REF, RewriteDataFiles(), fence)
    expired = engine.run(REF, ExpireSnapshots(older_than=0), fence)
    orphans = engine.run(REF, RemoveOrphanFiles(older_than=0, force=True), fence)

    keys = {one["Key"] for one in s3.list_objects_v2(Bucket="lake")["Contents"]}
    assert rewritten.after is not None
    assert rewritten.after.data_files == 1
    assert (expired.details["deleted_data_files"], len([key for key in keys if key.endswith(".parquet")])) == (6, 1)
    assert "tables/sales/orders/data/orphan.parquet" in orphans.details["examples"][0]
    assert rows_of(writer) == sorted(there)
    engine.close()
    catalogs.close()


def test_properties_of_a_catalog_come_before_those_of_the_stores(tmp_path, database: str):
    (tmp_path / "token").write_text("secret\n")
    found = given(
        **KEY,
        gcs_endpoint="http://127.0.0.1:1",
        gcs_token_file=tmp_path / "token",
        iceberg_catalogs={"lake": {"type": "embedded", "warehouse": "s3://lake", "s3.region": "eu-west-1"}, "theirs": {}},
    )

    own, theirs = (open_catalogs(found, database)._given[name] for name in ("lake", "theirs"))

    assert (own["s3.region"], own["s3.access-key-id"], own["s3.secret-access-key"]) == ("eu-west-1", "a" * 16, "b" * 16)
    assert (own["gcs.service.host"], own["gcs.oauth2.token"]) == ("http://127.0.0.1:1", "secret")
    assert theirs == {}, "PyIceberg's own configuration describes it"
    assert file_properties(given()) == {}
