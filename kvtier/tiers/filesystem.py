"""A secondary tier in a directory: one file per block.

    ROOT/<digest of the namespace>/
        namespace.json              what the digest stands for, for people
        3f/3fa8...0000.kv           a block: 3f is the first byte of its key
        writers/host-0.lock         held by writer 0 of host for as long as it lives
        writers/host-0-4711-9.part  what it is writing just now

**Layouts do not meet.** All that a block's bytes depend on besides its key is
the `Namespace`, and each has its own directory (vllm 55904, 49261, 55191).

**Nothing half-written is served.** A block is written to a temporary file and
then renamed, so under a block's name there is a whole file or none, also when
the writer is killed. There is no fsync: after a power failure a file may hold
anything, the frame is verified on load, and a cache that lost a block has lost
nothing.

**What dead writers leave is swept.** A writer holds a lock (`flock`) on a file
of its own, which the kernel takes back when the process ends, however it ends.
A store that opens the directory removes the temporary files of all writers
whose lock is free. So neither the age of a file nor a process id that may have
been given to another process decides, and a live writer is never robbed. Lock
files stay: a writer that starts takes the first that is free. Where locks reach
only one host (NFS mounted `nolock`), a store that opens may take another host's
temporary file away: a failed store there, and nothing else.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from errno import EACCES, EBADF
from pathlib import Path

from kvtier.errors import BadInput, BlockMissing
from kvtier.keys import Namespace, OffloadKey
from kvtier.request import ReqContext
from kvtier.tiers.base import SecondaryTierManager
from kvtier.tiers.frame import Frame, frame_bytes
from kvtier.tiers.registry import TierSetup
from kvtier.tiers.store import BlockStore

__all__ = ["FilesystemStore", "from_spec", "remove_unused", "root_of"]


class FilesystemStore(BlockStore):
    """Blocks of `namespace` as files below `root`, which is made if it is not there.

    Any number of stores, in any number of processes, may share `root`. Raises
    `BadInput` if `root` cannot be used.
    """

    def __init__(self, root: str | os.PathLike[str], namespace: Namespace) -> None:
        self._block_bytes = namespace.block_bytes
        self._serial = itertools.count()
        self._closing = threading.Lock()
        self._closed = False
        try:
            self.directory = Path(root).absolute() / namespace.digest
            self._base = str(self.directory)
            self._writers = self.directory / "writers"
            self._writers.mkdir(parents=True, exist_ok=True)
            for folder in (self.directory, self._writers):
                if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                    raise PermissionError(EACCES, os.strerror(EACCES), folder)
            self._describe(namespace)
            self._sweep()
            self._writer, self._lock = self._become_writer()
        except (OSError, ValueError) as error:
            problem = str(error)  # of a ValueError: the path holds what no path can
            if isinstance(error, OSError):
                problem = f"{error.strerror} ({error.filename or os.fspath(root)})"
            raise BadInput(
                os.fspath(root),
                f"cannot be used: {problem}",
                "a directory that can be read, written and locked",
            ) from error

    def contains(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return [self._exists(key) for key in keys]

    def get(self, key: OffloadKey, req_context: ReqContext) -> bytes:
        try:
            fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BlockMissing(key.hex()) from None
        try:
            # One byte more than a block: enough to see that something follows it.
            wanted = frame_bytes(key, self._block_bytes) + 1
            raw = os.read(fd, wanted)
            while len(raw) < wanted - 1 and (more := os.read(fd, wanted - len(raw))):
                raw += more
            return raw
        finally:
            os.close(fd)

    def put(self, key: OffloadKey, frame: Frame, req_context: ReqContext) -> None:
        """Makes no folder any more once the store is closed: whoever closed it may remove it."""
        path = self._path(key)
        try:
            self._place(path, frame)
        except FileNotFoundError:
            # The first block of its folder, or the whole directory was emptied under us.
            with self._closing:
                self._refuse_if_closed()
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.makedirs(self._writers, exist_ok=True)
            self._place(path, frame)

    def delete(self, key: OffloadKey, req_context: ReqContext) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def close(self) -> None:
        """Let go of the directory. Idempotent, from any thread."""
        with self._closing:
            if not self._closed:
                self._closed = True
                os.close(self._lock)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise OSError(EBADF, "the store is closed", self._base)

    def _path(self, key: OffloadKey) -> str:
        name = key.hex()
        return f"{self._base}/{name[:2]}/{name}.kv"

    def _exists(self, key: OffloadKey) -> bool:
        try:
            os.stat(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def _place(self, path: str, frame: Frame) -> None:
        self._refuse_if_closed()
        part = f"{self._base}/writers/{self._writer}-{os.getpid()}-{next(self._serial)}.part"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                written = os.writev(fd, frame)
                whole = len(frame.header) + frame.payload.nbytes
                if written < whole:  # the disk is filling up, most likely: the next write says so
                    rest = memoryview(b"".join(frame))
                    while written < whole:
                        written += os.write(fd, rest[written:])
            finally:
                os.close(fd)
            os.replace(part, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(part)
            raise

    def _describe(self, namespace: Namespace) -> None:
        path = self.directory / "namespace.json"
        text = json.dumps(asdict(namespace), indent=2) + "\n"
        with suppress(FileNotFoundError):
            if path.read_bytes() == text.encode():
                return
        path.write_text(text)

    def _sweep(self) -> None:
        for part in self._writers.glob("*.part"):
            writer = part.name.rsplit("-", 2)[0]
            lock = self._try_lock(writer)
            if lock is not None:
                part.unlink(missing_ok=True)
                os.close(lock)

    def _become_writer(self) -> tuple[str, int]:
        host, n = socket.gethostname(), 0
        while (lock := self._try_lock(f"{host}-{n}")) is None:
            n += 1
        return f"{host}-{n}", lock

    def _try_lock(self, writer: str) -> int | None:
        """The open lock file of `writer`, or `None` if a live one holds it."""
        lock = os.open(self._writers / f"{writer}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        except OSError:
            os.close(lock)
            raise
        return lock


def root_of(arg: str | None) -> Path:
    """The directory that `fs:ARG` names. Raises `BadInput` if it names none."""
    if not arg:
        raise BadInput("tier 'fs'", "no directory is named", "fs:DIRECTORY")
    try:
        return Path(arg).expanduser()
    except RuntimeError as error:  # ~somebody who is not known here
        raise BadInput(f"tier 'fs:{arg}'", str(error), "fs:DIRECTORY") from error


def remove_unused(directory: str | os.PathLike[str]) -> None:
    """Remove the directory of a namespace, unless it holds a block or another store is open on it.

    For whoever made it in vain. What cannot be removed stays.
    """
    described, writers = Path(directory, "namespace.json"), Path(directory, "writers")
    held: list[int] = []
    try:
        # Taking a lock proves that its writer is gone; with all of them taken none is left.
        names = {path.name for path in writers.iterdir()} if writers.exists() else set()
        if any(not name.endswith(".lock") for name in names):
            return
        if {path.name for path in Path(directory).iterdir()} - {described.name, writers.name}:
            return
        for name in names:
            lock = os.open(writers / name, os.O_RDWR | os.O_CLOEXEC)
            held.append(lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in names:
            os.unlink(writers / name)
        with suppress(FileNotFoundError):
            writers.rmdir()  # a store that was opened meanwhile has its lock in here
        described.unlink(missing_ok=True)
        os.rmdir(directory)
    except OSError:
        return
    finally:
        for lock in held:
            os.close(lock)


def from_spec(arg: str | None, setup: TierSetup) -> SecondaryTierManager:
    """`fs:DIRECTORY`."""
    return setup.tier(FilesystemStore(root_of(arg), setup.namespace), "fs")
