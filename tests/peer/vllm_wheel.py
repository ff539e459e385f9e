"""vLLM's own lookup manager, to hold ours against.

kvtier's lookup keeps the names and the promises of `AsyncLookupManager` in vLLM,
so the tests and benchmarks beside this file run the real one. It is one module
of a wheel of several hundred megabytes, and that one member is all that is
fetched: pip says where it would get the wheel from, and the wheel, being a zip
archive, is read at its directory and at that member only. What was read lives in
the user's cache directory, never in this repository; this file knows the digest
that it must have, because it is going to be run.

The module imports two others of vLLM, for a logger and for two names in
annotations. It gets stand-ins for both while it is loaded, and `sys.modules` is
afterwards what it was before.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import IO, Any
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile

from kvtier.keys import OffloadKey
from kvtier.request import ReqContext

__all__ = ["MEMBER", "NEWEST", "PHASED", "UNPHASED", "PeerUnavailable", "load", "source"]

NEWEST = "0.33.0"
PHASED = "0.30.0"
"""The first whose probes have phases."""
UNPHASED = "0.29.0"
"""The last whose probes have none."""

MEMBER = "vllm/v1/kv_offload/tiering/async_lookup.py"
DIGESTS = {
    NEWEST: "fc4d2a9577e12cb1f74be3d6500eaad5411e58b006ef6b978d1dfb9a4299aa04",
    PHASED: "f0f2ad8f094750950cb5ed05c18cf260aef48ee24d662ce3df78ae6d9b2a29e1",
    UNPHASED: "f428ed57f862cee903d37064187664d84b56af0b54f145731ccf8d3a1ac22abb",
}
"""SHA-256 of the member in each version that may be loaded."""

TIMEOUT = 20.0
"""Seconds that one answer from the network may take."""


class PeerUnavailable(Exception):
    """vLLM's module is not in the cache and could not be fetched; says why."""


def load(version: str = NEWEST) -> ModuleType:
    """The module of that version, freshly executed. Raises `PeerUnavailable`."""
    path = source(version)
    spec = importlib.util.spec_from_file_location(f"vllm_{version.replace('.', '_')}", path)
    if spec is None or spec.loader is None:
        raise PeerUnavailable(f"{path} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    with _stand_ins():
        spec.loader.exec_module(module)
    return module


def source(version: str = NEWEST) -> Path:
    """The module's file in the cache, fetched if it is not there. Raises `PeerUnavailable`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "kvtier-peer" / version / Path(MEMBER).name
    if path.is_file() and _digest(path.read_bytes()) == DIGESTS[version]:
        return path
    content = _fetch(version)
    if _digest(content) != DIGESTS[version]:
        raise PeerUnavailable(f"{MEMBER} of vLLM {version} is not the file that is known here")
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(content)
    os.replace(part.name, path)
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _stand_ins() -> Iterator[None]:
    logger = ModuleType("vllm.logger")
    base = ModuleType("vllm.v1.kv_offload.base")
    names: dict[ModuleType, dict[str, Any]] = {
        logger: {"init_logger": logging.getLogger},
        base: {"OffloadKey": OffloadKey, "ReqContext": ReqContext},
    }
    before = {module.__name__: sys.modules.get(module.__name__) for module in names}
    for module, members in names.items():
        vars(module).update(members)
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for name, real in before.items():
            if real is None:
                del sys.modules[name]
            else:
                sys.modules[name] = real


def _fetch(version: str) -> bytes:
    try:
        wheel = io.BufferedReader(_Remote(_address(version)), 1 << 18)
        with ZipFile(wheel) as archive:
            return archive.read(MEMBER)
    except (OSError, BadZipFile, KeyError) as error:
        raise PeerUnavailable(f"the wheel of vLLM {version} could not be read: {error}") from error


def _address(version: str) -> str:
    """Where pip would download the wheel from."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--no-deps", "--only-binary", ":all:", "--report", "-", "--quiet"]
    command += ["--retries", "1", "--timeout", f"{TIMEOUT:.0f}", f"vllm=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=6 * TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable("pip took too long to find vLLM's wheel") from error
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise PeerUnavailable(f"pip finds no wheel of vLLM {version}: {last}")
    [wheel] = json.loads(done.stdout)["install"]
    return str(wheel["download_info"]["url"])


class _Remote(io.RawIOBase):
    """A file at an address, of which only the parts are transferred that are read."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._at = 0
        with self._open("HEAD", {}) as answer:
            self._size = int(answer.headers["Content-Length"])

    def _open(self, method: str, headers: dict[str, str]) -> Any:
        request = Request(self._address, method=method, headers=headers)  # noqa: S310 (pip's own)
        return urlopen(request, timeout=TIMEOUT)  # noqa: S310

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        answer: IO[bytes]
        with self._open("GET", {"Range": f"bytes={self._at}-{end - 1}"}) as answer:
            if getattr(answer, "status", None) != 206:
                raise OSError("the server does not send parts of files")
            part = answer.read()
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
