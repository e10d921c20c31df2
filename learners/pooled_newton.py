"""One contribution to the sums of a Newton step: a gradient and a Hessian, in one unit ball.

A row (or a person's rows in one batch, added up) has the gradient g and the Hessian H, and becomes

    w·(g/C, weight·svec(H)),    w = 1/max(1, √(G/C² + weight²·‖H‖_F²)),

a vector that `Ball` scales to norm 1 where it is longer.  Two of them are at most 2 apart, which a
gradient alone would be, whatever H is: the Hessian costs next to nothing.  G is the largest ‖g‖² of
all choices that were possible (of several visits, the sum), so that the vector of one row is never
longer than 1.

w depends on what was offered and on θ, not on what was chosen: with offers fixed within a batch,
E[w·Σg] = w·ΣH·(θ − θ*) to first order, so that scaled gradients and Hessians belong to one and the
same θ* and the step has no bias by the weights.  Gradients that are clipped one by one would have:
what is seldom chosen has the longest, and would be under-rated or over-rated for ever.  (The ball
looks at choices where a person has several visits; and whoever comes back because of what was
chosen is another matter, see `Participation`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np

from privlearn.mechanisms.choice_model import Answer, chosen, probabilities
from privlearn.rows.domains import Array, Ball
from privlearn.rows.domains.matrices import svec_places


class Contribution(NamedTuple):
    """Of one row, or of a block with a leading axis."""

    gradient: Array
    """shape (d,)."""
    hessian: Array
    """shape (d, d)."""
    longest: Array
    """The largest squared norm that the gradient could have, a scalar."""


def contributions(answer: Answer, theta: Array, *, outside: bool) -> Contribution:
    """Of single visits, unscaled; row by row."""
    p = probabilities(answer, theta, outside=outside)
    mean = np.einsum("...k,...kd->...d", p, answer.features)
    apart = answer.features - mean[..., None, :]
    squares = np.einsum("...kd,...kd->...k", apart, apart) * (answer.offered > 0)
    longest = squares.max(axis=-1)
    hessians = np.matmul((p[..., None] * apart).swapaxes(-1, -2), apart)
    if outside:
        longest = np.maximum(longest, np.einsum("...d,...d->...", mean, mean))
        rest = np.maximum(1 - p.sum(axis=-1), 0.0)[..., None, None]
        hessians += rest * (mean[..., :, None] * mean[..., None, :])
    return Contribution(mean - chosen(answer), hessians, longest)


class NewtonBall(NamedTuple):
    """Contributions as vectors, and sums of them as gradients and Hessians.

    Args:
        dim: d.
        clip: C, a gradient that has length 1.
        weight: of Hessians against gradients.
    """

    dim: int
    clip: float
    weight: float

    @property
    def domain(self) -> Ball:
        return Ball(1.0, self.dim + len(svec_places(self.dim, "svec")[0]))

    def vectors(self, block: Contribution) -> Array:
        """shape (n, size), of norm about 1 or less; row by row."""
        rows, columns, roots = svec_places(self.dim, "svec")
        upper = block.hessian[:, rows, columns] * (roots * self.weight)
        squares = block.longest / self.clip**2 + np.einsum("nd,nd->n", upper, upper)
        long = np.sqrt(np.maximum(squares, 1.0))
        made = np.concatenate([block.gradient / self.clip, upper], axis=1)
        return cast(Array, made / long[:, None])

    def of_person(self) -> Callable[[Contribution], Array]:
        """Makes one vector of all of one person's; visits without a usable answer are left out."""

        def combine(own: Contribution) -> Array:
            usable = np.isfinite(own.gradient).all(axis=1)
            if not usable.any():
                return np.full(self.domain.size, np.nan)
            added = [part[usable].sum(axis=0, keepdims=True) for part in own]
            return np.asarray(self.vectors(Contribution(*added))[0])

        return combine

    def read(self, total: Array) -> tuple[Array, Array]:
        """Gradient (d,) and Hessian (d, d) of a sum of vectors."""
        rows, columns, roots = svec_places(self.dim, "svec")
        hessian = np.zeros((self.dim, self.dim))
        hessian[rows, columns] = total[self.dim :] / (roots * self.weight)
        hessian[columns, rows] = hessian[rows, columns]
        return self.clip * total[: self.dim], hessian
