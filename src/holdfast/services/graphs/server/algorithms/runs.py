"""Runs of algorithms: one at a time, each in a child process, cancellable, with its result in memory.

A run extracts its edges through a session of the current database, in a thread of its own: it takes no query thread, and
queries go on. The run that is active holds the lock of the instance; another one gets 409 with the holder's name.

A run belongs to a job: its id is that of the job, and its tag that of the attempt that submitted it. A start with the tag of a
known run answers with that run, so a submit whose answer was lost is repeated safely. A tag that was stopped is never started
after that, so a submit that arrives late does no harm.
"""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast.extras import lazily
from holdfast.services.graphs.server.algorithms import extract, writing
from holdfast.services.graphs.server.algorithms.catalog import Algorithm, algorithm_named, parameters_of
from holdfast.services.graphs.server.algorithms.progress import COMPUTING, EXTRACTING, WRITING, Tell, fraction, read_line
from holdfast.services.graphs.server.engines.port import EngineError, Interrupted
from holdfast.services.graphs.server.graph import INTERRUPT_EVERY, Graph
from holdfast.services.graphs.server.refusals import Refusal, invalid, not_found
from holdfast.telemetry.log import log
from holdfast.threads import in_thread

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa, pc = lazily("pyarrow"), lazily("pyarrow.compute")

State = Literal["running", "completed", "failed", "cancelled"]
CHILD: Final = "holdfast.services.graphs.server.algorithms.child"
KEPT, RESULTS_KEPT = 100, 5  # runs, and the newest of them that have their result
TAGS_KEPT: Final = 1000  # that were stopped
LONGEST_SECONDS: Final = 1800.0
LARGEST_ID: Final = 2**63 - 1
FIELDS: Final = ("node_labels", "edge_types", "weight", "property", "parameters", "timeout_seconds", "holder", "job_id", "tag")


@dataclass(slots=True)
class Run:
    """One run. `id` is that of its job; a run that was started without one has the next free number."""

    id: int
    tag: str | None
    algorithm: Algorithm
    parameters: Mapping[str, Any]
    selection: extract.Selection
    property: str | None
    seconds: float
    holder: str
    began: float
    state: State = "running"
    step: str = EXTRACTING
    done: str | None = None  # of this step: 16 of 2,000 sources
    progress: float = 0.0
    error_code: str | None = None
    error: str | None = None
    edges: int | None = None
    rows: int | None = None
    ended: float | None = None
    result: pa.Table | None = field(default=None, repr=False)
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def at(self, step: str, done: int = 0, of: int = 0, unit: str = "") -> None:
        """Note how far the run is. Called in any thread."""
        self.step, self.done = step, f"{done:,} of {of:,} {unit}" if of else None
        self.progress = fraction(step, done, of, writes=self.property is not None)

    def telling(self, step: str) -> Tell:
        """For the code of a step, which counts what it has done."""
        return functools.partial(self.at, step)

    def as_json(self) -> dict[str, Any]:
        """The run as the API shows it."""
        return {
            "id": self.id,
            "tag": self.tag,
            "algorithm": self.algorithm.name,
            "parameters": dict(self.parameters),
            "state": self.state,
            "step": self.step,
            "done": self.done,
            "progress": round(self.progress, 4),
            "holder": self.holder,
            "property": self.property,
            "nodes": self.selection.count,
            "edges": self.edges,
            "rows": self.rows,
            "columns": ["label", "key", *self.algorithm.columns],
            "seconds": round((self.ended or time.monotonic()) - self.began, 3),
            "error_code": self.error_code,
            "error": self.error,
            "has_result": self.result is not None,
        }


