"""The filesystem tier on a real disk: full, unreadable, altered, its writer killed."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvtier.keys import Namespace
from kvtier.results import LookupResult
from kvtier.runtime import ThreadRuntime
from kvtier.tiers.filesystem import FilesystemStore
from kvtier.tiers.frame import decode
from tests.support.stores import TierDriver, block, ctx, key

SIZE = 8192
NAMESPACE = Namespace("model", SIZE)
HIT, MISS = LookupResult.HIT, LookupResult.MISS


class Disk:
    """A filesystem tier in `root`, and its files."""

    def __init__(self, root: Path, namespace: Namespace = NAMESPACE) -> None:
        self.store = FilesystemStore(root, namespace)
        self.driver = TierDriver(
            self.store, ThreadRuntime(), size=namespace.block_bytes, label="1:fs"
        )
        self.tier = self.driver.tier

    def file(self, n: int) -> Path:
        name = key(n).hex()
        return self.store.directory / name[:2] / f"{name}.kv"

    @property
    def parts(self) -> list[Path]:
        return list(self.store.directory.rglob("*.part"))


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.tier.shutdown()


@contextmanager
def limit(what, soft):
    before, hard = resource.getrlimit(what)
    resource.setrlimit(what, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (before, hard))


def keys(numbers):
    return tuple(key(n) for n in numbers)


def check_failed_load(disk, bad, of=4):
    """Blocks 0 to `of`: those in `bad` fail and read MISS from now on, the others load and stay."""
    good = [n for n in range(of) if n not in bad]
    assert [disk.driver.ask(n) for n in range(of)] == [HIT] * of, "the verdict is True before"
    result = disk.driver.load(range(of))
    assert (result.success, result.successful_keys) == (False, keys(good))
    assert [disk.driver.slot(n) for n in good] == [block(n, SIZE) for n in good]
    assert all(disk.driver.slot(n) == bytes(SIZE) for n in bad)
    answers = [disk.driver.ask(n, who) for who in (ctx("a"), ctx("b")) for n in range(of)]
    assert answers == [MISS if n in bad else HIT for n in range(of)] * 2


class TestReading:
    @pytest.mark.parametrize("bad", [[0], [3], [0, 1, 2, 3]])
    def test_f39_eio_is_a_failed_load_and_the_file_stays(self, disk, bad):
        disk.driver.store(range(4))
        aside = disk.store.directory / "aside"
        aside.mkdir()
        for n in bad:
            disk.file(n).rename(aside / f"{n}")
            disk.file(n).symlink_to("/proc/self/mem")  # reading its first page is EIO
        if not readable_as_eio(disk.file(bad[0])):
            pytest.skip("no file here gives EIO on demand")
        check_failed_load(disk, bad)
        assert disk.tier.errors == {"OSError EIO": len(bad)}
        for n in bad:
            assert disk.file(n).is_symlink()
            (aside / f"{n}").replace(disk.file(n))
        assert disk.driver.load(range(4)).success

    def test_f39_emfile_is_a_failed_load_and_the_file_stays(self, disk):
        disk.driver.store(range(4))
        with limit(resource.RLIMIT_NOFILE, 3):
            result = disk.driver.load(range(4))
        assert (result.success, result.successful_keys) == (False, ())
        assert disk.tier.errors == {"OSError EMFILE": 4}
        assert disk.driver.load(range(4)).success

    @pytest.mark.parametrize("length", [0, 1, 31, 32, 67, 68, 69, SIZE, SIZE + 67])
    @pytest.mark.parametrize("bad", [[2], [1, 3]])
    def test_f39_a_truncated_file_is_a_failed_load_and_goes(self, disk, length, bad):
        disk.driver.store(range(4))
        assert disk.file(0).stat().st_size == SIZE + 68
        for n in bad:
            os.truncate(disk.file(n), length)
        check_failed_load(disk, bad)
        assert [disk.file(n).exists() for n in range(4)] == [n not in bad for n in range(4)]

    def test_f40_one_byte_flipped_anywhere(self, disk):
        disk.driver.store([0])
        whole = disk.file(0).read_bytes()
        places = list(range(68)) + random.Random(0).sample(range(68, len(whole)), 60)
        for at in [*places, len(whole) - 1]:
            flipped = bytearray(whole)
            flipped[at] ^= 1 << at % 8
            disk.file(0).write_bytes(flipped)
            assert not disk.driver.load([0]).success
            assert disk.driver.slot(0) == bytes(SIZE)
            assert not disk.file(0).exists()

    @pytest.mark.parametrize("junk", [b"\0", b"\n", b"junk" * 5000])
    def test_f40_junk_appended(self, disk, junk):
        disk.driver.store(range(4))
        with disk.file(1).open("ab") as file:
            file.write(junk)
        check_failed_load(disk, [1])
        assert not disk.file(1).exists()

    @pytest.mark.parametrize("how", ["rename", "swap", "link"])
    def test_f40_the_file_of_another_key_in_its_place(self, disk, how):
        disk.driver.store(range(5))
        if how == "rename":
            disk.file(4).rename(disk.file(1))
        elif how == "swap":
            disk.file(1).rename(disk.store.directory / "aside")
            disk.file(2).rename(disk.file(1))
            (disk.store.directory / "aside").rename(disk.file(2))
        else:
            disk.file(1).unlink()
            os.link(disk.file(4), disk.file(1))
        check_failed_load(disk, [1, 2] if how == "swap" else [1])
        if how == "link":
            assert disk.driver.load([4]).success, "only the name that was wrong went"

    @pytest.mark.parametrize("gone", [[0], [3], [1, 2], [0, 1, 2, 3]])
    def test_f45_the_file_is_gone_after_a_true_verdict(self, disk, gone):
        disk.driver.store(range(4))
        assert [disk.driver.ask(n) for n in range(4)] == [HIT] * 4
        for n in gone:
            disk.file(n).unlink()
        check_failed_load(disk, gone)
        assert disk.tier.errors == {"BlockMissing": len(gone)}

    @pytest.mark.parametrize(
        "other",
        [
            Namespace("model", SIZE, layout="HND", revision="2", world_size=2),
            Namespace("model", SIZE, layout="HND"),
            Namespace("model", SIZE, rank=1, world_size=2),
        ],
        ids=["all", "layout", "rank"],
    )
    def test_f41_a_disk_written_by_another_layout_is_empty(self, tmp_path, other):
        first = Disk(tmp_path)
        first.driver.store(range(4))
        first.tier.shutdown()
        second = Disk(tmp_path, other)
        assert [second.driver.ask(n) for n in range(4)] == [MISS] * 4
        second.tier.shutdown()
        again = Disk(tmp_path)
        assert [again.driver.ask(n) for n in range(4)] == [HIT] * 4
        assert again.driver.load(range(4)).success
        again.tier.shutdown()


def readable_as_eio(path):
    try:
        path.read_bytes()
    except OSError as error:
        return error.strerror == "Input/output error"
    return False


class TestWriting:
    @pytest.mark.parametrize("length", [0, 1, 68, SIZE + 67, SIZE + 69])
    def test_f44_a_file_that_is_not_whole_is_replaced_by_a_store(self, disk, length):
        disk.driver.store([0])
        os.truncate(disk.file(0), length)
        assert disk.driver.ask(0) is HIT
        assert disk.driver.store([0]).success
        assert disk.driver.load([0]).success
        assert disk.driver.slot(0) == block(0, SIZE)

    @pytest.mark.parametrize("room", [0, 1, 68, 4096, SIZE + 67])
    def test_a_disk_that_takes_only_part_of_a_block(self, disk, room):
        disk.driver.store([0])
        with limit(resource.RLIMIT_FSIZE, room):
            result = disk.driver.store([0, 1])
        assert (result.success, result.successful_keys) == (False, ())
        assert disk.tier.errors == {"OSError EFBIG": 2}
        assert disk.parts == []
        assert not disk.file(1).exists()
        assert disk.driver.load([0]).success, "the block that was there is whole"
        with limit(resource.RLIMIT_FSIZE, SIZE + 68):
            assert disk.driver.store([1]).success

    def test_a_full_disk(self, tmp_path):
        """A file system of 64 KiB: what fits is stored, the rest fails, nothing half-written."""
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)],  # noqa: S607
            capture_output=True,
        )
        if done.returncode:
            pytest.skip(f"mount is not permitted: {done.stderr.decode().strip()}")
        try:
            disk = Disk(tmp_path)
            result = disk.driver.store(range(10))
            stored = set(result.successful_keys or ())
            assert not result.success
            assert stored == set(keys(range(len(stored))))
            assert 1 <= len(stored) <= 7
            assert disk.parts == []
            assert disk.tier.errors == {"OSError ENOSPC": 10 - len(stored)}
            assert disk.driver.load(range(len(stored))).success
            disk.file(0).unlink()
            assert disk.driver.store([9]).success
            disk.tier.shutdown()
        finally:
            subprocess.run(["umount", "-l", str(tmp_path)], check=True)  # noqa: S607

    def test_no_file_descriptors_left_for_a_store(self, disk):
        with limit(resource.RLIMIT_NOFILE, 3):
            assert disk.driver.store(range(4)).successful_keys == ()
        assert disk.driver.store(range(4)).success
        assert disk.parts == []


BIG = 1 << 20
MOMENTS = ["opened", "half", "written", "replaced"]

WRITER = """
import os, sys, time
from kvtier.keys import Namespace
from kvtier.tiers.filesystem import FilesystemStore
from kvtier.tiers.frame import encode
from tests.support.stores import block, ctx, key

