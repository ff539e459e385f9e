"""`python -m kvtier` is the command `kvtier`."""

from __future__ import annotations

from kvtier.cli import main

if __name__ == "__main__":
    main()
