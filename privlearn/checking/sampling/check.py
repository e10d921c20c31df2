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
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privlearn.checking.isolation import TimeLimit, is_output, silenced
from privlearn.checking.reports import Axis, Coverage, Evidence
from privlearn.checking.sampling.claims import PRUDENCE, Claim, best_cut, claim_of, event_bound
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
from privlearn.checking.targets import Claimable, SamplingTarget, alike, sampling_target
from privlearn.errors import CheckError
from privlearn.values.validate import count, positive

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
