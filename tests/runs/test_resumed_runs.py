"""Runs that are killed go on with --resume, in the same folder and with the same settings."""

from __future__ import annotations

import errno
import gc
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privlearn.accountants import audit
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT
from privlearn.errors import LedgerError
from privlearn.ledger import Ledger
from privlearn.runs import common


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in ("run", *words)])
    return result.exit_code, " ".join(result.output.split())


class _Ended(BaseException):
    """The end of a process."""


def ended(patch: pytest.MonkeyPatch, entries: int, *words: object) -> None:
    """A run whose process ends behind an entry of its ledger's file: it leaves its files as is."""
    append, left = Ledger.append, [entries]

    def dying(self: Ledger, entry: Any, **more: Any) -> None:
        append(self, entry, **more)
        if self._disk is not None:
            left[0] -= 1
            if not left[0]:
                self._disk._end()
                raise _Ended

    with patch.context() as patched:
        patched.setattr(Ledger, "append", dying)
        with pytest.raises(_Ended):
            run(*words)
    gc.collect()  # what it had open


@pytest.fixture(scope="module")
def choices(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Settings of a run on a small file of logged choices."""
    path = tmp_path_factory.mktemp("data") / "choices.csv"
    lines = ["user,chosen,price,size,who"]
    for user in range(120):
        for item in range(3):
            chosen = int(item == user % 3)
            lines.append(f"{user},{chosen},{item / 3},{(user % 7) / 7},{user % 50}")
    path.write_text("\n".join(lines))
    return ["mnl", "--data", path, "--items", 3, "--horizon", 120, "--simulate-noise", 3]


@pytest.mark.parametrize("entries", [1, 2, 8])
def test_a_run_on_a_file_goes_on(
    entries: int, choices: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    ended(monkeypatch, entries, *choices, "--out", out)
    code, told = run(*choices, "--out", out)
    assert code == BAD_INPUT
    assert "--resume goes on with a run that was cut off" in told
    code, told = run(*choices, "--horizon", 119, "--out", out, "--resume")
    assert code == BAD_INPUT
    assert "horizon = 119: the run in" in told
    assert "was begun with 120" in told
    code, told = run(*choices, "--out", out, "--resume")
    assert code == 0, told
    assert "the run was cut off and goes on with user" in told
    found = audit(out / "public" / "ledger.db")
    assert (found.problems, found.lost > 0) == ([], entries == 8)
    assert (f"spends lost with it: {found.lost}, which stay charged" in told) is (entries == 8)
    model = json.loads((out / "public" / "model.json").read_text())
    assert model["state"]["clock"] == 120
    code, told = run(*choices, "--out", out, "--resume")
    assert code == BAD_INPUT
    assert "is closed: the run has learned from everybody" in told


def test_situations_have_the_same_places_when_a_run_goes_on(
    choices: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_id = [*choices, "--situation", "user", "--horizon", 150]
    assert run(*by_id, "--out", tmp_path / "whole")[0] == 0
    ended(monkeypatch, 2, *by_id, "--out", tmp_path / "cut")
    code, told = run(*by_id, "--out", tmp_path / "cut", "--resume")
    assert code == 0, told
    models = [
        json.loads((tmp_path / out / "public" / "model.json").read_text())
        for out in ("whole", "cut")
    ]
    assert models[0] == models[1]


def test_a_run_that_ended_before_its_first_entry_is_begun_anew(
    choices: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    create = Ledger.create

    def dying(*args: Any, **settings: Any) -> None:
        create(*args, **settings)._disk._end()  # type: ignore[union-attr]
        raise _Ended

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "create", dying)
        with pytest.raises(_Ended):
            run(*choices, "--out", out)
    gc.collect()
    assert (out / "public" / "ledger.db").exists()
    code, told = run(*choices, "--out", out, "--resume")
    assert code == 0, told
    assert "cut off" not in told
    assert audit(out / "public" / "ledger.db").problems == []


def test_rows_that_were_kept_are_removed_though_the_run_ended_just_before_that(
    choices: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def dying(folders: common.Folders) -> None:
        if folders.begun:
            raise _Ended

    with monkeypatch.context() as patched:
        patched.setattr(common, "_remove_rows", dying)
        with pytest.raises(_Ended):
            run(*choices, "--out", out)
    gc.collect()
    assert list((out / "private").glob("rows.*"))
    code, told = run(*choices, "--out", out, "--resume")
    assert code == BAD_INPUT
    assert "is closed" in told
    assert not list((out / "private").glob("rows.*"))


def test_simulated_people_go_on_with_their_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    words = ["mnl", "--task", "returning", "--horizon", 600, "--simulate-noise", 3, "--out", out]
    ended(monkeypatch, 9, *words)
    code, told = run(*words, "--resume")
    assert code == 0, told
    assert audit(out / "public" / "ledger.db").problems == []
    assert "total regret" in told


def test_a_registry_in_memory_ends_with_its_run(
    choices: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    words = [*choices, "--people", "who", "--most", 1, "--pooled", "--out", out]
    ended(monkeypatch, 6, *words)
    code, told = run(*words, "--resume")
    assert code == BAD_INPUT
    assert "who came was kept in memory" in told


def test_a_folder_of_no_run_is_not_gone_on_with(choices: list[object], tmp_path: Path) -> None:
    (tmp_path / "something").write_text("else")
    code, told = run(*choices, "--out", tmp_path, "--resume")
    assert code == BAD_INPUT
    assert "it is no run to go on with" in told


TABLE = ["tofw", "--data", "diabetes", "--horizon", 60, "--simulate-noise", 3]


def public(out: Path, name: str) -> Any:
    return json.loads((out / "public" / name).read_text())


def entries_of(out: Path) -> list[str]:
    lines = (out / "public" / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line)["entry"]["body"]["entry"] for line in lines[1:]]


def test_a_run_that_was_cut_off_between_its_steps_makes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was: its model is the one that it would have had."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run(*TABLE, "--out", whole)[0] == 0
    entries = entries_of(whole)
    places = [i + 1 for i, entry in enumerate(entries) if entry == "retire"]
    for entry in [places[0], places[len(places) // 2]]:
        shutil.rmtree(out, ignore_errors=True)
        ended(monkeypatch, entry, *TABLE, "--out", out)
        code, told = run(*TABLE, "--out", out, "--resume")
        assert code == 0, told
        assert "records: all 60 counted" in told
        assert "never made" not in told
        assert public(out, "model.json") == public(whole, "model.json")
        assert (
            audit(out / "public" / "ledger.db").spends
            == audit(whole / "public" / "ledger.db").spends
        )


def test_a_run_that_lost_what_its_plan_builds_on_is_refused_and_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run(*TABLE, "--out", whole)[0] == 0
    ended(monkeypatch, entries_of(whole).index("reach") + 1, *TABLE, "--out", out)
    for _ in range(2):
        code, told = run(*TABLE, "--out", out, "--resume")
        assert code == BAD_INPUT
        assert "what it had released first was lost" in told
        assert "16 of 'step' for users 0 to 59" in told
        assert not (out / "public" / "model.json").exists()
        found = audit(out / "public" / "ledger.db")
        assert (found.closed, found.spends, found.lost, found.problems) == (False, 1, 1, [])


def test_what_a_resumed_run_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an epoch the choice of columns was lost, and with it what was to be measured there."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = ["pofw", *TABLE[1:], "--method", "choices"]
    assert run(*words, "--out", whole)[0] == 0
    ended(monkeypatch, entries_of(whole).index("spend") + 1, *words, "--out", out)
    code, told = run(*words, "--out", out, "--resume")
    assert code == 0
    lost = re.search(
        r"spends lost with it: 1, which .*? \('choice' for users 0 to (\d+)\) planned and never "
        r"made: 1 of 'values' for users 0 to \1, .*came before the run was cut off, and is in no",
        told,
    )
    assert lost, told
    users = int(lost[1]) + 1
    assert f"records: {60 - users} of 60 counted, {users} were null" in told
    assert "planned and never made" in public(out, "model.json")["warnings"][-1]


@pytest.mark.parametrize(
    "words",
    [
        TABLE,
        ["pofw", *TABLE[1:]],
        ["hdb", "--data", "digits", "--horizon", 200, "--simulate-noise", 3],
        ["mnl", "--task", "market", "--horizon", 300, "--simulate-noise", 3],
        ["ldp-sgd", "--epsilon", 1, "--horizon", 300, "--simulate-noise", 3],
    ],
    ids=lambda words: str(words[0]),
)
def test_a_full_disk_is_told_as_an_interrupt_is(
    words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, spends = Ledger.append, [1]

    def full(self: Ledger, entry: Any, **more: Any) -> None:
        if not spends[0]:
            raise LedgerError("the disk is full")
        append(self, entry, **more)
        spends[0] -= entry.entry == "spend"

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "append", full)
        code, told = run(*words, "--out", out)
    assert code == BAD_INPUT
    assert told.startswith("error: the disk is full stopped; ")
    path = out / ("private/devices.db" if words[0] == "ldp-sgd" else "public/ledger.db")
    found = audit(path)
    assert f"spent so far, in {found.spends} spends ({found.lost} of them lost): " in told
    assert "of the plan or cap: ρ = " in told
    assert f"the ledger {path} stays open; look at it: privlearn audit {path}" in told
    going_on = (
        "a new one needs another folder" if words[0] == "ldp-sgd" else "with --resume goes on"
    )
    assert going_on in told


def test_files_that_cannot_be_written_leave_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write, full = tmp_path / "out", Path.write_text, ["model.json"]

    def written(self: Path, *given: Any, **more: Any) -> int:
        if self.name in full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, *given, **more)

    monkeypatch.setattr(Path, "write_text", written)
    code, told = run(*TABLE, "--out", out)
    for name in ("held_out.json", "certificate.md"):
        assert code == BAD_INPUT
        assert "error: output cannot be written: No space left on device" in told
        assert "with --resume goes on" in told
        full[:] = [name]
        code, told = run(*TABLE, "--out", out, "--resume")
    assert code == BAD_INPUT
    assert "is closed: nothing more can be spent" in told
    assert "--resume" not in told
    assert public(out, "model.json")["state"]["clock"] == 60
