"""Three tables that scikit-learn ships, with public constants of their own.

The bounds were chosen with these data in view, and certificates say so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import numpy as np

from privlearn.errors import DataError
from privlearn.tables import Category, Schema, Table, read


@dataclass(frozen=True, slots=True)
class Shipped:
    """A table of scikit-learn; its schema stands in ``privlearn/runs/files``.

    Attributes:
        load: the function of `sklearn.datasets`, and its arguments.
        origin: where the bounds come from.
        default: the classes that count unless others are asked for.
    """

    load: tuple[str, Mapping[str, Any]]
    origin: str
    default: tuple[str, ...] | None = None


SHIPPED: Final = {
    "diabetes": Shipped(
        ("load_diabetes", {"scaled": False}), "round numbers about the usual clinical ranges"
    ),
    "breast_cancer": Shipped(
        ("load_breast_cancer", {}),
        "round numbers within the minima and maxima of scikit-learn's description",
    ),
    "digits": Shipped(
        ("load_digits", {}),
        "the documented range 0..16 of pixels, extended so that 5 is the middle",
        ("0", "1", "2"),
    ),
}
"""Shipped tables by name."""


def shipped_schema(name: str) -> Schema:
    """The schema of a shipped table, with all its columns and classes."""
    text = resources.files("privlearn.runs.files").joinpath(f"{name}.toml").read_text("utf-8")
    return Schema.from_dict(tomllib.loads(text))


def shipped_rows(name: str, schema: Schema, seed: int) -> tuple[Table, list[str]]:
    """Its rows of the classes that ``schema`` has, in an order of their own, and what is said.

    Args:
        name: of the table.
        schema: with columns of the table.
        seed: of the order.

    Returns:
        The rows, and side information for a certificate.
    """
    from sklearn import datasets  # slow to import

    about, whole = SHIPPED[name], shipped_schema(name)
    function, arguments = about.load
    found = getattr(datasets, function)(**arguments)
    labels = np.asarray(found.target, dtype=np.float64)
    said = [
        f"the bounds of the shipped table {name!r} ({about.origin}) were chosen with these data in "
        "view, and so were the default radius, the constant input and tofw's constants"
    ]
    kept = np.ones(len(labels), dtype=np.bool_)
    classes, every = schema.classes, whole.classes
    if classes is not None and every is not None and len(classes) < len(every):
        kept = np.isin(labels, [float(label) for label in classes])
        said.append(
            f"the population is the rows of the classes {', '.join(map(str, classes))}; how many "
            "there are is public"
        )
    order = np.flatnonzero(kept)
    order = order[np.random.default_rng([seed, 6]).permutation(len(order))]
    columns: dict[str, Any] = dict(
        zip(whole.features, np.asarray(found.data)[order].T, strict=True)
    )
    return read({**columns, str(whole.target): labels[order]}, schema), said


def with_classes(name: str, schema: Schema, classes: Sequence[str] | None) -> Schema:
    """The schema of a shipped table with some of its classes.

    Raises:
        DataError: it has no such classes.
    """
    every = schema.classes
    if every is None:
        if classes is not None:
            raise DataError(f"classes: {name!r} is a regression; its labels are numbers")
        return schema
    chosen = classes or SHIPPED[name].default or every
    for label in chosen:
        if label not in every:
            raise DataError(
                f"classes = {label!r}: no class of {name!r}; its classes are {', '.join(every)}"
            )
    return Schema({**schema.columns, str(schema.target): Category(chosen)}, target=schema.target)
