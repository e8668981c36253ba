"""The local runtime: real processes that outlive the program that started them, found again by instance id and start token."""

from __future__ import annotations

import json
import os
import signal
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from graph_factories import quick_runtime, tell
from holdfast.services.graphs.plan import LoadPlan
from holdfast.services.graphs.runtimes.interface import InstanceSpec, RuntimeFailed, Unknown
from holdfast.services.graphs.runtimes.local import runtime as local
from holdfast.services.graphs.runtimes.local import supervisor
from holdfast.services.graphs.runtimes.local.folders import StartFolder
from holdfast.services.graphs.runtimes.local.runtime import LocalRuntime, environment_of
from workers import until


def spec(instance_id: int = 7, start_token: str | None = None, fence_token: int = 1, **fields: Any) -> InstanceSpec:
    token = start_token or str(uuid4())
    plan = LoadPlan(
        instance_id=instance_id, start_token=token, engine="ladybug", mapping_id=1, mapping_version=1, snapshot_id=1,
        location="/nowhere", nodes=(),
    )  # fmt: skip
    given: dict[str, Any] = {"owner": "ada", "engine": "ladybug", "memory_mb": 512, "cpu": 1.0, "secret": "s" * 43}
    return InstanceSpec(instance_id=instance_id, start_token=token, fence_token=fence_token, plan=plan, **(given | fields))


async def is_in(runtime: LocalRuntime, instance_id: int, phase: str) -> Any:
    async def reached() -> Any:
        seen = await runtime.look(instance_id)
        return seen if seen is not None and seen.phase == phase else None

    return await until(reached)


def pid_of(seen: Any) -> int:
    return int(seen.name.removeprefix("pid "))


async def test_a_process_is_started_once_and_adopted_by_another_program(
    tmp_path: Path, says: Path, runtime: LocalRuntime
) -> None:
    """A second `ensure` with the same token, also by another process, adopts it."""
    wanted = spec()
    first = await runtime.ensure(wanted)
    seen = await is_in(runtime, 7, "running")
    assert (seen.instance_id, seen.start_token, seen.fence_token) == (7, wanted.start_token, 1)
    assert seen.address.startswith("http://127.0.0.1:")
    assert seen.memory_bytes > 1_000_000
    assert seen.memory_limit_mb == 512

    reached = await runtime.reach(7, wanted.start_token)
    assert reached is not None
    assert (reached.address, reached.secret) == (seen.address, wanted.secret)
    assert await runtime.reach(7, str(uuid4())) is None, "another start"
    assert await runtime.reach(8, wanted.start_token) is None

    other = quick_runtime(tmp_path / "graphs", says)
    again = await other.ensure(replace(wanted, fence_token=2))
    listed = await other.observe()
    await other.close()

    assert (again.name, first.instance_id) == (seen.name, 7)
    assert [one.name for one in listed] == [seen.name]
    assert "the double listens" in await runtime.logs(7)


SLOW_SUPERVISOR = """
import sys, time
from pathlib import Path

sys.path.append({folder!r})
import supervisor

write = supervisor.write

def slow(path, content):
    if path.name == "alive.json" and {is_left}:
        write(path, {{**content, "started": "earlier", "child_started": "earlier"}})
    while path.name == "alive.json" and not Path({go!r}).exists():
        time.sleep(0.01)
    write(path, content)

supervisor.write = slow
sys.exit(supervisor.main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_start_returns_when_its_graph_server_has_a_name(
    is_left: bool, tmp_path: Path, runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-06: its supervisor stops between starting the graph server and writing its process id, until the second look. One that
    was killed may have left the process id of its server."""
    go, script, looks = tmp_path / "go", tmp_path / "slow.py", []
    script.write_text(SLOW_SUPERVISOR.format(folder=str(Path(supervisor.__file__).parent), go=str(go), is_left=is_left))
    is_alive = StartFolder.is_alive

    def noted(folder: StartFolder) -> bool:
        if looks:
            go.touch()
        if found := is_alive(folder):
            looks.append(folder)
        return found

    monkeypatch.setattr(local, "SUPERVISOR", str(script))
    monkeypatch.setattr(StartFolder, "is_alive", noted)

    assert (await runtime.ensure(spec())).name is not None


