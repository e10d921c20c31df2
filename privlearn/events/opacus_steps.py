"""One step of Opacus' `DPOptimizer`, paid with a token.

The price of a step is that of one Gaussian on the clipped sum over one *fresh* Poisson sample.
`PoissonSamples` notes every sample that is drawn, and a step is refused unless it has as many
gradients as the next sample that was drawn has records: a sample cannot be used twice, nor be added
to another, nor left out where it is empty.  Samples of one size are not told apart: of several that
were drawn ahead, which one the gradients are of is the word of whoever computed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple, Protocol

from privlearn.contract.protocols import Accountant
from privlearn.contract.receipts import Released
from privlearn.contract.spends import Spend
from privlearn.losses import Loss
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Ball
from privlearn.values.exact import float_up


class Sample(NamedTuple):
    """A Poisson sample that was drawn and is not paid for yet."""

    size: int
    rate: float  # With which each record is in it, as the sampler was set when it was drawn


class PoissonSamples(Protocol):
    """Opacus' sampler, which notes what it draws."""

    num_samples: int
    due: deque[Sample]
    """Drawn and without a step, the oldest first.  Loaders with workers draw ahead."""


def samples_of(data_loader: Any) -> PoissonSamples:
    """The sampler of a loader, which notes what it draws from now on.

    Raises:
        TypeError: the loader does not draw Poisson samples on this machine alone.
        ValueError: it puts a random record into an empty sample, or not all records are drawn from.
    """
    from opacus.data_loader import DPDataLoader
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    if not isinstance(data_loader, DPDataLoader):
        raise TypeError(
            f"data_loader: must draw Poisson samples (DPDataLoader), not "
            f"{type(data_loader).__name__}"
        )
    sampler: Any = data_loader.batch_sampler
    noted = _noting(UniformWithReplacementSampler)
    if type(sampler) not in (UniformWithReplacementSampler, noted):
        raise TypeError(
            f"data_loader.batch_sampler: must be Opacus' UniformWithReplacementSampler, not "
            f"{type(sampler).__name__}"
        )
    if getattr(data_loader.collate_fn, "rand_on_empty", False):
        raise ValueError(
            "data_loader: rand_on_empty=True: a random record in an empty sample moves the sum by "
            "max_grad_norm as well, so that a neighbour moves it by twice that"
        )
    if sampler.num_samples != len(data_loader.dataset):
        raise ValueError(
            f"data_loader: it draws from {sampler.num_samples} records, the data have "
            f"{len(data_loader.dataset)}"
        )
    if type(sampler) is not noted:
        # in its place: a loader cannot be given another sampler, and may have handed this one on
        sampler.due = deque()
        sampler.__class__ = noted
    found: PoissonSamples = sampler
    return found


@cache
def _noting(sampler: Any) -> Any:
    class Noting(sampler):  # type: ignore[misc, unused-ignore]
        def __iter__(self) -> Iterator[list[int]]:
            self.due.clear()  # what another pass left over is not used any more
            samples = super().__iter__()
            while True:
                rate = float(self.sample_rate)
                try:
                    indices = next(samples)
                except StopIteration:
                    return
                self.due.append(Sample(len(indices), rate))
                yield indices

    return Noting


