"""A belief about θ from pooled sums of gradients and Hessians of batches.

Batch j released, with noise, its gradient sum g_j at θ_j and its Hessian sum H_j.  To first order
g_j = H_j(θ_j − θ*) + e_j.  Taken one by one, batches would pay for the noise of each H_j, times
|θ_j|.  Pooled, they have in common what is known of all Hessians together:

    m = H·θ̄ − Σ_j g_j + Σ_j D_j(θ_j − θ̄) = H·θ* + e,    θ̄ = Σ_j q_j θ_j,

with q_j the share of batch j, H the sum of all Hessians, shrunk towards a multiple of the identity,
and D_j = H_j − q_j·ΣH, shrunk towards 0.  Shares are those of users, moved towards those of the
traces of H_j; each of the three goes only as far as it stands out of its noise, and any shares and
any amount of shrinkage leave the equation above true of what is not noise and not shrunk.  The
error E of H enters as E(θ̄ − θ*), which is small, in place of E·θ̄.

e has the covariance φH of rewards, with φ their variance in units of the slope of the model, and
v·I of noise.  So H⁻¹m is θ* with an error of covariance H⁻¹(φH + vI)H⁻¹, whose information is
H(φH + vI)⁻¹H.  v is the variance of the noise of Σg_j, and that of E(θ̄ − θ*): with σ² the variance
of a svec coordinate of E, and θ* as far from θ̄ as the belief before says, about σ²/2·tr P⁻¹.
Without that, noise in H is taken for knowledge of directions in which there are no data, and is
believed for ever, as they are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast, final

import numpy as np

from privlearn.learners.newton import Belief, shrunk
from privlearn.rows.domains import Array

Noise = Callable[[Sequence[int]], Array]
"""From batches, of which there may be gaps, to the covariance of the noise of their sums, (n, n),
as `BatchSums.covariance`."""

_CAUTION = 2.0
"""How many times its expected energy is taken for noise, in what is shrunk."""


_SPREAD = 0.75
"""Standard deviation of a trace, as part of what is expected."""


class _Batch(NamedTuple):
    number: int
    users: float
    at: Array
    gradient: Array
    hessian: Array


@final
class PooledStatistics:
    """All that was released so far, and the belief it gives; pure post-processing.

    Args:
        dim: d.
        prior_precision: of the prior N(0, I/prior_precision).
        gradient_noise, hessian_noise: of each gradient coordinate, and of each svec coordinate of a
            Hessian.
        dispersion: φ.
        usual_trace: what a user adds to the trace of H, as far as that is public: the trace is
            expected near it, where noise tells no more.

    Attributes:
        belief: after all batches that were added.
    """

    def __init__(
        self,
        dim: int,
        prior_precision: float,
        gradient_noise: Noise,
        hessian_noise: Noise,
        dispersion: float = 1.0,
        usual_trace: float = 0.4,
    ) -> None:
        self._gradient_noise, self._hessian_noise = gradient_noise, hessian_noise
        self._dispersion, self._batches = dispersion, list[_Batch]()
        self._usual_trace, self._prior = usual_trace, prior_precision * np.eye(dim)
        self.belief = Belief(np.zeros(dim), self._prior)

    def add(self, batch: int, users: float, at: Array, gradient: Array, hessian: Array) -> None:
        """Adds the sums that a batch released at the parameter ``at``.

        Args:
            batch: its number.
            users: how many, as far as that is public.
            at: θ_j, shape (d,).
            gradient: of the loss, shape (d,).
            hessian: shape (d, d).
        """
        self._batches.append(_Batch(batch, users, at, gradient, hessian))
        numbers, users_of, ats, gradients, hessians = zip(*self._batches, strict=True)
        noise = self._hessian_noise(numbers)
        total = np.sum(hessians, axis=0)
        shares = _shares(np.array(users_of), np.trace(hessians, axis1=1, axis2=2), noise, len(at))
        expected = self._usual_trace * sum(users_of)
        pooled = _towards_identity(total, float(noise.sum()), expected)
        middle = shares @ np.stack(ats)
        apart = _deviations(np.stack(hessians), total, shares, noise)
        moment = pooled @ middle - np.sum(gradients, axis=0)
        moment += np.einsum("jde,je->d", apart, np.stack(ats) - middle)
        spread = float(np.trace(np.linalg.inv(self.belief.precision)))
        variance = float(self._gradient_noise(numbers).sum()) + float(noise.sum()) / 2 * spread
        self.belief = self._after(pooled, moment, variance)

    def _after(self, hessian: Array, moment: Array, variance: float) -> Belief:
        values, vectors = np.linalg.eigh(hessian)
        values = np.maximum(values, 0.0)
        gain = values / np.maximum(self._dispersion * values + variance, 1e-300)
        precision = self._prior + (vectors * (values * gain)) @ vectors.T
        mean = np.linalg.solve(precision, vectors @ (gain * (vectors.T @ moment)))
        return Belief(cast(Array, mean), precision)

    def to_dict(self) -> dict[str, Any]:
        """The evidence as JSON."""
        return {
            "batches": [
                [one.number, one.users, *(x.tolist() for x in one[2:])] for one in self._batches
            ]
        }


def _shares(users: Array, traces: Array, noise: Array, dim: int) -> Array:
    """q_j, from users moved towards traces."""
    shares = users / users.sum()
    whole = max(float(traces.sum()), 0.0)
    apart = traces - shares * whole
    variance = _of_contrasts(shares, noise) * dim
    kept = np.maximum(1 - _CAUTION * variance / np.maximum(apart * apart, 1e-300), 0.0)
    moved = np.maximum(shares * whole + kept * apart, 0.0)
    return np.asarray(moved / moved.sum()) if moved.any() else shares


def _of_contrasts(shares: Array, noise: Array) -> Array:
    """The variance of the noise of x_j − q_j·Σx, for sums x_j with noise of that covariance."""
    contrasts = np.eye(len(shares)) - shares[:, None]
    return np.asarray(((contrasts @ noise) * contrasts).sum(axis=1))


def _towards_identity(total: Array, noise: float, expected: float) -> Array:
    """H from its noisy sum; its trace is a mean of the released and the expected one.

    Weights are the inverse variances: a trace of noise alone, which may be below 0, would tell of
    no data at all, and with a parameter vector for each action leave one of them without any.
    """
    dim, spread = len(total), (_SPREAD * expected) ** 2
    trace = float(np.trace(total)) * spread + expected * noise * dim
    eye = max(trace / (spread + noise * dim), 0.0) / dim * np.eye(dim)
    return shrunk(total, eye, _CAUTION * noise * (dim * (dim + 1) / 2 - 1))


def _deviations(hessians: Array, total: Array, shares: Array, noise: Array) -> Array:
    """D_j, shrunk, shape (n, d, d)."""
    dim, variance = len(total), _of_contrasts(shares, noise)
    found = hessians - shares[:, None, None] * total
    energy = np.einsum("jde,jde->j", found, found)
    kept = 1 - _CAUTION * variance * (dim * (dim + 1) / 2) / np.maximum(energy, 1e-300)
    return np.asarray(np.maximum(kept, 0.0)[:, None, None] * found)
