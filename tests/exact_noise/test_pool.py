"""The noise of one spend: each variate once, the same for all sizes of calls, in one process."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from privlearn.errors import TokenCopyError
from privlearn.noise import CategoryNoise, NoiseSource
from privlearn.noise.exact import pool as pools
from privlearn.noise.exact.pool import (
    Keystream,
    NoisePool,
    SeededWords,
    below,
    bernoulli,
    uniform,
    variates,
)


def test_sizes_of_calls_do_not_matter() -> None:
    # nothing is asked for in between: words go to the draws in order
    whole = NoisePool(SeededWords(1)).floors("normal", 20_000)
    pool, parts = NoisePool(SeededWords(1)), []
    for n in (1, 0, 255, 1, 5000, 7, 14_000, 736):
        parts.append(pool.floors("normal", n))
    assert (np.concatenate(parts) == whole).all()


def test_no_variate_is_handed_out_twice() -> None:
    pool = NoisePool(Keystream())
    drawn = np.concatenate([pool.floors("normal", 100) for _ in range(200)])
    assert len(np.unique(drawn)) == len(drawn)
    drawn[:] = 0  # the caller's own: what is written there does not come back
    assert pool.floors("normal", 100).all()


def test_every_spend_has_a_key_of_its_own() -> None:
    source = NoiseSource.secure()
    first, second = (source.pool().floors("normal", 50) for _ in range(2))
    assert not (first == second).any()


def test_a_simulation_is_reproducible_and_goes_on() -> None:
    one, two = NoiseSource.simulation(5), NoiseSource.simulation(5)
    pools = [(one.pool(), two.pool()) for _ in range(2)]
    drawn = [(a.floors("gumbel", 10), b.floors("gumbel", 10)) for a, b in pools]
    assert all((a == b).all() for a, b in drawn)
    assert not (drawn[0][0] == drawn[1][0]).any()


def test_further_bits_move_no_later_word() -> None:
    one, two = SeededWords(3), SeededWords(3)
    one.more()
    assert (one.words(5) == two.words(5)).all()
    stream = Keystream()
    assert stream.more() != stream.more()
    assert stream.more() not in stream.words(1000).tolist()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_gets_none() -> None:
    pool = NoisePool(Keystream())
    pool.floors("normal", 1)
    child = os.fork()
    if not child:
        try:
            pool.floors("normal", 1)
        except TokenCopyError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_it_cannot_be_copied() -> None:
    pool = NoisePool(Keystream())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TokenCopyError, match="copied or pickled"):
            copied(pool)


def test_threads_do_not_disturb_each_other() -> None:
    """Of several pools, and of one."""
    wanted = {seed: variates("laplace", SeededWords(seed), 40_000).floors for seed in range(4)}
    wrong: list[int] = []

    def draw(seed: int) -> None:
        for _ in range(5):
            if not (variates("laplace", SeededWords(seed), 40_000).floors == wanted[seed]).all():
                wrong.append(seed)

    shared, taken = NoisePool(SeededWords(0)), []

    def take() -> None:
        for _ in range(100):
            taken.append(shared.floors("laplace", 97))

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(4)]
    threads += [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    order = NoisePool(SeededWords(0)).floors("laplace", 97 * 400)
    assert sorted(np.concatenate(taken).tolist()) == sorted(order.tolist())


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 1000, 2**20, 2**32])
def test_uniform_integers(bound: int) -> None:
    drawn = below(NoisePool(SeededWords(6)), bound, 20_000)
    assert drawn.min() >= 0
    assert drawn.max() < bound
    if 1 < bound <= 1000:
        assert stats.chisquare(np.bincount(drawn, minlength=bound)).pvalue > 1e-3


class _Words:
    """A pool of given words."""

    def __init__(self, *words: int) -> None:
        self._left = list(words)

    def words(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        taken, self._left = self._left[:n], self._left[n:]
        return np.array(taken, dtype=np.uint64)


def test_words_beyond_the_last_multiple_are_left() -> None:
    last = 2**64 // 3 * 3
    pool: NoisePool = _Words(last, last - 1, 5)  # type: ignore[assignment]
    assert below(pool, 3, 2).tolist() == [5 % 3, (last - 1) % 3]


@pytest.mark.parametrize("bound", [0, -1, 2**32 + 1])
def test_other_bounds_are_refused(bound: int) -> None:
    with pytest.raises(ValueError, match=f"bound = {bound}"):
        below(NoisePool(SeededWords(0)), bound, 1)


def test_a_probability_is_met_to_its_last_bit() -> None:
    least = np.uint64(1 << 12)
    pool: NoisePool = _Words(0, int(least) - 1, int(least), 2**64 - 1)  # type: ignore[assignment]
    assert bernoulli(pool.words(4), 1).tolist() == [True, True, False, False]
    pool = NoisePool(SeededWords(2))
    assert bernoulli(pool.words(100), 1 << 52).all()
    assert not bernoulli(pool.words(100), 0).any()
    assert abs(bernoulli(pool.words(100_000), 3 << 50).mean() - 0.75) < 0.005
    with pytest.raises(ValueError, match="numerator"):
        bernoulli(pool.words(1), 2**52 + 1)


def test_uniform_doubles_are_neither_end() -> None:
    drawn = uniform(SeededWords(3).words(10_000))
    assert 0 < drawn.min() < drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3


def test_a_draw_from_inside_an_unfinished_one_changes_neither() -> None:
    """As in a signal handler: between any two lines of a draw, another spend draws its noise."""
    want = NoisePool(SeededWords(1)).floors("normal", 3000)
    inner, inside = NoisePool(SeededWords(2)).floors("normal", 300), []

    def between(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_name != "_tile":
            return None
        sys.settrace(None)
        inside.append(NoisePool(SeededWords(2)).floors("normal", 300))
        sys.settrace(between)
        return between

    before = sys.gettrace()
    sys.settrace(between)
    try:
        drawn = NoisePool(SeededWords(1)).floors("normal", 3000)
    finally:
        sys.settrace(before)
    assert len(inside) > 20
    assert (drawn == want).all()
    assert all((found == inner).all() for found in inside)


def test_further_bits_begin_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads that ask first, the second begins no second stream of the same bits."""
    stream, made, inner = Keystream(), pools._encryptor, []

    def between(key: bytes, start: int) -> Any:
        monkeypatch.setattr(pools, "_encryptor", made)
        inner.append(stream.more())
        return made(key, start)

    monkeypatch.setattr(pools, "_encryptor", between)
    assert stream.more() not in inner
    assert stream.more() not in inner
    assert len(inner) == 1


