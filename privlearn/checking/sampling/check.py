"""Sampling checks: run a mechanism on neighbouring data and see how far its outputs give them away.

`black_box` learns an event that separates the two data sets from one part of the
outputs and draws its conclusion from the other part.  The answer is a lower bound on the loss with
its confidence.  It refutes claims and never proves them."""

from __future__ import annotations

import copy
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri

from privlearn.checking.isolation import TimeLimit, is_output, silenced
from privlearn.checking.reports import Axis, Coverage, Evidence
from privlearn.checking.sampling.distinguishers import Score, families, last_bits_tell, repeats
from privlearn.checking.sampling.encoding import (
    MAX_NUMBERS,
    PLAIN,
    Noted,
    OutputTable,
    Raised,
    layout,
    numbers_in,
    tabulate,
)
from privlearn.checking.targets import Claimable, SamplingTarget, alike, sampling_target
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.rows.domains import Array
from privlearn.values.exact import float_up
from privlearn.values.validate import count, positive

ORDERS = np.concatenate([1 + np.geomspace(0.01, 1, 8), np.geomspace(2.5, 256, 12)])
"""Where Rényi curves are asked; fewer orders only make a check more lenient."""


@dataclass(frozen=True)
class Claim:
    """A promise with one number that can be turned up until an observation becomes possible.
    ``least`` is the least number under which P(E) = p, Q(E) = q is possible. ``failure`` is the
    probability of an event that nothing is promised in: P = (1−δ)P₀ + δA and Q = (1−δ)Q₀ + δB,
    where P₀, Q₀ keep the promise."""

    unit: str
    value: float
    text: str
    least: Callable[[Array, Array], Array]
    failure: float = 0.0

    def strength(self, p: Array, q: Array) -> Array:
        """Least number under which P(E) = p, Q(E) = q is possible; 0 where p <= q."""
        if self.failure:
            rest = 1 - self.failure
            p, q = np.clip((p - self.failure) / rest, 0, 1), np.clip(q / rest, 0, 1)
        return np.asarray(np.nan_to_num(self.least(p, q), nan=0.0, posinf=np.inf))


def least_epsilon(p: Array, q: Array, slack: float = 0.0) -> Array:
    """Of (ε, slack)-DP."""
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.log(np.maximum(p - slack, 0) / q)
        down = np.log(np.maximum(1 - q - slack, 0) / (1 - p))
    return np.asarray(np.maximum(np.maximum(up, down), 0.0))


