"""The auto-loan loader, on synthetic files with the columns of CPRM-12-001; no line is real."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from privlearn.accountants import LocalAccountant
from privlearn.errors import DataError
from privlearn.losses.budgets import PureDP
from privlearn.noise import NoiseSource
from privlearn_studies.data.auto_loans import (
    BOUNDS,
    FEATURES,
    SIDE_INFORMATION,
    CprmLoans,
    cprm_market,
    fitted_demand,
    load_cprm,
)

Row = dict[str, str]

# The columns that public scripts name, in one of the orders they name them in.
HEADER = [
    "Tier",
    "Primary_FICO",
    "State",
    "Type",
    "Approve_Date",
    "Apply_Date",
    "Fund_Date",
    "Term",
    "New_Rate",
    "Used_Rate",
    "Amount_Approved",
    "CarType",
    "CarType_id",
    "Previous_Rate",
    "Competition_rate",
    "apply",
    "rate",
    "rate1",
    "rel_compet_rate",
    "onemonth",
    "termclass",
    "partnerbin",
    "mp",
    "mp_rto_amtfinance",
    "days",
    "weeks",
    "months",
]
NEEDED = [
    "Primary_FICO",
    "Term",
    "Amount_Approved",
    "CarType",
    "Competition_rate",
    "onemonth",
    "mp",
    "apply",
]


def synthetic(n: int = 400, seed: int = 0) -> list[Row]:
    """Made-up loans: dearer ones are taken less often."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        term, amount = int(rng.choice([36, 48, 60, 72])), int(rng.integers(8_000, 45_000))
        price = rng.uniform(500, 20_000)
        prime = round(float(rng.uniform(0.1, 0.4)), 3)
        q = 1 / (1 + prime / 100)
        payment = (price + amount) / (q * (1 - q**term) / (1 - q))
        score = int(rng.integers(600, 830))
        value = 1.0 + (score - 700) / 200 - price / 8_000
        rows.append(
            dict.fromkeys(HEADER, "")
            | {
                "Tier": "2",
                "Primary_FICO": str(score),
                "State": "NY",
                "Type": "F",
                "Apply_Date": "7/1/2002",
                "Term": str(term),
                "Amount_Approved": str(amount),
                "CarType": str(rng.choice(["N", "U", "R"])),
                "Competition_rate": f"{rng.uniform(3, 8):.2f}",
                "onemonth": str(prime),
                "mp": f"{payment:.6f}",
                "apply": str(int(rng.random() < expit(value))),
            }
        )
    return rows


