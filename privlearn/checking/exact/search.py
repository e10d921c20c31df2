"""A search for neighbours that are worse than those at hand, and for noise that depends on data.

Runs on records about numbers of the code, among 1 to 1,000 rows, at every kind of place and with
noise of up to 30 scales test the prediction output = centre(data) + M·z.  Neighbours whose centres
are farther apart than at hand are compared; where noise acts otherwise, rows are replaced until it
does not, and the laws of the two neighbours found are computed as they are (`exact.one_number`)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privlearn.checking.exact.distributions import DistributionPair, whitened
from privlearn.checking.exact.one_number import piecewise_pair
from privlearn.checking.exact.probe import Affine
from privlearn.checking.mined import HASHED, Mined
from privlearn.checking.reports import Axis, Coverage
from privlearn.losses.output_laws import Discrete, Normal, Product, laplace
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency

Numbers = NDArray[np.int_]  # A data set: which record of a pool stands at which place
LARGEST = 1_000  # Rows of the largest data sets
FARTHEST = 30.0  # Scales of the noise
SECONDS = 2.0  # Of CPU time, after which a search ends
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 33, 50, 64, 65, 99, 100, 101, 128, 150, 200,
          256, 257, 300, 400, 500, 512, 513, 700, 999, 1_000)  # fmt: skip
_BACKGROUNDS = (1, 2, 3, 12)  # Rows of the data sets in which every record is tried
_EVERY_PLACE = 160  # Rows of a data set in which every place is tried
_SOME_PLACES = 24
_SCAN = (0.25, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30)
_TRIES = 48  # Runs with random records and random noise
_FEW = 6  # Different records of a random data set
_MOST_SUSPECTS = 3
_MOST_COLUMNS = 16  # Numbers of noise that are probed again for another number of rows
_CLOSE, _SAME_SCALE, _ULP = 1e-7, 1e-6, 2.0**-52
_SEVERAL = 3  # Draws on which what leaves has another form


@dataclass(frozen=True)
class Searched:
    """Running code as a function of data and noise, and the records that it may be tried on.
    ``run`` gives the flat output for standard noise, ``take`` a data set of records by number; the
    ``changing`` first of ``count`` may be exchanged for each other, ``null`` is that of nobody."""

    run: Callable[[Any, Array], Array]
    count: int
    changing: int
    take: Callable[[Numbers], Any]
    null: int
    adjacency: Adjacency
    mined: Mined
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = (0,)


class Neighbours(NamedTuple):
    """Two data sets, how far the output moves between them, and the noise on both."""

    first: Any
    second: Any
    shift: Array
    noise: Affine
    label: str

    @property
    def laws(self) -> DistributionPair:
        return shift_pair(self.noise, self.shift, self.label)


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    shifted: list[Neighbours]
    """Those between which the output moves farthest, in each norm that matters."""
    bounded: list[Neighbours]
    """As these, where what leaves is one function of data plus noise: no more than their laws."""
    odd: list[DistributionPair]
    """Laws, in bins, of neighbours whose outputs differ by more than a shift."""
    suspects: list[tuple[Any, Any]]
    """Neighbours on which noise acts otherwise, for samples where their laws are not computed."""
    coverage: Coverage
    near: bool  # Whether small noise acts as predicted on the first data sets at hand


def shift_pair(noise: Affine, shift: Array, label: str) -> DistributionPair:
    """The laws of M·z and of shift + M·z."""
    inside = np.linalg.lstsq(noise.matrix, shift, rcond=1e-12)[0]
    left = float(np.linalg.norm(shift - noise.matrix @ inside))
    if noise.family == "normal" or left > 1e-8 * float(np.linalg.norm(shift)):
        zero = Normal(np.zeros(len(shift)), noise.matrix)
        return DistributionPair(*whitened(Normal(shift, noise.matrix), zero), label)
    return laplace_pair(np.asarray(inside, dtype=np.float64), label)


def laplace_pair(moves: Array, label: str) -> DistributionPair:
    """The laws of independent standard numbers that are moved so far, and of the numbers."""
    moved = sorted(float(x) for x in np.abs(moves) if x > 1e-12)
    sides = [[laplace(by * x, 1.0) for x in moved] for by in (1.0, 0.0)]
    one, two = (law[0] if len(law) == 1 else Product(tuple((x, 1) for x in law)) for law in sides)
    return DistributionPair(one, two, label)


def search(subject: Searched, noise: Affine, at_hand: Sequence[tuple[Any, Any]] = ()) -> Found:
    """Tries records, sizes, places and noise; ``noise`` acts so on the neighbours at hand."""
    return _Search(subject, noise, np.random.default_rng(0)).found(at_hand)


class _OutOfTimeError(Exception):
    """The search ends here."""


class _Search:
    def __init__(self, subject: Searched, noise: Affine, rng: np.random.Generator) -> None:
        self.subject, self.noise, self.rng = subject, noise, rng
        self.runs, self.end = 0, time.process_time() + SECONDS
        self.bent = False
        self.pair = (0, min(1, subject.count - 1))  # the records that are farthest apart
        self.first, self._apart = self.pair, 0.0
        self.sizes: list[int] = []
        self.odd: list[DistributionPair] = []
        self.suspects: list[tuple[Any, Any]] = []
        self._centres: dict[bytes, Array | None] = {}
        self._matrices: dict[int, Array | None] = {}
        self._inverses: dict[int, Array] = {}
        self._best: dict[float, tuple[float, Neighbours]] = {}

    def found(self, at_hand: Sequence[tuple[Any, Any]]) -> Found:
        undone = ["records", "values", "sizes", "places", "noise"]
        try:
            self.try_at_hand(at_hand)
            undone.remove("records")
            if not self.odd:  # what leaves at hand has one form
                self._try_all(undone)
        except _OutOfTimeError:
            pass
        self.end = math.inf  # what was found is looked at to the end
        shifted, bounded = list[Neighbours](), list[Neighbours]()
        for pair in {id(pair): pair for _, pair in self._best.values()}.values():
            kind = self._kind(pair)
            (shifted if kind == "shift" else bounded if kind == "bent" else []).append(pair)
        near = all(self._near_zero(block) for block in at_hand[0]) if at_hand else True
        coverage = _coverage(self, undone)
        return Found(shifted, bounded, self.odd, self.suspects, coverage, near)

    def _try_all(self, undone: list[str]) -> None:
        sizes = self.subject.sizes or sizes_about(self.subject.mined)
        self.sizes = [n for n in sizes if self._takes(n)]
        if not self.sizes:
            return
        self.try_records()
        undone.remove("values")
        self.try_sizes()
        self.try_places()
        undone.remove("sizes")
        undone.remove("places")
        self.try_noise()
        undone.remove("noise")

    def out(self, numbers: Numbers, z: Array) -> Array | None:
        """What leaves, flat; None where nothing does."""
        return self.left(self.subject.take(numbers), z)

    def left(self, block: Any, z: Array) -> Array | None:
        self.runs += 1
        if time.process_time() > self.end:
            raise _OutOfTimeError
        try:
            value = self.subject.run(block, z)
        except Exception:
            return None
        return value if np.isfinite(value).all() else None

    def near(self, value: Array, wanted: Array, moved: Array, size: Array) -> bool:
        """Up to the rounding of numbers of a given size, and of noise on a grid, where it moved."""
        if value.shape != wanted.shape:
            return False
        parts = moved, size, self.noise.matrix
        far, large, unit = (float(np.abs(part).max(initial=0.0)) for part in parts)
        room = _CLOSE * far + 0.1 * _CLOSE * unit + 64 * _ULP * (large + far)
        return bool((np.abs(value - wanted) <= room).all())

    def centre(self, numbers: Numbers) -> Array | None:
        key = numbers.tobytes()
        if key not in self._centres:
            self._centres[key] = self.out(numbers, np.zeros(0))
        return self._centres[key]

    @property
    def known(self) -> bool:
        """Whether it is known for each number of rows how noise acts."""
        return bool(self.sizes) and all(m is not None for m in self._matrices.values())

    def _takes(self, n: int) -> bool:
        return self.centre(np.full(n, self.pair[0])) is not None

    def matrix(self, n: int) -> Array | None:
        """How noise acts among ``n`` rows, which is public; None if it is not known."""
        if n not in self._matrices:
            self._matrices[n] = self._measured(np.full(n, self.pair[0]))
        return self._matrices[n]

    def _measured(self, numbers: Numbers) -> Array | None:
        base, known = self.centre(numbers), self.noise.matrix
        if base is None:
            return None
        z: Array = np.asarray(0.1 * self.rng.normal(size=known.shape[1]))
        moved = self._response(numbers, base, z)
        if moved is None:
            return None
        if base.shape == known.shape[:1]:
            wanted = known @ z
            times = float(wanted @ moved) / max(float(wanted @ wanted), 1e-300)
            if self.near(moved, times * wanted, wanted, base):
                return known if abs(times - 1) < _SAME_SCALE else times * known
        if known.shape[1] > _MOST_COLUMNS:
            return None
        columns = [self._response(numbers, base, unit) for unit in np.eye(known.shape[1])]
        seen = [column for column in columns if column is not None]
        return np.array(seen).T if len(seen) == len(columns) else None

    def _response(self, numbers: Numbers, base: Array, z: Array) -> Array | None:
        """By how much z moves the output, or takes it back, where it stops at some value."""
        there, back = self.out(numbers, z), self.out(numbers, -z)
        if there is None or back is None or not there.shape == back.shape == base.shape:
            return None
        one, two = there - base, base - back
        return np.where(np.abs(one) >= np.abs(two) * (1 - _CLOSE), one, two)

    def changed(self, numbers: Numbers, place: int, record: int) -> Numbers:
        """A neighbour: another record there, that of nobody, or one record less."""
        match self.subject.adjacency:
            case Adjacency.ADD_REMOVE:
                return np.delete(numbers, place)
            case Adjacency.ZERO_OUT:
                record = self.subject.null
        result = numbers.copy()
        result[place] = record
        return result

    def consider(self, first: Numbers, second: Numbers) -> float:
        """Compares two neighbours with the worst ones yet; returns how far they are apart."""
        if not len(first) or not len(second):
            return 0.0
        one, two = self.centre(first), self.centre(second)
        if one is None or two is None or one.shape != two.shape:
            self._other_form(first, second)
            return 0.0
        matrices = self.matrix(len(first)), self.matrix(len(second))
        if matrices[0] is None or matrices[1] is None:
            return 0.0
        if not np.allclose(matrices[0], matrices[1], rtol=_CLOSE):
            self._suspect(first, second, self.random_noise())
            return 0.0
        moved = self.whiten(matrices[0], one - two)
        blocks = self.subject.take(first), self.subject.take(second)
        noise = Affine(self.noise.family, matrices[0])
        shift = _rounded(one, two, matrices[0])
        return self._compare(Neighbours(*blocks, shift, noise, "pair found"), moved)

    def _compare(self, pair: Neighbours, moved: Array) -> float:
        for order in (2.0, 1.0, np.inf):
            size = float(np.linalg.norm(moved, ord=order))
            if size > self._best.get(order, (0.0,))[0] * (1 + 1e-9) + 1e-12:
                self._best[order] = size, pair
        return float(np.linalg.norm(moved))

    def whiten(self, matrix: Array, shifts: Array) -> Array:
        """Shifts (..., outputs) in units of the noise; infinite where there is none."""
        if id(matrix) not in self._inverses:
            inverse = np.linalg.pinv(matrix, rcond=1e-12)
            self._inverses[id(matrix)] = np.asarray(inverse, dtype=np.float64)
        solved = shifts @ self._inverses[id(matrix)].T
        left = np.linalg.norm(shifts - solved @ matrix.T, axis=-1, keepdims=True)
        bare = left > 1e-8 * np.linalg.norm(shifts, axis=-1, keepdims=True)
        return np.asarray(np.where(bare & (left > 0), np.inf, solved))

    def random_noise(self) -> Array:
        n = self.noise.matrix.shape[1]
        far = self.rng.choice([0.3, 1.0, 3.0, 5.0, 10.0, FARTHEST])
        z: Array = np.clip(self.rng.standard_normal(n) * far, -FARTHEST, FARTHEST)
        if n > 1 and self.rng.random() < 0.25:
            z = np.where(np.arange(n) == self.rng.integers(n), z, 0.0)
        return np.asarray(z)

    def as_predicted(self, numbers: Numbers, z: Array) -> bool:
        """Whether noise acts as on others; and if not, whether as on what they move to."""
        base, matrix = self.centre(numbers), self.matrix(len(numbers))
        if base is None or matrix is None:
            return True
        value = self.out(numbers, z)
        if value is None or value.shape != base.shape or len(matrix) != base.size:
            return False
        if self.near(value, base + matrix @ z, matrix @ z, base):
            return True
        other = np.full(len(numbers), self.pair[0 if numbers[0] != self.pair[0] else 1])
        there = self.centre(other)
        if there is None or there.shape != base.shape:
            return False
        moved = self.whiten(matrix, base - there)
        if not np.isfinite(moved).all() or not moved.any():
            return False
        same = self.out(other, z + moved)
        self.bent = same is not None and self.near(same, value, value - base, base)
        return self.bent

    def _kind(self, pair: Neighbours) -> str:
        """How noise acts on neighbours: "shift", "bent" after a shift, or else "odd"."""
        run, matrix, kind = self.subject.run, pair.noise.matrix, "shift"
        moved = self.whiten(matrix, pair.shift)
        zero = np.zeros(matrix.shape[1])
        base = [run(block, zero) for block in pair[:2]]
        for far in (1.0, 3.0, 5.0, 10.0, FARTHEST):
            z = far * self.rng.choice([-1.0, 1.0], matrix.shape[1]) * self.rng.uniform(0.8, 1.0)
            one, two = run(pair.first, z), run(pair.second, z)
            as_one, as_two = base[0] + matrix @ z, base[1] + matrix @ z
            if self.near(one, as_one, matrix @ z, base[0]) and self.near(
                two, as_two, matrix @ z, base[1]
            ):
                continue
            kind = "bent"
            if not np.isfinite(moved).all() or not self.near(
                run(pair.second, z + moved), one, one - base[0], base[0]
            ):
                self._odd((pair.first, pair.second), z)
                return "odd"
        if kind == "bent":
            self._odd((pair.first, pair.second), zero + FARTHEST, unclear=False)
        return kind

    def _near_zero(self, block: Any) -> bool:
        matrix = self.noise.matrix
        z: Array = self.rng.uniform(-2.0, 2.0, (matrix.shape[1],))
        base = self.subject.run(block, np.zeros(len(z)))
        return base.shape == matrix.shape[:1] and self.near(
            self.subject.run(block, z), base + matrix @ z, matrix @ z, base
        )

    def _odd(self, blocks: tuple[Any, Any], z: Array, *, unclear: bool = True) -> None:
        self.suspects += [blocks] if unclear else []
        law = piecewise_pair(self.subject.run, blocks, self.noise, z)
        if law is not None:
            self.odd.append(law)

    def test(self, numbers: Numbers, z: Array) -> None:
        if len(self.suspects) < _MOST_SUSPECTS and not self.as_predicted(numbers, z):
            self._suspect(*self._turning(numbers, z), z)

    def _turning(self, numbers: Numbers, z: Array) -> tuple[Numbers, Numbers]:
        """Neighbours on one of which noise acts as predicted, if there are any."""

        def after(steps: int) -> Numbers:
            result = numbers
            for place in range(steps):
                at = 0 if self.subject.adjacency is Adjacency.ADD_REMOVE else place
                result = self.changed(result, at, self.pair[0])
            return result

        low, high = 0, len(numbers) - int(self.subject.adjacency is Adjacency.ADD_REMOVE)
        if not high or not self.as_predicted(after(high), z):
            x, y = self.pair
            first = numbers.copy()
            first[0] = x if x != self.subject.null else y
            return first, self.changed(first, 0, y if first[0] == x else x)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.as_predicted(after(middle), z) else (middle, high)
        return after(low), after(high)

    def _suspect(self, first: Numbers, second: Numbers, z: Array) -> None:
        if len(first) == len(second) and (first >= self.subject.changing)[first != second].any():
            return
        if len(second) and len(self.suspects) < _MOST_SUSPECTS:
            self._odd((self.subject.take(first), self.subject.take(second)), z)

    def _other_form(self, first: Numbers, second: Numbers) -> None:
        """Neighbours of one size, of which one gives no output, or one of another shape."""
        if len(first) == len(second) and len(self.suspects) < _MOST_SUSPECTS:
            self._forms_apart(self.subject.take(first), self.subject.take(second))

    def _forms_apart(self, *blocks: Any) -> None:
        tried = [self.random_noise() for _ in range(_SEVERAL)]
        forms = [
            {None if (value := self.left(block, z)) is None else value.shape for z in tried}
            for block in blocks
        ]
        self.suspects.append((blocks[0], blocks[1]))
        if not forms[0] & forms[1]:
            sure = Discrete(np.array([0.0, -np.inf])), Discrete(np.array([-np.inf, 0.0]))
            self.odd.append(DistributionPair(*sure, "what leaves has another form, or fails"))

    def try_at_hand(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        zero = np.zeros(self.noise.matrix.shape[1])
        for k, (first, second) in enumerate(pairs):
            one, two = self.subject.run(first, zero), self.subject.run(second, zero)
            if one.shape != two.shape:
                self._forms_apart(first, second)
                continue
            shift = _rounded(one, two, self.noise.matrix)
            pair = Neighbours(first, second, shift, self.noise, f"pair {k}")
            self._compare(pair, self.whiten(self.noise.matrix, shift))

    def try_records(self) -> None:
        """Each record beside few and many others, and all against all."""
        for n in _BACKGROUNDS:
            for pair in {self.first, self.pair} if n in self.sizes else ():
                others = np.resize(pair, n)
                sets = [np.concatenate([[k], others[1:]]) for k in range(self.subject.changing)]
                self._against_each_other(sets, others)
                for numbers in sets if pair == self.pair else ():
                    self.test(numbers, self.random_noise())

    def _against_each_other(self, sets: list[Numbers], others: Numbers) -> None:
        centres, matrix = [self.centre(numbers) for numbers in sets], self.matrix(len(others))
        shape = next(centre.shape for centre in centres if centre is not None)
        for numbers, centre in zip(sets, centres, strict=True):
            if centre is None or centre.shape != shape:
                usual = next(s for s, c in zip(sets, centres, strict=True)
                             if c is not None and c.shape == shape)  # fmt: skip
                self._other_form(numbers, usual)
        if matrix is None:
            return
        usable = [k for k, c in enumerate(centres) if c is not None and c.shape == shape]
        if self.subject.adjacency is not Adjacency.REPLACE_ONE:
            moves = [self.consider(sets[k], self.changed(sets[k], 0, 0)) for k in usable]
            k = int(np.argmax(moves))
            self._keep((usable[k], self.subject.null), moves[k])
            return
        moved = self.whiten(matrix, np.array([centres[k] for k in usable]))
        moved = np.asarray(np.where(np.isfinite(moved), moved, 1e150), dtype=np.float64)
        apart: Array = moved[:, None] - moved[None]
        for order in (2, 1, np.inf):
            far = np.linalg.norm(apart, ord=order, axis=2)
            i, j = divmod(int(far.argmax()), len(usable))
            size = self.consider(sets[usable[i]], sets[usable[j]])
            if order == 2:
                self._keep((usable[i], usable[j]), size)

    def _keep(self, pair: tuple[int, int], apart: float) -> None:
        if apart > self._apart:
            self.pair, self._apart = pair, apart

    def random_set(self, n: int) -> Numbers:
        """Of few different records, the farthest ones mostly."""
        some = self.rng.integers(self.subject.count, size=self.rng.integers(1, _FEW))
        return np.asarray(self.rng.choice(np.concatenate([some, self.pair]), size=n))

    def try_sizes(self) -> None:
        """Among any number of rows, all alike, or some on either side."""
        x, y = self.pair
        for n in self.sizes:
            for one, two in permutations({*self.first, *self.pair}, 2):
                self.consider(np.full(n, one), self.changed(np.full(n, one), n // 2, two))
            for others in (np.full(n, x), self.rng.choice([x, y], size=n), self.random_set(n)):
                place = int(self.rng.integers(n))
                first = others.copy()
                first[place] = x
                second = self.changed(first, place, y)
                self.consider(first, second)
                self.test(first, self.random_noise())
                if len(second):
                    self.test(second, self.random_noise())

    def try_places(self) -> None:
        x, y = self.pair
        large = max(self.sizes)
        some = {*self.rng.integers(large, size=_SOME_PLACES).tolist(), 0, large - 1}
        places = [(large, p) for p in sorted(some | {*self.subject.mined.places(large)})]
        n = max(size for size in self.sizes if size <= _EVERY_PLACE)
        places += [(n, p) for p in range(n)]
        mixed = {size: self.rng.choice([x, y], size=size) for size in (large, n)}
        for size, place in places:
            first = mixed[size].copy()
            first[place] = x
            self.consider(first, self.changed(first, place, y))
        for size, place in places[:: max(len(places) // _TRIES, 1)]:
            first = mixed[size].copy()
            first[place] = x
            self.test(first, self.random_noise())

    def try_noise(self) -> None:
        """Up to 30 scales, at mentioned numbers, and where what leaves is such a number."""
        n = self.noise.matrix.shape[1]
        small = [size for size in self.sizes if size <= max(_FEW, self.sizes[0])]
        for k, z in enumerate(self._scripts()):
            self.test(self.random_set(small[k % len(small)]), np.roll(z, k % n))
        numbers = self.random_set(small[-1])
        base, matrix = self.centre(numbers), self.matrix(len(numbers))
        if base is None or matrix is None:
            return
        for value in self._levels():
            for wanted in (np.full(len(base), value), np.full(len(base), value) - base):
                z = self.whiten(matrix, wanted)
                if np.isfinite(z).all() and np.abs(z).max(initial=0.0) <= 2 * FARTHEST:
                    self.test(numbers, z)

    def _scripts(self) -> Iterator[Array]:
        """In turn each coordinate gets each of the scales, either all do or it alone."""
        n = self.noise.matrix.shape[1]
        scan = np.array([sign * x for x in _SCAN for sign in (1.0, -1.0)])
        for start in range(len(scan)):
            yield scan[(start + np.arange(n)) % len(scan)]
        for k in range(min(n, 4)):
            for far in (5.0, 10.0, FARTHEST):
                yield far * np.eye(n)[k]
                yield -far * np.eye(n)[k]
        for level in self._levels():
            if abs(level) <= 2 * FARTHEST:
                yield np.full(n, level)

    def _levels(self) -> list[float]:
        numbers = self.subject.mined.numbers
        return [x * times for x in numbers for times in (1.001, 0.999, -1.001, -0.999)]


def _coverage(search: _Search, undone: list[str]) -> Coverage:
    count, mentioned = search.subject.count, len(search.subject.mined.numbers)
    sizes = search.sizes
    tried = {
        "values": f"{count} records about {mentioned} numbers in code",
        "sizes": f"{sizes[0]} to {sizes[-1]:,} rows" if sizes else "those at hand",
        "places": "first, last, at random, as mentioned in code; "
        f"users from {', '.join(f'{start:,}' for start in search.subject.starts)} on",
        "noise": f"−{FARTHEST:g} to {FARTHEST:g} scales, {search.runs} runs in all",
    }
    undone = undone if search.known else [*undone, "sizes"]
    if search.subject.mined.hashes:
        tried["values"] += HASHED
        undone = [*undone, "values"]
    return Coverage(tuple(Axis(name, text, name not in undone) for name, text in tried.items()))


def sizes_about(mined: Mined) -> list[int]:
    """Numbers of rows that are tried, those that the code mentions among them."""
    return sorted({*SIZES, *mined.sizes(LARGEST)})


def _rounded(one: Array, two: Array, matrix: Array) -> Array:
    """How far two outputs are apart, less what rounding did to them and to the measured noise."""
    far, unit = (float(np.abs(part).max(initial=0.0)) for part in (one - two, matrix))
    if not far or not unit:
        return one - two
    size = float(np.abs([one, two]).max())
    return (one - two) * max(1 - 8 * _ULP * size * (1 / far + 1 / unit), 0.0)
