"""From one neighbour relation to another: explicit, with the reason, refused without a proof.

Losses of different adjacencies are never mixed silently.  A conversion is an object that keeps what
went in, what came out and why it holds:

Examples:
    >>> from privlearn.values.adjacency import Adjacency
    >>> from privlearn.losses import GaussianLoss
    >>> as_replace_one(GaussianLoss(1, adjacency=Adjacency.ADD_REMOVE)).loss.gaussian()
    Fraction(4, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from privlearn.errors import AdjacencyError
from privlearn.losses.base import Loss, loss_from_dict
from privlearn.values.adjacency import Adjacency


@final
@dataclass(frozen=True, slots=True)
class Conversion:
    """A loss for one neighbour relation, derived from one for another."""

    before: Loss
    loss: Loss
    reason: str


def as_replace_one(loss: Loss) -> Conversion:
    """What a loss for add-remove or zero-out costs under replace-one.

    To replace z by z′ is to remove z and to add z′ (to zero z out and to put z′ in its place): two
    steps, so sensitivities double, by the triangle inequality in the norm of the mechanism.

    - Gaussian, Laplace, discrete and generalized Gaussian, discrete Laplace noise: the same noise
      at twice the sensitivity (a Gaussian mass is multiplied by 4; for any μ-GDP mechanism this is
      Dong, Roth & Su 2022, Theorem 2.14).
    - Worst cases and ranges of the privacy loss add up along P → Q → R, because
      log dP/dR = log dP/dQ + log dQ/dR: ε doubles.
    - ρ-zCDP: 4ρ (Bun & Steinke 2016, Proposition 1.9).
    - Rényi bounds: D_α(P‖R) <= (α−½)/(α−1)·D_{2α}(P‖Q) + D_{2α−1}(Q‖R) (Mironov 2017,
      Proposition 11, with p = q = 2), at half of each order above 2.
    - (ε, δ): P(S) <= e^ε·Q(S) + δ <= e^{2ε}·R(S) + e^ε·δ + δ.
    - Objective perturbation: gradients differ by twice as much, in a subspace of at most twice the
      dimension; trace and rank are those of one record in either relation.
    - Compositions and profiles by arrival index: part by part.

    Raises:
        AdjacencyError: the loss is for replace-one already, or no proof is known for its kind.
    """
    if loss.adjacency is Adjacency.REPLACE_ONE:
        raise AdjacencyError("the loss is for replace-one already: nothing to convert")
    reason = (
        "a replacement is a removal and an addition"
        if loss.adjacency is Adjacency.ADD_REMOVE
        else "a replacement zeroes a record out and puts another in its place"
    )
    return Conversion(loss, loss.doubled(), f"{reason}: twice the sensitivity, or a group of two")


def as_zero_out(loss: Loss) -> Conversion:
    """What a loss for replace-one costs under zero-out: the same.

    The null record is one of the records by which any other may be replaced.

    Raises:
        AdjacencyError: the loss is not for replace-one.  From add-remove there is no way but
            through `as_replace_one`: to remove a record is not to put a null record in its place.
    """
    if loss.adjacency is not Adjacency.REPLACE_ONE:
        raise AdjacencyError(
            f"a loss for {loss.adjacency.value} cannot be read as one for zero-out: convert it "
            "with as_replace_one first"
        )
    relabelled = loss_from_dict(_with_adjacency(loss.to_dict(), Adjacency.ZERO_OUT))
    return Conversion(loss, relabelled, "zeroing a record out replaces it by the null record")


def _with_adjacency(data: dict[str, object], adjacency: Adjacency) -> dict[str, object]:
    parts, losses = data.get("parts"), data.get("losses")
    if isinstance(parts, list):
        data = data | {
            "parts": [p | {"loss": _with_adjacency(p["loss"], adjacency)} for p in parts]
        }
    if isinstance(losses, list):
        data = data | {"losses": [_with_adjacency(loss, adjacency) for loss in losses]}
    for name in ("loss", "of"):
        inner = data.get(name)
        if isinstance(inner, dict):
            data = data | {name: _with_adjacency(inner, adjacency)}
    return data | {"adjacency": adjacency.value}
