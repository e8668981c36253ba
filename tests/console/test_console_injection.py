"""Hostile text: every text column of every table is filled with markup, and every page still shows it as text.

The columns are found in the catalog of the database, so a new column of a service is filled, too. What a constraint or a
trigger protects keeps its value, because no user can write markup there.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from fastapi import FastAPI
from psycopg import sql
from tests.console.browsing import DESKTOP, needs_chromium, tab
from tests.console.conftest import AsRole, TokenOf
from tests.console.scene import Scene
from tests.console.test_console_pages import addresses

from factories import rows, value
from holdfast.jobs.views.failures import FINGERPRINT

MARKUP = "\"'><img src=x onerror=alert(1)><svg onload=alert(2)>{{7*7}}"  # no slash: some names are parts of a path
MISTAKE = "state:<svg/onload=alert(2)>"  # a filter that names its mistake; its words have no blanks
ESCAPED = "&lt;img src=x onerror=alert(1)&gt;"
# Written by migrations, by administrators or by the programs themselves, and read before any page is rendered.
NOT_OF_USERS = {"alembic_version", "config", "secrets", "graph_secrets", "ended_sessions", "rate_limits", "idempotency",
                "job_followers"}  # fmt: skip
# Parsed when a page is rendered; the routes that write them refuse everything that cannot be parsed.
PARSED = {
    ("graph_instances", "ttl"),
    ("graph_instances", "inactivity_timeout"),
    ("data_model_versions", "definition"),
    ("loops", "cron"),
    ("loops", "timezone"),
    ("maintenance_actions", "action"),
    ("maintenance_actions", "after"),
    ("maintenance_actions", "before"),
    ("maintenance_actions", "parameters"),
    ("maintenance_policies", "definition"),  # two fields of it are filled below
    ("maintenance_tables", "inputs"),
    ("mapping_versions", "edges"),
    ("mapping_versions", "nodes"),  # the SQL of each node is filled below
    ("mappings", "ttl"),
    ("mappings", "inactivity_timeout"),
    ("periodic_jobs", "cron"),
    ("periodic_jobs", "timezone"),
    ("snapshots", "ttl"),
    ("snapshots", "inactivity_timeout"),
}
# A few of the columns, one of each service: that the catalog is read as it should.
MUST_BE_FILLED = {
    ("jobs", "kind"), ("jobs", "payload"), ("log_lines", "message"), ("audit", "reason"), ("workers", "git_sha"),
    ("mappings", "name"), ("mapping_versions", "change_description"), ("snapshots", "name"), ("exports", "entity_name"),
    ("graph_instances", "name"), ("graph_events", "details"), ("maintenance_tables", "name"), ("maintenance_runs", "reason"),
    ("ingestions", "outcome"), ("ingestion_errors", "value"), ("ingestion_files", "name"), ("pipelines", "name"),
}  # fmt: skip
MISTAKES = ("/console/jobs?",)
UNCHANGEABLE = ("audit", "mapping_versions")  # a trigger refuses to change a row, but users write them
COLUMNS = """
    SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns c JOIN information_schema.tables t
        USING (table_schema, table_name)
    WHERE c.table_schema = 'holdfast' AND t.table_type = 'BASE TABLE' AND c.is_generated = 'NEVER'
      AND (c.data_type IN ('text', 'jsonb') OR c.data_type = 'ARRAY' AND c.udt_name = '_text')
    ORDER BY 1, 2
"""
FILL = {
    "text": "UPDATE holdfast.{table} SET {column} = %(markup)s || (ctid::text) WHERE {column} IS NOT NULL",
    "ARRAY": "UPDATE holdfast.{table} SET {column} = ARRAY[%(markup)s] WHERE {column} IS NOT NULL",
}
EMPTY_TEXT = "UPDATE holdfast.{table} SET {column} = %(markup)s WHERE {column} IS NULL"
POLICIES = """
    UPDATE holdfast.maintenance_policies
    SET definition = definition || jsonb_build_object('description', %(markup)s::text, 'match',
                                                      jsonb_build_object('database', %(markup)s::text))
"""
NODES = """
    UPDATE holdfast.mapping_versions SET nodes = (
        SELECT jsonb_agg(node || jsonb_build_object('sql', %(markup)s::text)) FROM jsonb_array_elements(nodes) AS node)
