"""Blocks as files: names and folders, namespaces, who may use a directory, sweeping."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvtier.errors import BadInput
from kvtier.keys import Namespace
from kvtier.tiers.filesystem import FilesystemStore
from tests.support.stores import BLOCK, StoreContract, block, ctx, key

NAMESPACE = Namespace("model", BLOCK)

DIGEST = NAMESPACE.digest

contract = StoreContract()


def files(store):
    """What is below the store's directory, but for folders and locks."""
    found = (path for path in store.directory.rglob("*") if path.is_file())
    return {str(path.relative_to(store.directory)) for path in found if path.suffix != ".lock"}


def parts(store):
    return {name for name in files(store) if name.endswith(".part")}


def path_of(store, n):
    name = key(n).hex()
    return store.directory / name[:2] / f"{name}.kv"


@pytest.fixture
def open_store(tmp_path):
    stores = []

    def open_one(namespace=NAMESPACE):
        stores.append(FilesystemStore(tmp_path, namespace))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()


class TestFilesystemStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = FilesystemStore(tmp_path, NAMESPACE)
        yield store
        store.close()


class TestLayout:
    def test_a_block_is_one_file_named_by_its_key_in_the_folder_of_its_first_byte(self, store):
        contract.put(store, 0)
        name = key(0).hex()
        assert files(store) == {"namespace.json", f"{name[:2]}/{name}.kv"}

    def test_a_person_can_read_what_the_directory_is_for(self, store, open_store):
        text = (store.directory / "namespace.json").read_text()
        assert json.loads(text) == asdict(NAMESPACE)
        (store.directory / "namespace.json").write_text('{"model": "mod')
        open_store()
        assert (store.directory / "namespace.json").read_text() == text

    def test_blocks_outlive_the_store(self, store, open_store):
        contract.put(store, 0)
        assert contract.read(open_store(), 0) == block(0)

    @pytest.mark.parametrize(
        "change",
        [
            {"model": "other"},
            {"revision": "2"},
            {"dtype": "float8_e4m3"},
            {"layout": "HND"},
            {"rank": 1},
            {"world_size": 2},
            {"seed": 1},
            {"block_bytes": 2 * BLOCK},
            {"layout": "HND", "revision": "2", "world_size": 2},
        ],
        ids=lambda change: "-".join(change),
    )
    def test_f41_blocks_of_another_namespace_are_not_there(self, store, open_store, change):
        contract.put(store, 0)
        other = open_store(replace(NAMESPACE, **change))
        assert list(other.contains([key(0)], ctx())) == [False]
        other.delete(key(0), ctx())
        assert contract.read(store, 0) == block(0)

    def test_the_directory_may_be_relative_and_the_process_may_move(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        store = FilesystemStore("cache", NAMESPACE)
        monkeypatch.chdir("/")
        contract.put(store, 0)
        assert contract.read(FilesystemStore(tmp_path / "cache", NAMESPACE), 0) == block(0)

    def test_a_directory_that_is_emptied_under_it_fills_again(self, store):
        contract.put(store, 0)
        shutil.rmtree(store.directory)
        assert list(store.contains([key(0)], ctx())) == [False]
        contract.put(store, 0)
        assert contract.read(store, 0) == block(0)

    def test_a_closed_store_stores_nothing_and_makes_no_folder(self, store):
        contract.put(store, 0)
        store.close()
        store.close()
        shutil.rmtree(store.directory)
        with pytest.raises(OSError, match="closed"):
            contract.put(store, 0)
        assert not store.directory.exists()

    def test_a_store_closed_in_the_middle_of_a_write_makes_no_folder(self, store, monkeypatch):
        place = store._place

        def closed_meanwhile(path, frame):
            store.close()
            shutil.rmtree(store.directory)
            monkeypatch.setattr(store, "_place", place)
            raise FileNotFoundError

        monkeypatch.setattr(store, "_place", closed_meanwhile)
        with pytest.raises(OSError, match="closed"):
            contract.put(store, 0)
        assert not store.directory.exists()

    def test_only_as_much_of_a_file_is_read_as_a_block_can_be(self, store):
        contract.put(store, 0)
        whole = path_of(store, 0).stat().st_size
        with path_of(store, 0).open("ab") as file:
            file.truncate(1 << 40)
        assert len(store.get(key(0), ctx())) == whole + 1

    def test_short_reads_and_short_writes_are_continued(self, store, monkeypatch):
        read, write, writev = os.read, os.write, os.writev
        monkeypatch.setattr(os, "read", lambda fd, n: read(fd, min(n, 7)))
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
        monkeypatch.setattr(os, "writev", lambda fd, data: writev(fd, [data[0][:3]]))
        contract.put(store, 0)
        assert contract.read(store, 0) == block(0)

    @pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
    def test_contains_that_fails_is_an_error_and_not_an_absence(self, store, monkeypatch, code):
        def stat(path):
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", stat)
            with pytest.raises(OSError, match=re.escape(os.strerror(code))):
                list(store.contains([key(0)], ctx()))


class TestAFailedPut:
    """Nothing half-written, nothing left behind, and what was there stays."""

    @pytest.mark.parametrize("call", ["open", "writev", "close", "replace"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EMFILE])
    def test_whichever_call_fails(self, store, monkeypatch, call, code):
        contract.put(store, 0)
        real = getattr(os, call)

        def fail(*args, **kwargs):
            if call == "close":
                real(*args)
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(OSError, match=re.escape(os.strerror(code))):
                contract.put(store, 0, content=bytes(BLOCK))
        assert parts(store) == set()
        assert contract.read(store, 0) == block(0)

    @pytest.mark.parametrize("taken", [0, 1, 31, 32, 100])
    def test_the_disk_fills_up_in_the_middle(self, store, monkeypatch, taken):
        contract.put(store, 0)
        writev = os.writev

        def full(fd, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", lambda fd, data: writev(fd, [b"".join(data)[:taken]]))
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space left"):
                contract.put(store, 0, content=bytes(BLOCK))
        assert parts(store) == set()
        assert contract.read(store, 0) == block(0)

    def test_a_folder_where_the_block_should_be(self, store):
        path_of(store, 0).mkdir(parents=True)
        with pytest.raises(IsADirectoryError):
            contract.put(store, 0)
        with pytest.raises(IsADirectoryError):
            store.get(key(0), ctx())
        assert parts(store) == set()


class TestSweeping:
    def leave(self, store, name):
        (store.directory / "writers" / name).write_bytes(b"half a block")

    def test_what_dead_writers_left_is_swept_at_start(self, store, open_store):
        for name in ("gone-0-1-0.part", "a-host-with-dashes-3-4711-12.part", "odd.part"):
            self.leave(store, name)
        contract.put(store, 0)
        open_store()
        assert parts(store) == set()
        assert contract.read(store, 0) == block(0)

    def test_what_a_live_writer_is_writing_is_not(self, store, open_store, monkeypatch):
        seen = []
        replace = os.replace

        def sweep_meanwhile(source, target):
            seen.append(parts(store))
            open_store()
            seen.append(parts(store))
            replace(source, target)

        monkeypatch.setattr(os, "replace", sweep_meanwhile)
        contract.put(store, 0)
        assert len(seen[0]) == 1
        assert seen[0] == seen[1]
        assert contract.read(store, 0) == block(0)

    def test_its_own_name_may_have_belonged_to_a_dead_one(self, tmp_path):
        first = FilesystemStore(tmp_path, NAMESPACE)
        lock = next((first.directory / "writers").glob("*.lock"))
        first.close()
        self.leave(first, f"{lock.stem}-{os.getpid()}-0.part")
        second = FilesystemStore(tmp_path, NAMESPACE)
        assert list((second.directory / "writers").iterdir()) == [lock]
        contract.put(second, 0)
        assert contract.read(second, 0) == block(0)
        second.close()

    def test_writers_at_one_time_are_different_and_use_names_again(self, tmp_path):
        for _ in range(3):
            stores = [FilesystemStore(tmp_path, NAMESPACE) for _ in range(4)]
            for n, store in enumerate(stores):
                contract.put(store, n)
                store.close()
        assert len(list((stores[0].directory / "writers").iterdir())) == 4


@pytest.fixture
def public_folder():
    """A folder that every user can reach, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class TestARefusedDirectory:
    def refused(self, path, problem):
        with pytest.raises(BadInput, match=problem) as caught:
            FilesystemStore(path, NAMESPACE)
        assert caught.value.where == str(path)
        assert caught.value.expected == "a directory that can be read, written and locked"

    def test_it_is_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        self.refused(tmp_path / "file", "cannot be used: Not a directory")
        self.refused(tmp_path / "file" / "below", "cannot be used: Not a directory")

    @pytest.mark.parametrize("name", ["", "writers", "namespace.json"])
    def test_something_else_has_its_place(self, tmp_path, name):
        place = tmp_path / NAMESPACE.digest / name
        place.parent.mkdir(exist_ok=True)
        if name == "namespace.json":
            place.mkdir()
            self.refused(tmp_path, "cannot be used: Is a directory")
        else:
            place.write_text("")
            self.refused(tmp_path, "cannot be used: (File exists|Not a directory)")

    def test_its_name_is_too_long(self, tmp_path):
        self.refused(tmp_path / ("x" * 300), "cannot be used: File name too long")

    def test_locks_are_not_supported(self, tmp_path, monkeypatch):
        def flock(fd, flags):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", flock)
        fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
        self.refused(tmp_path, "cannot be used: No locks available")
        assert fds is None or len(os.listdir("/proc/self/fd")) == fds

    @pytest.mark.parametrize(
        ("where", "mode"),
        [("", 0o555), ("", 0o000)]
        + [(w, m) for w in (DIGEST, f"{DIGEST}/writers") for m in (0o555, 0o333, 0o666)],
    )
    def test_this_user_may_not(self, public_folder, where, mode):
        """Really so: a child without root's rights tries."""
        if where:
            FilesystemStore(public_folder, NAMESPACE).close()
        for path in (public_folder, *public_folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        barred = public_folder / where
        barred.chmod(mode)
        said = self.try_as_nobody(public_folder)
        barred.chmod(0o777)
        assert said.startswith(f"{public_folder}: cannot be used: Permission denied")

    def test_this_user_may(self, public_folder):
        public_folder.chmod(0o777)
        assert self.try_as_nobody(public_folder) == "it can be used"

    def try_as_nobody(self, folder):
        path = os.pathsep.join(sys.path)
        done = subprocess.run(
            [sys.executable, "-c", TRY, str(folder)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert done.stderr == ""
        return done.stdout.strip()


TRY = f"""
import os, sys
from kvtier.errors import BadInput
from kvtier.keys import Namespace
from kvtier.tiers.filesystem import FilesystemStore
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    FilesystemStore(sys.argv[1], Namespace("model", {BLOCK}))
    print("it can be used")
except BadInput as error:
    print(error)
"""
