"""Training under Opacus' `PrivacyEngine` that spends our tokens (extra ``opacus``).

Opacus clips and adds up per-example gradients; from there on the step is ours::

    model, optimizer, loader = PrivacyEngine().make_private(...)
    loss = dp_sgd_loss(optimizer.noise_multiplier, loader.sample_rate)
    accountant = CentralAccountant(
        ApproxDP(3, "1e-5"), users=range(n), ledger=Ledger.create(path), currency=Renyi,
        adjacency=Adjacency.ADD_REMOVE,
    )
    spend_tokens(optimizer, loader, accountant)

Before each step's noise is drawn a token is issued and its spend is written; the noise comes from
the receipt.  A step beyond the cap raises `InsufficientBudgetError` and changes nothing.  Clipping
and Poisson sampling stay Opacus', in torch's arithmetic and with torch's generator: the audit lists
the mechanism as trusted code.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from privlearn._validate import finite
from privlearn.adjacency import Adjacency
from privlearn.domains import Ball
from privlearn.errors import AdjacencyError, DataError
from privlearn.events.lists import EventList, event_list
from privlearn.exact import float_up
from privlearn.losses import Loss, sampled_gaussian_loss
from privlearn.noise import GaussianNoise
from privlearn.protocols import Accountant
from privlearn.tokens import Released, Spend

MECHANISM = "opacus-dp-sgd"


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

    Raises:
        ValueError: the multiplier is not in [1e-3, 1e6], or the rate not in [1e-12, 1].
    """
    rate = finite(sample_rate=sample_rate)
    multiplier = finite(noise_multiplier=noise_multiplier)
    return sampled_gaussian_loss(multiplier, rate, Adjacency.ADD_REMOVE)


def spend_tokens(
    optimizer: Any,
    data_loader: Any,
    accountant: Accountant[Any],
    *,
    label: str = "dp-sgd",
) -> None:
    """From now on every step of ``optimizer`` spends a token of ``accountant`` before its noise.

    Args:
        optimizer: Opacus' `DPOptimizer`, as `make_private` returns it.
        data_loader: Opacus' `DPDataLoader` with Poisson sampling, from the same call.
        accountant: central, for add-remove, in a Rényi currency; its users are the records.
        label: of the tokens, as in a committed plan.

    Raises:
        TypeError: not that optimizer or loader (fixed batches, clipping per layer, several
            machines).  AdjacencyError: the accountant is not for add-remove.
        ValueError: the accountant protects another number of users than there are records.
    """
    from opacus.data_loader import DPDataLoader
    from opacus.optimizers import DPOptimizer

    if type(optimizer) is not DPOptimizer:
        raise TypeError(f"optimizer: must be a plain DPOptimizer, not {type(optimizer).__name__}")
    if not isinstance(data_loader, DPDataLoader):
        raise TypeError(
            f"data_loader: must draw Poisson samples (DPDataLoader), not "
            f"{type(data_loader).__name__}"
        )
    if accountant.adjacency is not Adjacency.ADD_REMOVE:
        raise AdjacencyError(
            f"adjacency = {accountant.adjacency.value}: a Poisson-sampled Gaussian is priced for "
            "add-remove; open the accountant with adjacency=Adjacency.ADD_REMOVE"
        )
    records = len(data_loader.dataset)
    if len(accountant.users) != records:
        raise ValueError(
            f"users: the accountant protects {len(accountant.users)}, the data have {records}"
        )
    rate = float(data_loader.sample_rate)
    step = _Step(optimizer, rate, accountant, label)
    optimizer.add_noise = step.add_noise


class _Step:
    def __init__(
        self, optimizer: Any, rate: float, accountant: Accountant[Any], label: str
    ) -> None:
        self._optimizer, self._rate = optimizer, rate
        self._accountant, self._label = accountant, label

    def add_noise(self) -> None:
        """In place of `DPOptimizer.add_noise`: charge first, then noise."""
        from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

        optimizer = self._optimizer
        for parameter in optimizer.params:
            _check_processed_flag(parameter.summed_grad)
        if optimizer.accumulated_iterations != 1:
            raise ValueError(
                "accumulated gradients of several Poisson samples can hold a record twice, beyond "
                "max_grad_norm: use BatchMemoryManager, which splits one sample"
            )
        multiplier, norm = float(optimizer.noise_multiplier), float(optimizer.max_grad_norm)
        sums = [parameter.summed_grad for parameter in optimizer.params]
        sizes = [int(total.numel()) for total in sums]
        spend = Spend(
            MECHANISM,
            Ball(norm, sum(sizes)),
            GaussianNoise(_product_up(multiplier, norm)),
            own_loss=dp_sgd_loss(multiplier, self._rate),
            parameters={"noise_multiplier": multiplier, "sample_rate": self._rate},
        )
        token = self._accountant.issue(
            spend.loss(self._accountant.adjacency), users=self._accountant.users, label=self._label
        )
        with token.spend(spend) as receipt:
            noise = receipt.draw((sum(sizes),))
            flat = np.concatenate([_array(total) for total in sums])
            released = receipt.release(flat + noise)
        self._put_back(released, sizes)
        for total in sums:
            _mark_as_processed(total)

    def _put_back(self, released: Released[Any], sizes: list[int]) -> None:
        import torch

        start = 0
        for parameter, size in zip(self._optimizer.params, sizes, strict=True):
            part = torch.from_numpy(np.array(released.value[start : start + size]))
            total = parameter.summed_grad
            parameter.grad = part.to(total.device, total.dtype).view_as(parameter)
            start += size


def _product_up(left: float, right: float) -> float:
    """A noise std that is not below the product."""
    return float_up(Fraction(left) * Fraction(right))


def _array(tensor: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64).ravel()
