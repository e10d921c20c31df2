"""What a run on rewards of actions makes public, and its file: expected rewards of new rows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from privlearn.estimators.choice_models import with_constant
from privlearn.learners.links import BoundedLink
from privlearn.mechanisms.choice_model import clip_items
from privlearn.rows.domains import Array
from privlearn.tables.encoding import Encoding
from privlearn.tables.readers import read
from privlearn.tables.schema import Schema
from privlearn.tables.table import Table

REWARDS: Final = "privlearn-reward-model"
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Matrix = list[list[_Finite]]


class RewardFile(BaseModel):
    """The JSON of a model of rewards."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["privlearn-reward-model"] = REWARDS
    version: Literal[1] = 1
    learner: str
    link: Literal["linear", "logistic", "probit", "poisson"]
    reward: str
    """Name of the column."""
    reward_range: Annotated[list[_Finite], Field(min_length=2, max_length=2)]
    max_rate: _Finite | None
    actions: list[str] | None
    """Where each has parameters of its own."""
    encoding: dict[str, Any]
    inputs: list[str]
    coef: _Matrix
    """Of scaled inputs and the constant, a row for each action."""
    standard_errors: _Matrix
    row_bound: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Longer rows are shrunk onto this length."""
    state: dict[str, Any]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it; everything in it is public."""
        text = json.dumps(self.model_dump(), indent=1, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text + "\n", "utf-8")


@final
class PublicRewardModel:
    """A model that ``privlearn run glm`` saved, to predict with; made by `load_reward_model`."""

    def __init__(self, file: RewardFile) -> None:
        self._encoding = Encoding(Schema.from_dict(file.encoding.get("schema")))
        self.reward, self.link, self.row_bound = file.reward, file.link, file.row_bound
        self.actions_ = None if file.actions is None else tuple(file.actions)
        low, high = file.reward_range
        self._link = BoundedLink(file.link, low, high, file.max_rate or high)
        shape = (1 if self.actions_ is None else len(self.actions_), self._encoding.dim + 1)
        self.coef_ = np.array(file.coef, dtype=np.float64)
        if self.coef_.shape != shape:
            raise ValueError(f"coef: the schema has {shape[0]} rows of {shape[1]} numbers")

    @property
    def schema_(self) -> Schema:
        """What the columns of the features are."""
        return self._encoding.schema

    def predict(self, X: Any) -> Array:
        """Expected rewards, shape (n,); of every action, (n, A), where each has its own parameters.

        Args:
            X: a frame, a file or an array with the features; a cell that cannot be used counts as
                missing.

        Raises:
            DataError, ValueError, TypeError: a column is missing, or the form is another one.
        """
        table = X if isinstance(X, Table) else read(X, self.schema_)
        rows = with_constant(self._encoding.for_prediction(table), True)
        indices = clip_items(rows, self.row_bound) @ (self.row_bound * self.coef_).T
        if self.link == "linear":  # whose coefficients are in the unit of rewards
            means = self._link.offset + indices
        else:
            means = self._link.rewards(indices)
        return np.asarray(means if self.actions_ is not None else means[:, 0])

    def __repr__(self) -> str:
        return f"<model of {self.reward!r}: {self._encoding.dim} inputs, {self.link}>"
