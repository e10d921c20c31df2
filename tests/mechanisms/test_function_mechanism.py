"""A mechanism of one function: spent for first, one draw of the priced noise, listed as trusted."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant
from privlearn.checking import check_mechanism, sampling_target
from privlearn.errors import AdjacencyError, TokenError, TokenSpentError
from privlearn.ledger.entries import FunctionsEntry, RetireEntry, SpendEntry
from privlearn.losses import LaplaceLoss
from privlearn.losses.budgets import ZCDP, PureDP
from privlearn.mechanisms import FunctionMechanism, mechanism
from privlearn.mechanisms.function_mechanism import Draw
from privlearn.noise import (
    GaussianNoise,
    GeneralizedGaussianNoise,
    GumbelNoise,
    LaplaceNoise,
    NoiseSource,
)
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Box
from privlearn.values.adjacency import Adjacency

COUNT: Any = {"domain": Box(0, 1, 1), "noise": LaplaceNoise(4.0)}


@mechanism(**COUNT)
def trimmed_total(rows: Array, draw: Draw) -> Array:
    """The sum without the smallest and the largest: no user moves it by more than 1."""
    return np.asarray(np.sort(rows, axis=0)[1:-1].sum(axis=0) + draw((1,)))


def of(function: Any, **options: Any) -> FunctionMechanism[Any]:
    return mechanism(**{**COUNT, **options})(function)


def book(users: int = 20, cap: str = "10") -> CentralAccountant[PureDP]:
    return CentralAccountant(PureDP(cap), users=range(users), noise=NoiseSource.simulation(0))


def run(made: FunctionMechanism[Any], data: Array, accountant: Any = None) -> Array:
    accountant = accountant or book(len(data))
    token = accountant.issue(made.loss(), users=range(len(data)), label="own")
    return made.release(Rows.seal(data, users=range(len(data))), token).value


def test_it_computes_from_clipped_rows_and_adds_the_priced_noise() -> None:
    data = np.concatenate([np.full(16, 0.5), [7.0, np.nan, -3.0, 1.0]])[:, None]
    assert trimmed_total.loss() == LaplaceLoss("0.25")
    found = run(of(trimmed_total.function, noise=LaplaceNoise(0.1)), data)
    assert found == pytest.approx([9.0], abs=3)
    noise = LaplaceNoise(0.1).draw(NoiseSource.simulation(0).pool(), (1,))
    assert found - noise == pytest.approx([9.0]), "7 counts as 1, −3 and NaN as 0"


def test_the_right_one_passes_all_checks() -> None:
    report = check_mechanism(trimmed_total, samples=400)
    assert not report.violated
    assert report["exact"].verdict == "tight"


def twice_the_sum(rows: Array, draw: Draw) -> Array:
    return np.asarray(2 * rows.sum(axis=0) + draw((1,)))


def noise_left_out(rows: Array, draw: Draw) -> Array:
    draw((1,))
    return np.asarray(rows.sum(axis=0))


def raw_mean(rows: Array, draw: Draw) -> Array:
    """Divides by a number that depends on the rows."""
    return np.asarray((rows.sum(axis=0) + draw((1,))) / max(np.count_nonzero(rows), 1))


@pytest.mark.parametrize("wrong", [twice_the_sum, noise_left_out, raw_mean])
def test_a_wrong_one_is_refuted(wrong: Any) -> None:
    assert check_mechanism(of(wrong), samples=4_000, raise_error=False).violated


def test_a_stated_gain_is_paid_for() -> None:
    honest = of(twice_the_sum, gain=2)
    assert honest.loss() == LaplaceLoss("0.5")
    assert not check_mechanism(honest, samples=400).violated


def test_the_spend_stands_before_the_function_runs() -> None:
    accountant, seen = book(), list[Any]()

    def looks(rows: Array, draw: Draw) -> Array:
        seen.extend(accountant.ledger.entries)
        return np.asarray(rows.sum(axis=0) + draw((1,)))

    run(of(looks), np.ones((20, 1)), accountant)
    assert any(isinstance(entry, SpendEntry) for entry in seen)
    assert any(isinstance(entry, FunctionsEntry) for entry in seen)


def test_the_audit_says_whose_word_its_sensitivity_is() -> None:
    accountant = book()
    run(trimmed_total, np.ones((20, 1)), accountant)
    accountant.close()
    certificate = accountant.certificate()
    assert certificate.problems == []
    function, rounded, arithmetic = certificate.trusted_code
    assert rounded.startswith("trimmed-total: computes in floating point")
    assert function.startswith("arithmetic(")
    assert "trimmed_total" in function
    assert function.endswith("by no more than the stated sensitivity is its author's word")
    assert arithmetic == "trimmed-total: what it computes from opened rows is its code's word"


def draws_twice(rows: Array, draw: Draw) -> Array:
    return np.asarray(rows.sum(axis=0) + draw((1,)) + draw((1,)))


def draws_more(rows: Array, draw: Draw) -> Array:
    return np.asarray(rows.sum() + draw((2,)))


def draws_nothing(rows: Array, draw: Draw) -> Array:
    return np.asarray(rows.sum(axis=0))


def returns_more(rows: Array, draw: Draw) -> Array:
    return np.append(rows.sum(axis=0), draw((1,)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (draws_twice, r"noise a second time: the price is for one draw"),
        (draws_more, r"noise of another shape: the price is for one draw of \(1,\)"),
        (draws_nothing, "drew no noise: nothing may leave"),
        (returns_more, r"returned another shape: the price is for \(1,\)"),
    ],
)
def test_what_the_price_does_not_cover_stops_it_and_stays_charged(wrong: Any, message: str) -> None:
    accountant = book()
    with pytest.raises(TokenError, match=message):
        run(of(wrong), np.ones((20, 1)), accountant)
    (end,) = [e for e in accountant.ledger.entries if isinstance(e, RetireEntry)]
    assert end.outcome == "uncovered"
    assert accountant.spent() == PureDP("0.25")


def quotes_rows(rows: Array, draw: Draw) -> Array:
    raise ValueError(f"bad value {rows.max()}")


def draws_as_many_as_rows_say(rows: Array, draw: Draw) -> Array:
    return draw((int(7654 * rows.max()),))


def returns_as_many_as_rows_say(rows: Array, draw: Draw) -> Array:
    return np.zeros(int(7654 * rows.max())) + draw((1,))


@pytest.mark.parametrize(
    "tells", [quotes_rows, draws_as_many_as_rows_say, returns_as_many_as_rows_say]
)
def test_what_stops_it_does_not_quote_rows(tells: Any) -> None:
    accountant = book()
    with pytest.raises(TokenError) as caught:
        run(of(tells), np.full((20, 1), 0.5), accountant)
    told = "".join(traceback.format_exception(caught.value))
    assert "3827" not in told
    assert "bad value 0.5" not in told
    (end,) = [e for e in accountant.ledger.entries if isinstance(e, RetireEntry)]
    assert end.outcome == "uncovered"


def test_a_draw_that_was_kept_is_worth_nothing_later() -> None:
    kept = list[Draw]()

    def keeps(rows: Array, draw: Draw) -> Array:
        kept.append(draw)
        return np.asarray(rows.sum(axis=0) + draw((1,)))

    def never_draws(rows: Array, draw: Draw) -> Array:
        kept.append(draw)
        return np.asarray(rows.sum(axis=0))

    run(of(keeps), np.ones((5, 1)))
    with pytest.raises(TokenError, match="a second time"):
        kept[0]((1,))
    with pytest.raises(TokenError):
        run(of(never_draws), np.ones((5, 1)))
    with pytest.raises(TokenSpentError, match="is closed"):
        kept[1]((1,))


def test_noise_of_a_matrix_in_another_norm_is_one_vector() -> None:
    """Rows of their own would cost more than the price: Σ‖v_i‖_p² >= ‖v‖_p² for p > 2."""
    noise = GeneralizedGaussianNoise(5.0, 4.0)

    def means(rows: Array, draw: Draw) -> Array:
        return np.asarray(rows.sum(axis=0).reshape(2, 2) + draw((2, 2)))

    accountant = CentralAccountant(ZCDP(9), users=range(3), noise=NoiseSource.simulation(2))
    made = of(means, domain=Ball(1.0, 4, 4.0), noise=noise, shape=(2, 2))
    found = run(made, np.zeros((3, 4)), accountant)
    assert found == pytest.approx(noise.draw(NoiseSource.simulation(2).pool(), (4,)).reshape(2, 2))


def test_bad_parameters_are_refused_before_anything_is_spent() -> None:
    with pytest.raises(ValueError, match="gain = 0: must be > 0"):
        of(draws_nothing, gain=0)
    with pytest.raises(TypeError, match=r"noise = 4\.0: must be noise that is added to numbers"):
        of(draws_nothing, noise=4.0)
    with pytest.raises(TypeError, match=r"shape = 3: must be a tuple such as"):
        of(draws_nothing, shape=3)
    with pytest.raises(ValueError, match="shape = 0: must be an integer >= 1"):
        of(draws_nothing, shape=(0,))
    with pytest.raises(TypeError, match="must be noise that is added to numbers"):
        of(draws_nothing, noise=GumbelNoise(1.0))
    with pytest.raises(TypeError, match="function = 3: must be called with"):
        of(3)


def test_it_has_the_name_and_the_neighbour_relation_that_are_stated() -> None:
    spend = of(draws_nothing, name="our-total").spend()
    assert (spend.mechanism, spend.arithmetic, spend.derived) == ("our-total", "own", True)
    near = of(draws_nothing, domain=Box(1, 2, 1), noise=GaussianNoise(3.0))
    far = of(
        draws_nothing,
        domain=Box(1, 2, 1),
        noise=GaussianNoise(3.0),
        adjacency=Adjacency.ADD_REMOVE,
    )
    assert near.loss() != far.loss()


def signs(rows: Array, draw: Draw) -> Array:
    """Two records move it by 2, as far as they lie apart; a record and none also by 2, not by 1."""
    return np.asarray(np.where(rows > 0, 1.0, -1.0).sum(axis=0) + draw((1,)))


def test_it_is_released_for_the_neighbour_relation_it_was_stated_for() -> None:
    accountant = CentralAccountant(
        PureDP(1),
        users=range(3),
        adjacency=Adjacency.ZERO_OUT,
        noise=NoiseSource.simulation(0),
    )
    made = of(signs, domain=Ball(1.0, 1), noise=LaplaceNoise(2.0))
    assert made.loss().pure() == 1
    token = accountant.issue(PureDP(1), users=range(3), label="own")
    with pytest.raises(AdjacencyError, match="for replace-one, a token for zero-out"):
        made.release(Rows.seal(np.ones((3, 1)), users=range(3)), token)
    assert not [e for e in accountant.ledger.entries if isinstance(e, SpendEntry)]


def ratio(rows: Array, draw: Draw) -> Array:
    """Warns, or raises where that was asked for, if some row is 0."""
    return np.asarray(np.count_nonzero(np.isfinite(1 / rows)) + draw((1,)))


@pytest.mark.parametrize("asked", ["warn", "raise"])
def test_floating_point_errors_tell_of_no_row(asked: Any, recwarn: pytest.WarningsRecorder) -> None:
    accountant = book()
    with np.errstate(all=asked):
        run(of(ratio), np.arange(20.0)[:, None], accountant)
    assert not recwarn.list
    (end,) = [e for e in accountant.ledger.entries if isinstance(e, RetireEntry)]
    assert end.outcome == "released"


def no_noise_at_all(rows: Array, draw: Draw) -> Array:
    return np.asarray(rows.sum(axis=0))


def test_checks_call_it_by_the_name_that_it_states() -> None:
    assert sampling_target(trimmed_total).name == "trimmed-total"  # as it states
    report = check_mechanism(of(no_noise_at_all), raise_error=False)
    assert report.violated
    assert str(report).startswith("no-noise-at-all:")