def write(path: Path, rows: list[Row], header: list[str] = HEADER) -> Path:
    lines = [",".join(header), *(",".join(row[name] for name in header) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return path


def load(path: Path) -> CprmLoans:
    return load_cprm(path, declare_public=True)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return synthetic(3_000)


@pytest.fixture(scope="module")
def loans(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> CprmLoans:
    return load(write(tmp_path_factory.mktemp("cprm") / "loans.csv", rows))


# --- what is loaded --------------------------------------------------------------------------


def test_features_are_those_of_the_paper_scaled_by_public_bounds(
    loans: CprmLoans, rows: list[Row]
) -> None:
    assert loans.features.shape == (3_000, 9)
    assert len(FEATURES) == 9
    for place, (name, (low, high)) in enumerate(BOUNDS.items()):
        cells = np.array([float(row[name]) for row in rows])
        expected = np.clip((cells - low) / (high - low), 0, 1)
        np.testing.assert_allclose(loans.features[:, place], expected, atol=1e-12)
    kinds = np.array([[row["CarType"] == kind for kind in "NRU"] for row in rows], dtype=float)
    np.testing.assert_array_equal(loans.features[:, 5:8], kinds)
    np.testing.assert_array_equal(loans.features[:, 8], 1)
    np.testing.assert_array_equal(loans.applied, [float(row["apply"]) for row in rows])
    for values in (loans.features, loans.price, loans.applied):
        assert not values.flags.writeable


def test_the_price_is_the_present_value_of_the_payments_minus_the_amount(
    loans: CprmLoans, rows: list[Row], tmp_path: Path
) -> None:
    """Term by term, as the appendix writes it."""
    path = write(tmp_path / "loans.csv", rows[:20])
    for rate, found in ((None, loans.price), (0.0012, None)):
        prices = load_cprm(path, declare_public=True, monthly_rate=rate).price
        for row, price in zip(rows[:20], prices, strict=True):
            r = float(row["onemonth"]) / 100 if rate is None else rate
            value = sum((1 + r) ** -month for month in range(1, int(row["Term"]) + 1))
            expected = float(row["mp"]) * value - float(row["Amount_Approved"])
            assert price == pytest.approx(expected, abs=1e-6)
        if found is not None:
            np.testing.assert_array_equal(prices, found[:20])


def test_a_rate_of_zero_discounts_nothing(rows: list[Row], tmp_path: Path) -> None:
    few = [row | {"onemonth": "0"} for row in rows[:10]]
    found = load(write(tmp_path / "loans.csv", few))
    for row, price in zip(few, found.price, strict=True):
        expected = float(row["mp"]) * int(row["Term"]) - float(row["Amount_Approved"])
        assert price == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_discounting_a_yearly_rate_as_monthly_shows_in_the_share_inside(
    loans: CprmLoans, rows: list[Row], tmp_path: Path
) -> None:
    assert loans.inside == 1.0
    dear = [row | {"onemonth": "2.0"} for row in rows[:100]]
    path = write(tmp_path / "loans.csv", dear)
    assert load(path).inside < 0.5
    assert load_cprm(path, declare_public=True, monthly_rate=0.02 / 12).inside > 0.9


def test_columns_may_stand_anywhere_and_others_are_not_looked_at(
    loans: CprmLoans, rows: list[Row], tmp_path: Path
) -> None:
    orders = [list(reversed(HEADER)), NEEDED, [*HEADER[5:], "Id", *HEADER[:5]]]
    for order in orders:
        more = [row | {"Id": "?", "State": "any text"} for row in rows[:50]]
        found = load(write(tmp_path / "loans.csv", more, order))
        np.testing.assert_array_equal(found.features, loans.features[:50])
        np.testing.assert_array_equal(found.price, loans.price[:50])


def test_quoted_cells_a_byte_order_mark_and_windows_line_ends(
    loans: CprmLoans, rows: list[Row], tmp_path: Path
) -> None:
    lines = [HEADER, *([row[name] for name in HEADER] for row in rows[:50])]
    text = "\r\n".join(",".join(f'"{cell}"' for cell in line) for line in lines) + "\r\n"
    path = tmp_path / "loans.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    np.testing.assert_array_equal(load(path).features, loans.features[:50])


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [False, None, 1, "yes"])
def test_without_the_declaration_nothing_is_opened(tmp_path: Path, declared: object) -> None:
    with pytest.raises(ValueError, match="declare_public = ") as refusal:
        load_cprm(tmp_path / "is not there.csv", declare_public=declared)  # type: ignore[arg-type]
    for sentence in SIDE_INFORMATION:
        assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "cell", "accepted"),
    [
        ("Primary_FICO", "", "a finite number from 0 to 1000"),
        ("Primary_FICO", "good", "a finite number from 0 to 1000"),
        ("Primary_FICO", "7000", "a finite number from 0 to 1000"),
        ("Term", "48.5", "an integer from 1 to 360"),
        ("Term", "0", "an integer from 1 to 360"),
        ("Amount_Approved", "-5", "a finite number >= 1"),
        ("Amount_Approved", "$9000", "a finite number >= 1"),
        ("CarType", "new", "one of N, R, U"),
        ("CarType", "", "one of N, R, U"),
        ("Competition_rate", "NaN", "a finite number from 0 to 100"),
        ("onemonth", "1e999", "a finite number from 0 to 100"),
        ("onemonth", "-1", "a finite number from 0 to 100"),
        ("mp", "NULL", "a finite number >= 0"),
        ("apply", "yes", "an integer from 0 to 1"),
        ("apply", "2", "an integer from 0 to 1"),
    ],
)
def test_a_bad_cell_is_named_with_file_line_column_and_what_is_accepted(
    tmp_path: Path, rows: list[Row], name: str, cell: str, accepted: str
) -> None:
    few = rows[:6]
    path = write(tmp_path / "loans.csv", [*few[:2], few[2] | {name: cell}, *few[3:]])
    with pytest.raises(DataError) as found:
        load(path)
    shown = repr(cell) if cell else "an empty cell"
    assert str(found.value) == (
        f"{path}, line 4: column {name}: found {shown}, accepted is {accepted}"
    )


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_column_is_named(tmp_path: Path, rows: list[Row], name: str) -> None:
    path = write(tmp_path / "loans.csv", rows[:5], [n for n in HEADER if n != name])
    with pytest.raises(DataError, match=f"line 1: the header lacks {name}. Needed, in any order"):
        load(path)


