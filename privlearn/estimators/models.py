"""What a fit makes public, and its file: JSON that predicts without ledger, budget or rows."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.special import expit, softmax

from privlearn.errors import DataError
from privlearn.estimators.choice_models import CHOICES, ChoiceFile, PublicChoiceModel
from privlearn.estimators.methods import Loss
from privlearn.estimators.reward_models import REWARDS, PublicRewardModel, RewardFile
from privlearn.rows.domains import Array
from privlearn.storage.foreign_files import read_whole
from privlearn.tables.encoding import Encoding
from privlearn.tables.readers import read
from privlearn.tables.schema import Schema
from privlearn.tables.table import Table

LARGEST_MODEL: Final = 2**28
"""Bytes of a model file that is read."""
_MOST_COEFFICIENTS: Final = 10_000_000

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Matrix = list[list[_Finite]]


@final
class LinearModel:
    """A linear model of the inputs of an encoding; public.

    Args:
        encoding: from rows to inputs.
        loss: what the scores mean.
        coef: shape (1, dim); (classes, dim) for softmax.
        intercept: shape (1,) or (classes,).
        noise_std: standard deviation of the noise of ``coef``, of its shape; None if unknown.
    """

    def __init__(
        self,
        encoding: Encoding,
        loss: Loss,
        coef: Array,
        intercept: Array,
        noise_std: Array | None = None,
    ) -> None:
        self.encoding, self.loss = encoding, loss
        self.coef, self.intercept, self.noise_std = coef, intercept, noise_std

    def scores(self, table: Table) -> Array:
        """x·coef + intercept, shape (n,); (n, classes) for softmax."""
        found = self.encoding.for_prediction(table) @ self.coef.T + self.intercept
        return found if self.loss == "softmax" else found[:, 0]

    def answers(self, scores: Array) -> NDArray[Any]:
        """Labels, or targets in their own units within the declared bounds, shape (n,)."""
        if self.loss == "squared":
            return self.encoding.from_target(np.clip(scores, -1.0, 1.0))
        places = scores.argmax(axis=1) if self.loss == "softmax" else scores > 0
        return self.encoding.from_target(places.astype(np.int64))

    def probabilities(self, scores: Array) -> Array:
        """Of each class, shape (n, classes)."""
        if self.loss == "softmax":
            return np.asarray(softmax(scores, axis=1))
        second = expit(scores)
        return np.stack([1.0 - second, second], axis=1)


class _File(BaseModel):
    """The JSON of a model."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["privlearn-model"]
    version: Literal[1]
    estimator: str
    method: str
    loss: Loss
    encoding: dict[str, Any]
    coef: _Matrix
    intercept: list[_Finite]
    noise_std: _Matrix | None = None
    guarantee: str
    ledger_head: str | None = None


def save_model(
    path: str | os.PathLike[str],
    model: LinearModel,
    *,
    estimator: str,
    method: str,
    guarantee: str,
    ledger_head: str | None,
) -> None:
    """Writes a model as JSON; everything in it is public."""
    told = _File(
        format="privlearn-model",
        version=1,
        estimator=estimator,
        method=method,
        loss=model.loss,
        encoding=model.encoding.to_dict(),
        coef=model.coef.tolist(),
        intercept=model.intercept.tolist(),
        noise_std=None if model.noise_std is None else model.noise_std.tolist(),
        guarantee=guarantee,
        ledger_head=ledger_head,
    )
    text = json.dumps(told.model_dump(), indent=1, ensure_ascii=False, allow_nan=False)
    Path(path).write_text(text + "\n", "utf-8")


def load_model(path: str | os.PathLike[str]) -> PublicModel | PublicChoiceModel:
    """Reads a model that `save` wrote, to predict with.

    Args:
        path: of the JSON file.

    Raises:
        DataError: it cannot be read, or is no model: a field is missing, unknown or of another
            type, a number is not finite, shapes do not fit the schema.
    """
    found = read_model(path)
    if isinstance(found, PublicRewardModel):
        raise DataError(f"{os.fspath(path)} is a model of rewards: load_reward_model reads it")
    return found


def load_reward_model(path: str | os.PathLike[str]) -> PublicRewardModel:
    """Reads a model of rewards that ``privlearn run glm`` wrote, to predict with.

    Raises:
        DataError: as `load_model`.
    """
    found = read_model(path)
    if not isinstance(found, PublicRewardModel):
        raise DataError(f"{os.fspath(path)} is no model of rewards: load_model reads it")
    return found


