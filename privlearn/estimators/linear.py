"""Private linear regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from privlearn.estimators.base import PrivateEstimator, TableScore
from privlearn.estimators.methods import Loss
from privlearn.rows.domains import Array
from privlearn.tables.schema import Number, Schema


class PrivateLinearRegression(TableScore, RegressorMixin, PrivateEstimator):  # type: ignore[misc]  # no types
    """Least squares under (ε, δ)-differential privacy, in scikit-learn's manner.

    Columns and target are scaled by what was declared about them.  There is always an intercept.

    Args:
        budget: such as ApproxDP(1, 1e-5), or a currency such as GaussianDP(mu); for each ``fit``.
        schema: a `privlearn.tables.Schema` with a `Number` as its target, for frames and files.
        bounds: for arrays of numbers instead: (low, high) for all columns, an array of shape
            (d, 2) or a mapping by name.  Values beyond them are moved onto them.
        target_bounds: (low, high) of y with ``bounds``; a record with y beyond them is null.
        method: "auto" (noisy second moments, then descent in white coordinates), "descent"
            (without them), "one-pass" or "objective" (perturbed Huber loss).
        ledger: the path of a new file, a new `privlearn.ledger.Ledger`, or "auto" for a dated file
            in the working directory.  None keeps it in memory, which the certificate says.
        accountant: shared by several fits; ``budget`` is then a part of its cap, which all of its
            users are charged.
        simulate_noise: a seed; the fit can then be repeated, and protects nobody.

    Attributes:
        coef_: shape (inputs,), for encoded inputs and a target on [−1, 1]; see `coef_table_`.
        intercept_: a number, on the same scale.
        n_features_in_, feature_names_in_: as in scikit-learn.

    Source: docs/proofs.md for each learner; the guarantee is what the ledger of the fit proves.
    """

    def __init__(
        self,
        budget: Any = None,
        *,
        schema: Any = None,
        bounds: Any = None,
        target_bounds: Any = None,
        method: str = "auto",
        ledger: Any = None,
        accountant: Any = None,
        simulate_noise: int | None = None,
    ) -> None:
        self.budget = budget
        self.schema = schema
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.method = method
        self.ledger = ledger
        self.accountant = accountant
        self.simulate_noise = simulate_noise

    def _declared(self, dim: int, names: Sequence[str] | None) -> Schema:
        if self.target_bounds is None:
            raise ValueError(
                "target_bounds: state (low, high) of y, from what is known of it and never from "
                "these values"
            )
        bounds = self.target_bounds
        return Schema.of_arrays(dim, self.bounds, names=names, target_bounds=bounds)

    def _loss(self, schema: Schema) -> Loss:
        if not isinstance(schema.columns[str(schema.target)], Number):
            raise ValueError(
                f"schema.target = {schema.target!r}: a linear regression predicts a Number; "
                "PrivateLogisticRegression predicts a Category or Boolean"
            )
        return "squared"

    @property
    def coef_(self) -> Array:
        """For encoded inputs, shape (inputs,); a copy."""
        return np.array(self._fitted().coef[0])

    @property
    def intercept_(self) -> float:
        """On the encoded scale."""
        return float(self._fitted().intercept[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