"""
NULLABLE = ("message", "error", "error_message", "description", "change_description", "reason", "status_message")


async def fill(conn: Any) -> set[tuple[str, str]]:
    """Fill every column that takes it; the columns that did."""
    filled = set()
    for table in UNCHANGEABLE:
        await conn.execute(f"ALTER TABLE holdfast.{table} DISABLE TRIGGER USER")
    for table, column, kind in await rows(conn, COLUMNS):
        if table in NOT_OF_USERS or (table, column) in PARSED:
            continue
        names = {"table": sql.Identifier(table), "column": sql.Identifier(column)}
        try:
            async with conn.transaction():
                if kind == "jsonb":
                    await fill_json(conn, names)
                else:
                    await conn.execute(sql.SQL(FILL[kind]).format(**names), {"markup": MARKUP})
            filled.add((table, column))
            if column in NULLABLE:
                await conn.execute(sql.SQL(EMPTY_TEXT).format(**names), {"markup": MARKUP})
        except (psycopg.errors.IntegrityError, psycopg.errors.RaiseException, psycopg.errors.DataError):
            continue
    for change in (POLICIES, NODES):
        await conn.execute(change, {"markup": MARKUP})
    for table in UNCHANGEABLE:
        await conn.execute(f"ALTER TABLE holdfast.{table} ENABLE TRIGGER USER")
    return filled


async def fill_json(conn: Any, names: Any) -> None:
    """Replace every text in the values; the names of fields that are looked up stay."""
    every = sql.SQL("SELECT DISTINCT {column}::text FROM holdfast.{table} WHERE {column} IS NOT NULL").format(**names)
    found = await conn.execute(every)
    change = sql.SQL("UPDATE holdfast.{table} SET {column} = %s::jsonb WHERE {column} = %s::jsonb").format(**names)
    for (text,) in await found.fetchall():
        await conn.execute(change, [json.dumps(hostile(json.loads(text))), text])


def hostile(given: Any) -> Any:
    if isinstance(given, dict):
        changed = {name: hostile(one) for name, one in given.items()}
        return {**changed, MARKUP: next(iter(changed.values()))} if changed else changed
    if isinstance(given, list):
        return [hostile(one) for one in given]
    return MARKUP if isinstance(given, str) else given


class Elements(HTMLParser):
    """Elements that markup of users would have made."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.made: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        is_ours = tag != "img" or "/static/" in (given.get("src") or "")
        if not is_ours or any(name.startswith("on") for name in given):
            self.made.append(self.get_starttag_text() or tag)


async def paths_of(app: FastAPI, scene: Scene, conn: Any) -> list[str]:
    """Every page, with the names that are parts of paths as they are now, and pages that show what is in their address."""
    (catalog, db, table), *_ = await rows(
        conn, "SELECT catalog, namespace, name FROM holdfast.maintenance_tables ORDER BY name"
    )
    group = await value(conn, f"SELECT {FINGERPRINT} FROM holdfast.jobs j WHERE id = %s", scene.failed)
    policy = await value(conn, "SELECT min(name) FROM holdfast.maintenance_policies")
    names = {"db": db, "table": table, "name": policy}
    pages = addresses(app, scene, **{name: quote(text, safe="") for name, text in names.items()})
    of_table = f"?{urlencode({'catalog': catalog})}"
    pages = [f"{page}{of_table if quote(table, safe='') in page else ''}" for page in pages]
    return [*pages, *(f"/console/{path}" for path in (
        *(f"jobs/{one}" for one in (scene.failed, scene.stale)),
        f"mappings/{scene.mapping}?from=1&to=2&check=1",
        f"graphs/{scene.graph - 2}",
        f"failures?{urlencode({'group': group})}",
        f"audit?{urlencode({'actor': MARKUP})}",
        *(f"{page}?{urlencode({'search': MARKUP})}" for page in ("mappings", "graphs", "tables")),
        f"graphs/{scene.graph}/query?{urlencode({'q': MARKUP})}",
        f"graphs/{scene.graph}/algorithms?{urlencode({'damping': MARKUP})}",
        f"act/job.cancel?job_id={scene.running}&{urlencode({'back': MARKUP})}",
        f"act/lock.release?{urlencode({'key': MARKUP})}",
        f"ingestion/upload?{urlencode({'type': MARKUP, 'what': MARKUP})}",
        f"login?{urlencode({'next': MARKUP})}",
        f"jobs?{urlencode({'f': MISTAKE})}",
    ))]  # fmt: skip


@pytest.mark.more
async def test_markup_in_every_text_column_stays_text_on_every_page(
    app: FastAPI, scene: Scene, conn: Any, as_role: AsRole
) -> None:
    admin = await as_role("admin", MARKUP)
    filled = await fill(conn)
    paths = await paths_of(app, scene, conn)

    for path in paths:
        answer = await admin.get(path)
        assert answer.status_code == (422 if path.startswith(MISTAKES) else 200), (path, answer.text[-2000:])
        assert Elements(answer.text).made == [], path
        shown = "&lt;svg/onload" if path.startswith(MISTAKES) else ESCAPED
        assert shown in answer.text.partition("<main")[2], f"{path} shows no markup: does the scene fill it?"
    seen = (await admin.get(f"/console/jobs/{scene.running}")).text
    assert seen.count(ESCAPED) >= 12  # kind, payload, message, locks, effects, log, history, …
    assert "{{7*7}}" in seen  # and no template is made of it
    assert filled >= MUST_BE_FILLED, MUST_BE_FILLED - filled


@pytest.mark.more
@needs_chromium
async def test_markup_in_every_text_column_runs_on_no_page_of_a_browser(
    app: FastAPI, site: str, scene: Scene, conn: Any, token_of: TokenOf, chromium: Any
) -> None:
    """No page opens a dialog, has an element of the markup, or violates the policy."""
    token = await token_of("admin")
    await fill(conn)
    async with tab(chromium, site, token, viewport=DESKTOP) as one:
        opened: list[str] = []
        one.page.on("dialog", lambda dialog: opened.append(dialog.message))
        for path in await paths_of(app, scene, conn):
            await one.page.goto(f"{site}{path}", wait_until="domcontentloaded")
            made = await one.page.locator("[onerror], [onload], img[src='x']").count()
            assert (made, opened, one.violations) == (0, [], []), path


def test_the_check_finds_markup_that_is_not_escaped() -> None:
    assert Elements(f"<p title='{ESCAPED}'>{ESCAPED}</p><img src='/console/static/icon.svg'>").made == []
    assert len(Elements(f"<p>{MARKUP}</p>").made) == 2