def numbered_rows(pool: NoisePool, sizes: list[int], *, fails_at: int = -1) -> list[int]:
    """What calls of these sizes get of rows that are numbered as they are made.

    Before each block another one is asked for from inside, as by a signal handler.
    """
    made, used, inner = [0], [], [True]

    def make(n: int) -> np.ndarray[Any, Any]:
        if inner[0]:
            inner[0] = False
            used.extend(pool.rows("law", 2, 1, make)[:, 0].tolist())
            inner[0] = True
        made.append(n)
        if len(made) == fails_at:
            raise KeyboardInterrupt
        return np.arange(sum(made[:-1]), sum(made))[:, None]

    for n in sizes:
        with suppress(KeyboardInterrupt):
            found = pool.rows("law", n, 1, make)
            assert len(found) == n
            used += found[:, 0].tolist()
            found[:] = -1  # the caller's own
    return used


@pytest.mark.parametrize("fails_at", [-1, 2, 3, 6])
def test_rows_ahead_are_handed_out_once(fails_at: int) -> None:
    sizes = [1, 1, 2, 1, 70, 1, 300, 0, 1, 255, 3, 256, *[1] * 600, 2000, 5]
    used = numbered_rows(NoisePool(SeededWords(0)), sizes, fails_at=fails_at)
    assert len(set(used)) == len(used) >= sum(sizes) - 300
    assert min(used) >= 0


def test_a_pool_that_forgets_what_it_handed_out_is_seen() -> None:
    class Forgets(dict[Any, Any]):
        def __setitem__(self, law: Any, kept: Any) -> None:
            block, stop, made = kept
            super().__setitem__(law, (block, max(stop - 1, 0), made))

    pool = NoisePool(SeededWords(0))
    pool._rows = Forgets()
    used = numbered_rows(pool, [1, 1, 1, 1, 1, 1])
    assert len(set(used)) < len(used)


def test_rows_ahead_are_the_same_rows_as_those_that_are_made_together() -> None:
    """Of a pool that is asked one by one: 1, 2, 4, 8 and so on together, by the same rule."""
    noise = CategoryNoise(5, 0.5)
    pool, blocks = NoisePool(SeededWords(2)), NoisePool(SeededWords(2))
    single = [noise.rows(pool, 1) for _ in range(15)]
    drawn = [noise._drawn(blocks, n) for n in (1, 2, 4, 8)]
    for name in ("true", "others", "nulls"):
        wanted = np.concatenate([getattr(block, name) for block in drawn])
        assert np.array_equal([getattr(row, name)[0] for row in single], wanted)
