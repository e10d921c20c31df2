"""The shipped bytes: what they are, and that their error bounds are proved."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from table_building import cell_place, fitted_cell, proved_error, table_bytes

from privlearn.errors import NoiseSamplerError
from privlearn.noise.exact import pool, tables
from privlearn.noise.exact.tables import CELLS, OCTAVES, SHA256, Table, shipped_tables

NAMES = [table.family.name for table in shipped_tables()]


def table_named(name: str) -> Table:
    return shipped_tables()[NAMES.index(name)]


def test_the_file_is_the_one_that_was_proved() -> None:
    assert hashlib.sha256(tables.FILE.read_bytes()).hexdigest() == SHA256
    assert table_bytes(shipped_tables()) == tables.FILE.read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("half", [0, 1])
def test_every_error_bound_is_proved(name: str, half: int) -> None:
    table = table_named(name)
    for index in range(half, CELLS, 2):
        assert table.centre[index] == cell_place(index)[0]
        if table.error[index] < 1:
            numbers = table.coefficients[:, index].tolist()
            proved = proved_error(table.family, index, int(table.base[index]), numbers)
            assert proved <= table.error[index], index


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_coefficient_has_no_proof(name: str) -> None:
    table = table_named(name)
    for index in (CELLS - 1, CELLS // 2 + 17):
        base = int(table.base[index])
        for degree in range(4):
            numbers = table.coefficients[:, index].tolist()
            half_width = float(cell_place(index)[1])
            numbers[degree] += 4 * table.error[index] / half_width**degree
            assert proved_error(table.family, index, base, numbers) > table.error[index]
        numbers = table.coefficients[:, index].tolist()
        assert proved_error(table.family, index, base + 1, numbers) == 1.0


def test_cells_cover_what_they_say() -> None:
    ends = [cell_place(index) for index in range(CELLS)]
    assert ends[0][0] - ends[0][1] == 1 << 63 - OCTAVES
    assert ends[-1][0] + ends[-1][1] == 1 << 63
    for (one, half), (two, next_half) in pairwise(ends):
        assert one + half == two - next_half


@pytest.mark.parametrize(
    ("name", "most"), list(zip(NAMES, [3e-6, 6e-6, 6.5e-6, 2.5e-6], strict=True))
)
def test_the_share_of_slow_draws(name: str, most: float) -> None:
    chance = np.array([2.0 * cell_place(index)[1] / 2.0**63 for index in range(CELLS)])
    share = (np.minimum(2 * table_named(name).error, 1) * chance).sum() + 2.0**-OCTAVES
    assert share < most


def test_fitting_is_reproducible() -> None:
    for table in shipped_tables():
        for index in (CELLS - 1, CELLS - 300, CELLS - 2000):
            base, numbers = fitted_cell(table.family, index)
            assert abs(base - int(table.base[index])) <= 1
            assert np.allclose(numbers[1:], table.coefficients[1:, index], rtol=1e-12)


def test_other_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(tables.FILE.read_bytes())
    data[500_000] ^= 1
    (tmp_path / "tables.bin").write_bytes(data)
    said = {"tables.bin": f"must have {SHA256}", "none.bin": r"none\.bin: is missing"}
    for name, words in said.items():
        monkeypatch.setattr(tables, "FILE", tmp_path / name)
        with pytest.raises(NoiseSamplerError, match=words):
            shipped_tables.__wrapped__()


def test_other_arithmetic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a machine that rounds in another way: numbers of a table that are a little off."""
    pool.check_sampler.__wrapped__()
    normal, *rest = shipped_tables()
    off = Table(normal.family, normal.centre, normal.base + 1, normal.coefficients, normal.error)
    monkeypatch.setattr(pool, "shipped_tables", lambda: (off, *rest))
    with pytest.raises(NoiseSamplerError, match="not IEEE 754"):
        pool.check_sampler.__wrapped__()


def test_a_file_that_changes_later_changes_no_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation that is written over in place."""
    path = tmp_path / "tables.bin"
    data = tables.FILE.read_bytes()
    path.write_bytes(data)
    monkeypatch.setattr(tables, "FILE", path)
    read = shipped_tables.__wrapped__()
    with path.open("r+b") as file:
        file.write(bytes(len(data)))
    assert table_bytes(read) == data
    assert not any(table.base.flags.writeable for table in read)
