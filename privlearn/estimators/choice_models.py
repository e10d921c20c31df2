"""What a fit of choices makes public, and its file: probabilities of items in new situations."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from privlearn.estimators.methods import CONSTANT
from privlearn.estimators.situations import NOBODY, numbered
from privlearn.mechanisms.choice_model import Items, clip_items
from privlearn.rows.domains import Array
from privlearn.tables.encoding import Encoding
from privlearn.tables.readers import read
from privlearn.tables.schema import Schema
from privlearn.tables.table import Table

NO_SITUATIONS: Final = (
    "people: give the id of the choice situation of each line, or name its column in schema.person"
)
CHOICES: Final = "privlearn-choice-model"
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class Situated(NamedTuple):
    """Lines that each belong to a situation; private."""

    inputs: Array
    """Shape (lines, dim), finite."""
    groups: Items
    """Of each line, from 0 on, shape (lines,)."""

    def __repr__(self) -> str:
        return "<Situated>"


class ChoiceModel(NamedTuple):
    """A multinomial logit of encoded items; public."""

    encoding: Encoding
    theta: Array
    """Of clipped inputs, shape (dim,), with the constant last where there is one."""
    scale: float
    """Inputs are divided by it and then clipped to norm 1."""
    outside: bool
    """Whether nothing may be chosen."""

    @property
    def coef(self) -> Array:
        """Of encoded inputs, shape (d,)."""
        return self.theta[: self.encoding.dim] / self.scale

    @property
    def intercept(self) -> float:
        """Utility of any item against choosing nothing; 0 where one must be chosen."""
        return float(self.theta[-1]) * CONSTANT / self.scale if self.outside else 0.0

    def situated(self, table: Table) -> Situated:
        """The lines of a table; one without an id is a situation by itself.

        Raises:
            ValueError: it has no ids.
        """
        if table.people is None:
            raise ValueError(NO_SITUATIONS)
        numbers = numbered(table.people)
        alone = numbers == NOBODY
        numbers[alone] = numbers.max(initial=NOBODY) + 1 + np.arange(np.count_nonzero(alone))
        inputs = with_constant(self.encoding.for_prediction(table), self.outside)
        return Situated(inputs, numbers)

    def utilities(self, lines: Situated) -> Array:
        """Shape (lines,)."""
        inputs, groups = lines
        if not self.outside:
            order, starts = _sorted(groups)
            sizes = np.diff([*starts, len(groups)])
            inputs = inputs - (np.add.reduceat(inputs[order], starts) / sizes[:, None])[groups]
        return np.asarray(clip_items(inputs, self.scale) @ self.theta)

    def probabilities(self, lines: Situated) -> Array:
        """Of each line's item within its situation, shape (lines,)."""
        groups, values = lines.groups, self.utilities(lines)
        order, starts = _sorted(groups)
        top = np.maximum.reduceat(values[order], starts)
        top = np.maximum(top, 0.0) if self.outside else top
        weights = np.exp(values - top[groups])
        total = np.add.reduceat(weights[order], starts) + self.outside * np.exp(-top)
        return np.asarray(weights / total[groups])

    def most_likely(self, lines: Situated) -> NDArray[Any]:
        """The label "chosen" for the likeliest line of each situation, if it is likelier than
        nothing; shape (lines,)."""
        groups, found = lines.groups, self.probabilities(lines)
        marks = np.zeros(len(groups), dtype=np.int64)
        if len(groups):
            order = np.lexsort((-found, groups))
            first = order[np.searchsorted(groups[order], np.arange(groups.max() + 1))]
            rest = 1.0 - np.bincount(groups, found)[groups[first]]
            marks[first] = (found[first] >= rest) if self.outside else 1
        return self.encoding.from_target(marks)

    def log_likelihoods(self, table: Table) -> Array:
        """Of the choice of each situation that has one, nats, shape (situations,)."""
        lines, marks = self.situated(table), self.encoding.targets(table)
        found, groups = self.probabilities(lines), lines.groups
        chosen = np.bincount(groups, marks == 1)
        known = (np.bincount(groups, ~np.isfinite(marks)) == 0) & (chosen <= 1)
        known &= (chosen == 1) | self.outside
        left = np.maximum(1.0 - np.bincount(groups, found), np.finfo(np.float64).tiny)
        picked = np.bincount(groups, found * (marks == 1))
        return np.asarray(np.log(np.where(chosen == 1, picked, left))[known])


