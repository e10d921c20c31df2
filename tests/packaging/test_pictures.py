"""The pictures of the documents: drawn by a tracked script, shown somewhere, and told in words."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from privlearn_studies.papers.plots import drawn_png

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["errata.md", *(f"explanations/{page.name}" for page in (DOCS / "explanations").iterdir())]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures/explanations.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_each_picture_of_the_script_is_shown_with_words_for_who_cannot_see(
    script: ModuleType,
) -> None:
    shown = {}
    for page in PAGES:
        for words, link in re.findall(
            r"!\[([^\]]*)\]\(([^)]+)\)", (DOCS / page).read_text("utf-8")
        ):
            shown[(DOCS / page).parent.joinpath(link).resolve()] = words
    drawn = {(DOCS / "pictures" / f"{name}.png").resolve() for name in script.PICTURES}
    assert drawn == set(shown)
    assert all(path.exists() for path in drawn)
    assert min(map(len, shown.values())) > 100


@pytest.mark.parametrize("name", ["adjacency", "errata-regret"])
def test_they_can_be_drawn_again(name: str, script: ModuleType) -> None:
    assert drawn_png(script.PICTURES[name]).startswith(b"\x89PNG")


def test_the_last_bits_tell_of_numpys_noise_only(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "N", 20_000)
    numpys, ours = script.numpys(0.0), script.ours(0.0)
    assert script.impossible(numpys, 10.0) == pytest.approx(0.247, abs=0.02)
    assert script.impossible(ours, 10.0) == 0
    assert script.last_bits(np.array([0.5, 0.75, 3.0])).tolist() == [-1, -2, 0]