class PaidSteps:
    """Clipping and noise of an optimizer, in place of its own methods."""

    def __init__(
        self,
        optimizer: Any,
        samples: PoissonSamples,
        accountant: Accountant[Any],
        price: Callable[[float, float], Loss],
        *,
        mechanism: str,
        label: str,
    ) -> None:
        from opacus.optimizers import DPOptimizer

        if type(optimizer) is not DPOptimizer:
            raise TypeError(
                f"optimizer: must be a plain DPOptimizer, not {type(optimizer).__name__}"
            )
        self._optimizer, self._samples, self._accountant = optimizer, samples, accountant
        self._price, self._mechanism, self._label = price, mechanism, label
        self._rows = 0
        self._norms: set[float] = set()
        """What the gradients since the last step were clipped to, and how many there were."""
        self._last: tuple[tuple[float, float, float, int], Spend, Loss] | None = None

    def put_in_place(self) -> None:
        self._optimizer.clip_and_accumulate = self._clip
        self._optimizer.add_noise = self._add_noise

    def _clip(self) -> None:
        optimizer = self._optimizer
        if optimizer.params[0].summed_grad is None:
            self._rows, self._norms = 0, set()
        _null_where_not_finite(optimizer.grad_samples)
        self._rows += len(optimizer.grad_samples[0])
        self._norms.add(float(optimizer.max_grad_norm))
        type(optimizer).clip_and_accumulate(optimizer)

    def _add_noise(self) -> None:
        """Charges first, then draws noise; after an error nothing is in ``grad``."""
        import torch
        from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

        optimizer = self._optimizer
        sums = [parameter.summed_grad for parameter in optimizer.params]
        for total in sums:
            _check_processed_flag(total)
        sample, norm = self._next_sample(), self._clipped_to()
        sizes = [int(total.numel()) for total in sums]
        spend, loss = self._spend(float(optimizer.noise_multiplier), norm, sample.rate, sum(sizes))
        token = self._accountant.issue(loss, users=self._accountant.users, label=self._label)
        with token.spend(spend) as receipt:
            self._samples.due.popleft()
            flat = torch.cat([total.detach().reshape(-1).cpu() for total in sums])
            noisy = flat.double().numpy() + receipt.draw((sum(sizes),))
            used = torch.from_numpy(noisy).to(flat.dtype)
            # a model is kept by whoever trains it; every gradient of it would be a large ledger
            released = receipt.release(used.float().numpy(), keep=False)
        self._put_back(released, sizes)
        for total in sums:
            _mark_as_processed(total)

    def _next_sample(self) -> Sample:
        if self._optimizer.accumulated_iterations != 1:
            raise ValueError(
                "accumulated gradients of several Poisson samples can hold a record twice, beyond "
                "max_grad_norm: use BatchMemoryManager, which splits one sample"
            )
        due = self._samples.due
        if not due:
            raise ValueError(
                "a step without a new Poisson sample: each step needs one of its own, drawn by "
                "iterating over the loader that was handed to spend_tokens (or what "
                "BatchMemoryManager makes of it afterwards); a sample pays for one step"
            )
        if due[0].size != self._rows:
            raise ValueError(
                "the gradients of this step are not those of the next Poisson sample: every sample "
                "needs one step, in the order in which they were drawn, also if it is empty, with "
                "one gradient for each of its records"
            )
        return due[0]

    def _clipped_to(self) -> float:
        if len(self._norms) != 1:
            raise ValueError(
                f"max_grad_norm = {sorted(self._norms)}: it was changed while one Poisson sample "
                "was added up; change it after a whole step"
            )
        return next(iter(self._norms))

    def _spend(self, multiplier: float, norm: float, rate: float, size: int) -> tuple[Spend, Loss]:
        key = multiplier, norm, rate, size
        if self._last is None or self._last[0] != key:
            loss = self._price(multiplier, rate)
            spend = Spend(
                self._mechanism,
                Ball(norm, size),
                GaussianNoise(float_up(Fraction(multiplier) * Fraction(norm))),
                own_loss=loss,
                parameters={"noise_multiplier": multiplier, "sample_rate": rate},
            )
            self._last = key, spend, loss
        return self._last[1:]

    def _put_back(self, released: Released[Any], sizes: list[int]) -> None:
        import torch

        flat = torch.from_numpy(released.value.copy())
        for parameter, part in zip(self._optimizer.params, flat.split(sizes), strict=True):
            total = parameter.summed_grad
            parameter.grad = part.to(total.device, total.dtype).view_as(parameter)


def _null_where_not_finite(gradients: list[Any]) -> None:
    """Makes the gradient of a record null if one of its numbers is no number, or infinite.

    Opacus' clipping would make the whole sum NaN, which says that the record is there.
    """
    import torch

    if not len(gradients[0]):
        return
    # a sum is finite if all its terms are, or may overflow: a function of the record all the same
    sums = [gradient.reshape(len(gradient), -1).sum(dim=1) for gradient in gradients]
    finite = torch.stack([total.to(sums[0].device) for total in sums]).isfinite().all(dim=0)
    if not bool(finite.all()):
        for gradient in gradients:
            gradient[~finite.to(gradient.device)] = 0