def _sorted(groups: Items) -> tuple[Items, Items]:
    order = np.argsort(groups, kind="stable")
    return order, np.flatnonzero(np.diff(groups[order], prepend=-1))


def with_constant(inputs: Array, outside: bool) -> Array:
    """Inputs (n, d), with a last column that is constant where nothing may be chosen."""
    if not outside:
        return inputs
    return np.concatenate([inputs, np.full((len(inputs), 1), CONSTANT)], axis=1)


def items_to_predict(X: Any, schema: Schema, people: Any = None) -> Table:
    """Lines with the features of a schema and the ids of their situations.

    Raises:
        DataError, ValueError, TypeError: a column is missing, or the form is another one.
    """
    if isinstance(X, Table):
        return X
    wanted = dataclasses.replace(schema.without_target(), person=schema.person)
    return read(X, wanted, people=people)


class ChoiceFile(BaseModel):
    """The JSON of a model of choices."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["privlearn-choice-model"]
    version: Literal[1]
    estimator: str
    method: str
    encoding: dict[str, Any]
    theta: list[_Finite]
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    outside_option: bool
    guarantee: str
    ledger_head: str | None = None


def save_choice_model(path: str | os.PathLike[str], model: ChoiceModel, **told: Any) -> None:
    """Writes a model as JSON; everything in it is public."""
    file = ChoiceFile(
        format=CHOICES,
        version=1,
        encoding=model.encoding.to_dict(),
        theta=model.theta.tolist(),
        scale=model.scale,
        outside_option=model.outside,
        **told,
    )
    text = json.dumps(file.model_dump(), indent=1, ensure_ascii=False, allow_nan=False)
    Path(path).write_text(text + "\n", "utf-8")


@final
class PublicChoiceModel:
    """A model of choices that was saved, to predict with; made by `load_model`."""

    def __init__(self, file: ChoiceFile) -> None:
        encoding = Encoding(Schema.from_dict(file.encoding.get("schema")))
        if len(encoding.schema.classes or ()) != 2:
            raise ValueError("encoding.schema.target: must say which item was chosen")
        theta = np.array(file.theta, dtype=np.float64)
        if len(theta) != encoding.dim + file.outside_option:
            raise ValueError(f"theta: the schema has {encoding.dim + file.outside_option} numbers")
        self._model = ChoiceModel(encoding, theta, file.scale, file.outside_option)
        self.estimator, self.method_, self.guarantee_ = file.estimator, file.method, file.guarantee
        self.ledger_head_ = file.ledger_head

    @property
    def schema_(self) -> Schema:
        """What the columns are."""
        return self._model.encoding.schema

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels of an item that was not chosen, and of one that was."""
        return self._model.encoding.from_target(np.arange(2))

    def decision_function(self, X: Any, *, people: Any = None) -> Array:
        """Utilities of the items, shape (lines,); see `PrivateChoiceModel`."""
        return self._model.utilities(self._situated(X, people))

    def predict(self, X: Any, *, people: Any = None) -> NDArray[Any]:
        """The label of each line; see `PrivateChoiceModel.predict`."""
        return self._model.most_likely(self._situated(X, people))

    def predict_proba(self, X: Any, *, people: Any = None) -> Array:
        """Of each line within its situation, shape (lines,)."""
        return self._model.probabilities(self._situated(X, people))

    def _situated(self, X: Any, people: Any) -> Situated:
        return self._model.situated(items_to_predict(X, self.schema_, people))

    def __repr__(self) -> str:
        return f"<model of {self.estimator}: {self._model.encoding.dim} inputs; {self.guarantee_}>"