def read_model(
    path: str | os.PathLike[str],
) -> PublicModel | PublicChoiceModel | PublicRewardModel:
    """A model of any kind.

    Raises:
        DataError: as `load_model`.
    """
    try:
        data = json.loads(read_whole(path, at_most=LARGEST_MODEL))
    except OSError as error:
        raise DataError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{os.fspath(path)} is no model: it is no JSON") from None
    try:
        if isinstance(data, dict) and data.get("format") == CHOICES:
            return PublicChoiceModel(ChoiceFile.model_validate(data))
        if isinstance(data, dict) and data.get("format") == REWARDS:
            return PublicRewardModel(RewardFile.model_validate(data))
        return PublicModel(_File.model_validate(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"][:4])) or "file"
        raise DataError(f"{os.fspath(path)} is no model: {where}: {first['msg']}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{os.fspath(path)} is no model: {error}") from None


@final
class PublicModel:
    """A saved model: it predicts, and knows the guarantee that it was learned under.

    Made by `load_model`.  Rows come as at ``fit``: a frame or file with the columns of the schema,
    or an array with its features in their order.
    """

    def __init__(self, file: _File) -> None:
        encoding = Encoding(Schema.from_dict(file.encoding.get("schema")))
        if encoding.schema.target is None:
            raise ValueError("encoding.schema.target: must name a column")
        classes = encoding.schema.classes
        outputs = 1
        if file.loss == "softmax" and classes is not None:
            outputs = len(classes)
        if (classes is None) is not (file.loss == "squared") or (
            file.loss == "logistic" and classes is not None and len(classes) != 2
        ):
            raise ValueError(f"loss = {file.loss!r} does not fit the target of the schema")
        self._model = LinearModel(
            encoding,
            file.loss,
            _matrix("coef", file.coef, (outputs, encoding.dim)),
            _matrix("intercept", [file.intercept], (1, outputs))[0],
            None
            if file.noise_std is None
            else _matrix("noise_std", file.noise_std, (outputs, encoding.dim)),
        )
        self.estimator, self.method_, self.guarantee_ = file.estimator, file.method, file.guarantee
        self.ledger_head_ = file.ledger_head

    @property
    def schema_(self) -> Schema:
        """What the columns are."""
        return self._model.encoding.schema

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels, shape (K,).

        Raises:
            AttributeError: a regression.
        """
        classes = self.schema_.classes
        if classes is None:
            raise AttributeError("classes_: the model is a regression")
        return self._model.encoding.from_target(np.arange(len(classes)))

    def decision_function(self, X: Any) -> Array:
        """Scores in the encoded scale, shape (n,), or (n, K) of more than two classes.

        Raises:
            DataError, ValueError, TypeError: ``X`` lacks a column, or has another form.
        """
        return self._model.scores(table_to_predict(X, self.schema_))

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, or targets in their own units, shape (n,); every row has an answer.

        A cell that is missing, or nothing that its kind takes, counts as missing.

        Raises:
            DataError, ValueError, TypeError: as `decision_function`.
        """
        return self._model.answers(self.decision_function(X))

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, shape (n, K).

        Raises:
            AttributeError: a regression.
            DataError, ValueError, TypeError: as `decision_function`.
        """
        _ = self.classes_
        return self._model.probabilities(self.decision_function(X))

    def __repr__(self) -> str:
        return f"<model of {self.estimator}: {self._model.encoding.dim} inputs; {self.guarantee_}>"


def table_to_predict(X: Any, schema: Schema) -> Table:
    """Rows with the features of a schema; arrays have them in its order.

    Raises:
        DataError, ValueError, TypeError: a column is missing, or the form is another one.
    """
    return X if isinstance(X, Table) else read(X, schema.without_target())


def _matrix(name: str, rows: _Matrix, shape: tuple[int, int]) -> Array:
    if math.prod(shape) > _MOST_COEFFICIENTS:
        raise ValueError(f"{name}: more than {_MOST_COEFFICIENTS:,} numbers")
    if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
        raise ValueError(f"{name}: the schema has {shape[0]} rows of {shape[1]} numbers")
    return np.array(rows, dtype=np.float64).reshape(shape)
