"""Local files: whole or not at all, never over something, never outside, and a full disk is no bug of the job."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores import local
from holdfast.stores.local import LocalStore
from holdfast.stores.paths import Location, PathRefused, location_of
from holdfast.stores.port import AlreadyThere, Found, NotThere, ScratchFull


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(location_of(str(tmp_path / "out")), allowed=[tmp_path])


async def listed(store: LocalStore, prefix: str = "") -> list[str]:
    return [one.path for page in [page async for page in store.list(prefix)] for one in page]


async def test_the_path_of_a_file_is_given_to_readers_that_need_one(store: LocalStore, tmp_path: Path):
    await store.put("a/b.csv", b"content")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "out" / "a" / "link.csv").symlink_to(tmp_path / "secret")

    assert (await store.local_copy("a/b.csv")).read_bytes() == b"content"
    for missing in ("a/c.csv", "a", "a/link.csv"):
        with pytest.raises(NotThere):
            await store.local_copy(missing)


async def test_a_file_is_put_found_and_removed(store: LocalStore):
    staged = store.stage("attempt=1/part")
    staged.write_bytes(b"content")

    assert await store.put_file("attempt=1/part", staged) == 7

    assert not staged.exists()
    assert await store.get("attempt=1/part") == b"content"
    assert await store.get_end(Found("attempt=1/part", 7), 3) == b"ent"
    assert await store.get_end(Found("attempt=1/part", 7), 100) == b"content"
    assert await listed(store) == ["attempt=1/part"]
    assert await store.delete_prefix("attempt=1") == 1
    assert await listed(store) == []
    assert await store.delete_prefix("attempt=1") == 0
    with pytest.raises(NotThere):
        await store.get("attempt=1/part")
    with pytest.raises(NotThere):
        await store.get_end(Found("attempt=1/part", 7), 3)


async def test_a_file_is_copied_out_of_the_store(store: LocalStore, tmp_path: Path):
    await store.put("a", b"content")

    assert await store.get_file("a", tmp_path / "copy") == 7

    assert (tmp_path / "copy").read_bytes() == b"content"
    with pytest.raises(NotThere):
        await store.get_file("b", tmp_path / "copy")


@pytest.mark.parametrize("links", [True, False])
async def test_a_path_is_written_once(store: LocalStore, links: bool, monkeypatch: pytest.MonkeyPatch):
    if not links:  # as on some network file systems
        monkeypatch.setattr(local.os, "link", _no_links)
    await store.put("a", b"the first")

    with pytest.raises(AlreadyThere):
        await store.put("a", b"the second")

    assert await store.get("a") == b"the first"
    assert await listed(store) == ["a"]


def _no_links(*_: object, **__: object) -> None:
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


async def test_what_was_only_staged_is_removed_with_its_folder(store: LocalStore, tmp_path: Path):
    store.stage("attempt=1/part").write_bytes(b"half")

    assert await store.delete_prefix("attempt=1") == 1
    assert [*(tmp_path / "out").rglob("*")] == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//b", "", ".", "a\0b", "a/%2e%2e/b", "a\\b", "x" * 300])
async def test_no_path_leaves_the_folder(store: LocalStore, path: str):
    for act in (store.put, lambda path, _: store.get(path), lambda path, _: store.delete_prefix(path)):
        with pytest.raises(PathRefused):
            await act(path, b"")
    with pytest.raises(PathRefused):
        store.stage(path)


async def test_a_symlink_inside_is_not_followed(store: LocalStore, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "attempt=1").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PathRefused, match="symlink"):
        await store.put("attempt=1/part", b"")

    assert [*(tmp_path / "elsewhere").iterdir()] == []


async def test_a_symlink_is_removed_and_not_what_it_leads_to(store: LocalStore, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("x")
    (tmp_path / "out" / "attempt=1").mkdir(parents=True)
    (tmp_path / "out" / "attempt=1" / "link").symlink_to(tmp_path / "elsewhere")

    await store.delete_prefix("attempt=1")

    assert (tmp_path / "elsewhere" / "precious").exists()


def test_a_folder_that_is_not_allowed_is_refused_also_by_way_of_a_symlink(tmp_path: Path):
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "out").symlink_to(tmp_path)

    for place in (tmp_path / "other", tmp_path / "allowed" / "out"):
        with pytest.raises(PathRefused, match="HOLDFAST_EXPORT_DIRS.*HOLDFAST_SNAPSHOTS_TO"):
            LocalStore(location_of(str(place)), allowed=[tmp_path / "allowed"])


# ---------------------------------------------------------------------------------------------------------------------
# Addresses
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/data/out", Location("file", "", "/data/out")),
        ("/data//out/", Location("file", "", "/data/out")),
        ("file:///data/my%20out", Location("file", "", "/data/my out")),
        ("s3://bucket/a/b/", Location("s3", "bucket", "a/b")),
        ("s3://bucket", Location("s3", "bucket", "")),
        ("gs://bucket/a", Location("gs", "bucket", "a")),
    ],
)
def test_an_address_names_a_place_and_a_place_its_address(text: str, location: Location):
    assert location_of(text) == location
    assert location_of(location.url) == location
    assert location.below("nodes", "Person").prefix.endswith("nodes/Person")


@pytest.mark.parametrize(
    "text",
    [
        *("out", "./out", "/data/../etc", "file:///data/%2e%2e/etc", "file://host/data", "file:///a%00b"),
        *("s3://", "s3:///a", "s3://bucket/../other", "s3://bucket/a%2f..", "s3://key:secret@bucket/a", "s3://bucket/a?x=1"),
        *("http://bucket/a", "ftp://x", "s3://bucket/a//b", "gs://bucket/a\nb"),
    ],
)
def test_an_address_that_could_lead_elsewhere_is_refused(text: str):
    with pytest.raises(PathRefused):
        location_of(text)


# ---------------------------------------------------------------------------------------------------------------------
# A full disk
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for nothing much: a real disk that is full, or where that cannot be had, a real limit."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=False, capture_output=True
    ).returncode == 0  # fmt: skip
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    yield small
    if mounted:
        subprocess.run(["umount", str(small)], check=True)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_f_58_a_full_disk_is_told_as_such_and_leaves_nothing(full_disk: Path):
    store = LocalStore(location_of(str(full_disk / "out")), allowed=[full_disk])

    with pytest.raises(ScratchFull, match="scratch_full") as caught:
        await store.put("attempt=1/part", b"x" * 200_000)

    assert caught.value.transient
    await store.delete_prefix("attempt=1")
    await store.put("attempt=2/part", b"x" * 1000)
