"""`privlearn run arms` and `run test`, as a newcomer, an operator and an auditor see them."""

from __future__ import annotations

import gc
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from privlearn.accountants import audit
from privlearn.cli.main import app
from privlearn.cli.output import BAD_INPUT
from privlearn.ledger import Ledger
from privlearn.runs.arm_configs import ABTestConfig, ArmConfig
from privlearn.runs.arm_logs import ArmLog, log_of
from privlearn.values.adjacency import Trust

LINES = 900
MEANS = {"old": 0.2, "new": 0.8, "odd": 0.1}
PUBLIC = {
    "billboard.json",
    "certificate.json",
    "certificate.md",
    "ledger.db",
    "ledger.db.head",
    "ledger.jsonl",
    "results.json",
}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["run", *map(str, words)])


def said(*words: object) -> tuple[int, str]:
    found = run(*words)
    return found.exit_code, " ".join(found.output.split())


def lines(seed: int = 0) -> list[list[str]]:
    """Cells of a log: arm, reward, and whose it is."""
    rng = np.random.default_rng(seed)
    arms = rng.choice(list(MEANS), LINES)
    return [
        [str(arm), str(int(rng.random() < MEANS[str(arm)])), f"p{n % 300}"]
        for n, arm in enumerate(arms)
    ]


def log(path: Path, cells: list[list[str]] | None = None, header: str = "shown,sold,who") -> Path:
    rows = lines() if cells is None else cells
    path.write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    return path


def words(path: Path, *more: object) -> list[object]:
    declared = ["--arms", "old,new,odd", "--arm", "shown", "--reward", "sold"]
    return ["--data", path, *declared, "--simulate-noise", 3, *more]


def results(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "public" / "results.json").read_text())
    return told


def config(path: Path, **more: Any) -> ArmConfig:
    settings = {"data": str(path), "arms": "old,new,odd", "arm": "shown", "reward": "sold"}
    return ArmConfig(**{**settings, **more})


