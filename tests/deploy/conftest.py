"""Fixtures of the deployment's tests: the roles of `holdfast db roles` on the test's own database."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.engine import make_url

from databases import cloned, new_database
from holdfast import catalog
from holdfast.database import roles


class Addresses(dict[str, str]):
    """The address of the database for each role; `prefix` is that of their names."""

    prefix = ""


@pytest.fixture
def as_roles(fresh_database: str) -> Iterator[Addresses]:
    """Roles belong to the server, so each test has its own, and removes them."""
    yield from _roles_on(fresh_database)


def _roles_on(database: str) -> Iterator[Addresses]:
    prefix = f"t{uuid4().hex[:10]}"
    passwords = {role: uuid4().hex for role in roles.ROLES}
    roles.apply(database, prefix, catalog.tables(), passwords)
    url = make_url(database)
    found = Addresses(
        {
            role: url.set(username=f"{prefix}_{role}", password=passwords[role]).render_as_string(hide_password=False)
            for role in roles.ROLES
        }
    )
    found.prefix = prefix
    yield found
    with psycopg.connect(database, autocommit=True) as conn:
        for role in roles.ROLES:
            conn.execute(f"DROP OWNED BY {prefix}_{role} CASCADE".encode())
            conn.execute(f"DROP ROLE {prefix}_{role}".encode())


@pytest.fixture(scope="session")
def shared_roles(server: str, template: str) -> Iterator[Addresses]:
    """The same for tests that change nothing: made once."""
    with new_database(server, cloned(template)) as url:
        yield from _roles_on(url)
