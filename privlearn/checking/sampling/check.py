"""Sampling checks: run a mechanism on neighbouring data and see how far its outputs give them away.

`black_box` learns an event that separates the two data sets from one part of the
outputs and draws its conclusion from the other part.  The answer is a lower bound on the loss with
its confidence.  It refutes claims and never proves them.
"""

from __future__ import annotations

import copy
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privlearn.checking.evidence import Evidence
from privlearn.checking.isolation import TimeLimit, is_output, silenced
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.sampling.claims import Claim, claim_of
from privlearn.checking.sampling.distinguishers import (
    Score,
    families,
    last_bits_tell,
    repeats,
)
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
from privlearn.checking.sampling.event_bounds import PRUDENCE, best_cut, event_bound
from privlearn.checking.targets import Claimable, SamplingTarget, alike, sampling_target
from privlearn.errors import CheckError
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import count, positive

Drawn = tuple[list[Any], list[Any]]  # Outputs of either data set

LEARNING = 0.4  # Part of the outputs that the distinguisher is learned from

ENOUGH = 6000  # Outputs per data set from which nothing more is learned about the distinguisher

LARGE = 1e100
"""Of larger scores it is enough to know that they are large; squares of these are finite."""

TURN = 25  # Outputs on one data set before it is the other's turn

EXPLORED = 400  # Outputs per data set and round for choosing among several pairs of neighbours

FEWEST = 10  # Outputs per data set on which a pair of neighbours is looked at for the first time

RARE = 25
"""An event that only one data set shows refutes ε = 1 if it comes so often."""

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
        confidence: of the bound.
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
    subject = sampling_target(mechanism, claim, neighbours, name=name, adjacency=adjacency)
    limit = TimeLimit(positive(seconds=seconds), f"{subject.name}: the check")
    start = count(at_least=0, seed=seed)
    promise = claim_of(subject.claim)
    look = subject.exact if bits is None else bits
    check = _Check(subject, promise, samples, confidence, start, look, limit)
    with limit:
        pair, used, known = check.choose_pair()
        result = check.split(pair, used, known)
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
        pair,
        seed,
        time.perf_counter() - began,
        result.notes,
        check.tried(),
    )


@dataclass(frozen=True)
class _Result:
    bound: float
    samples: int
    event: str
    p: float
    q: float
    notes: tuple[str, ...]


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

        All pairs are looked at shortly, the better half of them again, and so on.  These outputs
        choose a pair and train distinguishers; they take no part in the bound.
        """
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
                raise CheckError(
                    f"samples = {self.samples}: too few for {pairs} pairs of neighbours; at least "
                    f"{4 * FEWEST * pairs} are needed"
                )
            pairs = max(enough, 1)
        return pairs

    def tried(self) -> Coverage:
        """Pairs, sizes of data sets, and how rare an event may be to be seen."""
        pairs, looked = len(self.subject.neighbours), self._pairs_looked_at()
        sizes = {size for pair in self.subject.neighbours[:looked] for size in map(_size, pair)}
        known = sorted(size for size in sizes if size is not None)
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
        data_p, data_q = self.subject.neighbours[pair]
        rare = repeats(table_p, table_q, (numbers_in(data_p), numbers_in(data_q)))
        scores = [self._scores(table_p, table_q, test)[1], *([rare] if rare else [])]
        fresh = _drawn(sampler_p, sampler_q, test)
        _data_unchanged(self.subject.name, samplers)
        # each of two tests may err with half of the probability
        sure = 1 - (1 - self.confidence) / len(scores)
        notes = self._notes(table_p, table_q, first, second)
        result = [self._concluded(score, like, fresh, sure) for score in scores]
        return replace(max(result, key=lambda f: f.bound), samples=used + 2 * each, notes=notes)

    @np.errstate(all="ignore")
    def _concluded(
        self, score: Score, like: OutputTable, fresh: Drawn, confidence: float
    ) -> _Result:
        test = len(fresh[0])
        cut = best_cut(self.claim, score.first, score.second, test)
        p, q = (cut.holds(score.of(tabulate(outputs, like))) for outputs in fresh)
        text = f"{score.text} {'>=' if cut.above else '<='} {cut.threshold:.6g}"
        k, low = (p.sum(), q.sum()) if cut.above else (q.sum(), p.sum())
        bound = event_bound(self.claim, int(k), test, int(low), test, confidence)
        return _Result(bound, 2 * test, text, float(p.mean()), float(q.mean()), ())


def _size(data: Any) -> int | None:
    return len(data) if isinstance(data, Sized) else None


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
        self._usual = usual
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
