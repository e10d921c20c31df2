"""Loops of Opacus, plain PyTorch and JAX under `check_training`; skipped without these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from privlearn.checking import check_training

RECORDS, BATCH, MULTIPLIER, NORM = 16, 4, 1.3, 0.7
CLAIM = [(MULTIPLIER, BATCH / RECORDS, RECORDS // BATCH)]
_rng = np.random.default_rng(0)
X = _rng.normal(size=(RECORDS, 3)).astype(np.float32)
Y = (X @ [1.0, -1.0, 0.5] > 0).astype(int)

# Opacus -----------------------------------------------------------------------------------------


def opacus_loop(
    data: Any,
    changed: Callable[[Any], None] = lambda optimizer: None,
    sampler: Callable[[Any], Any] = lambda records: None,
    poisson: bool = True,
    leaves_out: Callable[[Any], bool] = lambda batch: False,
) -> Iterator[Any]:
    import torch
    from opacus import PrivacyEngine

    x, y = data
    records = torch.utils.data.TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
    torch.manual_seed(0)
    model: Any = torch.nn.Linear(3, 2)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=torch.utils.data.DataLoader(
            records, batch_size=BATCH, sampler=sampler(records), drop_last=not poisson
        ),
        noise_multiplier=MULTIPLIER,
        max_grad_norm=NORM,
        poisson_sampling=poisson,
    )
    changed(optimizer)
    for images, truth in loader:
        if leaves_out(images):
            continue
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), truth).backward()
        optimizer.step()
        yield model


def by_true_size(optimizer: Any) -> None:
    def scale_grad() -> None:
        for parameter in optimizer.params:
            parameter.grad /= max(len(optimizer.grad_samples[0]), 1)

    optimizer.scale_grad = scale_grad


def half_noise(optimizer: Any) -> None:
    optimizer.noise_multiplier /= 2


def larger_norm(optimizer: Any) -> None:
    clip = optimizer.clip_and_accumulate

    def clip_and_accumulate() -> None:
        optimizer.max_grad_norm *= 1.5
        clip()
        optimizer.max_grad_norm /= 1.5

    optimizer.clip_and_accumulate = clip_and_accumulate


def weighted(records: Any) -> Any:
    import torch

    weights = torch.ones(len(records))
    return torch.utils.data.WeightedRandomSampler(weights, num_samples=2 * BATCH)


OPACUS: dict[str, tuple[dict[str, Any], str]] = {
    "opacus#813: the sampler is replaced": ({"sampler": weighted}, "sampling"),
    "fixed batches": ({"poisson": False}, "sampling"),
    "divided by the true size": ({"changed": by_true_size}, "shift"),
    "half the noise": ({"changed": half_noise}, "shift"),
    "clipped to more": ({"changed": larger_norm}, "shift"),
    "empty samples left out": ({"leaves_out": lambda batch: not len(batch)}, "steps"),
}


def test_a_loop_of_opacus_is_tight_if_the_number_of_records_is_public() -> None:
    """Else it is not: Opacus divides by ⌊records·rate⌋, and says so in each update (opacus#819)."""
    pytest.importorskip("opacus")
    report = check_training(opacus_loop, (X, Y), CLAIM, public_size=True, raise_error=False)
    assert report.passed, report.findings
    assert [report[check].verdict for check in ("sampling", "shift")] == ["tight", "tight"]
    private = check_training(opacus_loop, (X, Y), CLAIM, raise_error=False)
    assert [finding.check for finding in private.violated] == ["size"]


@pytest.mark.parametrize("name", OPACUS)
def test_wrong_loops_of_opacus_are_refuted(name: str) -> None:
    pytest.importorskip("opacus")
    options, check = OPACUS[name]

    def train(data: Any) -> Iterator[Any]:
        return opacus_loop(data, **options)

    report = check_training(train, (X, Y), CLAIM, public_size=True, raise_error=False)
    assert check in [finding.check for finding in report.violated], report.findings


# Plain PyTorch ----------------------------------------------------------------------------------


def plain_loop(data: Any, norm: bool = False, bare: bool = False) -> Iterator[Any]:
    """Gradients of the sum, or of each record; ``norm``: a batch norm before them."""
    import torch

    x, y = torch.as_tensor(data[0]), torch.as_tensor(data[1])
    generator = torch.Generator().manual_seed(5)
    model: Any = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    for _ in range(3):
        chosen = torch.rand(len(x), generator=generator) < 0.25
        inputs = x[chosen]
        if norm and len(inputs) > 1:
            inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-3)
        sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for one, truth in zip(inputs, y[chosen], strict=True):
            loss = torch.nn.functional.cross_entropy(model(one[None]), truth[None])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            size = torch.sqrt(sum(g.square().sum() for g in gradients))
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient * (NORM / size).clamp(max=1)
        for total in sums[1:] if bare else sums:
            noise = torch.empty_like(total).normal_(0, MULTIPLIER * NORM, generator=generator)
            total += noise
        with torch.no_grad():
            for parameter, total in zip(model.parameters(), sums, strict=True):
                parameter -= 0.5 * total / 4
        yield {name: value for name, value in model.named_parameters()}


@pytest.mark.parametrize("options", [{}, {"norm": True}, {"bare": True}])
def test_plain_loops_of_torch(options: dict[str, bool]) -> None:
    pytest.importorskip("torch")

    def train(data: Any) -> Iterator[Any]:
        return plain_loop(data, **options)

    report = check_training(train, (X, Y), [(MULTIPLIER, 0.25, 3)], raise_error=False)
    assert report.passed == (not options), report.findings
    assert options or report["shift"].verdict == "tight"


# JAX --------------------------------------------------------------------------------------------


def jax_loop(data: Any, same_key: bool = False, together: bool = False) -> Iterator[Any]:
    import jax
    import jax.numpy as jnp

    x, y = jnp.asarray(data[0]), jnp.asarray(data[1])
    key = jax.random.key(0)
    w = jnp.zeros(3)

    def sum_of_clipped(w: Any, weights: Any) -> Any:
        each = ((jax.nn.sigmoid(x @ w) - y) * weights)[:, None] * x
        if together:
            each = each.sum(0, keepdims=True)
        return (each / jnp.maximum(1, jnp.linalg.norm(each, axis=1, keepdims=True))).sum(0)

    compiled = jax.jit(sum_of_clipped)
    for step in range(2):
        if not (same_key and step):
            key, coins, noise = jax.random.split(key, 3)
        chosen = jax.random.bernoulli(coins, 0.25, (len(x),))
        noisy = compiled(w, chosen) + MULTIPLIER * jax.random.normal(noise, (3,))
        w = w - 0.1 * noisy
        yield noisy


@pytest.mark.parametrize("options", [{}, {"same_key": True}, {"together": True}])
def test_loops_of_jax(options: dict[str, bool]) -> None:
    pytest.importorskip("jax")

    def train(data: Any) -> Iterator[Any]:
        return jax_loop(data, **options)

    report = check_training(train, (X[:6], Y[:6]), [(MULTIPLIER, 0.25, 2)], raise_error=False)
    assert report.passed == (not options), report.findings
    assert options or report["shift"].verdict == "tight"