async def test_the_supervisor_is_nobodys_child_and_in_a_session_of_its_own(runtime: LocalRuntime) -> None:
    await runtime.ensure(spec())
    seen = await is_in(runtime, 7, "running")
    alive = json.loads((runtime.folders.starts(7)[0].path / "alive.json").read_text())

    assert alive["child"] == pid_of(seen)
    assert os.getsid(alive["pid"]) != os.getsid(0)
    assert parent_of(alive["pid"]) != os.getpid()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_removal_is_confirmed_and_idempotent(runtime: LocalRuntime) -> None:
    await runtime.ensure(spec())
    pid = pid_of(await is_in(runtime, 7, "running"))

    assert await runtime.remove(7)

    assert supervisor.birth(pid) is None
    assert (await runtime.look(7), await runtime.observe(), runtime.folders.instances()) == (None, [], [])
    assert await runtime.remove(7)
    assert await runtime.logs(7) == ""


async def test_a_start_token_limits_a_removal_to_that_start(runtime: LocalRuntime) -> None:
    """The cleaner of a failed start never ends a later one."""
    old, new = spec(), spec(fence_token=2_000_000)
    await runtime.ensure(old)
    await is_in(runtime, 7, "running")
    seen = await runtime.ensure(new)
    assert seen.start_token == new.start_token
    assert [one.start_token for one in runtime.folders.starts(7)] == [new.start_token], "the earlier start is replaced"

    assert await runtime.remove(7, start_token=old.start_token)

    assert (await is_in(runtime, 7, "running")).start_token == new.start_token


async def test_a_replaced_job_cannot_end_a_later_start(runtime: LocalRuntime) -> None:
    """A worker that was frozen and continues has the smaller fence token."""
    new = spec(fence_token=2_000_001)
    await runtime.ensure(new)
    pid = pid_of(await is_in(runtime, 7, "running"))

    with pytest.raises(RuntimeFailed, match="later start"):
        await runtime.ensure(spec(fence_token=1_000_009))

    assert pid_of(await is_in(runtime, 7, "running")) == pid


async def test_too_much_memory_ends_it_with_oom_and_a_resize_prevents_that(runtime: LocalRuntime, says: Path) -> None:
    """The limit counts what the process really uses, and can grow while it runs."""
    wanted = spec(memory_mb=120)
    await runtime.ensure(wanted)
    await is_in(runtime, 7, "running")
    assert await runtime.resize(wanted, memory_mb=400, cpu=1.0)
    tell(says, 7, allocate_mb=200)

    async def uses_more() -> bool:
        seen = await runtime.look(7)
        return seen is not None and (seen.memory_bytes or 0) > 200 * 1024 * 1024

    await until(uses_more)
    assert (await is_in(runtime, 7, "running")).memory_limit_mb == 400
    tell(says, 7, allocate_mb=600)

    seen = await is_in(runtime, 7, "failed")
    assert (seen.oom, seen.reason, seen.address) == (True, "OOM_KILLED", None)
    assert "400 MiB" in seen.message
    with pytest.raises(RuntimeFailed):
        await runtime.resize(wanted, memory_mb=800, cpu=1.0)


async def test_a_process_that_ends_by_itself_is_failed_and_not_started_again(runtime: LocalRuntime, says: Path) -> None:
    wanted = spec()
    await runtime.ensure(wanted)
    await is_in(runtime, 7, "running")
    tell(says, 7, exit=3)

    seen = await is_in(runtime, 7, "failed")
    assert (seen.reason, seen.oom) == ("UNEXPECTED_TERMINATION", False)
    assert "code 3" in seen.message
    assert (await runtime.ensure(wanted)).phase == "failed", "one start runs once"