root, size, moment = sys.argv[1], int(sys.argv[2]), sys.argv[3]
store = FilesystemStore(root, Namespace("model", size))
blocks = [memoryview(block(n, size)) for n in range(8)]
calls = 0
for n in range(8):
    (store.directory / key(n).hex()[:2]).mkdir(exist_ok=True)

def stop_at(name, before):
    real = getattr(os, name)
    def call(*args):
        global calls
        calls += 1
        if calls == 3 and before is not None:
            before(real, *args)
            die()
        result = real(*args)
        if calls == 3:
            die()
        return result
    setattr(os, name, call)

def die():
    print("now", flush=True)
    while True:
        os.read(0, 1)

if moment == "opened":
    stop_at("writev", lambda real, fd, frame: None)
elif moment == "half":
    stop_at("writev", lambda real, fd, frame: real(fd, [b"".join(frame)[: size // 2]]))
elif moment == "written":
    stop_at("replace", lambda real, a, b: None)
elif moment == "replaced":
    stop_at("replace", None)
else:
    # A slow disk, so that most moments are in the middle of a write.
    write = os.write
    os.writev = lambda fd, frame: slowly(fd, b"".join(frame))
    os.write = lambda fd, data: slowly(fd, data)

def slowly(fd, data):
    time.sleep(0.001)
    return write(fd, data[: size // 16])

n = 0
while True:
    store.put(key(n % 8), encode(key(n % 8), blocks[n % 8]), ctx())
    n += 1
    if n == 1 and moment == "any":
        print("now", flush=True)
"""


@contextmanager
def writer(root, size, moment):
    """Another process that stores blocks, once it is at `moment`."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(size), moment],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"now\n"
            yield child
        finally:
            child.kill()


def left_behind(root):
    return list(Path(root).rglob("*.part"))


def check_after_kill(root, size):
    """Reopen: every block that is there is whole, and nothing else is left."""
    store = FilesystemStore(root, Namespace("model", size))
    assert left_behind(root) == []
    there = [n for n in range(8) if list(store.contains([key(n)], ctx())) == [True]]
    for n in there:
        assert bytes(decode(key(n), store.get(key(n), ctx()), size)) == block(n, size)
    assert len(list(store.directory.rglob("*.kv"))) == len(there)
    store.close()
    return there


class TestKilled:
    @pytest.mark.parametrize("moment", MOMENTS)
    def test_f43_at_this_moment_of_its_third_block(self, tmp_path, moment):
        with writer(tmp_path, SIZE, moment) as child:
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
        assert len(left_behind(tmp_path)) == (moment != "replaced")
        assert check_after_kill(tmp_path, SIZE) == [0, 1] + [2] * (moment == "replaced")

    @pytest.mark.parametrize("moment", MOMENTS[:3])
    def test_f43_a_writer_that_lives_is_not_swept_and_ends_its_block(self, tmp_path, moment):
        with writer(tmp_path, SIZE, moment):
            open_now = left_behind(tmp_path)
            assert len(open_now) == 1
            FilesystemStore(tmp_path, NAMESPACE).close()
            assert left_behind(tmp_path) == open_now
        assert check_after_kill(tmp_path, SIZE) == [0, 1]

    def test_f43_several_writers_killed_one_after_the_other(self, tmp_path):
        with (
            writer(tmp_path, SIZE, "half") as first,
            writer(tmp_path, SIZE, "half") as second,
            writer(tmp_path, SIZE, "written") as third,
        ):
            assert len(left_behind(tmp_path)) == 3
            for alive, child in enumerate((second, first, third)):
                child.kill()
                child.wait()
                FilesystemStore(tmp_path, NAMESPACE).close()
                assert len(left_behind(tmp_path)) == 2 - alive
        assert check_after_kill(tmp_path, SIZE) == [0, 1]

    def test_f43_at_any_moment(self, tmp_path):
        """The disk is slow, so a random moment is in the middle of a write more often than not."""
        rng = random.Random(43)
        in_the_middle = 0
        for _ in range(30):
            with writer(tmp_path, BIG, "any") as child:
                time.sleep(rng.uniform(0.0, 0.05))
                child.kill()
                child.wait()
            in_the_middle += bool(left_behind(tmp_path))
            assert 0 in check_after_kill(tmp_path, BIG)
            if in_the_middle == 4:
                return
        pytest.fail("hardly any kill fell into a write: this shows nothing")

    def test_f43_readers_of_a_directory_that_is_written_see_whole_blocks(self, tmp_path):
        with writer(tmp_path, BIG, "any"):
            store = FilesystemStore(tmp_path, Namespace("model", BIG))
            until = time.monotonic() + 1
            reads = 0
            while time.monotonic() < until:
                for n in range(8):
                    if list(store.contains([key(n)], ctx())) == [True]:
                        decode(key(n), store.get(key(n), ctx()), BIG)
                        reads += 1
            store.close()
        assert reads > 0


def test_a_killed_tier_starts_again_where_it_was(tmp_path):
    """Through the tier: after a kill the blocks that were whole are hits, the others misses."""
    with writer(tmp_path, SIZE, "half") as child:
        child.kill()
        child.wait()
    disk = Disk(tmp_path)
    assert [disk.driver.ask(n) for n in range(4)] == [HIT, HIT, MISS, MISS]
    assert disk.driver.load([0, 1]).success
    assert disk.driver.store(range(4)).success
    disk.tier.shutdown()
