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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from errno import EACCES
from pathlib import Path

from kvtier.errors import BadInput, BlockMissing
from kvtier.keys import Namespace, OffloadKey
from kvtier.request import ReqContext
from kvtier.tiers.base import SecondaryTierManager
from kvtier.tiers.frame import Frame, frame_bytes
from kvtier.tiers.registry import TierSetup
from kvtier.tiers.store import BlockStore

__all__ = ["FilesystemStore", "from_spec"]


class FilesystemStore(BlockStore):
    """Blocks of `namespace` as files below `root`, which is made if it is not there.

    Any number of stores, in any number of processes, may share `root`. Raises
    `BadInput` if `root` cannot be used.
    """

    def __init__(self, root: str | os.PathLike[str], namespace: Namespace) -> None:
        self.directory = Path(root).absolute() / namespace.digest
        self._writers = self.directory / "writers"
        self._base = str(self.directory)
        self._block_bytes = namespace.block_bytes
        self._serial = itertools.count()
        try:
            self._writers.mkdir(parents=True, exist_ok=True)
            for folder in (self.directory, self._writers):
                if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                    raise PermissionError(EACCES, os.strerror(EACCES), folder)
            self._describe(namespace)
            self._sweep()
            self._writer, self._lock = self._become_writer()
        except OSError as error:
            raise BadInput(
                os.fspath(root),
                f"cannot be used: {error.strerror} ({error.filename or self._writers})",
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
        path = self._path(key)
        try:
            self._place(path, frame)
        except FileNotFoundError:
            # The first block of its folder, or the whole directory was emptied under us.
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.makedirs(self._writers, exist_ok=True)
            self._place(path, frame)

    def delete(self, key: OffloadKey, req_context: ReqContext) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def close(self) -> None:
        os.close(self._lock)

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


def from_spec(arg: str | None, setup: TierSetup) -> SecondaryTierManager:
    """`fs:DIRECTORY`."""
    if not arg:
        raise BadInput("tier 'fs'", "no directory is named", "fs:DIRECTORY")
    return setup.tier(FilesystemStore(Path(arg).expanduser(), setup.namespace), "fs")
