"""The manifests: valid for two versions of Kubernetes, restricted, and consistent with the code and with each other."""

from __future__ import annotations

import re
import shlex
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from deploy_paths import DEPLOY, ROOT, containers, documents, named, workloads
from holdfast.catalog import SERVICES
from holdfast.cli import app as command_line
from holdfast.database import roles
from holdfast.environment import WITHOUT_EFFECT, compatibility_names, standard_names
from holdfast.services.graphs.runtimes.kubernetes import rbac
from holdfast.settings import settings_class

OVERLAYS = ["overlays/demo", "overlays/small", "overlays/production"]
BASES = sorted(str(path.relative_to(DEPLOY)) for path in (DEPLOY / "base").iterdir())
VERSIONS = ["1.32", "1.37"]
CUSTOM = ("keda.sh/v1alpha1", "monitoring.coreos.com/v1", "kustomize.config.k8s.io/v1beta1")


# ---------------------------------------------------------------------------------------------------------------------
# Valid
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", [*OVERLAYS, *BASES])
def test_every_object_is_valid(folder: str, version: str) -> None:
    """Y-08: strictly, for an older and a newer version of Kubernetes."""
    found = documents(folder)

    assert found
    for one in found:
        if one["apiVersion"] not in CUSTOM:
            kubernetes_validate.validate(one, version, strict=True)


def test_a_misspelled_field_is_found() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(named("overlays/small", "Deployment", "control-plane")))
    wrong["spec"]["template"]["spec"]["containers"][0]["resource"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_no_object_is_there_twice_and_every_reference_leads_to_one(folder: str) -> None:
    found = documents(folder)
    keys = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in found]

    assert len(set(keys)) == len(keys)
    accounts = {name for kind, _, name in keys if kind == "ServiceAccount"} | {"default"}
    configs = {name for kind, _, name in keys if kind == "ConfigMap"}
    for _, pod in workloads(folder):
        assert pod.get("serviceAccountName", "default") in accounts
    for _, _, container in containers(folder):
        assert {one["configMapRef"]["name"] for one in container.get("envFrom", ())} <= configs
    for one in found:
        if one["kind"] == "RoleBinding":
            assert one["roleRef"]["name"] in {name for kind, _, name in keys if kind == "Role"}
            assert {subject["name"] for subject in one["subjects"]} <= accounts


# ---------------------------------------------------------------------------------------------------------------------
# Secure
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", OVERLAYS)
def test_every_pod_is_restricted(folder: str) -> None:
    """Pod security `restricted`, and a root filesystem that cannot be written."""
    found = containers(folder)

    assert found
    for name, pod, container in found:
        own = container["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]) == {"requests", "limits"}, name
    spaces = [one for one in documents(folder) if one["kind"] == "Namespace"]
    assert {one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] for one in spaces} == {"restricted"}


@pytest.mark.parametrize("folder", [*OVERLAYS, *BASES])
def test_secrets_are_only_referred_to(folder: str) -> None:
    """Q-02"""
    assert [one["metadata"]["name"] for one in documents(folder) if one["kind"] == "Secret"] == []
    for _, _, container in containers(folder):
        for variable in container.get("env", ()):
            if re.search(r"PASSWORD|TOKEN|DATABASE_URL|SECRET", variable["name"]):
                assert "secretKeyRef" in variable["valueFrom"], variable


@pytest.mark.parametrize("folder", OVERLAYS)
def test_everything_is_denied_that_is_not_allowed(folder: str) -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in documents(folder) if one["kind"] == "NetworkPolicy"}

    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for _, pod in workloads(folder):
        uses_database = any("DATABASE_URL" in str(container.get("env", "")) for container in pod["containers"])
        labels = next(_labels(one) for one, own in workloads(folder) if own is pod or own == pod)
        assert (labels.get("holdfast.dev/database") == "yes") == uses_database, labels


def _labels(one: dict[str, Any]) -> dict[str, str]:
    template = one["spec"]["jobTargetRef"]["template"] if one["kind"] == "ScaledJob" else one["spec"]["template"]
    return dict(template["metadata"]["labels"])


