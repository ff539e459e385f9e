"""`python -m tests.bench.files DIR WRITES READS BYTES`: that many files, and nothing else.

What a replay with a filesystem tier asks of the disk at the least: as many files of
that size in 256 directories by the first byte of a hash, and some of them read again.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path


def main(folder: Path, writes: int, reads: int, size: int) -> None:
    content = os.urandom(size)
    names = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(writes)]
    for byte in range(256):
        (folder / f"{byte:02x}").mkdir(parents=True)
    paths = [f"{folder}/{name[:2]}/{name}" for name in names]
    for path in paths:
        with open(path, "wb") as file:
            file.write(content)
    for number in range(reads):
        with open(paths[number * 7919 % writes], "rb") as file:
            file.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