# Without data -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["arms", "test"])
def test_simulated_visitors_need_no_data(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told = said(kind, "--horizon", 2000, "--simulate-noise", 0, "--out", out)
    assert code == 0, told
    assert "SIMULATED VISITORS, whose reward is 1 with the chance:" in told
    assert "ε = 1.0000, δ = 0)" in (out / "public" / "certificate.md").read_text()
    assert {path.name for path in (out / "public").iterdir()} == PUBLIC
    assert (out / "private").stat().st_mode & 0o077 == 0
    found = audit(out / "public" / "ledger.db")
    assert (found.problems, found.spends, found.closed) == ([], 1, True)
    (guarantee,) = found.guarantees
    assert guarantee.trust is Trust.JOINT
    assert guarantee.epsilon == pytest.approx(1, abs=1e-5)


# A log --------------------------------------------------------------------------------------------


def test_the_best_arm_of_a_log(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told = said("arms", *words(log(tmp_path / "log.csv")), "--out", out)
    assert code == 0, told
    assert "best arm: new" in told
    assert "the log has too few lines of 'new' left for the next phase" in told
    found = results(out)
    assert found["best"] == "new"
    used = (out / "private" / "visitors.csv").read_text().splitlines()[1:]
    each = [[int(cell) for cell in line.split(",")] for line in used]
    shown = log_of(config(tmp_path / "log.csv")).arms
    assert [arm for _, arm, _ in each] == shown[[row for _, _, row in each]].tolist()
    for arm in range(3):  # in the order of the log, each line once, none left out
        rows = [row for _, other, row in each if other == arm]
        assert rows == np.flatnonzero(shown == arm)[: len(rows)].tolist()
    assert sum(arm["visitors"] for arm in found["arms"]) == len(each)
    certificate = (out / "public" / "certificate.md").read_text()
    assert "column of arms is declared public" in certificate


def test_a_log_of_a_test(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told = said("test", *words(log(tmp_path / "log.csv")), "--out", out)
    assert code == 0, told
    assert "new is better than old" in told
    assert "odd against old: not decided yet" in told
    assert "too few lines" not in told  # it takes as many of each arm as there are of the rarest
    assert "you may look as often as you like" in told
    new, odd = results(out)["arms"]
    assert (new["decision"], odd["decision"]) == ("better", None)
    low, high = new["interval"]
    assert low < MEANS["new"] - MEANS["old"] < high
    assert 0 < new["p_value"] < 0.05 < odd["p_value"] <= 1


def test_people_of_a_log(tmp_path: Path) -> None:
    path = log(tmp_path / "log.csv")
    more = ["--people", "who", "--most", 2, "--budget", "epsilon=2"]
    code, told = said("arms", *words(path), *more, "--out", tmp_path / "arms")
    assert code == 0, told
    assert "learned from are at most 2 rows" in told
    code, told = said("test", *words(path), *more, "--out", tmp_path / "test")
    assert code == BAD_INPUT
    assert "use assume='coin'" in told
    assert not (tmp_path / "test").exists()
    code, told = said("test", *words(path), *more, "--assume", "coin", "--out", tmp_path / "test")
    assert code == 0, told
    (guarantee,) = audit(tmp_path / "test" / "public" / "ledger.db").guarantees
    assert guarantee.rule is not None


def test_rewards_that_cannot_be_used_are_null_and_change_no_other(tmp_path: Path) -> None:
    cells, odd = lines(), ["", "7", "-1", "x", "nan", "true", "FALSE", "1e999"]
    for row, cell in enumerate(odd):
        cells[row][1] = cell
    path = log(tmp_path / "log.csv", cells)
    found, before = log_of(config(path)), log_of(config(log(tmp_path / "whole.csv")))
    expected = [np.nan] * 5 + [1.0, 0.0, np.nan]
    np.testing.assert_array_equal(found.rewards[: len(odd)], expected)
    np.testing.assert_array_equal(found.rewards[len(odd) :], before.rewards[len(odd) :])
    assert sorted(found.messages) == [0, 1, 2, 3, 4, 7]
    out = tmp_path / "out"
    code, told = said("arms", *words(path), "--out", out)
    public, _, private = told.partition("for the operator only:")
    assert code == 0
    assert "null" in private
    assert "null" not in public
    wide = log_of(config(path, reward_range="-1:7"))
    np.testing.assert_array_equal(wide.rewards[:4], [np.nan, 7, -1, np.nan])


@pytest.mark.filterwarnings("error")
def test_no_reward_that_can_be_used_is_told_to_the_operator_only(tmp_path: Path) -> None:
    cells = [[arm, "?", who] for arm, _, who in lines()[:60]]
    code, told = said("arms", *words(log(tmp_path / "log.csv", cells)), "--out", tmp_path / "out")
    assert code == 0, told
    assert "WARNING: NO RECORD COUNTED" in told.partition("for the operator only:")[2]


def test_a_log_that_ends_before_the_first_phase_does(tmp_path: Path) -> None:
    path = log(
        tmp_path / "log.csv", [["old", "1", "p"], *[["new", "1", "p"], ["odd", "0", "q"]] * 9]
    )
    out = tmp_path / "out"
    code, told = said("arms", *words(path), "--out", out)
    assert code == 0, told
    assert "nothing is known: no phase has ended" in told
    assert "the run ends after 0 of 19 visitors" in told
    assert results(out)["best"] is None
    assert audit(out / "public" / "ledger.db").problems == []


def test_a_parquet_log(tmp_path: Path) -> None:
    path, cells = tmp_path / "log.parquet", lines()
    sold = [bool(int(reward)) for _, reward, _ in cells]
    table = pyarrow.table({"shown": [arm for arm, _, _ in cells], "sold": [None, *sold[1:]]})
    parquet.write_table(table, path)
    found = log_of(config(path))
    np.testing.assert_array_equal(found.rewards, [np.nan, *map(float, sold[1:])])
    numbered = pyarrow.table({"shown": [1, 2, 9], "sold": [1.0, 0.0, 1.0]})
    parquet.write_table(numbered, path)
    more = ["--arms", "1,2", "--arm", "shown", "--reward", "sold", "--out", tmp_path / "out"]
    code, told = said("arms", "--data", path, *more)
    assert code == BAD_INPUT
    assert "row 2: the arm, column 'shown', is 9" in told


def test_nothing_public_tells_whether_rewards_could_be_used(tmp_path: Path) -> None:
    found = []
    for reward in ("1", "x", "7"):  # in a test no arm differs from another
        folder = tmp_path / reward
        folder.mkdir()
        path = log(folder / "log.csv", [[arm, reward, whose] for arm, _, whose in lines()])
        code, told = said("test", *words(path), "--out", folder / "out")
        public, _, _ = told.replace(str(folder), "").partition("for the operator only:")
        files = {each.name for each in (folder / "out" / "public").iterdir()}
        names = re.sub(r"\S*\d\S*", "#", public)
        found.append((code, names, files, results(folder / "out")["visitors"]))
    assert found[0] == found[1] == found[2]
    assert found[0][0] == 0


def test_who_is_compared_came_at_the_same_time_in_either_order() -> None:
    arms = (np.random.default_rng(3).random(4_000) < 0.3).astype(np.int64)
    one, two = (ArmLog(("a", "b"), arms, np.zeros(4_000), {}) for _ in range(2))
    one.group()
    two.group()
    shown = np.resize([0, 1], one.visitors)
    rows = one.take(shown).rows
    np.testing.assert_array_equal(rows, two.take(shown).rows)  # whoever resumes finds the same
    np.testing.assert_array_equal(arms[rows], shown)
    assert len(set(rows.tolist())) == len(rows) > 0.9 * 2 * arms.sum()
    before, after = rows.reshape(-1, 2).T
    assert np.abs(before - after).max() < 256
    ahead = before < after
    assert abs(ahead.mean() - 0.5) < 2 / np.sqrt(len(ahead))
    # nor does one group tell of the next: with the next unused lines, nearly always
    assert abs((ahead[1:] == ahead[:-1]).mean() - 0.5) < 2 / np.sqrt(len(ahead))


def test_arms_that_were_never_shown_at_the_same_time_are_not_compared(tmp_path: Path) -> None:
    path = log(
        tmp_path / "log.csv", [[arm, "1", "p"] for arm in ("old", "new") for _ in range(256)]
    )
    more = ["--arms", "old,new", "--arm", "shown", "--reward", "sold", "--out", tmp_path / "out"]
    code, told = said("test", "--data", path, *more)
    assert (code, "arms: no 256 lines in a row have all of old, new" in told) == (BAD_INPUT, True)
    assert not (tmp_path / "out").exists()


# What is wrong before anything is spent -----------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--arm", "banner"], "arm = 'banner': no column of"),
        (["--reward", "clicks"], "reward = 'clicks': no column of"),
        (["--people", "id", "--most", 1], "people = 'id': no column of"),
        (["--arms", "old,new"], "the arm, column 'shown', is 'odd' (and so in"),
        (["--arms", "old,new,odd,blue"], "'blue' has no line in"),
        (["--arms", "old,old"], "arms: each once"),
        (["--arms", "old"], "arms = 'old': name at least two"),
        (["--reward-range", "0"], "reward_range = '0': must be low:high, such as 0:1"),
        (["--reward-range", "1:0"], "reward_range = 1:0: must be finite, low < high"),
        (["--budget", "1"], "budget = '1': must be epsilon=…, rho=…"),
        (["--budget", "epsilon=-1"], "epsilon = -1 must lie between"),
        (["--means", ".1,.2"], "means: of simulated visitors only"),
        (["--most", 2], "most: needs people"),
        (["--horizon", 3], "each is first shown to"),
        (["--reward", "shown"], "must be different columns"),
    ],
)
def test_a_newcomers_mistakes_are_named(
    changed: list[object], message: str, tmp_path: Path
) -> None:
    path = log(tmp_path / "log.csv")
    code, told = said("arms", *words(path), *changed, "--out", tmp_path / "out")
    assert (code, message in told) == (BAD_INPUT, True), told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; its first line must name the columns"),
        ("shown,sold\n", "there is no row"),
        ("old,1\nnew,0\n", "the first line must name every column"),
        ("shown,sold\nold,1\n,0\nnew,1\nodd,1\n", "line 3: the arm, column 'shown', is blank"),
        ('shown,sold\nold,1\nnew,"0\nodd,1\n', "line 3: the arm, column 'shown', is blank"),
    ],
)
def test_a_file_that_is_no_log_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    code, told = said("arms", *words(path), "--out", tmp_path / "out")
    assert (code, message in told) == (BAD_INPUT, True), told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arm": "x"}, "arm: is of a log"),
        ({"means": ".5,1.5"}, "1.5 must be a chance"),
        ({"means": ".5,x"}, r"(?s)means.1\b.*should be a valid number"),
        ({"means": ".5,.6", "arms": "a,b,c"}, "name as many arms"),
        ({"horizon": 10**7}, "simulated visitors"),
        ({"data": "x.csv", "arms": "a,b", "arm": "c"}, "reward: name the column"),
        ({"reward_range": [0]}, r"must be low:high, such as 0:1, or \[0, 1\] in a file"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ABTestConfig(**settings)


def test_a_look_spends_nothing_and_is_told(tmp_path: Path) -> None:
    path, out = log(tmp_path / "log.csv"), tmp_path / "out"
    code, told = said("arms", *words(path), "--look", "--out", out)
    assert code == 0, told
    assert "3 arms (old, new, odd)" in told
    looked = (out / "private" / "look.txt").read_text()
    assert "records: 900 of 900 would count" in looked
    assert "  new: " in looked
    assert not (out / "public").exists()
    assert said("arms", *words(path), "--out", out)[0] == 0
    assert "looked at the records" in (out / "public" / "certificate.md").read_text()
    assert said("test", "--look", "--out", out)[0] == BAD_INPUT


# Going on -----------------------------------------------------------------------------------------


class _Ended(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("kind", ["arms", "test"])
@pytest.mark.parametrize("entry", ["phase", "publish"])
def test_a_run_that_was_cut_off_goes_on_with_the_next_lines(
    kind: str, entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = log(tmp_path / "log.csv"), tmp_path / "out"
    settings = words(path, "--out", out)
    append, left = Ledger.append, [3]

    def dying(self: Ledger, entered: Any, **more: Any) -> None:
        append(self, entered, **more)
        if self._disk is not None and entered.entry == entry:
            left[0] -= 1
            if not left[0]:
                self._disk._end()
                raise _Ended

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "append", dying)
        with suppress(_Ended):
            assert run(kind, *settings).exit_code != 0
    gc.collect()  # what it had open
    code, told = said(kind, *settings, "--resume")
    assert code == 0, told
    assert "the run was cut off and goes on with user" in told
    found = audit(out / "public" / "ledger.db")
    assert (found.problems, found.closed) == ([], True)
    used = (out / "private" / "visitors.csv").read_text().splitlines()[1:]
    each = [[int(cell) for cell in line.split(",")] for line in used]
    source, before = log_of(config(path)), []
    if kind == "test":
        source.group()
    for arm in range(3):
        places = source._lines[arm].tolist()
        rows = [row for _, other, row in each if other == arm]
        before.append(places.index(rows[0]) if rows else 0)
        assert rows == places[before[-1] : before[-1] + len(rows)]
    assert sum(before) <= each[0][0]  # no line twice; of arms that nobody more was shown, none
    assert sum(before) > 0
    assert said(kind, *settings, "--resume")[0] == BAD_INPUT