def test_q_04_the_export_worker_has_no_database_and_no_token_of_kubernetes() -> None:
    """Q-04"""
    pod = named("overlays/production", "Deployment", "export-worker")["spec"]["template"]["spec"]

    assert "DATABASE" not in str(pod)
    assert "control-plane-db" not in str(pod)
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("folder", OVERLAYS)
def test_only_the_programs_that_manage_graphs_may_touch_pods_and_secrets_and_only_those_of_graphs(folder: str) -> None:
    """The Role has what the runtime needs, and nothing more; no other Role exists."""
    found = documents(folder)
    bindings = [one for one in found if one["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    granted = [one for one in found if one["kind"] in ("Role", "ClusterRole")]
    managers = {"control-plane", "control-worker"} | ({"scheduler"} if folder == "overlays/production" else set())

    assert [(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in granted] == [
        ("Role", "holdfast-graphs", "graph-manager")
    ]
    assert granted[0]["rules"] == rbac.rules("none")
    assert [(one["metadata"]["namespace"], one["roleRef"]["name"]) for one in bindings] == [
        ("holdfast-graphs", "graph-manager")
    ]
    assert {(who["namespace"], who["name"]) for who in bindings[0]["subjects"]} == {("holdfast", name) for name in managers}
    mounted = {pod["serviceAccountName"] for _, pod in workloads(folder) if pod.get("automountServiceAccountToken", True)}
    assert mounted == managers


# ---------------------------------------------------------------------------------------------------------------------
# As the code needs it
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", OVERLAYS)
def test_every_command_exists_with_its_options(folder: str) -> None:
    for name, _, container in containers(folder):
        if container["image"].startswith("holdfast"):
            _parsed(list(container["args"]), name)


def _parsed(words: list[str], name: str) -> None:
    """Parse as the program does, without running it."""
    command = get_command(command_line)
    context = command.make_context("holdfast", [], resilient_parsing=True)
    while hasattr(command, "get_command"):
        word = words.pop(0)
        found = command.get_command(context, word)
        assert found is not None, f"{name}: there is no command {word}"
        command = found.load() if hasattr(found, "load") else found
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options, f"{name}: {shlex.join(words)}"


@pytest.mark.parametrize("folder", OVERLAYS)
def test_every_variable_is_a_setting(folder: str) -> None:
    """G-04: HOLDFAST_ names, and those of the documents with the switch that turns them on."""
    fields = settings_class().model_fields
    own = {f"HOLDFAST_{name.upper()}" for name in fields}
    others = set(WITHOUT_EFFECT) | {
        name for field in fields.values() for name in (*compatibility_names(field), *standard_names(field))
    }
    configs = {one["metadata"]["name"]: one["data"] for one in documents(folder) if one["kind"] == "ConfigMap"}
    for name, _, container in containers(folder):
        if not container["image"].startswith("holdfast"):
            continue
        given = {one["name"] for one in container.get("env", ())}
        values: dict[str, str] = {}
        for one in container.get("envFrom", ()):
            values |= {key: value for key, value in configs[one["configMapRef"]["name"]].items() if key.isupper()}
        assert given | set(values) <= own | others, name
        if (given | set(values)) & others:
            assert values["HOLDFAST_COMPATIBILITY_NAMES"] == "true", name


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_values_of_the_config_maps_are_accepted(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G-07: a value out of range would be refused at the start of the pod."""
    for one in documents(folder):
        if one["kind"] == "ConfigMap" and not one["metadata"]["name"].startswith("dashboard-"):
            with monkeypatch.context() as patch:
                for name, value in one["data"].items():
                    patch.setenv(name, value)
                settings = settings_class()()
            assert settings.lease >= 3 * settings.beat_seconds


@pytest.mark.parametrize("folder", OVERLAYS)
def test_g_01_the_config_map_of_the_control_plane_has_the_intervals_of_the_document(folder: str) -> None:
    """G-01"""
    data = named(folder, "ConfigMap", "control-plane-config")["data"]
    wanted = {"RECONCILIATION": 300, "LIFECYCLE": 300, "EXPORT_RECONCILIATION": 5, "SCHEMA_CACHE": 86400}

    assert {name: value for name, value in data.items() if name.startswith("GRAPH_OLAP_")} == {
        f"GRAPH_OLAP_{name}_JOB_INTERVAL_SECONDS": str(seconds) for name, seconds in wanted.items()
    }


@pytest.mark.parametrize(
    ("setting", "worker"),
    [("HOLDFAST_SNAPSHOTS_TO", "export-worker-config"), ("HOLDFAST_ICEBERG_WAREHOUSE", "maintenance-worker-config")],
)
def test_the_control_plane_and_the_workers_agree_on_where_files_are(setting: str, worker: str) -> None:
    """The control plane decides on the address and deletes the files; the worker writes them."""
    places = {named("overlays/small", "ConfigMap", name)["data"][setting] for name in ("control-plane-config", worker)}

    assert len(places) == 1
    assert "://" in places.pop(), "a folder of a pod is not shared"


@pytest.mark.parametrize("folder", OVERLAYS)
def test_grace_periods_agree_with_the_settings(folder: str) -> None:
    """A worker must have returned its jobs before the kubelet kills it."""
    for one, pod in workloads(folder):
        for container in pod["containers"]:
            said = [
                entry["value"] for entry in container.get("env", ()) if entry["name"] == "HOLDFAST_TERMINATION_GRACE_SECONDS"
            ]
            if "worker" in container.get("args", [""])[0]:
                assert said == [str(pod["terminationGracePeriodSeconds"])], one["metadata"]["name"]


def test_y_02_the_export_worker_is_that_of_the_document() -> None:
    """Y-02, Y-03"""
    deployment = named("overlays/production", "Deployment", "export-worker")
    pod = deployment["spec"]["template"]["spec"]
    worker = pod["containers"][0]

    assert "replicas" not in deployment["spec"], "KEDA manages them"
    assert worker["resources"] == {"requests": {"memory": "256Mi", "cpu": "100m"}, "limits": {"memory": "512Mi", "cpu": "500m"}}
    assert (pod["serviceAccountName"], pod["terminationGracePeriodSeconds"]) == ("export-worker", 300)
    assert worker["ports"] == [{"name": "http", "containerPort": 8080}]
    live, ready = worker["livenessProbe"], worker["readinessProbe"]
    assert (live["httpGet"], live["initialDelaySeconds"], live["periodSeconds"]) == (
        {"path": "/health", "port": "http"},
        10,
        30,
    )
    assert (ready["httpGet"], ready["initialDelaySeconds"], ready["periodSeconds"]) == (
        {"path": "/ready", "port": "http"},
        5,
        10,
    )


@pytest.mark.parametrize("name", ["control-plane", "scheduler"])
def test_a_program_with_loops_is_restarted_when_its_event_loop_hangs(name: str) -> None:
    """S-18, Y-03."""
    (container,) = named("overlays/production", "Deployment", name)["spec"]["template"]["spec"]["containers"]
    live = container["livenessProbe"]

    assert (live["httpGet"], live["initialDelaySeconds"], live["periodSeconds"]) == (
        {"path": "/health", "port": "http"},
        10,
        30,
    )


def test_y_04_the_scaled_object_is_that_of_the_document_with_the_whole_demand() -> None:
    """Y-04, Y-05, E-03"""
    scaler = named("overlays/small", "ScaledObject", "export-worker-scaler")["spec"]
    auth = named("overlays/small", "TriggerAuthentication", "export-worker-db-auth")["spec"]
    trigger = scaler["triggers"][0]

    assert (scaler["minReplicaCount"], scaler["maxReplicaCount"], scaler["cooldownPeriod"]) == (0, 5, 300)
    assert (trigger["type"], trigger["metadata"]["targetQueryValue"]) == ("postgresql", "10")
    assert "SUM(value)" in trigger["metadata"]["query"]
    assert auth["secretTargetRef"] == [{"parameter": "connection", "name": "control-plane-db", "key": "url"}]


def test_y_06_the_scaled_job_starts_one_pod_per_job() -> None:
    """Y-06, G-07, E-52: every 30 s, retried by Holdfast alone, and a rollout ends no running job."""
    scaled = named("overlays/small", "ScaledJob", "maintenance-worker")["spec"]

    assert scaled["pollingInterval"] == 30
    assert scaled["scalingStrategy"] == {"strategy": "accurate"}
    assert scaled["rollout"] == {"strategy": "gradual"}
    assert scaled["jobTargetRef"]["backoffLimit"] == 0
    assert scaled["jobTargetRef"]["template"]["spec"]["restartPolicy"] == "Never"
    assert "--once" in scaled["jobTargetRef"]["template"]["spec"]["containers"][0]["args"]
    assert "SUM(backlog)" in scaled["triggers"][0]["metadata"]["query"]


def test_y_07_credentials_of_the_warehouse_come_from_the_documents_secret() -> None:
    """Y-07"""
    worker = named("overlays/small", "Deployment", "export-worker")["spec"]["template"]["spec"]["containers"][0]
    found = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in worker["env"] if one["name"].startswith("STARBURST_")}

    assert {name: (ref["name"], ref["key"]) for name, ref in found.items()} == {
        f"STARBURST_{key.upper()}": ("starburst-credentials", key) for key in ("url", "user", "password")
    }


def test_the_service_account_of_the_export_worker_names_its_roles_of_google_cloud() -> None:
    """Y-07: objects are written with one, and the secret may come from Secret Manager with the other."""
    text = (DEPLOY / "base/export-worker/serviceaccount.yaml").read_text()

    assert {"roles/storage.objectAdmin", "roles/secretmanager.secretAccessor"} <= set(re.findall(r"roles/[\w.]+\w", text))


def test_the_files_have_the_names_of_the_document() -> None:
    """Y-08: of the export worker; pyproject.toml, Dockerfile and README once for all: a service is a
    folder of the one package (decision 0022)."""
    names = {"deployment.yaml", "service.yaml", "configmap.yaml", "keda-scaledobject.yaml", "kustomization.yaml"}

    assert names <= {path.name for path in (DEPLOY / "base/export-worker").iterdir()}
    assert {"Dockerfile", "README.md", "compose.yaml"} <= {path.name for path in DEPLOY.iterdir()}
    assert {"pyproject.toml", "README.md"} <= {path.name for path in ROOT.iterdir()}


@pytest.mark.parametrize("folder", BASES)
def test_each_program_has_its_objects_in_files_of_their_names(folder: str) -> None:
    """Y-08"""
    here = {path.name for path in (DEPLOY / folder).iterdir()}
    kinds = {one["kind"] for one in documents(folder)}

    assert "kustomization.yaml" in here
    assert ("Deployment" in kinds) == ("deployment.yaml" in here)
    assert ("Service" in kinds) == ("service.yaml" in here)
    assert ("ConfigMap" in kinds) == ("configmap.yaml" in here)


def test_y_09_nothing_but_postgres_is_needed() -> None:
    """Y-01, Y-09: no broker; and the loops need no Deployment of their own."""
    images = {container["image"].partition(":")[0] for _, _, container in containers("overlays/demo")}
    small = {one["metadata"]["name"] for one, _ in workloads("overlays/small")}

    assert images == {"holdfast", "postgres"}
    assert small == {"control-plane", "control-worker", "export-worker", "maintenance-worker", "migrate"}


def test_the_migration_sets_the_passwords_of_the_roles() -> None:
    pod = named("overlays/small", "Job", "migrate")["spec"]["template"]["spec"]

    assert pod["initContainers"][0]["args"] == ["db", "migrate"]
    assert pod["containers"][0]["args"] == ["db", "roles", "--apply", "--passwords", "/passwords"]
    assert set(roles.ROLES) == {"api", "worker", "autoscaler", "reader"}


def test_the_api_can_replace_postgres_as_the_source_of_the_demand(tmp_path: Any) -> None:
    """Q-04: the metrics-api trigger, without database credentials for KEDA."""
    folder = DEPLOY / ".test-metrics-api"
    folder.mkdir()
    try:
        (folder / "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../overlays/small]\n"
            "components: [../components/metrics-api-trigger]\n"
        )
        found = documents(folder.name)
    finally:
        (folder / "kustomization.yaml").unlink()
        folder.rmdir()
    triggers = [trigger for one in found if one["kind"] in ("ScaledObject", "ScaledJob") for trigger in one["spec"]["triggers"]]

    assert {trigger["type"] for trigger in triggers} == {"metrics-api"}
    assert sorted(trigger["metadata"]["url"].partition("?kind=")[2] for trigger in triggers) == sorted(
        f"{service.name}.*" for service in SERVICES if service.kinds
    )
    assert "postgresql" not in str([one for one in found if one["apiVersion"] == "keda.sh/v1alpha1"])