async def test_the_graph_server_dies_with_its_supervisor_and_a_reused_process_id_proves_nothing(runtime: LocalRuntime) -> None:
    """A process id counts only together with the start time of that process."""
    wanted = spec()
    await runtime.ensure(wanted)
    seen = await is_in(runtime, 7, "running")
    folder = runtime.folders.starts(7)[0]
    alive = json.loads((folder.path / "alive.json").read_text())
    os.kill(alive["pid"], signal.SIGKILL)

    failed = await is_in(runtime, 7, "failed")
    assert failed.reason == "UNEXPECTED_TERMINATION"
    await until(lambda: _is_gone(pid_of(seen)))
    supervisor.write(folder.path / "alive.json", {**alive, "pid": os.getpid(), "child": os.getpid()})

    assert folder.child() is None
    folder.stop()  # would end this test
    assert await runtime.remove(7)


async def _is_gone(pid: int) -> bool:
    return supervisor.birth(pid) is None


async def test_what_a_server_says_decides_its_phase(runtime: LocalRuntime, says: Path) -> None:
    tell(says, 7, phase="loading")
    await runtime.ensure(spec())
    starting = await is_in(runtime, 7, "starting")
    await until(lambda: _has_address(runtime))
    tell(says, 7, phase="failed", error_code="SCHEMA_CREATE_ERROR", error="no such type")

    seen = await is_in(runtime, 7, "failed")

    assert starting.reason is None
    assert (seen.reason, seen.message) == ("SCHEMA_CREATE_ERROR", "no such type")


async def _has_address(runtime: LocalRuntime) -> bool:
    seen = await runtime.look(7)
    return seen is not None and seen.address is not None


async def test_a_frozen_server_that_was_ready_keeps_its_phase(runtime: LocalRuntime) -> None:
    """A long query must not look like a failure."""
    await runtime.ensure(spec())
    pid = pid_of(await is_in(runtime, 7, "running"))
    os.kill(pid, signal.SIGSTOP)
    try:
        assert (await runtime.look(7)).phase == "running"  # type: ignore[union-attr]
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_two_processes_cannot_start_one_instance_at_the_same_time(runtime: LocalRuntime) -> None:
    """K-70."""
    with runtime.folders.turn(7) as is_ours:
        assert is_ours
        with pytest.raises(Unknown):
            await runtime.ensure(spec())
        assert not await runtime.remove(7)


async def test_a_folder_that_cannot_be_read_is_unknown_and_not_empty(runtime: LocalRuntime) -> None:
    """E-08."""
    runtime.folders.root.parent.joinpath("graphs").write_text("a file")

    with pytest.raises(Unknown):
        await runtime.observe()

    runtime.folders.root.unlink()


async def test_secrets_are_readable_by_their_user_alone_and_our_own_are_not_passed_on(
    runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-25."""
    wanted = spec()
    await runtime.ensure(wanted)
    folder = runtime.folders.starts(7)[0].path

    assert stat.S_IMODE((folder / "order.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "plan.json").stat().st_mode) == 0o600
    for name, value in {"HOLDFAST_DATABASE_URL": "postgres://secret", "HOLDFAST_TOKEN": "t", "AWS_REGION": "eu"}.items():
        monkeypatch.setenv(name, value)
    passed = environment_of(wanted, folder)
    assert passed["AWS_REGION"] == "eu"
    assert not {"HOLDFAST_DATABASE_URL", "HOLDFAST_TOKEN"} & passed.keys()
    assert "s" * 43 not in repr(wanted)


async def test_a_start_that_is_removed_at_once_leaves_no_process(runtime: LocalRuntime) -> None:
    """Its supervisor may not have written its process id yet."""
    for number in range(5):
        await runtime.ensure(spec(fence_token=number))
        child = runtime.folders.starts(7)[0]

        assert await runtime.remove(7)
        assert not child.is_alive()
        assert runtime.folders.instances() == []
