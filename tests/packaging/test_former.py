"""Former names: each answers with the new one, which exists."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from privlearn import _former

NAMES = [(p, old, new) for p, names in _former._NAMES.items() for old, new in names.items()]


def place(dotted: str) -> Any:
    """What stands at a dotted name: a module, or an attribute of one or of a class in it."""
    parts = dotted.split(",")[0].split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AssertionError(dotted)


@pytest.mark.parametrize("old", _former._MODULES)
def test_a_former_module_answers_with_the_present_one(old: str) -> None:
    new = f"privlearn.{_former._MODULES[old]}"
    with pytest.raises(ImportError, match=rf"^privlearn\.{old} is now {new}$"):
        importlib.import_module(f"privlearn.{old}")
    assert place(new) is not None


@pytest.mark.parametrize(("package", "old", "new"), NAMES)
def test_a_former_name_answers_with_the_present_one(package: str, old: str, new: str) -> None:
    home = ".".join(filter(None, ["privlearn", package]))
    with pytest.raises(ImportError, match=rf"^{home}\.{old} is now {new}$"):
        exec(f"from {home} import {old}", {})
    module = importlib.import_module(home)
    assert not hasattr(module, old)
    with pytest.raises(AttributeError, match=rf"^{home}\.{old} is now {new}$"):
        getattr(module, old)
    assert place(new) is not None


def test_names_that_never_were_are_missing_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'privlearn\.unicorns'"):
        importlib.import_module("privlearn.unicorns")
    with pytest.raises(ImportError, match="cannot import name 'unicorn'"):
        exec("from privlearn import unicorn", {})
    assert not hasattr(importlib.import_module("privlearn.losses"), "unicorn")
