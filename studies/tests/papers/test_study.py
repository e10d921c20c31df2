"""What all studies share: the store of finished runs, digests of source, compact files."""

from __future__ import annotations

import importlib
import inspect
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.errors import DataError
from privlearn.learners import DPMNL
from privlearn.noise import NoiseSource
from privlearn_studies.papers import provenance
from privlearn_studies.papers.plots import PALETTE, few_colours
from privlearn_studies.papers.provenance import array_digest, source_digest, source_files
from privlearn_studies.papers.study import Finished, compact_json

PAPERS = ("cho_sun", "han2021", "han2022")


class Played(NamedTuple):
    value: float
    curve: list[float]


RUN = {"cell": {"player": "θ", "p": "inf"}, "seed": 3}


def test_finished_runs_are_found_again(tmp_path: Path) -> None:
    path, settings = tmp_path / "runs.jsonl", {"format": 1}
    finished = Finished.open(path, settings, Played)
    assert RUN not in finished
    finished.add(RUN, Played(0.1, [0.05, 0.1]))
    again = Finished.open(path, settings, Played)
    assert again[RUN] == Played(0.1, [0.05, 0.1])
    assert {**RUN, "seed": 4} not in again
    assert {**RUN, "cell": {"player": "θ", "p": "2"}} not in again
    with pytest.raises(DataError, match="format = 1 there, 2 now"):
        Finished.open(path, {"format": 2}, Played)


@pytest.mark.parametrize("line", ['{"value": 1}', "[1]", '"value"', "{", "7"])
def test_a_line_that_is_no_run_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "runs.jsonl"
    Finished.open(path, {}, Played)
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match="line 2: this is no finished run; remove the line"):
        Finished.open(path, {}, Played)


# Provenance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_source_of_runs_has_all_that_runs_import_and_nothing_that_writes(paper: str) -> None:
    module = importlib.import_module(f"privlearn_studies.papers.{paper}.experiments")
    files = source_files(module.__name__)
    assert files[module.__name__] == Path(inspect.getfile(module))
    used = {value.__module__ for value in vars(module).values() if hasattr(value, "__module__")}
    used = {name for name in used if isinstance(name, str) and name.startswith("privlearn")}
    assert len(used) > 5
    assert used <= files.keys()
    rooms = {name.split(".")[1] for name in files if "." in name}
    assert not rooms & {"cli", "checking", "reporting"}
    for written in ("tables", "figures", "reproduction"):
        assert f"privlearn_studies.papers.{paper}.{written}" not in files


def test_imports_inside_functions_count() -> None:
    files = source_files("privlearn_studies.papers.cho_sun.experiments")
    for used in (DPMNL, JointAccountant, NoiseSource):
        assert files[used.__module__] == Path(inspect.getfile(used))
    late = "privlearn.accountants.fourier"
    assert not hasattr(
        importlib.import_module("privlearn_studies.papers.cho_sun.experiments"), "fourier"
    )
    assert late in files


def test_the_digest_changes_with_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("", "ascii")
    two.write_text("", "ascii")
    monkeypatch.setattr(provenance, "source_files", lambda name: {"one": one, "two": two})
    digests = [source_digest(provenance)]
    for path in (one, two):
        path.write_text("x = 1", "ascii")
        digests.append(source_digest(provenance))
    assert len(set(digests)) == 3


def test_the_digest_of_arrays_sees_values_and_shapes() -> None:
    values = np.arange(6.0)
    digests = {array_digest(a) for a in (values, values + 1, values.reshape(2, 3))}
    assert len(digests | {array_digest(values[:3], values[3:])}) == 4
    assert array_digest(values[::-1]) == array_digest(values[::-1].copy())


# Files ---------------------------------------------------------------------------------------


def test_compact_json_has_a_line_for_every_entry_of_entries() -> None:
    record: dict[str, Any] = {
        "command": "privlearn θ",
        "values": [1, 2.5],
        "empty": {},
        "found": {"a": {"b": [1, 2]}, "c": None},
        "cells": [{"x": 1}, {"x": 2}],
    }
    text = compact_json(record)
    assert json.loads(text) == record
    lines = text.splitlines()
    assert len(lines) == 2 + 3 + 4 + 4
    assert '  "a": {"b": [1, 2]},' in lines
    assert '  {"x": 2}' in lines
    with pytest.raises(ValueError, match="JSON compliant"):
        compact_json({"x": float("nan")})


def test_a_palette_makes_pictures_smaller_and_changes_them_little() -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 255, 300)[None, :, None] * np.array([1.0, 0.5, 0.2])
    pixels = np.clip(ramp + rng.integers(0, 3, (200, 300, 3)), 0, 255).astype(np.uint8)
    pixels[50:60] = (192, 57, 43)
    drawn = io.BytesIO()
    Image.fromarray(pixels).save(drawn, "png")
    png = few_colours(drawn.getvalue())
    assert len(png) < len(drawn.getvalue()) / 2
    assert png == few_colours(drawn.getvalue())
    with Image.open(io.BytesIO(png)) as picture:
        again = np.asarray(picture.convert("RGB")).astype(int)
    assert len(np.unique(again.reshape(-1, 3), axis=0)) <= PALETTE
    assert np.abs(again - pixels).max() <= 12
