"""The operations guide: every block is run, in order, and its messages are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", GUIDE, re.S)
EXITS = re.compile(r"^(.*?)\s+# exits with (\d+)$")


def shell_script(block: str) -> str:
    """A block whose commands must succeed, or end as they say."""
    lines = ["set -eu"]
    for line in block.splitlines():
        said = EXITS.match(line)
        lines.append(f"code=0; {said[1]} || code=$?; [ $code = {said[2]} ]" if said else line)
    return "\n".join(lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of its own, with ``python`` and ``privlearn`` of this environment."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, command in [("python", ""), ("privlearn", " -m privlearn.cli")]:
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{command} "$@"\n')
        (programs / name).chmod(0o755)
    return tmp_path


def run_shell(block: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    own = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        ["sh", "-c", shell_script(block)],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": own},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_block_runs_as_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    namespace: dict[str, object] = {}
    for kind, block in BLOCKS:
        named = re.match(r"# (\w+\.py)\n", block)
        if named:
            (folder / named[1]).write_text(block, encoding="utf-8")
        elif kind == "python":
            exec(compile(block, "operations.md", "exec"), namespace)
        else:
            done = run_shell(block, folder)
            assert done.returncode == 0, (block, done.stdout, done.stderr)
    began = (folder / "again.log").read_text().splitlines()[0]
    found = re.fullmatch(r"visitors from (\d+) on", began)
    assert found
    assert 0 < int(found[1]) <= 500  # it was killed in the middle, and went on
    assert "served 900" in (folder / "again.log").read_text()
    over = run_shell("python shop.py", folder)
    assert (over.returncode, over.stdout) == (0, "the run is over\n")


def test_a_block_that_fails_or_ends_otherwise_than_it_says_would_be_seen(folder: Path) -> None:
    assert run_shell("true\nfalse   # exits with 1\n", folder).returncode == 0
    assert run_shell("false\ntrue\n", folder).returncode != 0
    assert run_shell("true   # exits with 1\n", folder).returncode != 0


def test_every_shell_command_and_python_line_stands_in_a_block_that_is_run() -> None:
    fences = re.findall(r"^```(\w*)$", GUIDE, re.M)
    assert set(fences[::2]) <= {"python", "sh"}
    assert len(fences) == 2 * len(BLOCKS)
    assert any("kill -9" in block for kind, block in BLOCKS if kind == "sh")


def test_the_messages_of_the_guide_are_those_of_the_code() -> None:
    listed = GUIDE.split("## Messages, and what to do")[1]
    named = re.findall("^- (`.*?`): ", listed, re.MULTILINE)
    messages = [message for item in named for message in re.findall("`([^`]+)`", item)]
    assert len(messages) > 30
    sources = [
        path
        for folder in ("privlearn/**", "accountants", "learners", "mechanisms")
        for path in ROOT.glob(f"{folder}/*.py")
    ]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    joined = re.sub(r'"\s*\n\s*f?"', "", code)  # texts that go on in the next line
    assert [message for message in messages if message not in joined] == []
    assert "a message that is nowhere" not in joined
