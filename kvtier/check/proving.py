"""The proof, in a process of its own: z3 keeps Ctrl-C to itself while it thinks."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection

from kvtier.check.apart import apart
from kvtier.check.proof import ProofReport, Row, prove
from kvtier.errors import KvtierError, MissingTool

__all__ = ["prove_apart"]


def prove_apart(
    progress: Callable[[int, int, Row], None] | None = None, timeout: float | None = None
) -> ProofReport:
    """`kvtier.check.proof.prove`, such that Ctrl-C ends it at once. Raises `MissingTool`."""
    with apart(_prover, tidily=False) as [pipe]:
        pipe.send(timeout)
        while True:
            try:
                told = pipe.recv()
            except (EOFError, OSError):
                raise KvtierError("the process of the proof was ended from outside") from None
            match told:
                case ProofReport():
                    return told
                case MissingTool.__name__, tool, extra:
                    raise MissingTool(tool, extra)
                case done, total, row:
                    if progress is not None:
                        progress(done, total, row)


def _prover(pipe: Connection) -> None:
    try:
        pipe.send(prove(lambda *told: pipe.send(told), pipe.recv()))
    except MissingTool as missing:
        pipe.send((MissingTool.__name__, missing.tool, missing.extra))
