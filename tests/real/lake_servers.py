"""A real Spark with Spark Connect and a Spark Thrift Server, and a real REST catalog of Iceberg, on this machine's loopback.

Both are started with a small class of our own, because the main classes of these versions listen on every interface. They need
a JDK 17: `HOLDFAST_REAL_JAVA_17`, or `java` on the PATH.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from fetching import alone, cache, download, fetch_artifact, free_port

SPARK = "3.5.7"
SPARK_SHA256 = "80e36514e0c5c126d35a26adf4f405cd4a69de96a8ea8a3c1e9a65fce2fb4eaa"
CONNECT = (f"org.apache.spark:spark-connect_2.12:{SPARK}", "15366e21273a874c760b51fa00743a2acb8fa78642cc35d7a076a3ade0c5eef6")
ICEBERG = (
    "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.1",
    "39ea09e6c03550a300b9d9ab498949836d2d434e441da4c12a943a086e396940",
)
DRIVER = ("org.postgresql:postgresql:42.7.8", "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7")
REST = ("org.apache.iceberg:iceberg-open-api:1.10.1", "09e6aef58984eaa58bf1e1bc5193ad023e929c6bfd38c82db7b83ffe825af724")
CLIENT = Path(__file__).parents[2] / "requirements" / "real.txt"
START_SECONDS = 600
JAVA = Path(__file__).parent / "java"
OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
    "sun.util.calendar",
)
LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # for tests: it starts sooner and needs fewer cores


@dataclass
class JavaServer:
    """A server of ours in a JVM."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def launch(self, source: str, classpath: str, options: list[str], arguments: list[str]) -> None:
        """Start it and wait until its port is open."""
        self.folder.mkdir(parents=True, exist_ok=True)
        compiled, name = compile_class(source, classpath)
        command = [java_17(), *options, "-cp", f"{compiled}:{classpath}", name, str(self.port), *arguments]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        give_up = time.monotonic() + START_SECONDS
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > give_up:
                said = (self.folder / "server.log").read_text()[-3000:]
                self.kill()
                raise RuntimeError(f"{source} did not start; the end of its log:\n{said}")
            time.sleep(0.2)

    def _listens(self) -> bool:
        """Whether the process itself listens: another one may have taken the port."""
        assert self.process is not None
        wanted = f":{self.port:04X}"
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]:
                parts = line.split()
                if parts[1].endswith(wanted) and parts[3] == "0A":
                    return True
        return False

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class RestServer(JavaServer):
    """Iceberg's REST catalog, with its rows in a file and its tables in a folder."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with alone():
            jar = fetch_artifact(*REST)
        self.port = self.port or free_port()
        properties = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:file:{self.folder}/catalog.db",
            "jdbc.schema-version": "V1",
            "warehouse": f"file://{self.folder}/warehouse",
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        }
        arguments = [f"{key}={value}" for key, value in properties.items()]
        self.launch("LoopbackRestCatalog.java", str(jar), ["-Xmx512m", *LIGHT], arguments)


@dataclass
class SparkServer(JavaServer):
    """Spark in one process, with Spark Connect, and also as a Spark Thrift Server.

    `catalogs` has the properties of each Iceberg catalog.
    """

    catalogs: dict[str, dict[str, str]] = field(default_factory=dict)
    memory: str = "1500m"
    light: bool = True
    thrift_port: int = 0

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    @property
    def thrift_url(self) -> str:
        return f"thrift://127.0.0.1:{self.thrift_port}"

    def start(self, *, thrift: bool = False) -> None:
        """Start it; `thrift`: also as a Spark Thrift Server."""
        self.port = self.port or free_port()
        self.thrift_port = free_port() if thrift else 0
        arguments = [str(self.thrift_port)] if thrift else []
        self.launch("LoopbackSparkConnect.java", spark_classpath(), self.options(), arguments)

    def options(self) -> list[str]:
        """The options of the JVM, which configure Spark."""
        given = spark_properties(self.catalogs)
        settings = [f"-D{key}={value}" for key, value in given.items()]
        return [*jvm_options(self.memory), *(LIGHT if self.light else ()), *settings]


def spark_properties(catalogs: dict[str, dict[str, str]]) -> dict[str, str]:
    """A Spark of two threads on the loopback, with Iceberg."""
    given = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "WARN",
    }
    for name, properties in catalogs.items():
        given[f"spark.sql.catalog.{name}"] = "org.apache.iceberg.spark.SparkCatalog"
        given |= {f"spark.sql.catalog.{name}.{key}": value for key, value in properties.items()}
        given[f"spark.sql.catalog.{name}.cache-enabled"] = "false"
    return given


def jvm_options(memory: str) -> list[str]:
    """What Spark needs of a JVM 17."""
    return [f"-Xmx{memory}", *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED)]


def spark_classpath() -> str:
    """Spark, Spark Connect, Iceberg and the driver of Postgres."""
    with alone():
        jars = [fetch_artifact(*CONNECT), fetch_artifact(*ICEBERG), fetch_artifact(*DRIVER)]
        return ":".join([*map(str, jars), f"{fetch_spark()}/*"])


def fetch_spark() -> Path:
    """The folder with Spark's jars: they are in the source distribution of `pyspark`."""
    home = cache() / f"spark-{SPARK}"
    if not home.exists():
        packed = download(f"pyspark=={SPARK}", f"pyspark-{SPARK}.tar.gz", SPARK_SHA256)
        unpacked = cache() / f"unpacking-{os.getpid()}"
        with tarfile.open(packed) as archive:
            jars = [one for one in archive if f"pyspark-{SPARK}/deps/jars/" in one.name and one.isfile()]
            archive.extractall(unpacked, jars, filter="data")
        (unpacked / f"pyspark-{SPARK}" / "deps" / "jars").rename(home)
        shutil.rmtree(unpacked)
        packed.unlink()
    return home


def fetch_client() -> Path:
    """A folder with `pyspark-client` and what it needs beside our own packages."""
    home = cache() / f"spark-client-{sys.version_info.major}.{sys.version_info.minor}"
    with alone():
        if not home.exists():
            target = cache() / f"installing-{os.getpid()}"
            words = ["install", "--quiet", "--no-deps", "--require-hashes", "--target", str(target), "-r", str(CLIENT)]
            subprocess.run([sys.executable, "-m", "pip", *words], check=True)
            target.rename(home)
    return home


def compile_class(source: str, classpath: str) -> tuple[Path, str]:
    """A class of ours, compiled once: the folder of its package, and its name."""
    text = (JAVA / source).read_text()
    home = cache() / f"{Path(source).stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    package = re.search(r"^package (\S+);", text, re.MULTILINE)
    with alone():
        if not home.exists():
            made = cache() / f"compiling-{os.getpid()}"
            compiler = Path(java_17()).resolve().with_name("javac")
            subprocess.run([str(compiler), "-nowarn", "-d", str(made), "-cp", classpath, str(JAVA / source)], check=True)
            made.rename(home)
    return home, f"{package[1]}.{Path(source).stem}" if package else Path(source).stem


def java_17() -> str:
    """A JDK 17: Spark 3.5 does not start with a newer one."""
    java = os.environ.get("HOLDFAST_REAL_JAVA_17") or shutil.which("java")
    if java is None:
        raise RuntimeError("the real Spark needs a JDK 17; install one, or name its java in HOLDFAST_REAL_JAVA_17")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    if not re.search(r'version "17\.', said):
        raise RuntimeError(f"the real Spark needs a JDK 17, and {java} is {said.splitlines()[0]}; set HOLDFAST_REAL_JAVA_17")
    return java
