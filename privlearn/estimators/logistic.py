"""Private logistic regression, of two or more classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from privlearn.estimators.base import PrivateEstimator, TableScore
from privlearn.estimators.methods import Loss
from privlearn.rows.domains import Array
from privlearn.tables.schema import Schema


class PrivateLogisticRegression(TableScore, ClassifierMixin, PrivateEstimator):  # type: ignore[misc]  # no types
    """Logistic regression under (ε, δ)-differential privacy, in scikit-learn's manner.

    Of two classes one vector of coefficients is learned, of more one for each (softmax).  Classes
    are declared; which of them occur in the rows is never told.

    Args:
        budget, bounds, ledger, accountant, simulate_noise: as in `PrivateLinearRegression`.
        schema: a `privlearn.tables.Schema` with a `Category` or `Boolean` as its target.
        classes: the labels, with ``bounds``; a record with another label is null.
        method: "auto", and for two classes "descent", "one-pass" or "objective", as there.

    Attributes:
        coef_: shape (1, inputs), or (K, inputs) of K > 2 classes; for encoded inputs.
        intercept_: shape (1,) or (K,).
        classes_: labels in the order of their declaration, shape (K,).
        n_features_in_, feature_names_in_: as in scikit-learn.

    Source: docs/proofs.md for each learner; the guarantee is what the ledger of the fit proves.
    """

    def __init__(
        self,
        budget: Any = None,
        *,
        schema: Any = None,
        bounds: Any = None,
        classes: Any = None,
        method: str = "auto",
        ledger: Any = None,
        accountant: Any = None,
        simulate_noise: int | None = None,
    ) -> None:
        self.budget = budget
        self.schema = schema
        self.bounds = bounds
        self.classes = classes
        self.method = method
        self.ledger = ledger
        self.accountant = accountant
        self.simulate_noise = simulate_noise

    def _declared(self, dim: int, names: Sequence[str] | None) -> Schema:
        if self.classes is None:
            raise ValueError(
                "classes: state all labels that y can have, whichever occur in these rows"
            )
        if np.ndim(self.classes) == 1 and len(self.classes) == 1:
            raise ValueError("classes: 1 class is declared; a classification has two or more")
        return Schema.of_arrays(dim, self.bounds, names=names, classes=self.classes)

    def _loss(self, schema: Schema) -> Loss:
        if schema.classes is None:
            raise ValueError(
                f"schema.target = {schema.target!r}: a logistic regression predicts a Category or "
                "Boolean; PrivateLinearRegression predicts a Number"
            )
        return "logistic" if len(schema.classes) == 2 else "softmax"

    @property
    def coef_(self) -> Array:
        """For encoded inputs, shape (1, inputs) or (K, inputs); a copy."""
        return self._fitted().coef.copy()

    @property
    def intercept_(self) -> Array:
        """Shape (1,) or (K,); a copy."""
        return self._fitted().intercept.copy()

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels, shape (K,)."""
        encoding = self._fitted().encoding
        return encoding.from_target(np.arange(len(encoding.schema.classes or ())))

    def decision_function(self, X: Any) -> Array:
        """Scores, shape (n,) of two classes, where above 0 is the second, or (n, K).

        Raises:
            NotFittedError, DataError, ValueError, TypeError: as `predict`.
        """
        return self._scores(X)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, shape (n, K).

        Raises:
            NotFittedError, DataError, ValueError, TypeError: as `predict`.
        """
        scores = self._scores(X)
        return self._model.probabilities(scores)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags
