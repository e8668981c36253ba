"""Server-sent events: one query for all clients of a topic, and one connection that listens for notifications.

A stream is a topic (`job:7`, `pipeline:…`, `console`) and a queue. The hub reads every watched topic when a notification says
that a job was enqueued, changed or ended, and at least every second, and puts new events into the queues. So a thousand
clients cost as much as one, and no client holds a connection. A client that reads too slowly is disconnected: it reconnects
with `Last-Event-ID` and misses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool
from starlette.responses import StreamingResponse

from holdfast.api.auth import still_valid
from holdfast.api.envelope import etag_of, jsonable
from holdfast.api.plane import ApiOptions, Principal
from holdfast.api.problems import Problem
from holdfast.database.listen import ListeningLink
from holdfast.jobs.control import controls
from holdfast.jobs.states import ENDED, State
from holdfast.jobs.views import read, watch
from holdfast.telemetry.log import log

LONGEST_QUEUE = 500
SHORTEST_PAUSE = 0.1  # seconds between two polls, however many notifications arrive
SOON = {"Retry-After": "5"}
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store", "Connection": "keep-alive"}


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `number` is set where a client can resume from it, `last` on the one that ends the stream."""

    name: str
    data: Any
    id: str | None = None
    number: int = 0
    last: bool = False

    def encoded(self) -> bytes:
        lines = [f"event: {self.name}"]
        if self.id is not None:
            lines.append(f"id: {self.id}")
        return ("\n".join([*lines, f"data: {json.dumps(jsonable(self.data), separators=(',', ':'))}"]) + "\n\n").encode()


GONE = Event("stream_closed", {"status": "gone"}, id="gone", last=True)
# What a service declares for a topic: the events of each key as they are now. The first event of a key needs an `id`.
TopicReader = Callable[[psycopg.AsyncConnection[Any], Sequence[str]], Awaitable[Mapping[str, Sequence[Event]]]]


@dataclass(eq=False, slots=True)
class Watcher:
    """One client of one topic."""

    topic: str
    caller: Principal
    queue: asyncio.Queue[Event | None] = field(default_factory=lambda: asyncio.Queue(LONGEST_QUEUE))

    def send(self, event: Event | None) -> None:
        try:
            self.queue.put_nowait(event)
        except asyncio.QueueFull:  # too slow: end its stream; it reconnects with the id of its last event
            while not self.queue.empty():
                self.queue.get_nowait()
            self.queue.put_nowait(None)