class Runs:
    """The runs of one graph server."""

    def __init__(self, graph: Graph, folder: Path) -> None:
        self._graph, self._folder = graph, folder
        self._runs: dict[int, Run] = {}
        self._stopped: deque[str] = deque(maxlen=TAGS_KEPT)
        self._active: Run | None = None
        self._written: dict[str, set[str]] = {}  # properties that runs have added, by label

    @property
    def active(self) -> Run | None:
        """The run that holds the lock."""
        return self._active

    def check(self, name: str, body: Any) -> Run:
        """The run that a request describes, not started. `Refusal` names what is wrong with the request."""
        return self._asked(algorithm_named(name), body)

    def start(self, name: str, body: Any) -> Run:
        """Start a run, or find the one with the same tag. `Refusal` if another run holds the lock."""
        run = self.check(name, body)
        known = self._runs.get(run.id)
        if known is not None and known.tag is not None and known.tag == run.tag:
            return known
        if run.tag in self._stopped:
            raise Refusal(409, "RUN_STOPPED", f"The run with the tag {run.tag} was stopped.", "Start a run with another tag.")
        if self._active is not None:
            raise locked(self._active)
        self._runs.pop(run.id, None)  # of an earlier attempt: the new one is the newest
        self._active = self._runs[run.id] = run
        run.task = asyncio.get_running_loop().create_task(self._drive(run))
        self._forget()
        return run

    def get(self, number: int) -> Run:
        """A run; `Refusal` if it is unknown."""
        found = self._runs.get(number)
        if found is None:
            raise not_found(f"There is no run {number}; the last {KEPT} runs are kept.")
        return found

    def list(self) -> list[Run]:
        """All runs, newest first."""
        return [*reversed(self._runs.values())]

    async def cancel(self, number: int) -> Run:
        """Stop a run and wait until it has stopped. A run that has ended stays as it is."""
        run = self.get(number)
        if run.task is not None and not run.task.done():
            run.task.cancel()
            await asyncio.wait({run.task})
        return run

    async def stop(self, number: int, tag: str) -> Run | None:
        """Stop the run with this tag, or refuse its start if it arrives later. None: no run has this tag now."""
        self._stopped.append(tag)
        run = self._runs.get(number)
        return await self.cancel(number) if run is not None and run.tag == tag else None

    async def close(self) -> None:
        """Stop the active run."""
        if self._active is not None:
            await self.cancel(self._active.id)

    # -----------------------------------------------------------------------------------------------------------------

    def _asked(self, algorithm: Algorithm, body: Any) -> Run:
        """The run that a request's body describes; `Refusal` names what is wrong."""
        if not isinstance(body, dict):
            raise invalid("the body must be a JSON object")
        unknown = sorted(set(body) - set(FIELDS))
        if unknown:
            raise invalid(f"the field {unknown[0]!r} is unknown; there are: {', '.join(FIELDS)}")
        weight = body.get("weight")
        if weight is not None and not algorithm.is_weighted:
            raise invalid(f"{algorithm.name} uses no weights; leave `weight` out")
        selection = extract.selected(self._graph.current.schema, body.get("node_labels"), body.get("edge_types"), weight)
        parameters = parameters_of(algorithm, body.get("parameters") or {})
        name = body.get("property")
        if name is not None:
            if not algorithm.can_write:
                raise invalid(f"the result of {algorithm.name} cannot be written to a property; leave `property` out")
            writing.refuse_name(name, selection.nodes, self._written)
        seconds = body.get("timeout_seconds") or LONGEST_SECONDS
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST_SECONDS:
            raise invalid(f"`timeout_seconds` must be a number up to {LONGEST_SECONDS:g}, not {seconds!r}")
        return Run(
            self._id_of(body.get("job_id")),
            _tag_of(body.get("tag")),
            *(algorithm, parameters, selection, name, float(seconds)),
            holder=str(body.get("holder") or "unknown")[:200],
            began=time.monotonic(),
        )

    def _id_of(self, job_id: Any) -> int:
        if job_id is None:
            return max(self._runs, default=0) + 1
        if isinstance(job_id, bool) or not isinstance(job_id, int) or not 0 < job_id <= LARGEST_ID:
            raise invalid(f"`job_id` must be the id of a job, not {job_id!r}")
        return job_id

    async def _drive(self, run: Run) -> None:
        """Everything of one run; every outcome is recorded here, and the lock is released."""
        folder = self._folder / f"run-{run.id}"
        try:
            async with asyncio.timeout(run.seconds):
                await self._steps(run, folder)
            run.state, run.progress = "completed", 1.0
        except asyncio.CancelledError:
            run.state, run.error_code, run.error = "cancelled", "CANCELLED", "The run was cancelled."
        except (TimeoutError, Interrupted):
            run.state, run.error_code, run.error = "failed", "ALGORITHM_TIMEOUT", f"The run took longer than {run.seconds:g} s."
        except Refusal as error:
            run.state, run.error_code, run.error = "failed", error.code, error.detail
        except EngineError as error:
            run.state, run.error_code, run.error = "failed", "DATABASE_ERROR", str(error)
        except Exception as error:
            log.exception("graph_algorithm_error", run=run.id, algorithm=run.algorithm.name)
            run.state, run.error_code, run.error = "failed", "INTERNAL", f"{type(error).__name__}: {error}"
        finally:
            run.ended = time.monotonic()
            run.step, run.done = "ended", None
            self._active = None
            shutil.rmtree(folder, ignore_errors=True)
            log.info("graph_algorithm_ended", run=run.id, algorithm=run.algorithm.name, state=run.state)

    async def _steps(self, run: Run, folder: Path) -> None:
        deadline = run.began + run.seconds
        await in_thread(lambda: folder.mkdir(parents=True))
        keys = await self._extract(run, folder, deadline)
        task = {"algorithm": run.algorithm.name, "nodes": run.selection.count, "parameters": numbered(run, keys)}
        (folder / "task.json").write_text(json.dumps(task))
        run.at(COMPUTING)
        await _compute(folder, run.telling(COMPUTING))
        found = await in_thread(read_result, folder / "result.arrow", keys)
        if run.property is not None:
            run.at(WRITING)
            await _to_the_end(in_thread(self._write, run, found, folder))
        run.result, run.rows = found, found.num_rows

    async def _extract(self, run: Run, folder: Path, deadline: float) -> dict[str, pa.Array]:
        borrowed = self._graph.borrow()

        def work() -> dict[str, pa.Array]:
            tell = run.telling(EXTRACTING)
            run.edges = extract.write_edges(borrowed.session, run.selection, folder / "edges.arrow", deadline, tell)
            return extract.read_keys(borrowed.session, run.selection, deadline, tell)

        task = asyncio.ensure_future(in_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():  # its session must not be given back while it runs
                borrowed.session.interrupt()
                await asyncio.wait({task}, timeout=INTERRUPT_EVERY)
            raise
        finally:
            borrowed.give_back()

    def _write(self, run: Run, found: pa.Table, folder: Path) -> None:
        assert run.property is not None
        column, kind = next(iter(run.algorithm.columns.items()))
        values = {}
        for node in run.selection.nodes:
            rows = found.filter(pc.equal(found.column("label"), node["label"]))
            values[str(node["label"])] = pa.table({"key": rows.column("key"), "value": rows.column(column)})
        writing.write_property(self._graph, run.property, kind, values, folder, run.telling(WRITING))
        for label in values:
            self._written.setdefault(label, set()).add(run.property)

    def _forget(self) -> None:
        """Drop the oldest runs and results."""
        ended = [run for run in self._runs.values() if run.state != "running"]
        for run in ended[: max(0, len(self._runs) - KEPT)]:
            del self._runs[run.id]
        for run in [run for run in ended if run.result is not None][:-RESULTS_KEPT]:
            run.result = None


def _tag_of(tag: Any) -> str | None:
    if tag is not None and not (isinstance(tag, str) and 0 < len(tag) <= 200):
        raise invalid(f"`tag` must be a text of 1 to 200 characters, not {tag!r}")
    return tag


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work in a thread, also if this is cancelled: the lock must not be free while a database is being changed."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _compute(folder: Path, tell: Tell) -> None:
    """Run the child; it is killed if this is cancelled. `Refusal` if it fails."""
    pipe = asyncio.subprocess.PIPE
    with (folder / "stderr").open("wb") as err:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", CHILD, str(folder), stdin=pipe, stdout=pipe, stderr=err
        )
        assert child.stdout is not None
        try:
            async for line in child.stdout:
                read_line(line, tell)
            code = await child.wait()
        except asyncio.CancelledError:
            child.kill()
            await child.wait()
            raise
    if code == 0:
        return
    lines = (folder / "stderr").read_text(errors="replace").strip().splitlines()
    if code < 0:
        raise Refusal(500, "ALGORITHM_KILLED", f"The algorithm was ended by signal {-code}.", "Give the instance more memory.")
    raise Refusal(400, "ALGORITHM_FAILED", lines[-1] if lines else f"The algorithm ended with {code}.", "Check the parameters.")


