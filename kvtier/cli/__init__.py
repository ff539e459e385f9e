"""The command `kvtier`. No logic lives here: options in, a call of the library, figures out.

Exit codes of every command: 0 right, 1 something that must hold does not or the
result cannot be written, 2 bad input, 3 a tool is not installed, 128 and the number
of the signal that ended it (130 for Ctrl-C). What goes wrong is one line on standard
error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

import kvtier
from kvtier.cli.check import check_command
from kvtier.cli.model import model_command
from kvtier.cli.prove import prove_command
from kvtier.cli.replay import replay_command
from kvtier.cli.terminal import printable
from kvtier.cli.timeline import timeline_command
from kvtier.cli.validate import validate_command
from kvtier.errors import BadInput, KvtierError, MissingTool

__all__ = ["main"]

BAD_INPUT, MISSING_TOOL, INTERRUPTED = 2, 3, 130


class _OneLine(click.Group):
    """A group that says what went wrong in one line and exits with the right code."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            code = run(*args, standalone_mode=False, **extra)
        except click.ClickException as error:
            code = self._say(error.format_message(), error.exit_code)
        except BadInput as error:
            code = self._say(str(error), BAD_INPUT)
        except MissingTool as error:
            code = self._say(str(error), MISSING_TOOL)
        except KvtierError as error:
            code = self._say(str(error), 1)
        except click.Abort:
            code = self._say("interrupted", INTERRUPTED)
        except OSError as error:
            code = self._say(f"cannot write the result: {error.strerror}", 1)
        if sys.stdout is None and not code:
            code = self._say("cannot write the result: standard output is closed", 1)
        sys.exit(code)

    def _say(self, message: str, code: int) -> int:
        line = printable(" ".join(message.split()))
        with suppress(OSError):  # nobody is there to be told
            click.echo(f"{self.name}: {line}", err=True)
        return code


@click.group(
    "kvtier",
    cls=_OneLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(kvtier.__version__, prog_name="kvtier", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Tiered offloading of KV cache blocks: run it, look at it, check it.

    \b
    kvtier replay                      a workload from text that Python ships
    kvtier replay trace.jsonl --json   a trace in Mooncake's format
    kvtier check                       the TLA+ models, in TLC
    kvtier model                       the same machine, explored in plain Python
    kvtier prove                       its invariants, proved for any size
    kvtier validate spans.jsonl        its spans, held to the spec
    kvtier timeline spans.jsonl        its spans, as a page to look at
    kvtier COMMAND --help              all that a command can be told
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


main.add_command(replay_command)
main.add_command(check_command)
main.add_command(model_command)
main.add_command(prove_command)
main.add_command(timeline_command)
main.add_command(validate_command)
