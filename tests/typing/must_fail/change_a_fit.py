# expect: misc
"""The blur that was priced cannot be lowered."""

from privlearn.domains import Array
from privlearn.mechanisms import ObjectivePerturbation


def use(fit: ObjectivePerturbation[tuple[Array, Array]]) -> None:
    fit.blur_std = 0.0
