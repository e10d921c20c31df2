"""Claims of ``f(data, rng)`` against the exact laws of its output, on given data and on others.

Its output is a known function of independent standard numbers (`scripted_generator`): of none;
affine; a choice by the largest noisy score; parts of one number each; or coins in a row.
That is shown on numbers that are tried, at random and far out.  Where the law is that of something
which the output determines, such as bins, what is found is a lower bound."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from privlearn.checking.exact.check import ExactResult, Row, compare, with_error
from privlearn.checking.exact.distributions import DistributionPair, largest_ratio
from privlearn.checking.exact.function_laws import (
    Affine,
    PairLaw,
    Runs,
    added,
    chosen,
    demand_tape,
    in_parts,
    marks_of,
    tossed,
    without_noise,
)
from privlearn.checking.exact.one_number import ERROR
from privlearn.checking.isolation import own_copy
from privlearn.checking.mined import Mined, mined
from privlearn.checking.reports import Axis, Coverage, Finding, Verdict
from privlearn.checking.sampling.check import Claim, claim_of, event_bound
from privlearn.checking.sampling.encoding import Raised
from privlearn.checking.scripted_generator import standard
from privlearn.checking.targets import Claimable, alike
from privlearn.errors import CheckError
from privlearn.losses.budgets import ApproxDP
from privlearn.rows.domains import Array
from privlearn.values.user_code import FAILED, attempted

_FINITE_ORDERS = (1.01, 1.1, 1.5, 2.0, 4.0)
_SECONDS, _SEARCH_SECONDS = 2.0, 0.7  # Of the processor, for one pair and for all others
_SIZES = (1, 2, 3, 10, 100, 300, 1_000)
_MOST_VALUES = 12
_DRAWS, _MORE_DRAWS = 400, 8_000
_SURE = 1 - 1e-6
_BITS = 4
_NEAR = 4  # Units in the last place
_CACHED = "answers from memory"


@dataclass(frozen=True)
class _Look:
    """What came of one pair: the law, and its numbers."""

    law: PairLaw
    found: ExactResult

    @property
    def verdict(self) -> Verdict:
        if self.found.violated:
            return "violated"
        if not self.law.exact:
            return "window"
        return "tight" if all(row.tight for row in self.found.rows) else "holds"


def function_finding(
    function: Callable[..., Any], claim: Claimable, neighbours: Sequence[tuple[Any, Any]]
) -> Finding:
    """What the exact laws of a function's output say about its claim. Data sets that are not given
    are made of given records; a claim that fails on such a data set of the same size is refuted. Of
    other sizes and of values that the code mentions it is only said, because the function may rely
    on what its author knows."""
    started = time.perf_counter()
    numbers, before = mined(function), _kept(function)
    with Runs(function) as runs:
        try:
            looks = []
            for first, second in neighbours:
                runs.until = time.process_time() + _SECONDS
                looks.append(_looked_at(runs, claim, first, second, numbers))
        except CheckError as error:
            unknown: Verdict = "not done" if _CACHED in str(error) else "window"
            sampled = Coverage((Axis("outputs", "samples on the given data only", False),))
            return Finding("exact", unknown, f"not computed: {error}", sampled)
        ranks = [(not look.found.violated, look.found.worst.ratio) for look in looks]
        k = ranks.index(min(ranks))
        worst, coverage = looks[k], Coverage()
        runs.until = time.process_time() + 2 * _SECONDS
        for (first, second), look in zip(neighbours, looks, strict=True):
            if worst.verdict == "violated" or not look.law.affine:
                continue
            if row := _last_bits(runs, claim, first, second, look.law):
                worst = replace(look, found=replace(look.found, rows=(*look.found.rows, row)))
        if worst.verdict != "violated":
            try:
                worst, coverage = _elsewhere(runs, claim, neighbours[k], worst, numbers)
            except Exception as error:  # what the function raises is an output; this is ours
                coverage = Coverage((Axis("records", f"no others could be made: {error}", False),))
    if attempted(alike, before, _kept(function)) is False:
        coverage += Coverage((Axis("state", "it keeps something from run to run", False),))
    coverage = _tried(worst, len(looks)) + coverage
    verdict = worst.verdict
    if verdict in ("tight", "holds") and coverage.missing:
        verdict = "window"
    seconds = time.perf_counter() - started
    row, told = worst.found.worst, "exact" if worst.law.exact else "at least"
    detail = f"{worst.law.how}: claimed {worst.found.claim}; {row.measure} is {told} "
    detail += f"{row.exact:.8g}, claimed {row.claimed:.8g} ({row.pair})"
    evidence = replace(worst.found, coverage=coverage, seconds=seconds)
    return Finding("exact", verdict, detail, coverage, evidence, seconds)


def _kept(function: Any) -> list[Any]:
    """What a function may keep from run to run: attributes, defaults, variables around it."""
    owners = function, getattr(function, "__self__", None)
    kept = [getattr(owner, "__dict__", None) for owner in owners]
    cells = getattr(function, "__closure__", None) or ()
    kept += [attempted(getattr, cell, "cell_contents") for cell in cells]
    return [own_copy(x) for x in [*kept, getattr(function, "__defaults__", None)]]


def pair_law(runs: Runs, first: Any, second: Any, numbers: Sequence[float] = ()) -> PairLaw:
    """The laws of a function's output on two data sets; at some numbers something may happen.
    Raises CheckError: they are of none of these kinds, with what is in the way."""
    for data in (first, second):
        demand_tape(runs, data)
    failed = runs(first).value, runs(second).value
    if all(isinstance(value, Raised) for value in failed) and failed[0] == failed[1]:
        raise CheckError(f"it raises {failed[0].kind} on both data sets: {failed[0].message}")
    if not (runs(first).tape.kinds or runs(second).tape.kinds):
        return without_noise(runs, first, second)
    why: list[str] = []
    for way in (added, chosen, partial(in_parts, mined=numbers), tossed):
        try:
            return way(runs, first, second)
        except CheckError as error:
            why.append(str(error))
    told = "noise that is added, scores of which the largest wins, parts of one number each, coins"
    raise CheckError(f"{why[0]}; can be computed: {told}; draw as many numbers on all data")


def _looked_at(
    runs: Runs, claim: Claimable, first: Any, second: Any, numbers: Mined, label: str = "as given"
) -> _Look:
    try:
        law = pair_law(runs, first, second, numbers.numbers)
    except Exception as error:  # what the function raises is an output; this is ours
        told = "" if isinstance(error, CheckError) else f"{type(error).__name__}: "
        raise CheckError(f"{told}{error}") from error
    off = 0.0 if law.affine else ERROR
    return _Look(law, _compared(claim, replace(law.pair, label=label), off))


def _compared(claim: Claimable, pair: DistributionPair, error: float) -> ExactResult:
    try:
        result = compare(claim, [pair])
    except CheckError:
        if isinstance(claim, ApproxDP):  # δ is 0 where the ratio is never above e^ε
            ratio = max(largest_ratio(pair.p, pair.q).value, largest_ratio(pair.q, pair.p).value)
            if ratio > float(claim.epsilon) * (1 + 1e-9) + 1e-12:
                raise
            row = Row(f"delta({float(claim.epsilon):g})", float(claim.delta), 0.0, 0.0, pair.label)
            return ExactResult("laws", repr(claim), (row,), 0.0)
        result = compare(claim, [pair], orders=_FINITE_ORDERS)
    return with_error(result, error)


def _tried(look: _Look, pairs: int) -> Coverage:
    more = "; a choice may lose more in other crowds" if look.law.choice else ""
    axes = [
        Axis("records", f"{pairs} given pair{'s' * (pairs > 1)}{more}", not more),
        Axis("noise", "at random, and at ±5, 10 and 30 scales"),
    ]
    if not look.law.exact:
        axes.append(Axis("outputs", "in bins", False))
    if look.law.affine:
        told = "noise is added in doubles, whose last bits tell more than its law (Mironov 2012)"
        axes.append(Axis("floating point", told, False))
    return Coverage(tuple(axes))


def _last_bits(runs: Runs, claim: Claimable, first: Any, second: Any, law: PairLaw) -> Row | None:
    """Bits of the output that tell the data sets apart, and those of its twin do not. The twin adds
    the same numbers in doubles. Outputs that are further from it than by rounding once or twice
    were added up in another order, and are not looked at."""
    assert law.affine is not None
    promise = claim_of(claim)
    for draws in (_DRAWS, _MORE_DRAWS):
        seen = [
            _with_twins(runs, data, to, draws)
            for data, to in zip((first, second), law.affine, strict=True)
        ]
        told = list[float]()
        for bit in range(_BITS):
            counts = [(x.view(np.int64) >> bit & 1).sum(axis=0) for both in seen for x in both]
            for one, twin_one, two, twin_two in np.transpose(counts).tolist():
                if abs((one - two) - (twin_one - twin_two)) >= 6 * math.sqrt(draws):
                    by_twin = _told(promise, twin_one, twin_two, draws) > promise.value
                    told.append(0.0 if by_twin else _told(promise, one, two, draws))
        if max(told, default=0.0) > promise.value:
            what = f"{promise.unit} by the last bits"
            why = "a twin that adds the same has none of it"
            return Row(what, promise.value, max(told), 0.0, why)
        if not told:
            break
    return None


def _told(claim: Claim, one: int, two: int, draws: int) -> float:
    """A bound from how often a bit was set on either data set, either way round."""
    ways = (one, two), (two, one), (draws - one, draws - two), (draws - two, draws - one)
    return max(event_bound(claim, k, draws, low, draws, _SURE) for k, low in ways if k > low)


def _with_twins(runs: Runs, data: Any, to: Affine, draws: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    outputs, twins = np.empty((draws, len(to.paths))), np.empty((draws, len(to.paths)))
    for k in range(draws):
        z = np.array([standard(kind, rng, 1)[0] for kind in to.kinds])
        outputs[k] = [*runs(data, z).numbers().values()]
        twins[k] = to.at(z)
    apart = np.abs(outputs - twins) / np.spacing(np.abs(twins))
    return outputs, np.where(np.median(apart, axis=0) <= _NEAR, twins, outputs)


def _elsewhere(
    runs: Runs, claim: Claimable, pair: tuple[Any, Any], worst: _Look, numbers: Mined
) -> tuple[_Look, Coverage]:
    until, known = time.process_time() + _SEARCH_SECONDS, {_print(runs, *pair)}
    runs.until = until + _SEARCH_SECONDS
    tried: Counter[str] = Counter()
    missing: dict[str, str] = {}
    for axis, label, first, second in _others(*pair, numbers):
        if time.process_time() > until:
            missing.setdefault(axis, f"no time for {label}")
            continue
        tried[axis] += 1
        try:
            mark = _print(runs, first, second)
            if mark in known:
                continue
            known.add(mark)
            look = _looked_at(runs, claim, first, second, numbers, label)
        except CheckError as error:
            missing.setdefault(axis, f"nothing is known of {label}: {str(error)[:120]}")
            continue
        if look.verdict == "violated" and axis == "records":
            return look, Coverage((Axis("records", label),))
        if look.verdict == "violated":
            row = look.found.worst
            missing.setdefault(axis, f"{label}: {row.measure} is {row.exact:.4g}")
    axes = (
        Axis(axis, f"{n} others{told and '; '}{told}", not told)
        for axis, n in tried.items()
        for told in [missing.get(axis, "")]
    )
    return worst, Coverage(tuple(axes))


def _print(runs: Runs, first: Any, second: Any) -> Any:
    """What the same numbers give on both data sets: the differences, and how far noise goes."""
    rngs = [np.random.default_rng(seed) for data in (first, second) for seed in range(4)]
    seen = [runs((first, second)[k // 4], chance=rng) for k, rng in enumerate(rngs)]
    if len({tuple(x.numbers()) for x in seen}) > 1:
        return object()
    one, two = np.array([[*x.numbers().values()] for x in seen]).reshape(2, 4, -1)
    shown = np.concatenate([one - two, np.diff(one, axis=0)])
    unit = float(np.abs(shown).max(initial=0.0)) or 1.0
    return (f"{unit:.6g}", np.round(shown / unit, 6).tobytes(), *(marks_of(x.form()) for x in seen))


def _others(first: Any, second: Any, numbers: Mined) -> Iterator[tuple[str, str, Any, Any]]:
    """Axis, words, and a pair of data sets that differ by one record, as these lists or arrays do;
    none where they differ by something else."""
    kinds = {type(first), type(second)}
    if kinds not in ({list}, {np.ndarray}) or 0 in (np.ndim(first), np.ndim(second)):
        return
    longer, shorter = sorted((list(first), list(second)), key=len, reverse=True)
    at = next((k for k, x in enumerate(shorter) if not alike(x, longer[k])), len(shorter))
    record, other = longer[at : at + 1], shorter[at : at + 1] if len(longer) == len(shorter) else []
    crowd = longer[:at] + longer[at + 1 :]
    mixed = len({type(x) for x in longer + shorter}) > 1
    if mixed or not record or not alike(crowd, shorter[:at] + shorter[at + len(other) :]):
        return

    def pair(crowd: list[Any], place: int, *records: list[Any]) -> Iterator[Any]:
        for changed in records or (record, other):
            made = [*crowd[:place], *changed, *crowd[place:]]
            like = first if isinstance(first, np.ndarray) else None
            yield made if like is None else np.array(made, like.dtype).reshape(-1, *like.shape[1:])

    n = len(longer)
    for place in dict.fromkeys([0, n - 1, n // 2, *numbers.places(n)[:8]]):
        if place != at:
            yield "records", f"the change at place {place}", *pair(crowd, place)
    for kind in record + other if crowd else ():
        yield "records", f"among {n - 1} like it", *pair([kind] * len(crowd), at)
    seen = crowd or record
    for size in dict.fromkeys([*_SIZES, *numbers.sizes(1_000)[:8]]):
        if size != n and (size > 1 or other):
            repeated = [seen[k % len(seen)] for k in range(size - 1)]
            yield "sizes", f"{size} records", *pair(repeated, size - 1)
    if type(record[0]) in (int, float) or isinstance(record[0], np.number):
        if not isinstance(record[0], int | np.integer):
            yield "values", "a record nan", *pair(crowd, at, [math.nan], record)
        for label, *records in _near(type(record[0]), numbers):
            yield "values", label, *pair(crowd, at, *records)


def _near(kind: Any, numbers: Mined) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Records that the code mentions beside what is nearly the same: there it may leap."""
    whole = issubclass(kind, int | np.integer)
    for x in numbers.numbers[:_MOST_VALUES]:
        if whole and x != int(x):
            continue
        step = 1 if whole else 1e-9 * max(1.0, abs(x))
        for other in (x + step, x - step):
            made = [attempted(kind, int(value) if whole else value) for value in (x, other)]
            if FAILED not in made:  # as −1 is no unsigned number
                yield f"a record {x:g} beside {other:.12g}", made[:1], made[1:]
