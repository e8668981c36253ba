"""S3 and GCS against a real server: written once, in one request or in parts, found, removed, and kept inside their prefix."""

from __future__ import annotations

from pathlib import Path

import pytest
from object_proxy import How, ObjectProxy, write_key

from holdfast.stores import objects
from holdfast.stores.objects import ObjectStore
from holdfast.stores.paths import PathRefused
from holdfast.stores.port import AlreadyThere, Found, NotThere, StoreDenied, StoreUnavailable

LARGE = 9 * 1024 * 1024


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, s3_store: ObjectStore, gcs_store: ObjectStore) -> ObjectStore:
    return s3_store if request.param == "s3" else gcs_store


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried at once, and by us alone."""
    monkeypatch.setattr(objects, "PAUSE", 0.01)
    monkeypatch.setitem(objects.RETRY_CONFIG, "max_retries", 0)


def staged(store: ObjectStore, path: str, size: int) -> Path:
    file = store.stage(path)
    file.write_bytes(b"x" * size)
    return file


async def listed(store: ObjectStore, prefix: str = "") -> dict[str, int]:
    return {one.path: one.bytes for page in [page async for page in store.list(prefix)] for one in page}


@pytest.mark.parametrize("size", [1000, LARGE])
async def test_a_file_is_put_found_and_removed(store: ObjectStore, size: int):
    file = staged(store, "attempt=1/part-0.parquet", size)

    assert await store.put_file("attempt=1/part-0.parquet", file) == size

    assert not file.exists()
    assert await listed(store) == {"attempt=1/part-0.parquet": size}
    assert len(await store.get("attempt=1/part-0.parquet")) == size
    assert await store.delete_prefix("attempt=1") == 1
    assert await listed(store) == {}
    await store.close()


async def test_a_prefix_is_not_taken_for_the_beginning_of_a_name(store: ObjectStore):
    await store.put("attempt=1/a", b"a")
    await store.put("attempt=11/a", b"a")

    await store.delete_prefix("attempt=1")

    assert list(await listed(store)) == ["attempt=11/a"]


async def test_the_end_of_a_file_is_read_without_the_rest(store: ObjectStore):
    await store.put("a", b"content")

    assert await store.get_end(Found("a", 7), 3) == b"ent"
    assert await store.get_end(Found("a", 7), 100) == b"content"
    with pytest.raises(NotThere):
        await store.get_end(Found("b", 7), 3)


@pytest.mark.parametrize("size", [1000, LARGE])
async def test_a_file_is_copied_to_scratch_for_readers_that_need_a_path(store: ObjectStore, size: int):
    await store.put_file("a/b.csv", staged(store, "a/b.csv", size))

    copy = await store.local_copy("a/b.csv")

    assert copy.read_bytes() == b"x" * size
    with pytest.raises(NotThere):
        await store.local_copy("a/c.csv")
    await store.close()
    assert not copy.exists()


async def test_a_file_is_copied_to_this_machine_piece_by_piece(store: ObjectStore, tmp_path: Path):
    content = bytes(range(256)) * 4096 * 9  # more than one part
    await store.put("a", b"content")
    staged = store.stage("large")
    staged.write_bytes(content)
    await store.put_file("large", staged)

    assert await store.get_file("a", tmp_path / "a") == 7
    assert await store.get_file("large", tmp_path / "large") == len(content)

    assert (tmp_path / "a").read_bytes() == b"content"
    assert (tmp_path / "large").read_bytes() == content
    with pytest.raises(NotThere):
        await store.get_file("b", tmp_path / "b")


async def test_nothing_is_there_until_it_is(store: ObjectStore):
    with pytest.raises(NotThere):
        await store.get("_manifest.json")
    await store.delete("_manifest.json")
    assert await store.delete_prefix("attempt=0") == 0


@pytest.mark.parametrize("size", [1000, LARGE])
async def test_a_path_is_written_once(s3_store: ObjectStore, size: int):
    await s3_store.put("part", b"the first")

    with pytest.raises(AlreadyThere):
        await s3_store.put_file("part", staged(s3_store, "part", size))

    assert await s3_store.get("part") == b"the first"


async def test_the_same_content_again_is_an_answer_that_was_lost(s3_store: ObjectStore):
    await s3_store.put("_manifest.json", b"mine")
    await s3_store.put("_manifest.json", b"mine")

    with pytest.raises(AlreadyThere):
        await s3_store.put("_manifest.json", b"yours")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", "", ".", "a\0b", "a%2e%2e/b", "a\\b", "a\nb"])
async def test_no_path_leaves_the_prefix(store: ObjectStore, proxy: ObjectProxy, path: str):
    for act in (lambda: store.put(path, b""), lambda: store.get(path), lambda: store.delete_prefix(path)):
        with pytest.raises(PathRefused):
            await act()
    assert proxy.seen == []


@pytest.mark.parametrize("how", ["half", "whole", "answer"])
@pytest.mark.parametrize("size", [1000, LARGE])
async def test_f_55_an_upload_that_is_cut_is_there_whole_or_not_at_all(
    s3_store: ObjectStore, proxy: ObjectProxy, how: How, size: int
):
    """At half of it, when all of it has come, or when only the answer is lost; in one request, or in any of its parts."""
    proxy.trouble("PUT", how)
    proxy.trouble("POST", how, words="uploadId")

    await s3_store.put_file("part", staged(s3_store, "part", size))

    assert proxy.troubled == (1 if size < LARGE else 2)
    assert await listed(s3_store) == {"part": size}


@pytest.mark.parametrize("size", [1000, LARGE])
async def test_f_55_a_server_that_never_takes_it_leaves_nothing_to_see(s3_store: ObjectStore, proxy: ObjectProxy, size: int):
    proxy.trouble("PUT", "half", times=1000)

    with pytest.raises(StoreUnavailable):
        await s3_store.put_file("part", staged(s3_store, "part", size))

    proxy.heal()
    assert await listed(s3_store) == {}


@pytest.mark.parametrize("act", ["put", "get", "list", "delete_prefix", "large"])
async def test_f_57_a_refused_key_is_read_again(s3_store: ObjectStore, proxy: ObjectProxy, key_file: Path, act: str):
    """Whatever the first request is that is refused."""
    await s3_store.put("a/a", b"a")
    proxy.trouble("", "deny", words="first-key", times=1000)
    write_key(key_file, "second-key")

    match act:
        case "put":
            await s3_store.put("a/b", b"b")
        case "get":
            assert await s3_store.get("a/a") == b"a"
        case "list":
            assert await listed(s3_store) == {"a/a": 1}
        case "delete_prefix":
            assert await s3_store.delete_prefix("a") == 1
        case "large":
            await s3_store.put_file("a/b", staged(s3_store, "a/b", LARGE))

    assert proxy.troubled == 1


async def test_f_57_an_upload_in_parts_that_is_refused_half_way_begins_again(
    s3_store: ObjectStore, proxy: ObjectProxy, key_file: Path
):
    proxy.trouble("PUT", "deny", words="partNumber")

    await s3_store.put_file("part", staged(s3_store, "part", LARGE))

    assert await listed(s3_store) == {"part": LARGE}


async def test_f_57_a_key_that_stays_refused_is_worth_another_try_and_is_not_told(s3_store: ObjectStore, proxy: ObjectProxy):
    proxy.trouble("", "deny", times=1000)

    with pytest.raises(StoreDenied) as caught:
        await s3_store.put("a", b"a")

    assert caught.value.transient
    assert "secret-of-first-key" not in str(caught.value)
    assert proxy.troubled == 2


async def test_f_57_a_key_file_that_is_away_for_a_moment_is_worth_another_try(
    s3_store: ObjectStore, proxy: ObjectProxy, key_file: Path
):
    proxy.trouble("", "deny", times=1)
    key_file.unlink()  # noqa: ASYNC240 - a moment

    with pytest.raises(StoreDenied, match="credentials cannot be read"):
        await s3_store.put("a", b"a")

    write_key(key_file, "first-key")
    await s3_store.put("a", b"a")
