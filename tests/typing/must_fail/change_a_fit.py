# expect: misc
"""The blur that was priced cannot be lowered."""

from privlearn.mechanisms import ObjectivePerturbation
from privlearn.rows.domains import Array


def use(fit: ObjectivePerturbation[tuple[Array, Array]]) -> None:
    fit.blur_std = 0.0
