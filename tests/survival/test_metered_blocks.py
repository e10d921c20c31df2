"""Processes that die in code that is not ours: what it costs was paid before, and stays so."""

from __future__ import annotations

from pathlib import Path

from metered_deaths import EARLY, asked


def test_a_process_that_dies_in_a_block_has_paid_for_it(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    found = asked(path, path, 12, 3)
    assert (found.deaths, found.unpaid, found.freed, found.problems) == (12, 0, 0, [])
    assert found.within >= 4
    assert found.lost >= found.within
    assert len(set(found.points)) > 5


def test_a_block_that_begins_early_would_be_seen(tmp_path: Path) -> None:
    path, early = str(tmp_path / "ledger.db"), "before append (spend)"
    assert asked(path, path, 1, 0, EARLY, early).unpaid == 1
    path = str(tmp_path / "other.db")
    assert asked(path, path, 1, 0, "", early).unpaid == 0
