"""Training loops of other libraries (DP-SGD), replayed with the same coins on neighbouring data.

What a step of DP-SGD releases is ``centre + scale·z`` with a fresh standard normal z.  Both are
measured on the running loop: the scale by moving the noise, the shift of the centre by moving the
coin of one record, so that it is in the sample of that step or is not, with all else as it was.
The shift in units of the scale is 1/noise multiplier, whatever clip norm, normalisation and
learning rate are; the rate of the sampler is the coin at which the record enters."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import binom

from privlearn.checking.isolation import TimeLimit, kept_alive, silenced
from privlearn.checking.mined import mined
from privlearn.checking.reports import Axis, CheckReport, Coverage, Finding, Verdict
from privlearn.checking.training_runs import (
    IN,
    OUT,
    Coins,
    Failed,
    Law,
    Loop,
    Run,
    all_scaled,
    columns,
    directions,
    rows_of,
    with_record,
)
from privlearn.errors import CheckError
from privlearn.events import EventList
from privlearn.events.opacus import from_opacus_history
from privlearn.losses import GaussianLoss, Loss, SubsampledGaussian, leaves_of
from privlearn.rows.domains import Array

UNSEEN = (
    "records that are not finite",
    "what is printed, logged, saved or measured beside what is yielded, and how long a step takes",
    "whether the generators are secure, and rounding in floating point",
    "workers, other processes and machines",
)
_SCALES = ((1, 1), (30, 30), (1e3, 1e3), (1e3, -1e3), (-1e3, 1e3), (1e3, 1), (1, 1e3))
_SMALL = 64  # records of which each one's part in a sample is looked for
_FEW_STEPS = 12  # that are looked at one by one, each from the first one on
_SEEDS = 16
_REACHED = 0.999  # Part of what was accounted for that a record moves, where a claim is tight
_RARE = 1e-6  # chance with which a correct sampler would be refuted


def check_training(
    train: Callable[..., Any],
    data: Any,
    claim: Loss | EventList | Iterable[tuple[float, float, int]],
    *,
    public_size: bool = False,
    name: str | None = None,
    seconds: float = 300.0,
    raise_error: bool = True,
) -> CheckReport:
    """Replays a training loop on neighbouring data, and refutes a claim about its steps.

    Args:
        train: ``train(data)`` or ``train(data, rng)``, a generator function: the loop, with a
            ``yield`` after each step of what is released: the noisy gradients, or the parameters
            if a step moves them by a multiple of these (arrays, tensors, modules, dicts or lists).
        data: records: an array or tensor, a tuple or dict of these with records along the leading
            axis, or a list of records.
        claim: what was accounted for each step, under add-remove: an event list, a loss such as
            ``SubsampledGaussian(1.1, "0.25") * 8``, or Opacus' ``accountant.history``:
            (noise multiplier, sampling rate, steps).
        public_size: whether the number of records is public; else a data set without one of them
            is a neighbour, too.
        name: for the report.
        seconds: after which it is given up.
        raise_error: whether to raise, or only report.

    Returns:
        The findings ``steps``, ``noise``, ``sampling``, ``shift`` and, unless the size is public,
        ``size``.  They are about single steps: how these compose is for the accountant.

    Raises:
        PrivacyViolation: something was refuted.
        CheckError: something could not be done.
    """
    called = name or str(getattr(train, "__name__", train))
    loop = Loop(train, data, _claimed(claim))
    with TimeLimit(seconds, called), kept_alive(called), loop.scripted():
        report = CheckReport(called, tuple(_findings(loop, public_size)), UNSEEN)
    if raise_error:
        report.raise_if_bad()
    return report


def _claimed(claim: Any) -> list[tuple[float, float, int]]:
    """Multiplier, rate and number of steps, in order."""
    if isinstance(claim, Loss):
        parts = list(leaves_of(claim))
    else:
        parts = (claim if isinstance(claim, EventList) else from_opacus_history(claim)).losses()
    stated = []
    for loss, count in parts:
        if isinstance(loss, SubsampledGaussian):
            rate = float(loss.sampling_probability)
            stated.append((float(loss.noise_multiplier), rate, count))
        elif isinstance(loss, GaussianLoss):
            stated.append((1 / math.sqrt(loss.mu_squared), 1.0, count))
        else:
            raise CheckError(f"claim: {loss!r} is no Gaussian on a Poisson sample")
    return stated


@silenced
def _findings(loop: Loop, public_size: bool) -> list[Finding]:
    begun = time.perf_counter()
    found, noise, taken = _steps(loop)
    if found[0].verdict != "not done":
        neighbours = _Neighbours(loop, noise, taken)
        for look in (neighbours.sampling, neighbours.shift, neighbours.size):
            if look == neighbours.size and public_size:
                continue
            try:
                found.append(look())
            except Failed as failed:
                found.append(Finding(look.__name__, "not done", str(failed)))
    spent = (time.perf_counter() - begun) / len(found)
    return [replace(finding, seconds=spent) for finding in found]


def _steps(loop: Loop) -> tuple[list[Finding], int, int]:
    """What whole runs show; how many normal numbers are a step's noise, and the number of steps."""
    stop = loop.steps + 1
    forced: Any = (dict.fromkeys(range(1, stop + 1), (coin, {})) for coin in (OUT, IN))
    empty, full = forced
    runs = {
        "some coins": loop.run(stop=stop, seed=1),
        "the same coins again": loop.run(stop=stop, seed=1),
        "other coins": loop.run(stop=stop, seed=2),
        "empty samples": loop.run(stop=stop, forced=empty),
        "full samples": loop.run(stop=stop, forced=full),
    }
    first, again = runs["some coins"], runs["the same coins again"]
    taken, undone = len(first.released), first.error
    seen = Axis("steps", f"{taken} of {loop.steps}", taken >= loop.steps)
    tried = Coverage((Axis("samples", "random, empty and full ones"), seen))

    def finding(check: str, verdict: Verdict, detail: str) -> Finding:
        return Finding(check, verdict, detail, tried)

    if not taken:
        undone = undone or "it releases nothing"
    elif taken == 1 < loop.steps and first.ended:
        undone = f"one release for {loop.steps} steps: train must yield what each step releases"
    elif not undone and not _same(first, again):
        undone = "two runs with the same coins differ: it draws from a generator that this check "
        undone += "cannot replace; make one inside train, or take one as its second argument"
    if undone:
        return [finding("steps", "not done", undone)], 0, 0
    wrong = [f"{run.error} ({kind})" for kind, run in runs.items() if run.error]
    counts = {kind: len(run.released) for kind, run in runs.items()}
    if taken > loop.steps:
        wrong = [f"more than the {loop.steps} steps that were accounted for"]
    elif not wrong and len(set(counts.values())) > 1:
        told = ", ".join(f"{count} with {kind}" for kind, count in counts.items())
        wrong = [f"how many steps are taken depends on the samples: {told}"]
    steps = finding("steps", "violated" if wrong else "holds", "; ".join(wrong) or f"{taken} steps")
    if taken < loop.steps and not wrong:
        steps = finding("steps", "window", f"it stopped after step {taken} of {loop.steps}")
    taken = min(taken, loop.steps)
    return [steps, finding("noise", *_noise(runs, taken))], _noise_of(first, taken), taken


