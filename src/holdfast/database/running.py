"""The address of an embedded Postgres that another process runs. Called by: `holdfast db url`. Starts nothing."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import psycopg

from holdfast.database.cluster import ROLE, Cluster
from holdfast.database.embedded import DATABASE, HOST
from holdfast.errors import DatabaseProblem


def running_url(data_dir: Path) -> str:
    """The address with its password, if the server in this folder answers; else `DatabaseProblem`."""
    cluster = Cluster(data_dir.absolute(), None)
    recorded, password = cluster.recorded(), cluster.password()
    if recorded is None or password is None:
        raise DatabaseProblem(
            f"no embedded Postgres runs in {data_dir}, and no database is configured; run `holdfast up` in this directory, "
            "or set HOLDFAST_DATABASE_URL"
        )
    url = f"postgresql://{ROLE}:{quote(password, safe='')}@{HOST}:{recorded.port}/{DATABASE}"
    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[0]
        raise DatabaseProblem(f"the embedded Postgres in {data_dir} does not answer: {reason}; run `holdfast up`") from None
    return url
