"""The documentation is true: its generated parts are fresh and its code runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def python_code(page: Path, after: str) -> str:
    """The Python blocks of `page` that follow the heading `after`, as one program."""
    text = page.read_text().split(after, 1)[1]
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))


def test_generated_parts_are_what_the_code_says_now() -> None:
    run = subprocess.run(
        [sys.executable, DOCS / "build.py", "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}: run `make docs`"


def test_a_stale_part_is_noticed(tmp_path: Path) -> None:
    for name in ("build.py", "lifecycle.md"):
        (tmp_path / name).write_text((DOCS / name).read_text().replace("abandoned", "forgotten"))
    run = subprocess.run(
        [sys.executable, tmp_path / "build.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stdout.split() == ["stale:", "lifecycle.md"]


def test_the_tier_in_the_documentation_stores_and_loads_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = python_code(DOCS / "writing-a-tier.md", "## A tier of your own")
    (tmp_path / "example.py").write_text(code)
    assert runpy.run_path("example.py")["content"] == b"sixteen bytes..."
    assert [path.name.partition(".")[0] for path in sorted(tmp_path.iterdir())] == ["example", "kv"]


def test_the_lookup_in_the_readme_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "example.py").write_text(python_code(ROOT / "README.md", "# kvtier"))
    runpy.run_path(str(tmp_path / "example.py"))
    assert capsys.readouterr().out == "True\n"


def test_the_readme_begins_with_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"```sh\n(.*?)```", readme, re.S)[:2] == ["make demo\n", "make test\n"]
    assert readme.count("\n") < 120


@pytest.mark.parametrize(
    "page", [*sorted(DOCS.glob("*.md")), ROOT / "README.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
