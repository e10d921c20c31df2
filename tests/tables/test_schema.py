"""Schemas: what they refuse, and that they are the same after a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn.errors import DataError
from privlearn.tables import Boolean, Category, Date, Ignored, Number, Schema

pd: Any = pytest.importorskip("pandas")

EVERY = Schema(
    {
        "age": Number(17, 45, unit="years"),
        'odd "name"\t=€𝄞': Number(1, 9.5, log=True, optional=True, missing="null"),
        "job": Category(["clerk", 'a"b\\', "é"], other=True),
        "grade": Category([1, 2, 3]),
        "born": Date("1950-01-01", "2020-12-31", optional=True),
        "member": Boolean(optional=True),
        "note": Ignored(),
        "affair": Category(["no", "yes"]),
    },
    target="affair",
    person="id",
    rows_per_person=3,
    separator=";",
    decimal=",",
    thousands=".",
    encoding="cp1252",
    looked_at_data=True,
)


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_schema_is_the_same_after_a_file(tmp_path: Path, ending: str) -> None:
    EVERY.save(tmp_path / f"schema.{ending}")
    assert Schema.load(tmp_path / f"schema.{ending}") == EVERY
    assert eval(repr(EVERY)) == EVERY
    assert EVERY.features == ("age", 'odd "name"\t=€𝄞', "job", "grade", "born", "member")
    assert EVERY.classes == ("no", "yes")
    assert EVERY.without_target().features == EVERY.features


def test_a_repr_has_what_is_no_default() -> None:
    assert repr(Number(20, 80)) == "Number(20, 80)"
    schema = Schema({"d": Date("2020-01-01", "2020-12-31", optional=True)})
    assert repr(schema) == "Schema({'d': Date('2020-01-01', '2020-12-31', optional=True)})"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Number(5, 3), "low = 5, high = 3"),
        (lambda: Number(min=0, high=1), "low: is missing; min: is no argument"),  # type: ignore[call-arg]
        (lambda: Number("1", 3), "finite number"),  # type: ignore[arg-type]  # what is refused
        (lambda: Number(0, 3, log=True), "positive bounds"),
        (lambda: Number(0, float("inf")), "finite"),
        (lambda: Category("ab"), "list of labels"),
        (lambda: Category([]), "at least one label"),
        (lambda: Category(["1", 1]), "twice"),
        (lambda: Category([True, 1]), "twice"),
        (lambda: Date("2021-01-01", "2020-01-01"), "before high"),
        (lambda: Schema({"y": Category(["x"])}, target="y"), "two classes or more"),
        (lambda: Schema({}, target="y"), "has no kind"),
        (lambda: Schema({"y": Date("2020-01-01", "2021-01-01")}, target="y"), "is a Date"),
        (lambda: Schema({"y": Number(0, 1)}, target="y", person="y"), "is the target"),
        (lambda: Schema({"a": 3}), "'a': must be Number"),  # type: ignore[dict-item]
        (lambda: Schema({}, rows_per_person=2), "person's id"),
        (lambda: Schema({}, separator="::"), "separator"),
        (lambda: Schema({}, encoding="utf-16"), "encoding"),
        (lambda: Schema({}, decimal=",", thousands=","), "thousands"),
        (lambda: Schema.of_arrays(2, [(0, 1)] * 3), "2 pairs"),
        (lambda: Schema.of_arrays(2, {"x0": (0, 1)}), "'x1'"),
        (lambda: Schema.of_arrays(1, (0, 1), target_bounds=(0, 1), classes=[0, 1]), "one of"),
    ],
)
def test_what_can_be_seen_in_a_schema_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_draft_is_of_names_and_types_and_refuses_to_be_used(tmp_path: Path) -> None:
    frames = [
        pd.DataFrame({"age": [age], "job": [job], "member": [True], "2000": [1.5], "": [1]})
        for age, job in ((17, "secret"), (99, "other"))
    ]
    drafts = [Schema.draft(frame) for frame in frames]
    assert drafts[0] == drafts[1]
    path = tmp_path / "draft.toml"
    path.write_text(drafts[0], encoding="utf-8")
    with pytest.raises(DataError, match=r"columns\.age\.low, columns\.age\.high.*columns\.2000"):
        Schema.load(path)
    told = drafts[0].replace('low = "?"', "low = 1").replace('high = "?"', "high = 2")
    path.write_text(told.split("job =")[0], encoding="utf-8")
    assert Schema.load(path).columns["age"] == Number(1, 2)


def test_arrays_have_one_pair_or_a_pair_per_column_or_names() -> None:
    one = Schema.of_arrays(2, (-5, 5), classes=np.array([0, 1]))
    assert one.columns == {"x0": Number(-5, 5), "x1": Number(-5, 5), "y": Category([0, 1])}
    named = Schema.of_arrays(2, {"y": (0, 1), "b": (0, 2)}, names=["y", "b"], target_bounds=(0, 1))
    assert named.target == "y_"
    assert named.features == ("y", "b")
