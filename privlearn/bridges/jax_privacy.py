"""Training of jax_privacy, and whatever else emits a `DpEvent`, under an account of ours.

::

    plan = config.plan  # of BandMFExecutionPlanConfig
    with meter_event(accountant, plan, label="training") as spend:
        params = spend.release(train(plan, data))

The price is that of the event for the account's neighbour relation (`from_dp_event`), paid before
the block runs.  That what runs is what the event says (samples, clipping, noise) is trusted code:
an event names Poisson samples also where a program takes fixed batches (jax_privacy issue 84).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privlearn.bridges.installed import installed
from privlearn.bridges.meters import Meters
from privlearn.contract.metering import Meter, TrustedCode
from privlearn.errors import AdjacencyError, DataError, PackageError
from privlearn.events.dp_accounting import from_dp_event
from privlearn.events.pricing import to_dict
from privlearn.ledger.canonical_json import canonical
from privlearn.losses import GaussianLoss, Loss
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact, exact, exact_text, round_up
from privlearn.values.validate import count, finite

KNOWN = ("2.0.0",)
"""The versions of jax_privacy whose plans were read."""
LABEL = "training"


class Trusting(Meters, Protocol):
    """An account that says whom its users trust."""

    @property
    def trust(self) -> Trust: ...


def meter_event(
    accountant: Trusting,
    event: Any,
    *,
    label: str = LABEL,
    users: range | None = None,
    package: str = "jax_privacy",
    selection_delta: Exact | None = None,
) -> Meter:
    """A meter, for a block or as a decorator, at the price of a `DpEvent`.

    Args:
        accountant: pays; the event is priced for its neighbour relation.
        event: a `DpEvent`, or jax_privacy's `DPExecutionPlan` or `BandMFExecutionPlanConfig`.
        label: of the spend.
        users: whose records are trained on; default, all of the account's.
        package: the distribution that runs, which the certificate names.
        selection_delta: as in `from_dp_event`.

    Raises:
        AdjacencyError: a plan that splits the records into equal groups, under add-remove.
        BudgetError: a non-private event, or one of which nothing leaves.
        DataError: an event or a plan without a price here.
        PackageError: ``package`` is not installed, or is a jax_privacy of another version.
    """
    code_version = _version(package)
    whole = _event_of(event, accountant.adjacency)
    asked = whole, accountant.adjacency, accountant.trust, selection_delta
    try:
        loss, told = _known_price(*asked)  # each step of a loop has the same
    except TypeError:  # a list in an event cannot be looked up
        loss, told = _price(*asked)
    code = TrustedCode(package, code_version, told | _noise_of(package))
    return accountant.meter(loss, label=label, users=users, code=code)


def _price(
    event: Any, adjacency: Adjacency, trust: Trust, selection_delta: Exact | None
) -> tuple[Loss, dict[str, Any]]:
    """The loss of an event, and what the ledger says of it."""
    events = from_dp_event(
        event, adjacency=adjacency.value, trust=trust.value, selection_delta=selection_delta
    )
    return events.loss(), _told(to_dict(events)["events"])


_known_price = lru_cache(maxsize=64)(_price)


def meter_factorization(
    accountant: Meters,
    coefficients: Sequence[float] | NDArray[Any],
    noise_multiplier: Exact,
    *,
    rounds: int,
    most: int,
    apart: int,
    label: str = LABEL,
    users: range | None = None,
    package: str = "jax_privacy",
) -> Meter:
    """A meter at the price of a matrix factorization without sampling, as of BandMF or a BLT.

    It adds C⁻¹z to the clipped sums of ``rounds`` rounds, z Gaussian; C is lower triangular
    Toeplitz.  A person is in at most ``most`` rounds, any two of them at least ``apart`` from each
    other.

    Args:
        accountant: pays; zero-out, or replace-one, where a record moves a sum by twice the norm.
        coefficients: the first column of C, of at most ``rounds`` numbers; a BLT's
            ``toeplitz_coefs(rounds)``.
        noise_multiplier: the std of z over the norm to which a record is clipped, as
            ``stddev / l2_clip_norm`` of `matrix_factorization_privatizer`.
        rounds, most, apart: public, and kept by who is sampled when.
        label, users, package: as in `meter_event`.

    Raises:
        AdjacencyError: an account for add-remove, under which rounds would shift.
        PackageError: as `meter_event`.
        ValueError: coefficients without a positive first one, or a number out of range.
    """
    code_version = _version(package)
    if accountant.adjacency is Adjacency.ADD_REMOVE:
        raise AdjacencyError(
            "matrix factorization: who is in which round is public, so that there is no price for "
            "add-remove: open the account with adjacency=Adjacency.ZERO_OUT"
        )
    multiplier = exact("noise_multiplier", noise_multiplier)
    if multiplier <= 0:
        raise ValueError(f"noise_multiplier = {noise_multiplier!r}: must be > 0")
    moves = 2 if accountant.adjacency is Adjacency.REPLACE_ONE else 1
    square = participation_square(coefficients, rounds=rounds, most=most, apart=apart)
    loss = GaussianLoss(round_up(square * moves**2 / multiplier**2), adjacency=accountant.adjacency)
    parameters = {
        "coefficients": len(coefficients),
        "noise_multiplier": exact_text(multiplier),
        "sensitivity": math.sqrt(square),
        "rounds": rounds,
        "most": most,
        "apart": apart,
        **_noise_of(package),
    }
    code = TrustedCode(package, code_version, parameters)
    return accountant.meter(loss, label=label, users=users, code=code)


def participation_square(
    coefficients: Sequence[float] | NDArray[Any], *, rounds: int, most: int, apart: int
) -> Fraction:
    """S²: how far one person moves C x in all, squared, if each row moves by 1; rounded up.

    Exact for coefficients >= 0 that do not rise (docs/proofs.md, "Persons who return: streams",
    3); of others, those of the least such sequence above their sizes, as the formula is false
    without (jax_privacy's ``minsep_sensitivity_squared`` with ``skip_checks``).  Where visits are
    as far apart as C has bands, columns have no row in common, and signs and order do not matter.

    Raises:
        ValueError: as `meter_factorization`.
    """
    count(rounds=rounds)
    visits = min(count(most=most), -(-rounds // count(apart=apart)))
    found = [finite(coefficient=float(one)) for one in np.asarray(coefficients, dtype=float)]
    if not 1 <= len(found) <= rounds or found[0] <= 0:
        raise ValueError(
            f"coefficients: {len(found)} with the first {found[:1]}: must be at least 1 and at "
            f"most rounds = {rounds}, the first > 0"
        )
    sizes = [_up(abs(one)) for one in found]
    apart_sum = visits * sum(one * one for one in sizes)
    bands = len(sizes)
    for i in reversed(range(bands - 1)):
        sizes[i] = max(sizes[i], sizes[i + 1])
    sizes += [0] * (rounds - bands)
    total = 0
    for row in range(rounds):
        lags = range(row, max(-1, row - visits * apart), -apart)
        total += sum(sizes[lag] for lag in lags) ** 2
    return Fraction(min(total, apart_sum) if apart >= bands else total, _ONE * _ONE)


_ONE = 1 << 128


def _up(value: float) -> int:
    return math.ceil(Fraction(value) * _ONE)


def _told(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ledger says of events: themselves, or their number and digest if they are long."""
    written = canonical(events)
    if len(written) <= _LONGEST:
        return {"events": events}
    return {"events": len(events), "sha256": hashlib.sha256(written).hexdigest()}


_LONGEST = 3000
"""Bytes; a ledger keeps somewhat more of what is said of trusted code."""


def _is_jax_privacy(package: str) -> bool:
    return package.replace("-", "_") == "jax_privacy"


def _noise_of(package: str) -> dict[str, str]:
    """How it is drawn, where that is known."""
    return {"noise": "in floating point, from a key"} if _is_jax_privacy(package) else {}


@lru_cache
def _version(package: str) -> str:
    if _is_jax_privacy(package):
        found = installed(package, "jax_privacy", KNOWN, f"jax-privacy=={KNOWN[-1]}")
        return str(found.__version__)
    try:
        return version(package)
    except PackageNotFoundError:
        raise PackageError(
            f"package = {package!r} is not installed, nothing was spent: name the one that runs"
        ) from None


def _event_of(event: Any, adjacency: Adjacency) -> Any:
    """The event of a plan; of an event, itself.

    Raises:
        AdjacencyError, DataError: a plan whose event is not what it does, or not for the relation.
    """
    if type(event).__name__ == "BandMFExecutionPlanConfig":
        norm = float(np.linalg.norm(np.asarray(event.strategy, dtype=float)))
        if event.column_normalize and abs(norm - 1) > _UNIT:
            raise DataError(
                f"plan: column_normalize with a strategy of norm {norm:.6g}: its noise is for that "
                "norm, its columns have norm 1: divide the strategy by its norm"
            )
        event = event.plan
    if type(event).__name__ != "DPExecutionPlan":
        return event
    batches = event.batch_selection_strategy
    if type(batches).__name__ != "CyclicPoissonSampling":
        raise DataError(
            f"plan: batches by {type(batches).__name__}: only those of CyclicPoissonSampling are "
            "what an event of Poisson samples says"
        )
    if adjacency is Adjacency.ADD_REMOVE and batches.partition_type.name != "INDEPENDENT":
        raise AdjacencyError(
            "plan: groups of equal size shift if a record is added or removed: use "
            "partition_type=PartitionType.INDEPENDENT, or an account with "
            "adjacency=Adjacency.ZERO_OUT"
        )
    return event.dp_event


_UNIT = 1e-6
"""What single precision leaves of a unit norm."""