def _noise_of(run: Run, taken: int) -> int:
    """Normal numbers of a step; before the first release parameters may have been drawn, too."""
    if taken == 1:
        return run.normals[1] - run.ahead or run.normals[1]
    return min(run.normals.get(step, 0) for step in range(min(2, taken), taken + 1))


def _noise(runs: Mapping[str, Run], taken: int) -> tuple[Verdict, str]:
    for kind, run in runs.items():
        bare = [k for k in range(1, len(run.released) + 1) if not run.normals.get(k)]
        if bare and len(bare) == len(run.released):
            return "violated", "no normal noise is drawn in any step, that a seed does not fix"
        if bare:
            return "violated", f"no noise is drawn in step {bare[0]} ({kind})"
        if run.repeated:
            return "violated", f"drawn again: {min(run.repeated)}"
    few = _noise_of(runs["some coins"], taken)
    return "holds", f"new noise in each step, at least {few} normal numbers"


@dataclass(frozen=True)
class _World:
    """A data set whose last record is the one that is in a sample, or not."""

    told: str
    record: int  # its place in the data of the user
    data: Any


class _Neighbours:
    """Pairs of runs that differ in one record of one sample."""

    def __init__(self, loop: Loop, noise: int, taken: int) -> None:
        self.loop, self.noise, self.taken = loop, noise, taken
        self.last = loop.n - 1
        self.step = min(2, taken)
        starts = itertools.accumulate((count for *_, count in loop.claim), initial=1)
        early = (k for k in starts if k <= min(taken, 64))
        all_steps = range(1, taken + 1) if taken <= _FEW_STEPS else (1, 2, _FEW_STEPS)
        self.steps = sorted({*all_steps, *early})
        self.worlds = list(self._worlds())
        self.own = [world for world in self.worlds if world.record == self.last]
        self.each = range(0, loop.n, -(-loop.n // _SMALL))  # records that are looked at one by one
        self.by_coin = self._by_coin(IN, OUT) or self._by_coin(OUT, IN)

    def _worlds(self) -> Iterator[_World]:
        n, data = self.loop.n, self.loop.data
        met = set()
        mentioned = [(math.nan, number) for number in mined(self.loop.train).numbers[:8]]
        for record in dict.fromkeys((n - 1, 0, n // 2)):
            moved = rows_of(data, [i for i in range(n) if i != record] + [record])
            changes = [*_SCALES, *mentioned] if record == n - 1 else _SCALES[:3:2]
            for change, donor in itertools.product(changes, (n - 1, 0, (n - 1) // 2)):
                changed = with_record(moved, n - 1, donor, change)
                ends = [c[-1] for c in columns(changed)]
                key = repr([end.tolist() if hasattr(end, "tolist") else end for end in ends])
                if key not in met:
                    met.add(key)
                    how = f"times {change[0]:g} and" if change[0] == change[0] else "made"
                    yield _World(f"record {record} {how} {change[1]:g}", record, changed)

    def _by_coin(self, inside: float, outside: float) -> bool:
        """Whether samples are empty with these coins, and one number brings in one record."""
        self.inside, self.outside, self.others = inside, outside, outside
        turned = rows_of(self.loop.data, list(range(self.loop.n))[::-1])
        empty, other = (self._sample(data, self.step, {}) for data in (self.loop.data, turned))
        if empty is None or other is None or not np.array_equal(empty, other):
            return False
        for others, world in itertools.product((outside, inside), self.worlds):
            self.others = others
            pair = [self._sample(world.data, self.step, {self.last: c}) for c in (inside, outside)]
            if _differ(*pair):
                return True
        return False

    def _alone(self, step: int, others: float | None, coins: Mapping[int, float]) -> dict[str, Any]:
        """A sample behind empty ones."""
        nobody: Coins = (self.outside, {})
        return {"forced": dict.fromkeys(range(1, step), nobody) | {step: (others, coins)}}

    def _sample(self, data: Any, step: int, coins: Mapping[int, float]) -> Array | None:
        """What a step releases after empty samples, from one of these records; None if it fails."""
        run = self.loop.run(data, stop=step, **self._alone(step, self.others, coins))
        return run.released[-1] if run.error is None and len(run.released) == step else None

    def sampling(self) -> Finding:
        """At which coin a record enters."""
        if not self.by_coin:
            return self._otherwise_sampled()
        looked = [(record, self.step) for record in self.each]
        looked += [(self.last, step) for step in self.steps if step != self.step]
        found, told = {}, ""
        for record, step in looked:
            claimed = self.loop.claimed(step)[1]
            if (rates := self._rate(record, step)) is None:
                continue
            found[record, step] = rates
            if rates[0] > claimed:
                told = f"record {record} is in the sample of step {step} with probability "
                told += f"{rates[0]:.6g}, {rates[0] / claimed:.4g} times what was accounted for"
                break
        met = len({record for record, _ in found})
        tried = Coverage(self._tried(met, len(self.steps)))
        if told:
            return Finding("sampling", "violated", told, tried)
        whole = all(low == high for low, high in found.values())
        told = "each record has a coin of its own; it enters with the rate that was accounted for"
        told += "" if whole else ", or with a smaller one"
        verdict: Verdict = "tight" if whole else "holds"
        return Finding("sampling", "window" if tried.missing else verdict, told, tried)

    def _tried(self, met: int, steps: int) -> tuple[Axis, Axis]:
        n, of = self.loop.n, self.loop.steps
        records = Axis("records", f"{met} of {n} one by one", met == n)
        return records, Axis("steps", f"{steps} of {of}", steps >= of)

    def _rate(self, record: int, step: int) -> tuple[float, float] | None:
        """Bounds of the rate of one record, which are equal where it is the claimed one."""
        claimed = self.loop.claimed(step)[1]
        for scales in _SCALES:
            data = with_record(self.loop.data, record, record, scales)
            without = self._sample(data, step, {record: self.outside})

            def enters(rate: float, data: Any = data, without: Array | None = without) -> bool:
                coin = rate if self.inside == IN else OUT - rate
                coins = {record: min(max(coin, 0.0), OUT)}
                return _differ(self._sample(data, step, coins), without)

            slack = 1e-6 * claimed + 2**-23
            if not enters(claimed - slack):
                if not enters(0.0):
                    continue
                return 0.0, claimed
            if claimed + slack >= OUT or not enters(claimed + slack):
                return claimed, claimed
            low, high = claimed + slack, 1.0
            for _ in range(24):
                middle = (low + high) / 2
                low, high = (middle, high) if enters(middle) else (low, middle)
            return low, high
        return None

    def _otherwise_sampled(self) -> Finding:
        """Samples that are not drawn by one uniform number for each record: how large they are."""
        claimed = self.loop.claimed(1)[1]
        n = self.loop.n
        if claimed == 1:
            return Finding("sampling", "not applicable", "every record is in each sample")
        hits = np.zeros((_SEEDS, len(self.each)), dtype=bool)
        for seed in range(_SEEDS):
            base = self.loop.run(stop=1, seed=seed).released
            for place, record in enumerate(self.each):
                other = with_record(self.loop.data, record, (record + 1) % n, (-30, 30))
                run = self.loop.run(other, stop=1, seed=seed)
                hits[seed, place] = not np.array_equal(run.released, base)
        sizes, tried = hits.sum(axis=1), f"{hits.size} of records in first samples"
        chances = binom.pmf(np.arange(n + 1), n, hits.mean())
        if binom.sf(sizes.sum() - 1, hits.size, claimed) < _RARE:
            told = f"records are sampled with rate {hits.mean():.3g}, claimed is {claimed:.3g}"
        elif len(self.each) == n and len(set(sizes)) == 1 and (chances**_SEEDS).sum() < _RARE:
            told = f"no Poisson samples: each of {_SEEDS} has {sizes[0]} records"
        else:
            axis = Axis("samples", f"{tried}; they are drawn in another way", enough=False)
            told = "samples are not drawn by one uniform number for each record"
            return Finding("sampling", "weak", told, Coverage((axis,)))
        return Finding("sampling", "violated", told, Coverage((Axis("records", tried),)))

    def shift(self) -> Finding:
        """How far one record moves what a step releases, in units of its noise."""
        found = _Shifts(self.loop, 1 if self.by_coin else 2)
        if self.by_coin:
            axes = self._tried(len(self.each), len(self.steps))
            return found.finding("shift", self._one_in_a_sample, *axes)
        return found.finding("shift", self._one_instead, *self._tried(1, 1))

    def _one_instead(self, found: _Shifts) -> None:
        """Another record in place of the last one; from the first step on the parameters differ."""
        self.step = 1
        for seed in range(3 if self.loop.claimed(1)[1] == 1 else _SEEDS):
            law = self.loop.law(1, self.noise, self.worlds[0].data, seed=seed)
            for world in self.own:
                self._add(found, law, world, f"{world.told} instead", {"seed": seed})

    def _one_in_a_sample(self, found: _Shifts) -> None:
        law = self.loop.law(self.step, self.noise, **self._alone(self.step, self.outside, {}))
        for record in self.each:  # large, in a sample of its own against an empty one
            data = with_record(self.loop.data, record, record, _SCALES[2])
            world = _World(f"record {record} times 1000", record, data)
            coins = self._alone(self.step, self.outside, {record: self.inside})
            self._add(found, law, world, f"{world.told}, alone", coins)
        found.worst = None  # the record is not the last one
        self._each_world(found, "no other record", self.outside, self.own)
        self._each_world(found, "all others", self.inside, self.worlds)
        self._each_world(found, "some others", None, self.worlds[:6])
        worst, first = found.worst or self.worlds[0], self.step
        self._hidden(worst)
        self._unused()
        tried = [worst, *(world for world in self.worlds if world is not worst)]
        for step in (step for step in self.steps if step != first):
            self.step = step
            for world, others in itertools.product(tried, (self.inside, self.outside)):
                told = f"{'all' if others == self.inside else 'no'} others, step {step}"
                self._each_world(found, told, others, [world])
                if found.reached(step):
                    break

    def _each_world(
        self, found: _Shifts, told: str, others: float | None, worlds: list[_World]
    ) -> None:
        """Worlds with the last record in the sample, against the first of the same record."""
        without, coins = (self._coins(others, here) for here in (False, True))
        for _, group in itertools.groupby(worlds, lambda world: world.record):
            for number, world in enumerate(group):
                if number == 0:
                    law = self.loop.law(self.step, self.noise, world.data, **without)
                self._add(found, law, world, f"{world.told}, {told}", coins)

    def _coins(self, others: float | None, here: bool, later: int = 0) -> dict[str, Any]:
        """The last record is in the sample of this step, or in none; so in ``later`` ones, too."""
        out: Coins = (None, {self.last: self.outside})
        coins = {self.last: self.inside if here else self.outside}
        steps = dict.fromkeys(range(1, self.step + later + 1), out)
        return {"forced": steps | {self.step: (others, coins)}}

    def _add(
        self, found: _Shifts, law: Law, world: _World, told: str, tape: dict[str, Any]
    ) -> None:
        """Compares with a law the same run on another data set, and with its noise moved."""
        run = self.loop.run(world.data, stop=self.step, **tape)
        if run.error is None and len(run.released) < self.step:
            raise _Refuted(f"{told}: it ends before step {self.step}")
        if run.error or not np.isfinite(run.released[-1]).all():
            found.skipped.append(f"{told}: {run.error or 'released numbers are not finite'}")
            return
        away = 30 * directions(law.normals)[1] if law.normals else np.zeros(0)
        first = max(run.normals[self.step] - law.normals, 0)
        again = self.loop.run(world.data, stop=self.step, bump=(self.step, first, away), **tape)
        centre = run.released[-1]
        other = replace(law, centre=centre)
        if again.error or not other.fits((away, again.released[-1] - centre)):
            other = self.loop.law(self.step, law.normals, world.data, **tape)
        found.add(law, other, self.step, told, world)

    def _hidden(self, world: _World) -> None:
        """What the noise hides in one step must not show in later ones. The noise is moved so that
        the step with the record releases what it does without it; all that follows may depend on
        that release only."""
        later = min(self.taken - self.step, 3)
        if not later:
            return
        without, coins = (self._coins(self.inside, here, later) for here in (False, True))
        law = self.loop.law(self.step, self.noise, world.data, **without)
        runs = [self.loop.run(world.data, stop=self.step + later, **c) for c in (without, coins)]
        bump = law.back @ (law.centre - runs[1].released[self.step - 1])
        first = runs[1].normals[self.step] - law.normals
        runs[1] = self.loop.run(
            world.data, stop=self.step + later, bump=(self.step, first, bump), **coins
        )
        for step in range(self.step, min(len(run.released) for run in runs)):
            centre, hidden = (run.released[step] for run in runs)
            units, error, _ = replace(law, centre=centre).shift(hidden)
            if units * self.loop.claimed(step + 1)[0] > 1e-3 + 50 * error:
                raise _Refuted(
                    f"{world.told}, in step {self.step} only: step {step + 1} moves by {units:.3g} "
                    "stds of the noise although what was released before is the same"
                )

    def _unused(self) -> None:
        """Data of which no record is in any sample must not tell."""
        forced = dict.fromkeys(range(1, self.taken + 1), (self.outside, dict[int, float]()))
        base = self.loop.run(stop=self.taken, forced=forced)
        changed = [(world.told, world.data) for world in self.own]
        for by in (0.0, 0.1, -1.0, 1e3):
            changed.append((f"all records times {by:g}", all_scaled(self.loop.data, by)))
        for what, data in changed:
            run = self.loop.run(data, stop=self.taken, forced=forced)
            if told := _difference(base, run):
                raise _Refuted(f"{what}, and no record in a sample: {told}")

    def size(self) -> Finding:
        """A data set whose last record is in no sample, and one without it, in all steps."""
        stop = self.loop.steps + 1
        if not self.by_coin and self.loop.claimed(1)[1] < 1:
            axis = Axis("sizes", "which numbers belong to which record is not known", enough=False)
            return Finding("size", "weak", "not looked at", Coverage((axis,)))
        if not self.by_coin:
            return _Shifts(self.loop, 1).finding("size", self._one_less, *self._tried(1, 1))
        hint = "is the number of records public? then public_size=True"
        sizes = range(self.last, max(self.loop.n - 9, 1), -1)
        tried = Coverage((Axis("sizes", f"{sizes[-1]} to {self.loop.n}"), Axis("steps", "all")))
        for size in sizes:
            out = None, dict.fromkeys(range(size, self.loop.n), self.outside)
            one = self.loop.run(stop=stop, forced=dict.fromkeys(range(1, stop), out))
            other = self.loop.run(rows_of(self.loop.data, list(range(size))), stop=stop)
            if told := _difference(one, other):
                told = f"{self.loop.n} records, of which {size} are ever sampled, or {size}: {told}"
                return Finding("size", "violated", f"{told} ({hint})", tried)
        return Finding("size", "holds", "records that are in no sample may be missing", tried)

    def _one_less(self, found: _Shifts) -> None:
        law = self.loop.law(1, self.noise, rows_of(self.loop.data, list(range(self.last))))
        for world in self.own:
            self._add(found, law, world, f"{world.told}, not a record less", {})


def _same(one: Run, other: Run) -> bool:
    if len(one.released) != len(other.released):
        return False
    pairs = zip(one.released, other.released, strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _differ(one: Array | None, other: Array | None) -> bool:
    return one is not None and other is not None and not np.array_equal(one, other)


def _difference(one: Run, other: Run) -> str:
    if other.error or len(one.released) != len(other.released):
        return other.error or f"{len(one.released)} steps, and {len(other.released)}"
    for step, pair in enumerate(zip(one.released, other.released, strict=True), start=1):
        if not np.allclose(*pair, rtol=1e4 * one.precision, atol=1e-300):
            return f"step {step} releases something else"
    return ""


class _Refuted(Exception):
    """What one record does that was not paid for."""


class _Shifts:
    """Shifts in units of 1/noise multiplier, and what is wrong with them."""

    def __init__(self, loop: Loop, bound: int) -> None:
        self.loop, self.bound = loop, bound
        self.skipped: list[str] = []
        self.pairs, self.error = 0, 0.0
        self.largest = dict[int, float]()
        """Of each step, in units of what was accounted for."""
        self.worst: _World | None = None

    def add(self, law: Law, other: Law, step: int, told: str, world: _World) -> None:
        """Adds the shift between a law without the record and another one with it."""
        self.pairs += 1
        multiplier = self.loop.claimed(step)[0]
        for each in (law, other):
            if each.wrong:
                raise Failed(f"the noise of step {step} {each.wrong}: yield the noisy gradients")
        units, error, bare = law.shift(other.centre)
        if bare > 2 * law.error:
            raise _Refuted(f"{told}: released numbers without noise differ by {bare:.3g}")
        if law.differs(other):
            raise _Refuted(f"{told}: the scale of the noise tells")
        if (units - 2 * error) * multiplier > self.bound * (1 + 1e-4):
            most = f"{self.bound}/{multiplier:.4g} = {self.bound / multiplier:.4g}"
            told += f": it moves what is released by {units:.4g} stds of the noise; at most {most}"
            raise _Refuted(told)
        self.error = max(self.error, error * multiplier)
        if units * multiplier >= max(self.largest.values(), default=0.0):
            self.worst = world
        self.largest[step] = max(units * multiplier, self.largest.get(step, 0.0))

    def reached(self, step: int) -> bool:
        """Whether a record moved a step by about as much as it may."""
        return self.largest.get(step, 0.0) > _REACHED * self.bound

    def finding(self, check: str, look: Callable[[_Shifts], None], *axes: Axis) -> Finding:
        """What one way of looking finds."""
        wrong = ""
        try:
            look(self)
        except _Refuted as refuted:
            wrong = str(refuted)
        step = min(self.largest, key=lambda k: self.largest[k], default=1)
        least = self.largest.get(step, 0.0) / self.bound
        tried = Coverage(
            (
                *axes,
                Axis("values", f"{self.pairs} pairs; {len(self.skipped)} failed", not self.skipped),
                Axis("shift", f"{least:.1%} of the bound reached in step {step}", least > _REACHED),
                Axis("rounding", f"{self.error:.1e} of the bound", self.error < 0.05),
                Axis("noise", "moved by ±1.5 and 45 stds"),
            )
        )
        if wrong:
            return Finding(check, "violated", wrong, tried)
        verdict: Verdict = "window" if tried.missing or self.bound > 1 else "tight"
        most = max(self.largest.values(), default=0.0) / self.bound
        told = f"at most {most:.3g} of what was accounted for"
        return Finding(check, verdict, told, tried)
