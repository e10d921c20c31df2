"""Files that an audit writes replace nothing else, and outputs that fail are told as that."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privlearn.accountants import CentralAccountant
from privlearn.cli.main import app, main
from privlearn.cli.output import BAD_INPUT, UNREAD
from privlearn.ledger import Ledger
from privlearn.losses.budgets import ZCDP
from privlearn.reporting.deployment_record import blank_about
from privlearn.reporting.evaluation import BEGINNING


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledgers") / "a.db"
    book = CentralAccountant(ZCDP("0.1"), users=range(4), ledger=Ledger.create(path))
    book.close()
    return path


def said(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(map(str, arguments)))
    return found.exit_code, " ".join(found.stderr.split())


@pytest.mark.parametrize("option", ["html", "registry", "evaluation", "plot", "about"])
def test_no_output_replaces_the_ledger(ledger: Path, option: str, tmp_path: Path) -> None:
    before = ledger.read_bytes()
    (tmp_path / "other.db").symlink_to(ledger)
    for name in (ledger, tmp_path / "other.db"):
        code, error = said("audit", ledger, f"--{option}", name)
        assert (code, error) == (
            2,
            f"error: --{option} {name} is the same file as the ledger: it stays as it is",
        )
    assert ledger.read_bytes() == before


@pytest.mark.parametrize("option", ["html", "registry", "evaluation"])
def test_no_output_replaces_what_is_none_of_its_kind(
    ledger: Path, option: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(ledger.read_bytes())
    about = tmp_path / "about.toml"
    about.write_text(_filled(), encoding="utf-8")
    for path in (other, tmp_path, Path("/dev/full")):
        code, error = said("audit", ledger, f"--{option}", path, *_with(option, about))
        assert code == BAD_INPUT
        assert f"{path}: there is something that is no " in error
    assert other.read_bytes() == ledger.read_bytes()
    missing = tmp_path / "none" / "file"
    code, error = said("audit", ledger, f"--{option}", missing, *_with(option, about))
    assert code == BAD_INPUT
    assert error == f"error: {missing}: there is no folder {missing.parent}"
    for _ in range(2):  # an older one is replaced
        assert said("audit", ledger, f"--{option}", tmp_path / "x", *_with(option, about))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["about.toml", "other.db", "x"]


def _with(option: str, about: Path) -> tuple[object, ...]:
    return ("--about", about) if option == "registry" else ()


def _filled() -> str:
    lines: list[str] = []
    for line in blank_about().splitlines():
        options = lines[-1].removeprefix("# One of: ") if lines else ""
        value = options.rstrip(".").split(", ")[0] if lines and "# One of" in lines[-1] else "x"
        lines.append(line.replace('= ""', f'= "{value}"').replace("= []", '= ["x"]'))
    return "\n".join(lines).replace('_date = "x"', '_date = "2026-11-01"')


def test_two_outputs_are_two_files(ledger: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    code, error = said("audit", ledger, "--registry", path, "--about", path)
    assert (code, error) == (
        2,
        f"error: --about {path} is the same file as --registry: it stays as it is",
    )
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a = " + "[" * 5000, "is no TOML"),
        ("[basic]\nname = 1", "basic.name = 1: must be text"),
        ("[basic]\nnam = 'x'", "basic.nam: no field of the registry"),
        (None, "no such file"),
    ],
)
def test_what_a_person_says_is_looked_at_for_an_evaluation_too(
    ledger: Path, tmp_path: Path, text: str | None, error: str
) -> None:
    about, page = tmp_path / "about.toml", tmp_path / "page.md"
    if text is not None:
        about.write_text(text, encoding="utf-8")
    code, told = said("audit", ledger, "--evaluation", page, "--about", about)
    assert code == BAD_INPUT
    assert error in told
    assert not page.exists()


def test_a_pipe_is_not_waited_for(ledger: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    about = said("audit", ledger, "--evaluation", tmp_path / "x", "--about", pipe)
    assert about == (2, f"error: {pipe} cannot be opened: it is no file")
    assert said("audit", pipe) == (4, f"error: {pipe}: is no file, but a pipe or device")
    for path in (pipe, tmp_path):  # and a folder is not named by the number of its handle
        assert said("certify", ledger, "--key", path) == (2, f"error: {path} is no file of a key")
        assert said("verify", path) == (2, f"error: {path} cannot be read: it is no file")


def test_an_evaluation_is_written_while_the_registry_asks(ledger: Path, tmp_path: Path) -> None:
    about, page = tmp_path / "about.toml", tmp_path / "page.md"
    record = tmp_path / "record.yaml"
    code, _ = said("audit", ledger, "--evaluation", page, "--registry", record, "--about", about)
    assert code == 9
    assert page.read_text(encoding="utf-8").startswith(f"{BEGINNING}\n")
    assert about.read_text(encoding="utf-8") == blank_about()
    assert not record.exists()


@pytest.mark.parametrize(
    "option",
    [["--html", "x"], ["--user", "1"], ["--by", "time"], ["--follow"], ["--rounds", "2"]],
    ids=" ".join,
)
def test_diff_takes_no_option_that_it_would_not_heed(ledger: Path, option: list[str]) -> None:
    code, error = said("audit", "diff", ledger, ledger, *option)
    assert (code, error) == (2, f"error: diff compares two ledgers; it takes no {option[0]}")


@contextmanager
def standard_output(file: int, encoding: str = "utf-8") -> Iterator[None]:
    """Puts a file in the place of the process's standard output."""
    text = io.TextIOWrapper(os.fdopen(file, "wb"), encoding=encoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", text)
        patch.setattr(sys, "__stdout__", text)
        yield
    text.close()


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    """The exit code of the command, run as the console script runs it."""
    monkeypatch.setattr(sys, "argv", ["privlearn", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_an_output_whose_reader_stopped_ends_the_command(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with standard_output(writing):
        assert ended(monkeypatch, "audit", ledger, *options) == UNREAD


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_full_disk_is_not_a_problem_of_the_ledger(
    ledger: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with standard_output(os.open("/dev/full", os.O_WRONLY)):
        assert ended(monkeypatch, "audit", ledger, *options) == BAD_INPUT
    assert "output cannot be written: No space left on device" in capsys.readouterr().err


def test_a_closed_output_is_told(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert ended(monkeypatch, "audit", ledger) == BAD_INPUT
    assert "the standard output is closed" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_of_few_letters_gets_everything(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str
) -> None:
    told = []
    for options in (["--full"], ["--json"]):
        path = tmp_path / "out"
        with standard_output(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), encoding):
            assert ended(monkeypatch, "audit", ledger, *options) == 0
        told.append(path.read_bytes().decode(encoding))
    assert "\\u03c1 = 0.1" in told[0]  # ρ
    assert json.loads(told[1])["balances"][0]["unit"] == "ρ"
