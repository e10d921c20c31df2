"""Sampling checks: run a mechanism on neighbouring data and see how far its outputs give them away.

`black_box` learns an event (or a score) that separates the two data sets from one part of the
outputs and draws its conclusion from the other part, or follows an e-process and stops as soon as
it has grown enough (``sequential=True``).  Either way the answer is a lower bound on
the loss with its confidence.  It refutes claims and never proves them.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privlearn.checking.evidence import Evidence
from privlearn.checking.isolation import TimeLimit, is_output, silenced
from privlearn.checking.sampling.claims import Claim, claim_of
from privlearn.checking.sampling.distinguishers import (
    Cells,
    Score,
    ScoreFamily,
    families,
    last_bits_tell,
    repeats,
)
from privlearn.checking.sampling.encoding import (
    MAX_NUMBERS,
    PLAIN,
    Laid,
    OutputTable,
    Raised,
    Warned,
    arrays_in,
    layout,
    numbers_in,
    tabulate,
)
from privlearn.checking.sampling.event_bounds import PRUDENCE, Cut, best_cut, event_bound
from privlearn.checking.sampling.sequential import EProcess, best_moment, moment_bound
from privlearn.checking.targets import Claimable, SamplingTarget, alike, sampling_target
from privlearn.errors import CheckError
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import count, positive

Distinguisher = Callable[[Any], float]
Drawn = tuple[list[Any], list[Any]]  # Outputs of either data set

FIRST_PAIRS = 64  # Pairs that a sequential check only learns from

REFITS = 1.5  # A sequential check learns its distinguisher again after so many times as many pairs

CHOICES = 8  # And chooses again among the kinds of distinguishers

LEARNING = 0.4  # Part of the outputs that the distinguisher is learned from

ENOUGH = 6000  # Outputs per data set from which nothing more is learned about the distinguisher

LARGE = 1e100
"""Of larger scores it is enough to know that they are large; squares of these are finite."""

TURN = 25  # Outputs on one data set before it is the other's turn

EXPLORED = 400  # Outputs per data set and round for choosing among several pairs of neighbours

FEWEST = 10  # Outputs per data set on which a pair of neighbours is looked at for the first time

ROUND = 0.35
"""Part of the outputs for choosing that one round of it takes; the last one takes the rest."""

KEPT = 0.45  # Part of the pairs that go on to the next round

MANY_PAIRS = 4  # So few pairs are looked at once more, and no more

GUESSING = 0.9  # Confidence of the bounds by which pairs are compared on few outputs


@silenced
def black_box(
    mechanism: Any,
    claim: Claimable | None = None,
    neighbours: Any = None,
    *,
    samples: int = 5_000,
    sequential: bool = False,
    confidence: float = 0.95,
    distinguisher: Distinguisher | None = None,
    seed: int = 0,
    seconds: float = 60.0,
    adjacency: Adjacency | None = None,
    bits: bool | None = None,
    name: str | None = None,
) -> Evidence:
    """Bounds the loss of a mechanism from below by sampling.

    Outputs may be of any kind: numbers, arrays, text, containers, None; NaN, infinities,
    exceptions, warnings and changes of shape are outputs like any other.

    Args:
        mechanism: see `sampling_target`.
        claim: what it promises: a loss, a currency or ``ApproxDP``; default: its own loss.
        neighbours: a pair of data sets, or several, of which the most informative is chosen first.
        samples: the most outputs to draw, for both data sets together.
        sequential: bet on pairs of outputs and stop at the first refutation.
        confidence: of the bound.
        distinguisher: output → number, larger where the first data set is likelier; default:
            learned.
        seed: of the mechanism's generator (a mechanism with randomness of its own ignores it).
        seconds: the most time to take; a hanging run is interrupted in the main thread, elsewhere
            the clock is read between runs.
        adjacency: see `sampling_target`.
        bits: look at the last bits of floating-point numbers too.  They give away the data behind
            nearly all noise that is sampled in floating point, and nothing behind exact noise.
            Default: where the mechanism's spend says that its noise is exact, as those of this
            package do; elsewhere a note tells whether they would.
        name: for reports.

    Raises:
        CheckError: bad arguments, the time is up, every run on both data sets fails, an output
            cannot be looked into, or the mechanism changed its data.
    """
    began = time.perf_counter()
    if not 0.5 < confidence < 1:
        raise CheckError(f"confidence = {confidence!r}: must lie between 0.5 and 1")
    if count(samples=samples) < 40:
        raise CheckError(f"samples = {samples!r}: must be at least 40")
    subject = sampling_target(mechanism, claim, neighbours, name=name, adjacency=adjacency)
    limit = TimeLimit(positive(seconds=seconds), f"{subject.name}: the check")
    start = count(at_least=0, seed=seed)
    promise = claim_of(subject.claim)
    look = subject.exact if bits is None else bits
    check = _Check(subject, promise, samples, confidence, distinguisher, start, look, limit)
    with limit:
        pair, used, known = check.choose_pair()
        result = (check.bet if sequential else check.split)(pair, used, known)
    return Evidence(
        subject.name,
        check.claim.text,
        check.claim.unit,
        check.claim.value,
        result.bound,
        confidence,
        result.samples,
        result.event,
        result.p,
        result.q,
        result.method,
        pair,
        seed,
        time.perf_counter() - began,
        result.notes,
    )


@dataclass(frozen=True)
class _Result:
    bound: float
    samples: int
    event: str
    p: float
    q: float
    method: str
    notes: tuple[str, ...]


@dataclass
class _Check:
    subject: SamplingTarget[Any]
    claim: Claim
    samples: int
    confidence: float
    distinguisher: Distinguisher | None
    seed: int
    bits: bool
    limit: TimeLimit
    usual: list[str] = field(default_factory=list)
    """How the first output of all lies in memory; others are compared with it."""
    cells: dict[int, Cells] = field(default_factory=dict)

    # Runs -----------------------------------------------------------------------------------------

    def _samplers(self, pair: int, stage: int) -> tuple[_Sampler, _Sampler]:
        first, second = self.subject.neighbours[pair]
        seeds = np.random.SeedSequence([self.seed, pair, stage]).generate_state(2, np.uint64)
        start, name = self.subject.start, self.subject.name
        return (
            _Sampler(start, first, int(seeds[0]), name, self.limit, self.usual),
            _Sampler(start, second, int(seeds[1]), name, self.limit, self.usual),
        )

    def choose_pair(self) -> tuple[int, int, Drawn]:
        """The most informative pair of neighbours, the outputs spent on all, and its own.

        Many pairs are looked at shortly, the better ones again.  These outputs choose a pair and
        train distinguishers; they take no part in the bound.
        """
        pairs = self._pairs_looked_at()
        if pairs == 1:
            return 0, 0, ([], [])
        drawn: dict[int, Drawn] = {k: ([], []) for k in range(pairs)}
        samplers = {k: self._samplers(k, 1) for k in drawn}
        left, used, room = list(drawn), 0, self.samples // 5
        while True:
            last = len(left) <= MANY_PAIRS
            each = int((room - used if last else ROUND * room) / len(left))
            each = min(EXPLORED, max(each, 0 if used else FEWEST))
            used += each * len(left)
            outlooks = []
            for k in left:
                for outputs, new in zip(drawn[k], _drawn(*samplers[k], each), strict=True):
                    outputs += new
                outlooks.append(self._outlook(k, *drawn[k]))
            best = [left[int(i)] for i in np.argsort(-np.array(outlooks), kind="stable")]
            if last:
                return best[0], 2 * used, drawn[best[0]]
            left = best[: max(int(KEPT * len(left)), MANY_PAIRS)]

    def _pairs_looked_at(self) -> int:
        pairs, enough = len(self.subject.neighbours), self.samples // (4 * FEWEST)
        if pairs > enough:
            if not self.subject.default_neighbours:
                raise CheckError(
                    f"samples = {self.samples}: too few for {pairs} pairs of neighbours; at least "
                    f"{4 * FEWEST * pairs} are needed"
                )
            pairs = max(enough, 1)
        return pairs

    def _outlook(self, pair: int, first: list[Any], second: list[Any]) -> float:
        """How promising a pair looks, on few outputs: a guess, where `_promise` is a bound."""
        p, q, _ = self._tables(first, second)
        return self._scores(pair, p, q, first, second, self.samples // 4, GUESSING)[0]

    def _tables(
        self, first: list[Any], second: list[Any]
    ) -> tuple[OutputTable, OutputTable, OutputTable]:
        if self.distinguisher is not None:  # which may take outputs that cannot be tabulated
            first, second = [None] * len(first), [None] * len(second)
        like = tabulate([*first, *second])
        return like.take(slice(0, len(first))), like.take(slice(len(first), None)), like

    def _cells(self, pair: int) -> Cells:
        if pair not in self.cells:
            first, second = self.subject.neighbours[pair]
            self.cells[pair] = numbers_in(first), numbers_in(second)
        return self.cells[pair]

    def _scores(
        self,
        pair: int,
        p: OutputTable,
        q: OutputTable,
        first: list[Any],
        second: list[Any],
        held_out: int,
        prudence: float = PRUDENCE,
    ) -> tuple[float, Score, ScoreFamily | None]:
        """The bound that the best distinguisher promises, the distinguisher, and its family."""
        if self.distinguisher is not None:
            x, y = self._given_scores(first), self._given_scores(second)
            promise = self._promise(x, y, held_out, prudence)
            return promise, Score(lambda: ("the given distinguisher", _no_table), x, y), None
        # Where every output of either data set is the same there is nothing to learn.
        told = "nothing: all outputs are alike"
        flat = Score(
            lambda: (told, lambda table: np.zeros(len(table))), np.zeros(len(p)), np.zeros(len(q))
        )
        best: tuple[float, Score, ScoreFamily | None] = 0.0, flat, None
        for family in families(p, q, bits=self.bits, cells=self._cells(pair)):
            promise, score = self._of_family(family, p, q, held_out, prudence)
            if best[2] is None or promise > best[0]:
                best = promise, score, family
        return best

    @np.errstate(all="ignore")  # malformed outputs are no fault of whoever runs the check
    def _of_family(
        self,
        family: ScoreFamily,
        p: OutputTable,
        q: OutputTable,
        held_out: int,
        prudence: float = PRUDENCE,
    ) -> tuple[float, Score]:
        scores = family(p, q)
        promises = [self._promise(s.first, s.second, held_out, prudence) for s in scores]
        i = int(np.argmax(promises))
        return promises[i], scores[i]

    @np.errstate(all="ignore")
    def _notes(
        self, p: OutputTable, q: OutputTable, first: list[Any], second: list[Any]
    ) -> tuple[str, ...]:
        notes = []
        failures = [x for x in (*first, *second) if isinstance(x, Raised)]
        if len(failures) > (len(first) + len(second)) / 10:
            share = len(failures) / (len(first) + len(second))
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
    def _promise(
        self, first: Array, second: Array, held_out: int, prudence: float = PRUDENCE
    ) -> float:
        cut = best_cut(self.claim, first, second, held_out, prudence)
        return cut.promise

    def _given_scores(self, outputs: list[Any]) -> Array:
        assert self.distinguisher is not None
        plain = [output.value if isinstance(output, Laid) else output for output in outputs]
        values = np.array([float(self.distinguisher(output)) for output in plain])
        if np.isnan(values).any():
            raise CheckError("distinguisher: must return a number for every output, not NaN")
        return np.asarray(np.clip(values, -LARGE, LARGE))

    # A fixed number of outputs --------------------------------------------------------------------

    def split(self, pair: int, used: int, known: Drawn) -> _Result:
        each = (self.samples - used) // 2
        train = min(int(LEARNING * (each + len(known[0]))), ENOUGH)
        more = max(train - len(known[0]), 0)
        test = each - more
        sampler_p, sampler_q = samplers = self._samplers(pair, 2)
        first, second = (
            a + b for a, b in zip(known, _drawn(sampler_p, sampler_q, more), strict=True)
        )
        _not_all_failed(self.subject.name, first, second)
        table_p, table_q, like = self._tables(first, second)
        _, score, _ = self._scores(pair, table_p, table_q, first, second, test)
        scores = [score]
        if self.distinguisher is None and (rare := repeats(table_p, table_q, self._cells(pair))):
            scores.append(rare)
        fresh = _drawn(sampler_p, sampler_q, test)
        _data_unchanged(self.subject.name, samplers)
        # each of two tests may err with half of the probability
        sure = 1 - (1 - self.confidence) / len(scores)
        notes = self._notes(table_p, table_q, first, second)
        result = [self._concluded(score, like, fresh, sure) for score in scores]
        return replace(max(result, key=lambda f: f.bound), samples=used + 2 * each, notes=notes)

    def _concluded(
        self, score: Score, like: OutputTable, fresh: Drawn, confidence: float
    ) -> _Result:
        test = len(fresh[0])
        cut = best_cut(self.claim, score.first, score.second, test)
        moment = best_moment(self.claim, score.first, score.second, test, confidence)
        x, y = self._scored(score, like, *fresh)
        p, q = cut.holds(x), cut.holds(y)
        text = f"{score.text} {'>=' if cut.above else '<='} {cut.threshold:.6g}"
        if moment is not None and moment.promise > self._expected(cut, score, test):
            bound = moment_bound(self.claim, moment, x, y, confidence)
            method = f"{moment.bets.texts[0]} by betting"
        else:
            k, low = (p.sum(), q.sum()) if cut.above else (q.sum(), p.sum())
            bound = event_bound(self.claim, int(k), test, int(low), test, confidence)
            method = "binomial region of an event"
        return _Result(bound, 2 * test, text, float(p.mean()), float(q.mean()), method, ())

    def _expected(self, cut: Cut, score: Score, n: int) -> float:
        """The bound if the event is as frequent among held-out outputs as it was in training."""
        p, q = cut.holds(score.first).mean(), cut.holds(score.second).mean()
        p, q = (p, q) if cut.above else (q, p)
        return event_bound(self.claim, int(p * n), n, math.ceil(q * n), n, self.confidence)

    @np.errstate(all="ignore")
    def _scored(
        self, score: Score, like: OutputTable, first: list[Any], second: list[Any]
    ) -> tuple[Array, Array]:
        if self.distinguisher is not None:
            return self._given_scores(first), self._given_scores(second)
        return score.of(tabulate(first, like)), score.of(tabulate(second, like))

    # One pair after the other ---------------------------------------------------------------------

    def bet(self, pair: int, used: int, known: Drawn) -> _Result:
        most = (self.samples - used) // 2
        sampler_p, sampler_q = samplers = self._samplers(pair, 2)
        need = -math.log(1 - self.confidence)
        e_process = EProcess(self.claim)
        begin = max(min(FIRST_PAIRS, most // 2) - len(known[0]), 0)
        first, second = (
            a + b for a, b in zip(known, _drawn(sampler_p, sampler_q, begin), strict=True)
        )
        most += len(known[0])
        _not_all_failed(self.subject.name, first, second)
        next_fit = next_choice = 0
        family: ScoreFamily | None = None
        past: tuple[Array, Array] = np.zeros(0), np.zeros(0)
        while True:
            n = len(first)
            if n >= next_fit:
                p, q, like = self._tables(first[-ENOUGH:], second[-ENOUGH:])
                if n >= next_choice or family is None:
                    _, score, family = self._scores(pair, p, q, first, second, 4 * n)
                    next_choice = CHOICES * n
                else:
                    _, score = self._of_family(family, p, q, 4 * n)
                past, next_fit = (score.first, score.second), int(REFITS * n)
            if n >= most:
                break
            step = min(max(n // 5, 16), most - n)
            new_p, new_q = _drawn(sampler_p, sampler_q, step)
            new = self._scored(score, like, new_p, new_q)
            passed = np.flatnonzero(e_process.play(past, new) >= need)
            first, second = first + new_p, second + new_q
            past = np.concatenate([past[0], new[0]]), np.concatenate([past[1], new[1]])
            if passed.size:
                e_process.cut(int(passed[0]) + 1)
                spare = step - int(passed[0]) - 1
                first, second = first[: len(first) - spare], second[: len(second) - spare]
                break
        _data_unchanged(self.subject.name, samplers)
        cut = best_cut(self.claim, *past, len(past[0]))
        p_rate, q_rate = float(cut.holds(past[0]).mean()), float(cut.holds(past[1]).mean())
        text = f"{score.text} {'>=' if cut.above else '<='} {cut.threshold:.6g}"
        return _Result(
            e_process.bound(self.confidence),
            used + 2 * (len(first) - len(known[0])),
            text,
            p_rate,
            q_rate,
            "sequential betting",
            self._notes(p, q, first, second),
        )


def _no_table(table: OutputTable) -> Array:
    raise AssertionError("a given distinguisher looks at outputs, not at tables")


def _not_all_failed(name: str, first: list[Any], second: list[Any]) -> None:
    failures = [x for x in (*first, *second) if isinstance(x, Raised)]
    if len(failures) == len(first) + len(second):
        raise CheckError(
            f"{name}: every run fails on both data sets, so nothing was checked; the first with "
            f"{failures[0].kind}: {failures[0].message}"
        )


def _data_unchanged(name: str, samplers: tuple[_Sampler, _Sampler]) -> None:
    if any(sampler.changed for sampler in samplers):
        raise CheckError(f"{name} changes its data, so that its runs are not on the same data")


def _drawn(first: _Sampler, second: _Sampler, n: int) -> tuple[list[Any], list[Any]]:
    """So many outputs of either data set, in turns, so that drift over time hits both alike."""
    outputs: tuple[list[Any], list[Any]] = [], []
    turns = (first, outputs[0]), (second, outputs[1])
    for begin in range(0, n, TURN):
        for sampler, drawn in turns:
            drawn += sampler.draw(min(TURN, n - begin))
        turns = turns[1], turns[0]
    return outputs


class _Sampler:
    def __init__(
        self,
        start: Callable[[Any, int], Callable[[], Any]],
        data: Any,
        seed: int,
        name: str,
        limit: TimeLimit,
        usual: list[str],
    ) -> None:
        self._data, self._before, self._limit = data, _copied(data), limit
        self._usual, self._arrays = usual, arrays_in(data)
        self._comparable = alike(data, self._before)
        try:
            self._draw = start(data, seed)
        except Exception as error:
            raise CheckError(
                f"{name} cannot be started: {type(error).__name__}: {error}"
            ) from error

    @property
    def changed(self) -> bool:
        return self._comparable and not alike(self._data, self._before)

    def draw(self, n: int) -> list[Any]:
        draw, outputs = self._draw, []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(n):
                output: Any
                self._limit.check()
                try:
                    output = self._kept(draw())
                except BaseException as error:
                    if not is_output(error):
                        raise
                    output = Raised.by(error)
                if said:
                    texts = tuple(f"{w.category.__name__}: {w.message}" for w in said)
                    output = Warned(texts, output)
                    said.clear()
                outputs.append(output)
        return outputs

    def _kept(self, output: Any) -> Any:
        if self._usual and PLAIN.get(type(output)) == self._usual[0]:  # nobody can change it
            return output
        own = layout(output, self._arrays)
        if not self._usual:
            self._usual.append(own)
        copied = _copied(output)
        return copied if own == self._usual[0] else Laid(own, copied)


def _copied(output: Any) -> Any:
    """The output as it is now: some mechanisms fill the same array every time; what is yielded
    piece by piece is read as far as outputs are looked at.
    """
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
