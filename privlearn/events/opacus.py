"""Training under Opacus' `PrivacyEngine` that spends our tokens (extra ``opacus``).

Opacus clips and adds up per-example gradients; from there on the step is ours::

    model, optimizer, loader = PrivacyEngine().make_private(...)
    promise, ledger = ApproxDP(1, "1e-5"), Ledger.create(path)
    accountant = opacus_accountant(promise, optimizer, loader, ledger=ledger)
    spend_tokens(optimizer, loader, accountant)

Before each step's noise is drawn a token is issued and its spend is written; the noise comes from
the receipt.  A step beyond the cap raises `InsufficientBudgetError`, one beyond a committed plan
`BudgetError`, and nothing is changed.  Clipping and Poisson sampling stay Opacus', in torch's
arithmetic and with torch's generator: the audit lists the mechanism as trusted code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant
from privlearn.accountants.epsilon_delta import largest_epsilon
from privlearn.accountants.guarantee import epsilon_of, in_renyi
from privlearn.contract.protocols import Accountant, Plan
from privlearn.errors import AdjacencyError, BudgetError, DataError
from privlearn.events.lists import EventList, event_list
from privlearn.ledger import Ledger
from privlearn.losses import Loss, sampled_gaussian_loss
from privlearn.losses.budgets import ApproxDP, Renyi
from privlearn.losses.conversion import renyi_order
from privlearn.noise import NoiseSource
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact_text, float_down, round_up
from privlearn.values.validate import count as valid_count
from privlearn.values.validate import finite

MECHANISM = "opacus-dp-sgd"
LABEL = "dp-sgd"


def from_opacus_history(history: Iterable[tuple[float, float, int]]) -> EventList:
    """Reads the ``history`` of an Opacus accountant: (noise multiplier, sample rate, steps).

    Opacus' multiplier is std over ``max_grad_norm``, one record's largest norm: the sensitivity
    under add-remove, which is what its accountants state ε for.

    Raises:
        DataError: an entry that is no Gaussian on a Poisson sample, named by its position.
    """
    events: list[dict[str, Any]] = []
    for position, entry in enumerate(history):
        try:
            multiplier, rate, steps = entry
        except (TypeError, ValueError):
            raise DataError(
                f"history[{position}] = {entry!r}: must be (noise multiplier, sample rate, steps)"
            ) from None
        events.append(
            {
                "mechanism": "subsampled-gaussian",
                "noise_multiplier": multiplier,
                "sampling_probability": rate,
                "count": steps,
            }
        )
    top = {"adjacency": "add-remove", "trust": "central", "order": "listed"}
    return event_list(top | {"events": events})


def dp_sgd_loss(noise_multiplier: float, sample_rate: float) -> Loss:
    """The price of one step under add-remove.

    Opacus' sampler compares uniform multiples of 2^−24 with the rate in single precision, so a
    record is drawn with the rate rounded up to such a multiple; that is what is priced.

    Raises:
        ValueError: the multiplier is not in [1e-3, 1e6], or the rate not in [1e-12, 1].
    """
    rate = finite(sample_rate=sample_rate)
    multiplier = finite(noise_multiplier=noise_multiplier)
    if not 1e-12 <= rate <= 1:
        raise ValueError(f"sample_rate = {sample_rate!r}: must lie in [1e-12, 1]")
    compared = max(rate, float(np.float32(rate)))
    drawn = min(Fraction(math.ceil(Fraction(compared) * 2**24), 2**24), Fraction(1))
    return sampled_gaussian_loss(multiplier, drawn, Adjacency.ADD_REMOVE)


def most_steps(
    promise: ApproxDP, noise_multiplier: float, sample_rate: float, *, committed: bool = False
) -> int:
    """How many steps keep ``promise``; 0 if not even one does.

    Args:
        promise: ε and δ under add-remove.
        noise_multiplier, sample_rate: of every step.
        committed: whether their number is committed before the first one, so that they are
            composed tightly; otherwise they are counted at the one best Rényi order, and training
            may stop or change its noise after any step.

    Raises:
        ValueError: see `dp_sgd_loss`.
    """
    loss = dp_sgd_loss(noise_multiplier, sample_rate)
    steps = _most_uncommitted(promise, loss)
    return _most_committed(promise, loss, steps) if committed else steps


def opacus_accountant(
    promise: ApproxDP,
    optimizer: Any,
    data_loader: Any,
    *,
    ledger: Ledger | None = None,
    noise: NoiseSource | None = None,
    steps: int | None = None,
    label: str = LABEL,
) -> CentralAccountant[Renyi]:
    """Opens an accountant that protects each record of the data in training with ``optimizer``.

    Without ``steps`` it keeps ``promise`` whatever is spent, and counts at the Rényi order at which
    the promise has room for most steps as they are now.  With ``steps`` that number is committed,
    and so are noise multiplier and sample rate; composed tightly they keep ``promise`` for more
    steps (`most_steps`).  The cap is then only as large as the plan needs; should the process die
    between the two entries, the ledger says the cap's larger ε, and nothing was released.

    Args:
        promise: ε and δ for one record added or removed.
        optimizer, data_loader: as Opacus' ``make_private`` returns them.
        ledger, noise: as for `CentralAccountant`.
        steps: how many steps are committed.
        label: of the steps, as in `spend_tokens`.

    Raises:
        BudgetError: not one step, or not so many, keep the promise.
        LedgerError: see `CentralAccountant`.
        ValueError: see `dp_sgd_loss`.
    """
    users = range(len(data_loader.dataset))
    loss = dp_sgd_loss(optimizer.noise_multiplier, data_loader.batch_sampler.sample_rate)
    room = _most_uncommitted(promise, loss)
    wanted = 1 if steps is None else valid_count(steps=steps)
    if room >= wanted or steps is None:
        _check_room(promise, loss, wanted, committed=False)
        accountant = CentralAccountant(
            promise,
            users=users,
            ledger=ledger,
            noise=noise,
            currency=Renyi,
            order_for=loss,
            adjacency=Adjacency.ADD_REMOVE,
        )
    else:
        _check_room(promise, loss, wanted, committed=True)
        accountant = CentralAccountant(
            _cap_for(loss, wanted, promise),
            users=users,
            ledger=ledger,
            noise=noise,
            adjacency=Adjacency.ADD_REMOVE,
        )
    if steps is not None:
        accountant.commit([Plan(label, loss, users, wanted)])
    return accountant


def spend_tokens(
    optimizer: Any, data_loader: Any, accountant: Accountant[Any], *, label: str = LABEL
) -> None:
    """From now on every step of ``optimizer`` spends a token of ``accountant`` before its noise.

    A step takes one new sample of ``data_loader``, whole, with one gradient for each of its
    records; steps that do not are refused before anything is spent, and so is a change of
    ``max_grad_norm`` within a sample.  Noise multiplier and sample rate may change between steps:
    each step is priced as it is.  Optimizers on one loader share its samples.

    Args:
        optimizer: Opacus' `DPOptimizer`, as `make_private` returns it.
        data_loader: Opacus' `DPDataLoader` with Poisson sampling, from the same call.
        accountant: central, for add-remove, in a Rényi currency; its users are the records.
        label: of the tokens, as in a committed plan.

    Raises:
        TypeError: not that optimizer or loader (fixed batches, clipping per layer, several
            machines).  AdjacencyError: the accountant is not for add-remove.
        ValueError: the accountant protects another number of users than there are records, or the
            loader puts random records into empty samples.
    """
    from privlearn.events.opacus_steps import PaidSteps, samples_of

    if accountant.adjacency is not Adjacency.ADD_REMOVE:
        raise AdjacencyError(
            f"adjacency = {accountant.adjacency.value}: a Poisson-sampled Gaussian is priced for "
            "add-remove; open the accountant with adjacency=Adjacency.ADD_REMOVE"
        )
    samples = samples_of(data_loader)
    if len(accountant.users) != samples.num_samples:
        raise ValueError(
            f"users: the accountant protects {len(accountant.users)}, the data have "
            f"{samples.num_samples}"
        )
    PaidSteps(
        optimizer, samples, accountant, dp_sgd_loss, mechanism=MECHANISM, label=label
    ).put_in_place()


def _most_uncommitted(promise: ApproxDP, loss: Loss) -> int:
    cap = in_renyi(promise, loss)
    (room,), (price,) = cap.amounts, cap.price(loss).amounts
    return math.floor(room / price)


def _most_committed(promise: ApproxDP, loss: Loss, known: int) -> int:
    """Guesses by ε ∝ steps^½, every third time by the middle; what is found was priced."""
    fits, fails, tried = known, max(known, _MOST_STEPS) + 1, max(1, 2 * known)
    for rounds in count():
        if fails - fits <= 1:
            return fits
        tried = min(max(tried, fits + 1), fails - 1)
        epsilon = _committed_epsilon(promise, loss, tried)
        if epsilon <= float_down(promise.epsilon):
            fits = tried
        else:
            fails = tried
        middle = (fits + fails) // 2 if fails < 4 * fits else math.isqrt(max(fits, 1) * fails)
        tried = (
            middle if rounds % 3 == 2 else int(tried * (promise.epsilon / Fraction(epsilon)) ** 2)
        )
    raise AssertionError("the interval shrinks in every round")


_MOST_STEPS = 10**9  # More committed steps are not looked for


def _committed_epsilon(promise: ApproxDP, loss: Loss, steps: int) -> float:
    return largest_epsilon([loss * steps], float_down(promise.delta)).value


def _check_room(promise: ApproxDP, loss: Loss, steps: int, *, committed: bool) -> None:
    if committed:
        epsilon = _committed_epsilon(promise, loss, steps)
        if epsilon > float_down(promise.epsilon):
            most = _most_committed(promise, loss, _most_uncommitted(promise, loss))
            shown = exact_text(round_up(Fraction(epsilon), 6)) if epsilon < math.inf else "∞"
            raise BudgetError(
                f"steps = {steps}: they cost ε = {shown} at δ = {exact_text(promise.delta)}; "
                f"{promise} holds {most} of them"
            )
    elif _most_uncommitted(promise, loss) < steps:
        raise BudgetError(
            f"{promise}: holds not one uncommitted step of this noise multiplier and sample rate; "
            "committed ones, steps=..., may fit (`most_steps`)"
        )


def _cap_for(loss: Loss, steps: int, promise: ApproxDP) -> Renyi:
    """So many steps at the order at which they cost the least ε."""
    delta = float_down(promise.delta)
    epsilon = epsilon_of(loss * steps, delta).value
    order, _ = renyi_order(epsilon, delta, loss.renyi)
    return Renyi({order: 1}).price(loss) * steps
