"""The routes: path, method, action and status of each. Compatibility paths are served as documented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from fastapi import FastAPI

from holdfast import catalog
from holdfast.api.app import table
from holdfast.api.policy import POLICY

ROOT = Path(__file__).resolve().parents[2]
Client = httpx2.AsyncClient

# method, path, the action that the policy knows it by, and the status when all is well. Problems come on top.
CONTRACT = """
GET    /                                           index.read        200
GET    /docs                                       index.read        200
GET    /health                                     health.read       200
GET    /api/health                                 health.read       200
GET    /ready                                      health.read       200
GET    /api/ready                                  health.read       200
GET    /login                                      login             200
GET    /metrics                                    metrics.read      200
GET    /openapi.json                               openapi.read      200
GET    /problems/{slug}                            problems.read     200
GET    /api/whoami                                 whoami.read       200
POST   /api/jobs                                   jobs.enqueue      202
GET    /api/jobs                                   jobs.read         200
POST   /api/jobs/bulk                              jobs.bulk         202
GET    /api/jobs/{job_id}                          jobs.read         200
GET    /jobs/{job_id}                              jobs.read         200
GET    /api/jobs/{job_id}/explain                  jobs.read         200
GET    /api/jobs/{job_id}/attempts                 jobs.read         200
GET    /api/jobs/{job_id}/history                  jobs.read         200
GET    /api/jobs/{job_id}/logs                     jobs.read_logs    200
GET    /api/jobs/{job_id}/events                   jobs.read         200
GET    /sync/jobs/{job_id}/stream                  jobs.read         200
POST   /api/jobs/{job_id}/cancel                   jobs.cancel       202
POST   /jobs/{job_id}/cancel                       jobs.cancel       202
POST   /api/jobs/{job_id}/retry                    jobs.retry        202
POST   /api/jobs/{job_id}/recover                  jobs.recover      200
POST   /sync/jobs/{job_id}/recover                 jobs.recover      200
POST   /jobs/{job_id}/recover                      jobs.recover      200
GET    /api/operations/{job_id}                    jobs.read         200
GET    /api/failures                               failures.read     200
GET    /api/failures/{fingerprint}                 failures.read     200
POST   /api/failures/{fingerprint}/retry           jobs.bulk         202
GET    /api/pipelines                              pipelines.read    200
GET    /sync/pipelines                             pipelines.read    200
GET    /api/pipelines/{pipeline_id}                pipelines.read    200
GET    /sync/pipelines/{pipeline_id}               pipelines.read    200
GET    /api/pipelines/{pipeline_id}/events         pipelines.read    200
GET    /sync/pipelines/{pipeline_id}/stream        pipelines.read    200
POST   /api/pipelines/{pipeline_id}/abort          pipelines.abort   202
POST   /sync/pipelines/{pipeline_id}/abort         pipelines.abort   202
GET    /api/locks                                  locks.read        200
DELETE /api/locks/{key:path}                       locks.release     200
GET    /api/workers                                workers.read      200
GET    /sync/workers                               workers.read      200
GET    /api/workers/{worker_id}                    workers.read      200
POST   /api/workers/{worker_id}/quiet              workers.quiet     200
GET    /api/kinds                                  kinds.read        200
GET    /api/kinds/{kind}                           kinds.read        200
GET    /api/job-kinds                              kinds.read        200
POST   /api/job-kinds/{kind}/pause                 kinds.control     200
POST   /api/job-kinds/{kind}/drain                 kinds.control     200
POST   /api/job-kinds/{kind}/resume                kinds.control     200
POST   /api/ops/jobs/trigger                       periodic.trigger  200
GET    /api/ops/jobs/status                        periodic.read     200
GET    /api/periodic                               periodic.read     200
GET    /api/periodic/{name}/runs                   periodic.read     200
POST   /api/periodic/{name}/trigger                periodic.trigger  200
POST   /api/periodic/{name}/pause                  periodic.control  200
POST   /api/periodic/{name}/resume                 periodic.control  200
GET    /api/ops/state                              ops.read          200
GET    /api/doctor                                 ops.read          200
GET    /api/stats/queue-depth                      demand.read       200
GET    /api/ops/drain                              ops.read          200
PUT    /api/ops/drain                              ops.drain         200
GET    /api/audit                                  audit.read        200
GET    /api/events                                 ops.read          200
GET    /api/config                                 config.read       200
GET    /api/config/{key}                           config.read       200
PUT    /api/config/{key}                           config.write      200
GET    /api/tokens                                 tokens.read       200
POST   /api/tokens                                 tokens.write      201
DELETE /api/tokens/{token_id}                      tokens.write      200
GET    /api/mappings                               mappings.read     200
POST   /api/mappings                               mappings.create   201
POST   /api/mappings/check                         mappings.create   200
GET    /api/mappings/{mapping_id}                  mappings.read     200
PUT    /api/mappings/{mapping_id}                  mappings.change   200
DELETE /api/mappings/{mapping_id}                  mappings.change   200
POST   /api/mappings/{mapping_id}/copy             mappings.create   201
PUT    /api/mappings/{mapping_id}/lifecycle        mappings.change   200
GET    /api/mappings/{mapping_id}/versions         mappings.read     200
GET    /api/mappings/{mapping_id}/versions/{version} mappings.read   200
GET    /api/mappings/{mapping_id}/versions/{before}/diff/{after} mappings.read 200
GET    /api/mappings/{mapping_id}/tree             mappings.read     200
GET    /api/instances/limits                       instances.read    200
GET    /api/instances/user/status                  instances.read    200
POST   /api/instances                              instances.create  202
GET    /api/instances                              instances.read    200
GET    /api/mappings/{mapping_id}/instances        instances.read    200
GET    /api/instances/{instance_id}                instances.read    200
GET    /api/instances/{instance_id}/progress       instances.read    200
GET    /api/instances/{instance_id}/events         instances.read    200
GET    /api/instances/{instance_id}/health         instances.read    200
GET    /api/instances/{instance_id}/logs           instances.query   200
PUT    /api/instances/{instance_id}                instances.change  200
PUT    /api/instances/{instance_id}/lifecycle      instances.change  200
POST   /api/instances/{instance_id}/extend         instances.change  200
PUT    /api/instances/{instance_id}/cpu            instances.change  202
PUT    /api/instances/{instance_id}/memory         instances.change  202
POST   /api/instances/{instance_id}/suspend        instances.change  202
POST   /api/instances/{instance_id}/resume         instances.change  202
DELETE /api/instances/{instance_id}                instances.change  202
POST   /api/instances/bulk-delete                  instances.bulk    202
GET    /api/instances/{instance_id}/graph/{path:path} instances.query   200
POST   /api/instances/{instance_id}/graph/query    instances.query   200
POST   /api/instances/{instance_id}/algorithms/{name} instances.query   202
POST   /api/instances/{instance_id}/report         instances.report  200
GET    /api/instances/{instance_id}/plan           instances.report  200
GET    /api/favorites                              favorites.write   200
POST   /api/favorites                              favorites.write   201
DELETE /api/favorites/{resource_type}/{resource_id} favorites.write   200
GET    /api/mappings/{mapping_id}/instances/tree   instances.read    200
GET    /api/snapshots                              snapshots.read    200
POST   /api/snapshots                              snapshots.create  202
GET    /api/snapshots/{snapshot_id}                snapshots.read    200
DELETE /api/snapshots/{snapshot_id}                snapshots.change  200
GET    /api/snapshots/{snapshot_id}/progress       snapshots.read    200
POST   /api/snapshots/{snapshot_id}/cancel         snapshots.change  202
POST   /api/snapshots/{snapshot_id}/retry          snapshots.change  202
PUT    /api/snapshots/{snapshot_id}/lifecycle      snapshots.change  200
GET    /api/export-jobs                            snapshots.read    200
GET    /api/ops/export-jobs                        snapshots.read    200
GET    /api/export-jobs/{job_id}                   snapshots.read    200
POST   /api/internal/export-jobs/claim             work              200
POST   /export-jobs/claim                          work              200
GET    /api/internal/export-jobs/pollable          work              200
GET    /export-jobs/pollable                       work              200
GET    /api/internal/export-jobs/{job_id}          work              200
GET    /export-jobs/{job_id}                       work              200
GET    /api/internal/snapshots/{snapshot_id}/export-jobs work        200
GET    /api/internal/snapshots/{snapshot_id}/status work             200
PATCH  /api/internal/snapshots/{snapshot_id}/status work             200
POST   /api/internal/snapshots/{snapshot_id}/finalize work           200
PATCH  /api/internal/export-jobs/{job_id}          work              200
PATCH  /export-jobs/{job_id}                       work              200
GET    /api/schema/catalogs                        schema.read       200
GET    /api/schema/catalogs/{catalog}/schemas      schema.read       200
GET    /api/schema/catalogs/{catalog}/schemas/{schema}/tables schema.read 200
GET    /api/schema/catalogs/{catalog}/schemas/{schema}/tables/{table}/columns schema.read 200
GET    /api/schema/search/tables                   schema.read       200
GET    /api/schema/search/columns                  schema.read       200
GET    /api/schema/stats                           schema.read       200
POST   /api/schema/admin/refresh                   schema.refresh    202
GET    /api/tables                                 tables.read       200
GET    /tables                                     tables.read       200
GET    /api/tables/{db}/{table}                    tables.read       200
GET    /tables/{db}/{table}                        tables.read       200
GET    /api/tables/{db}/{table}/maintenance        tables.read       200
GET    /tables/{db}/{table}/maintenance            tables.read       200
POST   /api/tables/{db}/{table}/maintenance        tables.maintain   202
POST   /tables/{db}/{table}/maintenance            tables.maintain   202
GET    /api/maintenance-runs/{job_id}              tables.read       200
GET    /api/jobs/{job_id}/actions                  tables.read       200
GET    /jobs/{job_id}/actions                      tables.read       200
GET    /api/savings                                tables.read       200
GET    /api/maintenance-policies                   maintenance_policies.read 200
POST   /api/maintenance-policies/preview           maintenance_policies.read 200
GET    /api/maintenance-policies/{name}            maintenance_policies.read 200
PUT    /api/maintenance-policies/{name}            maintenance_policies.write 200
DELETE /api/maintenance-policies/{name}            maintenance_policies.write 200
GET    /api/maintenance-policies/{name}/preview    maintenance_policies.read 200
POST   /api/ingestion/files                        ingestion.upload  201
POST   /sync/files                                 ingestion.upload  201
GET    /api/ingestion/files/{file_id}              ingestion.read    200
POST   /api/ingestion/dispatch                     ingestion.dispatch 202
POST   /sync/dispatch                              ingestion.dispatch 202
POST   /api/ingestion/factors                      ingestion.dispatch 202
POST   /sync/factors                               ingestion.dispatch 202
POST   /api/ingestion/units                        ingestion.dispatch 202
POST   /sync/units                                 ingestion.dispatch 202
POST   /api/ingestion/references                   ingestion.dispatch 202
POST   /sync/references                            ingestion.dispatch 202
POST   /api/ingestion/recalculations               ingestion.dispatch 202
POST   /sync/recalculate-emissions/{module}        ingestion.dispatch 202
POST   /sync/recalculate-emissions/{module}/{det}  ingestion.dispatch 202
GET    /api/ingestion/jobs                         ingestion.read    200
GET    /sync/jobs/by-status                        ingestion.read    200
GET    /sync/jobs/year/{year}                      ingestion.read    200
GET    /sync/jobs/year/{year}/latest               ingestion.read    200
GET    /api/ingestion/jobs/{job_id}                ingestion.read    200
GET    /api/ingestion/jobs/{job_id}/errors         ingestion.read    200
GET    /api/ingestion/jobs/{job_id}/bad-rows       ingestion.read    200
GET    /api/ingestion/jobs/{job_id}/events         ingestion.read    200
GET    /api/ingestion/recalculation-status         ingestion.read    200
GET    /sync/recalculation-status                  ingestion.read    200
GET    /api/ingestion/active-pipelines             ingestion.read    200
GET    /sync/active-pipelines                      ingestion.read    200
GET    /api/ingestion/stale-stats                  ingestion.read    200
GET    /sync/health/stale-stats                    ingestion.read    200
GET    /api/ingestion/stale-factors                ingestion.read    200
GET    /sync/factors/stale                         ingestion.read    200
GET    /api/ingestion/stats                        ingestion.read    200
GET    /api/ingestion/models                       ingestion.read    200
GET    /api/ingestion/models/{name}                ingestion.read    200
GET    /api/ingestion/models/{name}/versions       ingestion.read    200
PUT    /api/ingestion/models/{name}                ingestion.change_model 200
"""


def test_routes_match_the_contract_table() -> None:
    wanted = {tuple(line.split()) for line in CONTRACT.strip().splitlines()}

    assert {(route.method, route.path, route.action, str(route.status)) for route in table(catalog.nouns())} == wanted


def test_documented_paths_are_served() -> None:
    """P-01, P-08, P-09, K-60, Y-03: /sync/jobs/{id}/recover, /api/ops/jobs/trigger, /api/ops/state, /metrics and the probes."""
    served = {(route.method, route.path) for route in table(catalog.nouns())}

    assert served >= {
        ("POST", "/sync/jobs/{job_id}/recover"),
        ("POST", "/api/ops/jobs/trigger"),
        ("GET", "/api/ops/jobs/status"),
        ("GET", "/api/ops/state"),
        ("GET", "/metrics"),
        ("GET", "/health"),
        ("GET", "/ready"),
    }


def test_every_action_of_the_policy_has_a_route_or_is_checked_within_one() -> None:
    inside = {"jobs.read_payload", "jobs.read_handle", "work"}  # `work` is the worker protocol's

    assert {route.action for route in table(catalog.nouns())} | inside == set(POLICY)


async def test_extra_slash_is_not_redirected(viewer: Client) -> None:
    """A redirected POST loses its body in many clients."""
    answer = await viewer.get("/api/jobs/")

    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


async def test_method_not_allowed_lists_the_allowed_ones(viewer: Client) -> None:
    answer = await viewer.patch("/api/locks", json={})

    assert (answer.status_code, answer.json()["code"], answer.headers["Allow"]) == (405, "METHOD_NOT_ALLOWED", "GET")
    assert (await viewer.put("/api/jobs", json={})).headers["Allow"] == "GET, POST", "of all routes at the path"
    assert (await viewer.post("/api/locks/a/b", json={})).headers["Allow"] == "DELETE"


async def test_advice_matches_the_problem(ops: Client, anyone: Client) -> None:
    whole = await ops.post("/api/snapshots", json={"mapping_id": 1, "engine": "nowhere"}, headers={"X-Use-Case-Id": "r"})
    single = await ops.put("/api/ops/drain", json={"enabled": True})
    link = await anyone.get("/login", params={"code": "used"})

    for answer in (whole, single):
        assert ("`errors`" in answer.json()["what_to_do"]) == ("errors" in answer.json()), answer.text
    assert "another link" in link.json()["what_to_do"]


async def test_method_override_is_ignored(ops: Client) -> None:
    answer = await ops.post("/api/jobs/bulk", headers={"X-HTTP-Method-Override": "GET"}, json={})

    assert answer.status_code == 422


def test_committed_openapi_document_is_up_to_date(app: FastAPI) -> None:
    committed = json.loads((ROOT / "docs/reference/openapi.json").read_text())
    app.openapi_schema = None  # the fixture has put the committed one there

    assert app.openapi()["paths"].keys() == committed["paths"].keys(), "run `python docs/generate.py`"
    assert {**app.openapi(), "info": None} == {**committed, "info": None}, "run `python docs/generate.py`"


async def test_every_response_has_the_security_headers(anyone: Client, viewer: Client) -> None:
    for answer in (await anyone.get("/health"), await viewer.get("/api/jobs"), await anyone.get("/nowhere")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Request-Id"]
        assert "server" not in answer.headers


@pytest.mark.parametrize("unsafe", ["a b", "a\tb", "x" * 200, "é", ""])
async def test_unsafe_request_id_is_replaced(anyone: Client, unsafe: str) -> None:
    answer = await anyone.get("/health", headers={"X-Request-Id": unsafe.encode()})

    assert answer.headers["X-Request-Id"] != unsafe
    assert answer.headers["X-Request-Id"].isalnum()


async def test_interactive_documentation_is_off_by_default(anyone: Client) -> None:
    closed = await anyone.get("/docs")

    assert "HOLDFAST_DOCS_OPEN=true" in closed.text
    assert "swagger" not in closed.text
    assert (await anyone.get("/openapi.json")).status_code == 401


async def test_start_page_has_name_version_and_valid_links(anyone: Client, app: FastAPI) -> None:
    data = (await anyone.get("/")).json()["data"]
    page = await anyone.get("/", headers={"Accept": "text/html,application/xhtml+xml"})

    assert (data["name"], data["version"]) == ("holdfast", app.version)
    assert page.headers["Content-Type"].startswith("text/html")
    for path in data["links"].values():
        assert f'href="{path}"' in page.text
        assert (await anyone.get(path)).status_code in (200, 401), path


def test_every_number_in_the_openapi_document_has_a_bound(document: dict[str, Any]) -> None:
    """What Postgres cannot store must be refused by the model: 2**63 in a path was a fault of ours."""
    sent = [
        (f"{method} {path} {one['name']}", one["schema"])
        for path, methods in document["paths"].items()
        for method, said in methods.items()
        for one in said.get("parameters", ())
    ]
    bodies = [said.get("requestBody", {}) for methods in document["paths"].values() for said in methods.values()]
    schemas, known = document["components"]["schemas"], set[str]()
    while (
        names := set(re.findall(r"#/components/schemas/(\w+)", json.dumps([bodies, *(schemas[one] for one in known)]))) - known
    ):
        known |= names
    sent += [(f"{name}.{field}", of) for name in known for field, of in schemas[name].get("properties", {}).items()]

    numbers = [(where, one) for where, schema in sent for one in _inside(schema) if one.get("type") == "integer"]

    assert len(numbers) > 50
    assert [where for where, one in numbers if not -(2**63) <= one.get("maximum", 2**63) < 2**63] == []


def _inside(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    nested = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    for one in nested:
        yield from _inside(one)


def test_openapi_document_describes_durations(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name in ("MappingAsked", "LifecycleAsked", "SnapshotAsked"):
        for field in ("ttl", "inactivity_timeout"):
            assert any("pattern" in one for one in _inside(schemas[name]["properties"][field])), (name, field)


@pytest.mark.parametrize(
    "path", ["/api/jobs/bulk", "/api/jobs/1/cancel", "/api/ops/drain", "/api/failures/0123456789abcdef/retry"]
)
@pytest.mark.parametrize("given", [0, 1, "false", "no"])
async def test_flag_is_true_or_false(path: str, given: Any, ops: Client) -> None:
    """A dry run that is switched off by a 0 was meant to be something else."""
    body = {
        "/api/jobs/bulk": {"action": "cancel", "filter": {"kind": "k"}, "dry_run": given, "expected_count": 0},
        "/api/jobs/1/cancel": {"force": given},
        "/api/ops/drain": {"enabled": given},
    }.get(path, {"dry_run": given})

    method = "PUT" if path.endswith("drain") else "POST"
    answer = await ops.request(method, path, json=body | {"reason": "why"})

    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"].rpartition("/")[2] in ("dry_run", "force", "enabled")


@pytest.mark.parametrize("path", ["/api/jobs/{}", "/api/mappings/{}", "/api/snapshots/{}", "/api/operations/{}"])
async def test_id_out_of_range_is_refused(path: str, ops: Client) -> None:
    for number in (0, -1, 2**63 - 1, 2**63, 10**30):
        assert (await ops.get(path.format(number))).status_code == 422


async def test_worker_protocol_refuses_ids_out_of_range(as_role: Any) -> None:
    worker = await as_role("worker")
    shown = {"If-Match": f'"{uuid4()}"'}
    for number in (0, 2**63, 10**30):
        assert (await worker.get(f"/api/worker/jobs/{number}/end", headers=shown)).status_code == 422
        assert (await worker.get(f"/api/worker/jobs/{number}/effects", headers=shown)).status_code == 422
        handle = {"handle": 1}
        assert (await worker.put(f"/api/worker/jobs/1/effects/{number}", json=handle, headers=shown)).status_code == 422