class Hub:
    """The watchers of all topics, and the task that polls for them."""

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        url: str | None,
        options: ApiOptions,
        topics: Mapping[str, TopicReader] | None = None,
    ) -> None:
        self._topics = topics or {}
        self._pool, self._most, self._each = pool, options.most_streams, options.streams_each
        self._hints = None if url is None else ListeningLink(url, watch.CHANGES)
        self._others = watch.ChangeNotifier(pool.connection)  # notifies the hubs of other replicas
        self._announced_at = -math.inf
        self.words = 0  # notifications received
        self._poll, self._ping = options.poll.total_seconds(), options.ping.total_seconds()
        self._checked_at = -math.inf
        self._watchers: dict[str, set[Watcher]] = defaultdict(set)
        self._seen: dict[str, Any] = {}
        self._hint = asyncio.Event()
        self._has_watchers = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.is_closed = False

    def __len__(self) -> int:
        return sum(len(watchers) for watchers in self._watchers.values())

    def _all_watchers(self) -> list[Watcher]:
        return [watcher for watchers in self._watchers.values() for watcher in watchers]

    def start(self) -> None:
        """Start to poll, and to listen if there is an address for it."""
        self._tasks.append(asyncio.create_task(self._poll_forever()))
        if self._hints is not None:
            self._tasks.append(asyncio.create_task(self._hints.listen(self._on_hint)))

    def changed(self) -> None:
        """Something was changed through this process: poll now, and notify the other replicas."""
        self._others.changed()
        self._poll_soon()

    def _on_hint(self, hint: str) -> None:
        if not self._others.receive(hint):
            self._poll_soon()

    def _poll_soon(self) -> None:
        self.words += 1
        self._hint.set()

    def close_streams(self) -> None:
        """End every stream now, so that a stopping server need not wait for its clients. Safe in a signal handler."""
        self.is_closed = True
        for watcher in self._all_watchers():
            watcher.send(None)

    async def close(self) -> None:
        self.close_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._others.close()
        if self._hints is not None:
            await self._hints.close()

    def respond(
        self,
        topic: str,
        caller: Principal,
        begin: Callable[[], Awaitable[list[Event]]],
        *,
        encode: Callable[[Event], bytes] = Event.encoded,
    ) -> StreamingResponse:
        """A stream of a topic: first the events of `begin`, then new ones."""
        if len(self) >= self._most or self.is_closed:
            raise Problem("too-many-streams", f"{len(self)} streams are open here", headers=SOON)
        if sum(one.caller.actor == caller.actor for one in self._all_watchers()) >= self._each:
            raise Problem("too-many-streams", f"{caller.actor} has {self._each} streams open here", headers=SOON)
        watcher = Watcher(topic, caller)
        return StreamingResponse(self._stream(watcher, begin, encode), media_type="text/event-stream", headers=HEADERS)

    async def _stream(
        self, watcher: Watcher, begin: Callable[[], Awaitable[list[Event]]], encode: Callable[[Event], bytes]
    ) -> AsyncIterator[bytes]:
        self._watchers[watcher.topic].add(watcher)  # before `begin` reads, so that no event is missed in between
        self._has_watchers.set()
        seen, shown = 0, None
        try:
            yield b"retry: 2000\n\n"
            for event in await begin():
                seen, shown = max(seen, event.number), event.id
                yield encode(event)
                if event.last:
                    return
            while True:
                try:
                    event_or_end = await asyncio.wait_for(watcher.queue.get(), self._ping)
                except TimeoutError:
                    yield b": ping\n\n"
                    continue
                if event_or_end is None:
                    return
                if event_or_end.number and event_or_end.number <= seen:
                    continue
                if event_or_end.id is not None and event_or_end.id == shown:  # the first poll found the same as `begin`
                    continue
                seen, shown = max(seen, event_or_end.number), event_or_end.id
                yield encode(event_or_end)
                if event_or_end.last:
                    return
        finally:
            self._watchers[watcher.topic].discard(watcher)
            if not self._watchers[watcher.topic]:
                del self._watchers[watcher.topic]
                self._seen.pop(watcher.topic, None)

    # -----------------------------------------------------------------------------------------------------------------
    # Polling
    # -----------------------------------------------------------------------------------------------------------------

    async def _poll_forever(self) -> None:
        while True:
            await self._has_watchers.wait()
            if not self._watchers:
                self._has_watchers.clear()
                continue
            try:
                async with self._pool.connection() as conn:
                    await self._end_expired(conn)
                    await self._announce(conn)
                    await self._poll_topics(conn)
            except Exception as error:  # any error: without the next poll no stream would get events
                log.warning("stream_look_failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(min(SHORTEST_PAUSE, self._poll))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hint.wait(), self._poll)
            self._hint.clear()

    async def _end_expired(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """End the streams of callers whose token has expired or was revoked, at most one ping later."""
        if time.monotonic() - self._checked_at < self._ping:
            return
        watchers = self._all_watchers()
        valid = await still_valid(conn, [one.caller for one in watchers])
        for one in watchers:
            if not valid.knows(one.caller):
                one.send(None)
        self._checked_at = time.monotonic()

    async def _announce(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Announce that this process streams changes, so that programs which change jobs notify it."""
        if self._hints is not None and time.monotonic() - self._announced_at >= watch.SAY_EVERY:
            self._announced_at = time.monotonic()
            with contextlib.suppress(psycopg.errors.ReadOnlySqlTransaction):  # a standby accepts no NOTIFY, and has no workers
                await conn.execute(watch.SAY_WATCHED)

    async def _poll_topics(self, conn: psycopg.AsyncConnection[Any]) -> None:
        topics = list(self._watchers)
        jobs = [int(topic.removeprefix("job:")) for topic in topics if topic.startswith("job:")]
        pipelines = [topic.removeprefix("pipeline:") for topic in topics if topic.startswith("pipeline:")]
        if jobs:
            await self._poll_jobs(conn, jobs)
        if pipelines:
            found = await watch.glance_at_pipelines(conn, pipelines)
            for pipeline_id in pipelines:
                self._send_if_new(f"pipeline:{pipeline_id}", *pipeline_events(found.get(pipeline_id)))
        for name, read_topic in self._topics.items():
            await self._poll_topic(conn, f"{name}:", read_topic, topics)
        if "console" in self._watchers:
            self._send_if_new("console", *console_events(await overview(conn, self.words)))

    async def _poll_topic(
        self, conn: psycopg.AsyncConnection[Any], prefix: str, read_topic: TopicReader, topics: Sequence[str]
    ) -> None:
        """Send new events of a service's topic; a key that the service leaves out does not exist any more."""
        keys = [topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix)]
        found = await read_topic(conn, keys) if keys else {}
        for key in keys:
            self._send_if_new(f"{prefix}{key}", *(found.get(key) or [GONE]))

    async def _poll_jobs(self, conn: psycopg.AsyncConnection[Any], jobs: list[int]) -> None:
        now = await watch.glance(conn, jobs)
        for job_id in jobs:
            topic, glance = f"job:{job_id}", now.get(job_id)
            before: watch.Glance | None = self._seen.get(topic)
            if glance is None:
                self._send(topic, Event("stream_closed", {"id": job_id, "state": "gone"}, last=True))
            elif glance != before:
                after = before.last_move if before is not None else 0
                self._seen[topic] = glance
                for event in await job_events(conn, glance, after):
                    self._send(topic, event)

    def _send_if_new(self, topic: str, *events: Event) -> None:
        if self._seen.get(topic) != events[0].id:
            self._seen[topic] = events[0].id
            for event in events:
                self._send(topic, event)

    def _send(self, topic: str, event: Event) -> None:
        for watcher in list(self._watchers.get(topic, ())):
            watcher.send(event)


async def job_events(conn: psycopg.AsyncConnection[Any], glance: watch.Glance, after: int) -> list[Event]:
    """The moves since a history row, the progress of the job, and its end."""
    events = []
    if glance.last_move > after:
        for move in await watch.moves(conn, glance.id, after=after):  # type: ignore[arg-type]
            events.append(Event("move", move, id=str(move["id"]), number=move["id"]))
    events.append(Event("job", glance._asdict()))
    if State(glance.state) in ENDED:
        events.append(Event("stream_closed", {"id": glance.id, "state": glance.state}, last=True))
    return events


def pipeline_events(found: dict[str, Any] | None) -> list[Event]:
    """The status of a pipeline, and its end. Pure."""
    if found is None:
        return [GONE]
    events = [Event("pipeline-update", found, id=etag_of(found).strip('"'))]
    if found["status"] != "running":
        events.append(Event("stream_closed", {"id": found["id"], "status": found["status"]}, last=True))
    return events


async def overview(conn: psycopg.AsyncConnection[Any], words: int) -> dict[str, Any]:
    """The counts of the console's first page. `words`, the number of notifications, changes with every job: a count at its cap
    does not, and a job that has just ended may change nothing else."""
    counts = await read.count_states(conn)
    job, move = await watch.newest(conn)
    return {
        "jobs": {state: {"value": count.count, "capped": count.capped} for state, count in counts.items()},
        "controls": [control._asdict() for control in await controls(conn)],
        "newest_job": job,
        "newest_move": move,
        "words": words,
    }


def console_events(found: dict[str, Any]) -> list[Event]:
    """The overview as an event whose id changes with its content. Pure."""
    plain = jsonable(found)
    return [Event("overview", plain, id=etag_of(plain).strip('"'))]