def least_mu(p: Array, q: Array) -> Array:
    """Of μ-Gaussian DP (Dong, Roth & Su 2022)."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.maximum(ndtri(p) - ndtri(q), 0.0))


def least_multiple(
    p: Array, q: Array, known: ArrayLike, curve: ArrayLike, worst: float = np.inf
) -> Array:
    """Of D_α <= multiple·curve(α) at every known order; for zCDP the curve is α. ``worst``: bound
    on the privacy loss itself at a multiple of 1, where the claim has one."""
    a = np.asarray(known)[:, None]
    p, q = np.ravel(p), np.ravel(q)
    best, size = np.zeros(len(p)), (a - 1) * np.asarray(curve)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = (np.log(p), np.log1p(-p)), (np.log(q), np.log1p(-q))
        for x, y in (logs, logs[::-1]):
            terms = [np.fmax(a * u - (a - 1) * v, -np.inf) for u, v in zip(x, y, strict=True)]
            ratio = np.logaddexp(*terms) / size
            best = np.fmax(best, np.fmax.reduce(ratio, axis=0))
    if np.isfinite(worst):
        best = np.fmax(best, least_epsilon(p, q) / worst)
    return np.asarray(np.where(p > q, best, 0.0))


def claim_of(promise: Any) -> Claim:
    """The claim that a loss, a currency or an (ε, δ) promise makes."""
    text = str(promise)
    match promise:
        case ApproxDP():
            least = partial(least_epsilon, slack=float(promise.delta))
            return Claim("epsilon", float(promise.epsilon), text, least)
        case PureDP():
            return Claim("epsilon", float_up(promise.epsilon), text, least_epsilon)
        case GaussianDP():
            return Claim("mu", promise.mu, text, least_mu)
        case ZCDP():
            least = partial(least_multiple, known=ORDERS, curve=ORDERS)
            return Claim("rho", float_up(promise.rho), text, least)
        case Renyi():
            points = {float(a): float_up(e) for a, e in promise.curve.items()}
            return _curve(points, text)
        case Loss():
            return _of_loss(promise)
    raise CheckError(f"claim = {promise!r}: must be a loss or a budget")


def _of_loss(loss: Loss) -> Claim:
    failure, apart = float_up(loss.failure()), loss.unless_failed()
    if failure >= 1:
        raise CheckError(f"claim {loss.kind}: it may fail with probability {failure:g}")
    text = f"{loss.kind} loss"
    mass, pure = apart.gaussian(), apart.pure()
    if mass is not None:
        claim = Claim("mu", float_up(mass) ** 0.5, text, least_mu)
    else:
        points = {float(a): apart.renyi(float(a)) for a in ORDERS}
        finite = {a: d for a, d in points.items() if np.isfinite(d)}
        if not finite and pure is not None:
            claim = Claim("epsilon", float_up(pure), text, least_epsilon)
        else:
            claim = _curve(finite, text, np.inf if pure is None else float_up(pure))
    if not failure:
        return claim
    text = f"{text} but for a failure of probability {failure:g}"
    return replace(claim, failure=failure, text=text)


def _curve(points: dict[float, float], text: str, worst: float = np.inf) -> Claim:
    if not points or min(points.values()) <= 0:
        raise CheckError(f"claim {text}: no order at which it promises anything that can be tested")
    known = sorted(points)
    least = partial(least_multiple, known=known, curve=[points[a] for a in known], worst=worst)
    return Claim("times the claimed curve", 1.0, text, least)


THRESHOLDS = 160
PRUDENCE = 0.9999  # Confidence of the bounds by which candidate events are compared
GRID = np.linspace(0.0, 1.0, 33)


@dataclass(frozen=True, slots=True)
class Cut:
    """{score >= threshold} on the first data set, or {score <= threshold} on the second."""

    threshold: float
    above: bool
    promise: float  # Bound that is to be expected of held-out outputs

    def holds(self, scores: Array) -> NDArray[np.bool_]:
        return scores >= self.threshold if self.above else scores <= self.threshold


@lru_cache(maxsize=64)
def _critical(confidence: float) -> float:
    """c with c·(1 − ln c) = 1 − confidence."""
    alpha = 1 - confidence
    return float(np.exp(brentq(lambda x: np.exp(x) * (1 - x) - alpha, -700.0, 0.0)))


def border(k: int, n: int, low: int, m: int, confidence: float, at: Array) -> tuple[Array, Array]:
    """Points (p, q) of the region's border: tails c^s and c^{1−s} for s in ``at``."""
    log_c = np.log(_critical(confidence))
    p = np.zeros_like(at) if k == 0 else betaincinv(k, n - k + 1, np.exp(log_c * at))
    q = np.ones_like(at) if low == m else 1 - betaincinv(m - low, low + 1, np.exp(log_c * (1 - at)))
    return p, q


def event_bound(claim: Claim, k: int, n: int, low: int, m: int, confidence: float) -> float:
    """Lower bound on the claim's number, for an event seen ``k`` of n and ``low`` of m times."""
    left, right = 0.0, 1.0
    best = np.inf
    for _ in range(6):  # each time 16 times as fine, around the valley
        at = left + (right - left) * GRID
        strengths = claim.strength(*border(k, n, low, m, confidence, at))
        i = int(np.argmin(strengths))
        best = min(best, float(strengths[i]))
        left, right = float(at[max(i - 1, 0)]), float(at[min(i + 1, len(at) - 1)])
    return best * (1 - 1e-6)


@np.errstate(all="ignore")  # scores of malformed outputs may be huge
def best_cut(
    claim: Claim, first: Array, second: Array, held_out: int, prudence: float = PRUDENCE
) -> Cut:
    """The threshold with the largest bound to be expected from ``held_out`` outputs per data set.
    Many thresholds compete, so each is judged by a bound, of confidence ``prudence``, that its own
    frequencies earn."""
    candidates = [
        _best_of(claim, np.sort(first), np.sort(second), held_out, prudence, above=True),
        _best_of(claim, np.sort(-second), np.sort(-first), held_out, prudence, above=False),
    ]
    return max(candidates, key=lambda cut: cut.promise)


