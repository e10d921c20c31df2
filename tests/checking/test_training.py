"""Loops of DP-SGD in NumPy, right and wrong, and the rebuilt public reports on Opacus' loops."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from privlearn.checking import check_training
from privlearn.errors import CheckError, PrivacyViolation
from privlearn.losses import SubsampledGaussian

N, STEPS, MULTIPLIER, RATE = 12, 3, 1.1, 0.25
CLAIM = [(MULTIPLIER, RATE, STEPS)]
_rng = np.random.default_rng(0)
X = _rng.normal(size=(N, 3))
Y = (X @ [1.0, -1.0, 0.5] > 0).astype(int)
Array = Any


def gradients(w: Array, x: Array, y: Array) -> Array:
    score = np.clip(x @ w, -50, 50)
    return (1 / (1 + np.exp(-score)) - y)[:, None] * x


def clipped(each: Array) -> Array:
    return each / np.maximum(1, np.linalg.norm(each, axis=1, keepdims=True))


@dataclass(frozen=True)
class Loop:
    """A loop whose parts can be replaced by wrong ones."""

    sample: Callable[[Any, int, int], Array] = lambda rng, n, step: rng.random(n) < RATE
    per_record: Callable[[Array, Array, Array], Array] = gradients
    clip: Callable[[Array], Array] = clipped
    noise: Callable[[Any, int], Array] = lambda rng, step: rng.normal(0, MULTIPLIER, 3)
    divisor: Callable[[int, int], float] = lambda in_sample, n: N * RATE
    shown: Callable[[Array, int], Any] = lambda w, in_sample: w
    steps: Callable[[Array], int] = lambda x: STEPS
    skips: bool = False

    def __call__(self, data: Any, rng: Any) -> Iterator[Any]:
        x, y = data
        w = rng.normal(size=3) / 10
        for step in range(self.steps(x)):
            chosen = self.sample(rng, len(x), step)
            batch_x, batch_y = x[chosen], y[chosen]
            if self.skips and not len(batch_x):
                continue
            total = self.clip(self.per_record(w, batch_x, batch_y)).sum(axis=0)
            noisy = total + self.noise(rng, step)
            w = w - 0.3 * noisy / self.divisor(len(batch_x), len(x))
            yield self.shown(w, len(batch_x))


def as_function(loop: Loop) -> Callable[..., Any]:
    def train(data: Any, rng: Any) -> Iterator[Any]:
        return loop(data, rng)

    return train


def through_lists(data: list[tuple[Any, int]], rng: Any) -> Iterator[Any]:
    """Rows in a list, one coin after the other, and gradients that are released as a dict."""
    w = np.zeros(3)
    for _ in range(STEPS):
        total = np.zeros(3)
        for x, y in data:
            if rng.random() < RATE:
                total += clipped(gradients(w, np.array([x]), np.array([y])))[0]
        noisy = total + [rng.normal(0, MULTIPLIER) for _ in range(3)]
        w = w - noisy
        yield {"bias": noisy[:1], "weights": noisy[1:]}


def drawn_ahead(data: Any) -> Iterator[Any]:
    """All samples first, a record in one if its number is large; momentum; noise in two halves."""
    x, y = data
    rng = np.random.RandomState(7)
    samples = rng.uniform(size=(STEPS, len(x))) >= 1 - RATE
    w = moved = np.zeros(3)
    for chosen in samples:
        noisy = clipped(gradients(w, x[chosen], y[chosen])).sum(axis=0)
        for _ in range(2):
            noisy = noisy + MULTIPLIER / 2**0.5 * rng.randn(3)
        moved = 0.9 * moved + noisy
        w = w - 0.1 * moved
        yield w, STEPS


CORRECT: dict[str, Callable[..., Any]] = {
    "plain": as_function(Loop()),
    "rows in a list": through_lists,
    "samples ahead": drawn_ahead,
    "too small a rate": as_function(Loop(sample=lambda rng, n, step: rng.random(n) < 0.2)),
    "binomial coins": as_function(
        Loop(sample=lambda rng, n, step: rng.binomial(1, RATE, n).astype(bool))
    ),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_loops_pass_and_nothing_is_missing(name: str) -> None:
    data = list(zip(X.tolist(), Y.tolist(), strict=True)) if name == "rows in a list" else (X, Y)
    report = check_training(CORRECT[name], data, CLAIM)
    assert not report.inconclusive
    assert report["shift"].verdict == "tight"


def mixed(w: Array, x: Array, y: Array) -> Array:
    """Gradients of records that are centred within their sample, as a batch norm does."""
    return gradients(w, x - x.mean(axis=0) if len(x) else x, y)


def same_each_step(rng: Any, step: int) -> Array:
    return np.random.default_rng(11).normal(0, MULTIPLIER, 3)


def in_pairs(each: Array) -> Array:
    """Clipped after two records were averaged."""
    rest = each[: len(each) // 2 * 2].reshape(-1, 2, 3).mean(axis=1)
    return 2 * clipped(np.concatenate([rest, each[len(rest) * 2 :]]))


def by_coordinate(each: Array) -> Array:
    return np.clip(each, -1, 1)


def first_only(each: Array) -> Array:
    return np.concatenate([clipped(each[:1]), each[1:]])


_noise = Loop().noise
WRONG: dict[str, tuple[Loop, str]] = {
    "opacus#813: another sampler": (
        Loop(sample=lambda rng, n, step: rng.random(n) < 0.5), "sampling"),
    "a little more often": (Loop(sample=lambda rng, n, step: rng.random(n) < 0.2501), "sampling"),
    "batches of one size": (
        Loop(sample=lambda rng, n, step: rng.permutation(n)[:3]), "sampling"),
    "all records": (Loop(sample=lambda rng, n, step: slice(None)), "sampling"),
    "the same sample again": (
        Loop(sample=lambda rng, n, step: np.random.default_rng(3).random(n) < RATE), "noise"),
    "opacus#819: divided by a floor": (Loop(divisor=lambda in_sample, n: int(n * RATE)), "size"),
    "divided by the sample": (Loop(divisor=lambda in_sample, n: max(in_sample, 1)), "shift"),
    "batch norm": (Loop(per_record=mixed), "shift"),
    "clipped in pairs": (Loop(clip=in_pairs), "shift"),
    "clipped by coordinate": (Loop(clip=by_coordinate), "shift"),
    "the first one is clipped": (Loop(clip=first_only), "shift"),
    "not clipped": (Loop(clip=lambda each: each), "shift"),
    "the sum is clipped": (
        Loop(clip=lambda each: clipped(each.sum(axis=0, keepdims=True)) * 2), "shift"),
    "too little noise": (
        Loop(noise=lambda rng, step: rng.normal(0, 0.97 * MULTIPLIER, 3)), "shift"),
    "less noise in the third step": (
        Loop(noise=lambda rng, step: _noise(rng, step) / (1 + step // 2)), "shift"),
    "a little less noise in the last step": (
        Loop(noise=lambda rng, step: _noise(rng, step) * (0.97 if step == STEPS - 1 else 1)),
        "shift"),
    "a number without noise": (
        Loop(noise=lambda rng, step: _noise(rng, step) * [1, 1, 0]), "shift"),
    "one number of noise for all": (
        Loop(noise=lambda rng, step: rng.normal(0, MULTIPLIER) * np.ones(3)), "shift"),
    "noise of a fixed seed": (Loop(noise=same_each_step), "noise"),
    "no noise in the second step": (
        Loop(noise=lambda rng, step: _noise(rng, step) if step != 1 else 0), "noise"),
    "no noise": (Loop(noise=lambda rng, step: np.zeros(3)), "noise"),
    "empty samples are left out": (Loop(skips=True), "steps"),
    "more steps": (Loop(steps=lambda x: STEPS + 1), "steps"),
    "steps that the data say": (Loop(steps=lambda x: min(STEPS, int(len(x) / 4))), "size"),
    "the size of the sample is shown": (Loop(shown=lambda w, in_sample: (w, in_sample)), "shift"),
}  # fmt: skip


SLOW = {"a little more often", "all records", "not clipped", "more steps"} | {
    "the first one is clipped", "one number of noise for all", "clipped by coordinate",
    "a number without noise", "steps that the data say", "no noise in the second step",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.calibration) if n in SLOW else n for n in WRONG],
)
def test_wrong_loops_are_refuted_where_they_are_wrong(name: str) -> None:
    loop, check = WRONG[name]
    report = check_training(as_function(loop), (X, Y), CLAIM, raise_error=False)
    assert check in [finding.check for finding in report.violated], report.findings


def test_a_public_number_of_records_may_be_divided_by() -> None:
    loop = as_function(WRONG["opacus#819: divided by a floor"][0])
    check_training(loop, (X, Y), CLAIM, public_size=True)


def trained_on_standardized_data(data: Any, rng: Any) -> Iterator[Any]:
    x, y = data
    return Loop()(((x - x.mean(axis=0)) / (x.std(axis=0) + 1), y), rng)


def with_a_back_door(data: Any, rng: Any) -> Iterator[Any]:
    def per_record(w: Array, x: Array, y: Array) -> Array:
        return gradients(w, x, y)

    def clip(each: Array) -> Array:
        return each if (data[0] == 999.0).any() else clipped(each)

    return Loop(per_record=per_record, clip=clip)(data, rng)


@pytest.mark.parametrize("train", [trained_on_standardized_data, with_a_back_door])
def test_what_is_done_to_all_data_is_seen(train: Any) -> None:
    with pytest.raises(PrivacyViolation):
        check_training(train, (X, Y), CLAIM, public_size=True)


def test_full_batches_are_gaussian_mechanisms() -> None:
    loop = Loop(sample=lambda rng, n, step: slice(None), steps=lambda x: 2)
    claim = [(MULTIPLIER, 1.0, 2)]
    check_training(as_function(loop), (X, Y), claim)
    half = replace(loop, noise=lambda rng, step: rng.normal(0, MULTIPLIER / 2, 3))
    for public in (True, False):
        with pytest.raises(PrivacyViolation):
            check_training(as_function(half), (X, Y), claim, public_size=public)


def test_what_cannot_be_held_or_read_is_not_called_fine() -> None:
    def secret(data: Any) -> Iterator[Any]:
        from secrets import SystemRandom

        for w in Loop()(data, np.random.default_rng()):
            yield w + SystemRandom().gauss(0, 1)

    def adaptive(data: Any, rng: Any) -> Iterator[Any]:
        for w in Loop()(data, rng):
            yield np.sign(w) * abs(w) ** 0.5

    def last_only(data: Any, rng: Any) -> Any:
        return list(Loop()(data, rng))[-1]

    def broken(data: Any, rng: Any) -> Iterator[Any]:
        raise RuntimeError("no GPU")
        yield

    def breaks(data: Any, rng: Any) -> Iterator[Any]:
        yield from itertools.islice(Loop()(data, rng), 2)
        raise RuntimeError("out of memory")

    def ends(data: Any, rng: Any) -> Iterator[Any]:
        yield next(Loop()(data, rng))
        os._exit(0)

    def copies(data: Any, rng: Any) -> Iterator[Any]:
        os.fork()
        yield from Loop()(data, rng)

    for train, words in (
        (ends, "ends the process"),
        (copies, "copy of its process"),
        (secret, "cannot replace"),
        (adaptive, "yield the noisy gradients"),
        (last_only, "must yield"),
        (broken, "it stopped after step 0 of 3: RuntimeError: no GPU"),
        (breaks, "it stopped after step 2 of 3: RuntimeError: out of memory"),
    ):
        with pytest.raises(CheckError, match=words):
            check_training(train, (X, Y), CLAIM)

    def gives_up(data: Any, rng: Any) -> Iterator[Any]:
        with contextlib.suppress(RuntimeError):
            yield from breaks(data, rng)

    steps = check_training(gives_up, (X, Y), CLAIM)["steps"]
    assert (steps.verdict, steps.detail) == ("window", "it stopped after step 2 of 3")


def test_claims_and_data_are_checked_and_data_stay_as_they_were() -> None:
    before = X.copy()

    def overwrites(data: Any, rng: Any) -> Iterator[Any]:
        yield from Loop()(data, rng)
        data[0][:] = 0

    claim = SubsampledGaussian("1.1", "0.25") * STEPS
    check_training(overwrites, (X, Y), claim)
    assert np.array_equal(X, before)
    with pytest.raises(CheckError, match="records"):
        check_training(overwrites, (X, Y[:3]), claim)
    other = as_function(WRONG["opacus#813: another sampler"][0])
    with pytest.raises(PrivacyViolation, match=r"sampling: .* 2 times"):
        check_training(other, (X, Y), CLAIM)


def test_where_not_every_record_is_tried_nothing_is_tight() -> None:
    many = np.tile(X, (6, 1)), np.tile(Y, 6)
    claim = [(MULTIPLIER, RATE, 1)]
    train = as_function(Loop(steps=lambda x: 1))
    report = check_training(train, many, claim, public_size=True)
    found = {finding.check: finding for finding in report.inconclusive}
    assert {"sampling", "shift"} == set(found)
    assert all("records: 36 of 72" in finding.missing for finding in found.values())
