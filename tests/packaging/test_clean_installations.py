"""What an installation can do without extras, and which extra an error names when a module is missing."""

from __future__ import annotations

import json
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from holdfast.database import locations
from holdfast.distribution import NAME, VERSION, install_hint
from holdfast.extras import EXTRAS, MissingExtra, loaded, missing_extra

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
MODULES = {"impyla": "impala", "pyjwt": "jwt", "pyyaml": "yaml"}  # others have the package's name

ENQUEUE_AND_RUN = """
import asyncio, sys
import holdfast

@holdfast.job("invoice.render")
async def render(ctx: holdfast.Context, invoice_id: int) -> dict:
    return {"invoice": invoice_id}

class App:
    class state: ...

async def main(url):
    async with holdfast.connect(url) as client:
        enqueued = await render.enqueue(invoice_id=7)
        await holdfast.Worker(url, [render]).run(until_empty=True)
        job = await client.get(enqueued.id)
        print(job.state, job.result)
    async with holdfast.lifespan(url, run=False)(App):
        print("lifespan started")

asyncio.run(main(sys.argv[1]))
"""

# In an installation without extras: what a program calls, and the extra that the error names.
NAMED = {
    "import holdfast.client": "client",
    "import holdfast.worker.transports.remote": "client",
    "import holdfast.database.migrate": "cli",
    "import holdfast.testing; asyncio.run(holdfast.testing.harness(sys.argv[2]).__aenter__())": "embedded",
    "import holdfast.telemetry.trace; holdfast.telemetry.trace.export_to('console')": "otel",
    "import holdfast.extras; holdfast.extras.lazily('duckdb').connect": "exports",
    "from holdfast.engines import select; select._sqlglot()": "exports",
}
TRY_EACH = """
import asyncio, json, sys
errors = {}
for code in json.loads(sys.argv[1]):
    try:
        exec(code, {"asyncio": asyncio, "sys": sys})
    except ImportError as error:
        errors[code] = str(error)
print(json.dumps(errors))
"""


@pytest.mark.more
def test_the_base_installation_enqueues_and_runs_jobs(run, database: str):
    done = run()("-c", ENQUEUE_AND_RUN, database)

    assert done.stdout == "completed {'invoice': 7}\nlifespan started\n", done.stderr


def test_the_base_installation_is_small(installed):
    assert len(list(installed().glob("*.dist-info"))) <= 16


@pytest.mark.more
def test_without_an_extra_the_error_names_it(run, empty_database: str):
    tried = run()("-c", TRY_EACH, json.dumps(list(NAMED)), empty_database)

    errors = json.loads(tried.stdout)
    assert {code: error.rpartition(": ")[2] for code, error in errors.items()} == {
        code: install_hint(extra) for code, extra in NAMED.items()
    }


def test_the_command_without_its_extra_prints_one_line(run):
    failed = run()("-m", "holdfast", "status")

    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == f"error: typer is not installed; it comes with the extra 'cli': {install_hint('cli')}\n"


@pytest.mark.more
def test_a_common_change_needs_no_server(run, database: str):
    refused = run("cli")("-m", "holdfast", "job", "cancel", "1", "--reason", "test", "--yes", "--dsn", database)

    assert (refused.returncode, refused.stderr.partition("\n")[0]) == (3, "error: there is no job 1")


@pytest.mark.parametrize("command", [("serve",), ("job", "enqueue", "k", "--dsn")])
def test_a_command_that_needs_the_server_names_its_extra(run, database: str, command: tuple[str, ...]):
    arguments = (*command, database) if command[-1] == "--dsn" else command
    failed = run("cli")("-m", "holdfast", *arguments, HOLDFAST_DATABASE_URL=database)

    assert failed.returncode != 0
    assert failed.stderr.strip().endswith(install_hint("server")), failed.stderr


@pytest.mark.more
def test_the_command_line_without_a_server_migrates_a_database(run, empty_database: str):
    done = run("cli")("-m", "holdfast", "db", "migrate", HOLDFAST_DATABASE_URL=empty_database)

    assert done.returncode == 0, done.stderr


@pytest.mark.more
def test_the_server_without_oidc_names_the_extra(run):
    code = "from holdfast.api.oidc import Oidc, OidcOptions; Oidc(OidcOptions('https://issuer.example', 'holdfast'))"
    failed = run("server")("-c", code)

    assert failed.stderr.strip().endswith(install_hint("oidc")), failed.stderr


def test_the_wheel_has_our_name_version_and_extras(metadata: Message):
    assert (metadata["Name"], metadata["Version"]) == (NAME, VERSION)
    assert set(metadata.get_all("Provides-Extra", [])) == {*EXTRAS, "all"}


def test_the_wheel_has_the_migrations_of_the_kernel_and_of_every_service(wheel: Path):
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    source = locations.PACKAGE.parent

    assert len(locations.folders()) > 1
    for folder in locations.folders():
        revisions = {str(file.relative_to(source)) for file in folder.glob("[0-9]*.py")}
        assert revisions, folder
        assert revisions <= names


def test_the_table_of_extras_is_the_one_of_the_project_file():
    declared = {extra: modules_of(lines) for extra, lines in PYPROJECT["project"]["optional-dependencies"].items()}
    everything = declared.pop("all")

    assert {extra: set(modules) for extra, modules in EXTRAS.items()} == declared
    assert not everything
    (combined,) = PYPROJECT["project"]["optional-dependencies"]["all"]
    assert Requirement(combined).extras == set(EXTRAS)


def modules_of(lines: list[str]) -> set[str]:
    names = [Requirement(line).name for line in lines]
    modules = {MODULES.get(name, name.replace("-", "_")) for name in names if name != NAME}
    return {"opentelemetry" if module.startswith("opentelemetry") else module for module in modules}


def test_an_error_prefers_the_extra_that_the_caller_names():
    error = ModuleNotFoundError("no httpx2", name="alembic.config")

    assert str(missing_extra(error)).endswith(install_hint("cli"))
    assert str(missing_extra(error, prefer="embedded")).endswith(install_hint("embedded"))
    assert missing_extra(ModuleNotFoundError("x", name="something_else")) is None


def test_a_module_that_no_extra_installs_raises_the_original_error():
    with pytest.raises(ModuleNotFoundError) as raised:
        loaded("holdfast.no_such_module")

    assert not isinstance(raised.value, MissingExtra)