def _best_of(
    claim: Claim, first: Array, second: Array, held_out: int, prudence: float, *, above: bool
) -> Cut:
    """Events {score >= t} of sorted scores, likelier under ``first``."""
    pooled = np.sort(np.concatenate([first, second]))
    values = np.unique(pooled)
    if len(values) > THRESHOLDS:
        values = np.quantile(pooled, np.linspace(0, 1, THRESHOLDS))
        values = np.unique(np.concatenate([values, pooled[-8:]]))
    # Between two seen scores there is room; the middle is the safer place for new ones.
    cuts = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2])
    cuts = np.where(np.isfinite(cuts), cuts, values)
    p, q = (1 - np.searchsorted(x, cuts, side="left") / len(x) for x in (first, second))
    tail = _critical(prudence) ** 0.5
    n, m = min(len(first), held_out), min(len(second), held_out)
    promise = np.zeros(len(cuts))
    likelier = p > q  # elsewhere the bounds are as far from a gap, and promise nothing
    k, rest = p[likelier] * n, (1 - q[likelier]) * m
    lower = np.where(k > 0, betaincinv(np.maximum(k, 1e-9), n - k + 1, tail), 0.0)
    upper = 1 - np.where(rest > 0, betaincinv(np.maximum(rest, 1e-9), m - rest + 1, tail), 0.0)
    promise[likelier] = claim.strength(lower, upper)
    i = int(np.argmax(promise))
    threshold = float(cuts[i])
    return Cut(threshold if above else -threshold, above, float(promise[i]))


Drawn = tuple[list[Any], list[Any]]  # Outputs of either data set
LEARNING = 0.4  # Part of the outputs that the distinguisher is learned from
ENOUGH = 6000  # Outputs per data set from which nothing more is learned about the distinguisher
LARGE = 1e100
"""Of larger scores it is enough to know that they are large; squares of these are finite."""

TURN = 25  # Outputs on one data set before it is the other's turn
EXPLORED = 400  # Outputs per data set and round for choosing among several pairs of neighbours
FEWEST = 10  # Outputs per data set on which a pair of neighbours is looked at for the first time
RARE = 25  # An event that only one data set shows refutes ε = 1 if it comes so often
GUESSING = 0.9  # Confidence of the bounds by which pairs are compared on few outputs


@silenced
def black_box(
    mechanism: Any,
    claim: Claimable | None = None,
    neighbours: Any = None,
    *,
    samples: int = 5_000,
    confidence: float = 0.95,
    seed: int = 0,
    seconds: float = 60.0,
    bits: bool | None = None,
) -> Evidence:
    """Bounds the loss of a mechanism from below by sampling, for arguments as of `check_mechanism`.

    Outputs may be of any kind: numbers, text, containers, exceptions, warnings. Of several pairs
    the most informative is chosen first. The last bits of numbers give away the data behind nearly
    all noise that is sampled in floating point; where they are not looked at, a note says so.

    Raises:
        CheckError: bad arguments, the time is up, every run on both data sets fails, an output
            cannot be looked into, or the mechanism changed its data.
    """
    began = time.perf_counter()
    subject = sampling_target(mechanism, claim, neighbours)
    limit = TimeLimit(positive(seconds=seconds), f"{subject.name}: the check")
    look = subject.exact if bits is None else bits
    start = count(at_least=0, seed=seed)
    check = _Check(subject, claim_of(subject.claim), samples, confidence, start, look, limit)
    with limit:
        found = check.split(*check.choose_pair())
    return replace(found, seconds=time.perf_counter() - began, coverage=check.tried())


