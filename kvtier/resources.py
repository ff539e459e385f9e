"""Where the files are that are not Python: the TLA+ modules and the specification.

In a checkout they lie beside the package, where people read and change them. An
installed wheel has them inside it, under `kvtier/_data/`.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

import kvtier
from kvtier.errors import KvtierError

__all__ = ["resource_folder"]


def resource_folder(name: Literal["tla", "spec"]) -> Path:
    """The folder of that name. Raises `KvtierError` where it did not come along.

    What makes a checkout is `pyproject.toml` beside the package. A folder called
    `spec` alone would not do: anything can lie beside an installed package.
    """
    beside = Path(kvtier.__file__).resolve().parent.parent
    if (beside / "pyproject.toml").is_file():
        folder = beside / name
    else:
        folder = Path(str(files("kvtier") / "_data" / name))
    if not folder.is_dir():
        raise KvtierError(f"{name}/ is not in this installation of kvtier (no folder {folder})")
    return folder