def read_result(file: Path, keys: Mapping[str, pa.Array]) -> pa.Table:
    """The result with labels and primary keys in place of numbers. Keys of several types become text."""
    with pa.memory_map(str(file)) as source:
        found = pa.ipc.open_file(source).read_all()
    types = {array.type for array in keys.values()}
    arrays = list(keys.values()) if len(types) == 1 else [array.cast(pa.string()) for array in keys.values()]
    every = pa.chunked_array(arrays).combine_chunks() if arrays else pa.array([])
    names = pa.array(list(keys))
    of_each = pa.chunked_array([pa.repeat(name, len(array)) for name, array in zip(names, keys.values(), strict=True)])
    node = found.column("node").combine_chunks()
    labels = of_each.combine_chunks().take(node)
    columns = {"label": labels, "key": every.take(node)}
    return pa.table({**columns, **{name: found.column(name) for name in found.column_names if name != "node"}})


def numbered(run: Run, keys: Mapping[str, pa.Array]) -> dict[str, Any]:
    """The parameters with nodes as numbers; `Refusal` if a node does not exist."""
    starts = run.selection.starts
    found = dict(run.parameters)
    for name, one in run.algorithm.parameters.items():
        given = found[name]
        if one.kind != "node" or given is None:
            continue
        if given["label"] not in starts:
            raise invalid(f"`{name}` has the label {given['label']!r}, which is not selected")
        array = keys[given["label"]]
        at = pc.index(array.cast(pa.string()), str(given["key"])).as_py()
        if at < 0:
            raise invalid(f"there is no {given['label']} with the key {given['key']!r}")
        found[name] = starts[given["label"]] + at
    return found


def locked(holder: Run) -> Refusal:
    """The answer to a second run. Pure."""
    return Refusal(
        409, "RESOURCE_LOCKED", f"Run {holder.id} ({holder.algorithm.name}) of {holder.holder} holds the lock.",
        "Wait until it has ended, or cancel it.", headers={"Retry-After": "5"},
        holder={"run_id": holder.id, "algorithm": holder.algorithm.name, "holder": holder.holder},
    )  # fmt: skip
