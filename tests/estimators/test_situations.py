"""Long tables of choices: whose lines are whose, and what a broken line costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privlearn.estimators.situations import (
    NOBODY,
    Situations,
    centred,
    gathered,
    numbered,
    places_of_ids,
)
from privlearn.mechanisms.choice_model import NO_ITEM
from privlearn.rows.domains import Array

N, MOST = 40, 4
BATCHES = [range(5), range(5, 14), range(14, N)]


def table(seed: int, n: int = N) -> tuple[list[str | None], Array, Array]:
    """Lines of n situations with 2 to 4 items, shuffled."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, MOST + 1, n)
    ids = [f"s{k}" for k in range(n) for _ in range(sizes[k])]
    chosen = np.concatenate([np.eye(size)[rng.integers(size)] for size in sizes])
    order = rng.permutation(len(ids))
    return [ids[k] for k in order], rng.uniform(-1, 1, (len(ids), 2)), chosen[order]


def gather(
    ids: list[str | None], inputs: Array, chosen: Array, outside: bool = False
) -> Situations:
    places = places_of_ids(ids, BATCHES)
    return gathered(places, inputs, chosen, situations=N, max_items=MOST, outside=outside)


def records(found: Situations, batch: range) -> set[bytes]:
    part = slice(batch.start, batch.stop)
    blocks = zip(found.features[part], found.offered[part], found.choices[part], strict=True)
    return {
        x.tobytes() + seen.tobytes() + bytes([int(choice) + 1])
        for x, seen, choice in blocks
        if not np.isnan(x).any()
    }


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.sampled_from([N // 2, N, N + 20]), data=st.data())
def test_whatever_the_lines_of_one_id_say_one_record_of_one_batch_is_another(
    seed: int, n: int, data: st.DataObject
) -> None:
    """They may be broken, more or fewer, elsewhere in the file, or absent."""
    ids, inputs, chosen = table(seed, n)
    before = gather(ids, inputs, chosen)
    who = f"s{data.draw(st.integers(0, n - 1))}"
    others = [k for k, name in enumerate(ids) if name != who]
    added = data.draw(st.lists(st.integers(0, len(others)), max_size=6))
    lines: list[tuple[str | None, list[float], float]] = [
        (ids[k], inputs[k].tolist(), chosen[k]) for k in others
    ]
    for k in added:
        name = data.draw(st.sampled_from([who, None]))
        cell = data.draw(st.sampled_from([0.3, np.nan, np.inf]))
        lines.insert(k, (name, [cell, 0.1], data.draw(st.sampled_from([0.0, 1.0, 0.5, np.nan]))))
    after = gather(
        [name for name, _, _ in lines],
        np.array([x for _, x, _ in lines]),
        np.array([y for _, _, y in lines]),
    )
    changed = 0
    for batch in BATCHES:
        old, new = records(before, batch), records(after, batch)
        assert len(old - new) <= 1
        assert len(new - old) <= 1
        changed += old != new
    assert changed <= 1


def test_each_situation_is_one_record_wherever_its_lines_are() -> None:
    ids, inputs, chosen = table(3, 10)
    found = gather(ids, inputs, chosen)
    places = places_of_ids(ids, BATCHES)
    assert len({int(place) for place in places} - {NOBODY}) == 10
    later = [range(batch.start + 7, batch.stop + 7) for batch in BATCHES]
    assert np.array_equal(places_of_ids(ids, later), places)
    for k in range(10):
        lines = [line for line, name in enumerate(ids) if name == f"s{k}"]
        place = int(places[lines[0]])
        size = len(lines)
        assert np.array_equal(found.features[place, :size], inputs[lines])
        assert found.offered[place].tolist() == [True] * size + [False] * (MOST - size)
        assert found.choices[place] == chosen[lines].argmax()
    assert {text for _, text in found.messages} == {"no situation has this place"}
    assert len(found.messages) == N - 10


@pytest.mark.parametrize(
    ("lines", "told", "outside"),
    [
        ([(0.1, 1), (0.2, 0)], None, False),
        ([(0.1, 1), (0.2, 1)], "2 items chosen", False),
        ([(0.1, 0), (0.2, 0)], "0 items chosen", False),
        ([(0.1, 0), (0.2, 0)], None, True),
        ([(0.1, 1), (np.nan, 0)], "cannot be used", False),
        ([(0.1, 1), (0.2, np.nan)], "cannot be used", True),
        ([(0.1, 1), (0.2, 0.5)], "cannot be used", True),
        ([(0.1, 1)] + 4 * [(0.2, 0)], "5 lines, and a situation has at most 4", False),
    ],
)
def test_a_situation_that_cannot_be_used_is_null_and_says_why(
    lines: list[tuple[float, float]], told: str | None, outside: bool
) -> None:
    x, y = np.array(lines).T
    places = np.zeros(len(x), dtype=np.int64)
    found = gathered(places, x[:, None], y, situations=1, max_items=MOST, outside=outside)
    if told is None:
        assert found.messages == []
        assert found.choices[0] == (0 if y.any() else NO_ITEM)
    else:
        ((_, text),) = found.messages
        assert told in text
        assert np.isnan(found.features).all()


def test_centred_items_have_mean_zero_over_what_was_offered() -> None:
    rng = np.random.default_rng(0)
    features, offered = rng.normal(size=(5, MOST, 3)), rng.random((5, MOST)) < 0.6
    features[~offered] = 0
    found = centred(features, offered)
    assert np.allclose(np.where(offered[..., None], found, 0).sum(axis=1), 0)
    assert (found[~offered] == 0).all()
    assert numbered(["b", None, "a", "b"]).tolist() == [0, NOBODY, 1, 0]