def test_other_files_are_told_apart(tmp_path: Path, rows: list[Row]) -> None:
    path = tmp_path / "loans.csv"
    for content, message in (
        (b"", "lacks Primary_FICO, Term"),
        (b"PK\x03\x04....", "is a zip archive: unpack it"),
        (b"\x1f\x8b\x08....", "is a gzip file: unpack it"),
        ((",".join(HEADER) + "\n").encode(), "has a header and no loans"),
        ((",".join([*HEADER, "mp"]) + "\n").encode(), "the header has twice mp"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            load(path)
    for missing in (tmp_path, tmp_path / "nothing.csv"):
        with pytest.raises(DataError, match=f"{re.escape(str(missing))} cannot be read"):
            load(missing)
    write(path, rows[:5])
    whole = path.read_bytes()
    path.write_bytes(whole + b"1,2\n")
    with pytest.raises(DataError, match="line 7: 2 cells, accepted are 27"):
        load(path)
    path.write_bytes(whole[:-60])
    with pytest.raises(DataError, match=r"line 6: the last line has .* looks cut off"):
        load(path)


def test_demand_needs_both_answers(tmp_path: Path, rows: list[Row]) -> None:
    path = write(tmp_path / "loans.csv", [row | {"apply": "1"} for row in rows[:20]])
    with pytest.raises(DataError, match=r"column apply: found only 1, .* both answers"):
        load(path)


@pytest.mark.parametrize("rate", [0.0, -0.01, float("nan"), float("inf")])
def test_rates_out_of_range(tmp_path: Path, rate: float) -> None:
    with pytest.raises(ValueError, match="monthly_rate = "):
        load_cprm(tmp_path / "x.csv", declare_public=True, monthly_rate=rate)


# --- the market ------------------------------------------------------------------------------


def test_contexts_are_features_and_their_products_with_the_price(loans: CprmLoans) -> None:
    market = cprm_market(loans, seed=200, horizon=300)
    users = market.users
    assert (users.n_arms, users.dim, users.shared) == (25, 18, True)
    assert (users.link, users.reward_low, users.reward_high) == ("logistic", 0.0, 1.0)
    np.testing.assert_allclose(market.prices, np.arange(25) * 25_000 / 24)
    own = users.contexts[:, 0, :9] * np.sqrt(14)
    known = {tuple(row) for row in loans.features.round(9)}
    assert {tuple(row) for row in own.round(9)} <= known
    for arm in range(25):
        expected = np.concatenate([own, arm / 24 * own], axis=1) / np.sqrt(14)
        np.testing.assert_allclose(users.contexts[:, arm], expected, atol=1e-12)
    assert np.linalg.norm(users.contexts, axis=2).max() <= 1
    assert len(market.feature_names) == 18
    assert market.side_information == SIDE_INFORMATION


def test_the_bounds_of_the_norm_are_attained() -> None:
    extreme = CprmLoans(
        np.array([[1.0, 1, 1, 1, 1, 0, 1, 0, 1]] * 4),
        np.array([100.0, 5_000, 10_000, 20_000]),
        np.array([1.0, 0, 1, 0]),
    )
    longest = np.linalg.norm(cprm_market(extreme, seed=0, horizon=3).users.contexts, axis=2).max()
    assert longest == pytest.approx(1, abs=1e-12)


def test_demand_is_the_logit_that_the_synthetic_loans_were_made_with(loans: CprmLoans) -> None:
    theta = fitted_demand(loans)
    price = loans.price[:, None] / 25_000
    design = np.concatenate([loans.features, price * loans.features], axis=1)
    fitted = expit(design @ theta)
    score = 500 + 350 * loans.features[:, 0]
    truth = expit(1.0 + (score - 700) / 200 - loans.price / 8_000)
    assert np.abs(fitted - truth).mean() < 0.04
    # The market's own acceptance is that of the fit at the prices that are quoted.
    market = cprm_market(loans, seed=1, horizon=50)
    np.testing.assert_allclose(
        market.acceptance, expit(market.users.contexts @ theta * np.sqrt(14)), atol=1e-12
    )
    assert (np.diff(market.acceptance.mean(axis=0)) < 0).all()


def test_the_most_likely_price_is_not_the_one_that_earns_most(loans: CprmLoans) -> None:
    market = cprm_market(loans, seed=200, horizon=4_000)
    np.testing.assert_allclose(market.revenue, market.acceptance * market.prices)
    accepted, earned = (v.mean(axis=0).argmax() for v in (market.acceptance, market.revenue))
    assert accepted == 0
    assert 5 < earned < 20
    np.testing.assert_array_equal(market.users.means, market.acceptance)


def test_answers_follow_the_chances(loans: CprmLoans) -> None:
    market = cprm_market(loans, seed=3, horizon=20_000)
    noise = 4 * 0.5 / np.sqrt(20_000)
    np.testing.assert_allclose(
        market.users.rewards.mean(axis=0), market.acceptance.mean(axis=0), atol=noise
    )


def test_a_market_is_a_function_of_its_seed(loans: CprmLoans) -> None:
    first, again, other = (cprm_market(loans, seed=s, horizon=40) for s in (5, 5, 6))
    np.testing.assert_array_equal(first.users.rewards, again.users.rewards)
    assert (first.acceptance != other.acceptance).any()
    for seed, horizon in ((-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="must be an integer >="):
            cprm_market(loans, seed=seed, horizon=horizon)


def test_what_was_declared_stands_on_the_certificate(loans: CprmLoans) -> None:
    accountant = LocalAccountant(
        PureDP(1),
        users=range(10),
        noise=NoiseSource.simulation(0),
        side_information=loans.side_information,
    )
    (guarantee,) = accountant.certificate().guarantees
    for sentence in SIDE_INFORMATION:
        assert f"Declared public side information: {sentence}." in guarantee.assumptions