@dataclass
class _Check:
    subject: SamplingTarget[Any]
    claim: Claim
    samples: int
    confidence: float
    seed: int
    bits: bool
    limit: TimeLimit
    usual: list[str] = field(default_factory=list)
    """How the first output of all lies in memory; others are compared with it."""

    def _samplers(self, pair: int, stage: int) -> tuple[_Sampler, _Sampler]:
        first, second = self.subject.neighbours[pair]
        seeds = np.random.SeedSequence([self.seed, pair, stage]).generate_state(2, np.uint64)
        return _Sampler(self, first, int(seeds[0])), _Sampler(self, second, int(seeds[1]))

    def choose_pair(self) -> tuple[int, int, Drawn]:
        """The most informative pair of neighbours, the outputs spent on all, and its own. All pairs
        are looked at shortly, the better half of them again, and so on. These outputs choose a pair
        and train distinguishers; they take no part in the bound."""
        left = list(range(self._pairs_looked_at()))
        drawn: dict[int, Drawn] = {k: ([], []) for k in left}
        samplers = {k: self._samplers(k, 1) for k in left} if len(left) > 1 else {}
        used, rounds = 0, (len(left) - 1).bit_length()
        while len(left) > 1:
            least = 0 if used else FEWEST
            each = min(EXPLORED, max(self.samples // (10 * rounds * len(left)), least))
            used += 2 * each * len(left)
            for k in left:
                for outputs, new in zip(drawn[k], _drawn(*samplers[k], each), strict=True):
                    outputs += new
            # a guess on few outputs, where bounds take more of them
            outlook = {
                k: self._scores(*self._tables(*drawn[k])[:2], self.samples // 4, GUESSING)[0]
                for k in left
            }
            left = sorted(left, key=lambda k: -outlook[k])[: (len(left) + 1) // 2]
        return left[0], used, drawn[left[0]]

    def _pairs_looked_at(self) -> int:
        pairs, enough = len(self.subject.neighbours), self.samples // (4 * FEWEST)
        if pairs > enough:
            if not self.subject.default_neighbours:
                raise CheckError(f"samples = {self.samples}: too few for {pairs} pairs of data")
            pairs = max(enough, 1)
        return pairs

    def tried(self) -> Coverage:
        """Pairs, sizes of data sets, and how rare an event may be to be seen."""
        pairs, looked = len(self.subject.neighbours), self._pairs_looked_at()
        shown = self.subject.neighbours[:looked]
        known = sorted({len(data) for pair in shown for data in pair if isinstance(data, Sized)})
        axes = [
            Axis("records", f"{looked} of {pairs} pairs of neighbours", looked == pairs > 1),
            Axis("outputs", f"events of more than {RARE} in {self.samples // 4}", False),
        ]
        if known:
            text = ", ".join(map(str, known[:5])) + (", …" if len(known) > 5 else "")
            axes.insert(1, Axis("sizes", f"data sets of {text}", len(known) > 2))
        return Coverage(tuple(axes))

    def _tables(
        self, first: list[Any], second: list[Any]
    ) -> tuple[OutputTable, OutputTable, OutputTable]:
        like = tabulate([*first, *second])
        return like.take(slice(0, len(first))), like.take(slice(len(first), None)), like

    def _scores(
        self, p: OutputTable, q: OutputTable, held_out: int, prudence: float = PRUDENCE
    ) -> tuple[float, Score]:
        """The bound that the best distinguisher promises, and the distinguisher."""
        with np.errstate(all="ignore"):  # malformed outputs are no fault of who runs the check
            scores = [s for family in families(p, q, bits=self.bits) for s in family(p, q)]
            if not scores:  # where every output is the same there is nothing to learn
                told, none = "nothing: all outputs are alike", lambda of: np.zeros(len(of))
                scores = [Score(told, none, np.zeros(len(p)), np.zeros(len(q)))]
            promises = [
                best_cut(self.claim, s.first, s.second, held_out, prudence).promise for s in scores
            ]
        i = int(np.argmax(promises))
        return promises[i], scores[i]

    def split(self, pair: int, used: int, known: Drawn) -> Evidence:
        """Learns from a part of the outputs, and concludes from the other part."""
        name, each = self.subject.name, (self.samples - used) // 2
        train = min(int(LEARNING * (each + len(known[0]))), ENOUGH)
        more = max(train - len(known[0]), 0)
        samplers = self._samplers(pair, 2)
        first, second = (a + b for a, b in zip(known, _drawn(*samplers, more), strict=True))
        failures = [x for x in (*first, *second) if isinstance(x, Raised)]
        if len(failures) == len(first) + len(second):
            raise CheckError(
                f"{name}: every run fails on both data sets, so nothing was checked; the first "
                f"with {failures[0].kind}: {failures[0].message}"
            )
        table_p, table_q, like = self._tables(first, second)
        data_p, data_q = self.subject.neighbours[pair]
        rare = repeats(table_p, table_q, (numbers_in(data_p), numbers_in(data_q)))
        scores = [self._scores(table_p, table_q, each - more)[1], *([rare] if rare else [])]
        fresh = _drawn(*samplers, each - more)
        if any(sampler.changed for sampler in samplers):
            raise CheckError(f"{name} changes its data, so that its runs are not on the same data")
        # each of two tests may err with half of the probability
        sure = 1 - (1 - self.confidence) / len(scores)
        found = [self._concluded(score, like, fresh, sure, pair) for score in scores]
        notes = self._notes(table_p, table_q, failures)
        return replace(max(found, key=lambda f: f.bound), samples=used + 2 * each, notes=notes)

    @np.errstate(all="ignore")
    def _notes(self, p: OutputTable, q: OutputTable, failures: list[Raised]) -> tuple[str, ...]:
        notes, share = [], len(failures) / (len(p) + len(q))
        if share > 0.1:
            notes.append(
                f"{share:.1%} of the runs fail, the first with {failures[0].kind}: "
                f"{failures[0].message}"
            )
        if not self.bits and last_bits_tell(p, q):
            notes.append(
                "the last bits of its numbers tell the data sets apart, as those of noise sampled "
                "in floating point do; bits=True counts that"
            )
        return tuple(notes)

    @np.errstate(all="ignore")
    def _concluded(
        self, score: Score, like: OutputTable, fresh: Drawn, confidence: float, pair: int
    ) -> Evidence:
        n, claim = len(fresh[0]), self.claim
        cut = best_cut(claim, score.first, score.second, n)
        p, q = (cut.holds(score.of(tabulate(outputs, like))) for outputs in fresh)
        k, low = (p.sum(), q.sum()) if cut.above else (q.sum(), p.sum())
        return Evidence(
            subject=self.subject.name,
            claim=claim.text,
            unit=claim.unit,
            claimed=claim.value,
            bound=event_bound(claim, int(k), n, int(low), n, confidence),
            confidence=self.confidence,
            samples=2 * n,
            event=f"{score.text} {'>=' if cut.above else '<='} {cut.threshold:.6g}",
            p=float(p.mean()),
            q=float(q.mean()),
            pair=pair,
            seed=self.seed,
            seconds=0.0,
        )


def _drawn(first: _Sampler, second: _Sampler, n: int) -> Drawn:
    """So many outputs of either data set, in turns, so that drift over time hits both alike."""
    outputs: Drawn = [], []
    turns = (first, outputs[0]), (second, outputs[1])
    for begin in range(0, n, TURN):
        for sampler, drawn in turns:
            drawn += sampler.draw(min(TURN, n - begin))
        turns = turns[1], turns[0]
    return outputs


class _Sampler:
    def __init__(self, check: _Check, data: Any, seed: int) -> None:
        self._data, self._before = data, _copied(data)
        self._limit, self._usual = check.limit, check.usual
        self._comparable = alike(data, self._before)
        try:
            self._draw = check.subject.start(data, seed)
        except Exception as error:
            told = f"{check.subject.name} cannot be started: {type(error).__name__}: {error}"
            raise CheckError(told) from error

    @property
    def changed(self) -> bool:
        return self._comparable and not alike(self._data, self._before)

    def draw(self, n: int) -> list[Any]:
        draw, outputs = self._draw, []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(n):
                output: Any
                unlike = ""
                self._limit.check()
                try:
                    output = draw()
                    own = layout(output)
                    self._usual[:] = self._usual or [own]
                    unlike = "" if own == self._usual[0] else own
                    output = _copied(output)
                except BaseException as error:
                    if not is_output(error):
                        raise
                    output = Raised.by(error)
                texts = tuple(f"{w.category.__name__}: {w.message}" for w in said)
                said.clear()
                outputs.append(Noted(output, texts, unlike) if texts or unlike else output)
        return outputs


def _copied(output: Any) -> Any:
    """The output as it is now: some mechanisms fill the same array every time; what is yielded
    piece by piece is read as far as outputs are looked at."""
    if type(output) in PLAIN or isinstance(output, np.generic):
        return output
    if isinstance(output, np.ndarray) and output.dtype.kind != "O":
        return output.copy()
    if isinstance(output, Iterator):
        return tuple(map(_copied, itertools.islice(output, MAX_NUMBERS + 1)))
    if type(output) in (tuple, list):
        return type(output)([x if type(x) in PLAIN else _copied(x) for x in output])
    try:
        return copy.deepcopy(output)
    except Exception:
        return output
