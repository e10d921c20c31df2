"""The Ta-Feng loader, on synthetic files of the schema of the original; no line of it is real."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.errors import DataError
from privlearn.learners import OnePassNewtonMNL
from privlearn.learners.serving import Arrival
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.choice_model import NO_ITEM, Answer, clip_items, fit_mle, probabilities
from privlearn.noise import NoiseSource
from privlearn.rows.domains import Array
from privlearn_studies.data.ta_feng import (
    AGE_GROUPS,
    SCALE,
    SIDE_INFORMATION,
    TaFengBaskets,
    load_ta_feng,
    ta_feng_market,
)

Row = dict[str, str]

# Written down from the file, not taken from the loader.
HEADER = [
    *("TRANSACTION_DT", "CUSTOMER_ID", "AGE_GROUP", "PIN_CODE", "PRODUCT_SUBCLASS", "PRODUCT_ID"),
    *("AMOUNT", "ASSET", "SALES_PRICE"),
]


def synthetic(n_baskets: int = 400, n_products: int = 30, seed: int = 0) -> list[Row]:
    """Made-up baskets in which low-numbered products are bought more often."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, n_products + 1)
    rows: list[Row] = []
    for basket in range(n_baskets):
        age = rng.choice([*AGE_GROUPS, ""])
        bought = rng.choice(
            n_products, rng.integers(1, 5), replace=False, p=popularity / popularity.sum()
        )
        for product in bought.tolist():
            amount = int(rng.integers(1, 4))
            rows.append(
                {
                    "TRANSACTION_DT": f"11/{1 + basket % 30}/2000",
                    "CUSTOMER_ID": f"{basket:08d}",
                    "AGE_GROUP": str(age),
                    "PIN_CODE": str(rng.choice(["115", "221", "Others", "Unknown"])),
                    "PRODUCT_SUBCLASS": str(100_000 + product % 7),
                    "PRODUCT_ID": str(4_710_000_000_000 + product),
                    "AMOUNT": str(amount),
                    "ASSET": str(amount * 20),
                    "SALES_PRICE": str(amount * (20 + 3 * product)),
                }
            )
    return rows


def write(path: Path, rows: list[Row], header: list[str] = HEADER) -> Path:
    """In the dialect of the original: a byte order mark, quotes, CRLF."""
    lines = [header, *([row[name] for name in header] for row in rows)]
    text = "".join(",".join(f'"{cell}"' for cell in line) + "\r\n" for line in lines)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    return path


def load(path: Path, n_items: int = 8) -> TaFengBaskets:
    return load_ta_feng(path, declare_public=True, n_items=n_items)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return synthetic()


@pytest.fixture(scope="module")
def baskets(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> TaFengBaskets:
    return load(write(tmp_path_factory.mktemp("ta_feng") / "ta_feng.csv", rows))


def key(row: Row) -> tuple[str, str]:
    return row["TRANSACTION_DT"], row["CUSTOMER_ID"]


# --- what is loaded --------------------------------------------------------------------------


def test_products_and_their_features(baskets: TaFengBaskets, rows: list[Row]) -> None:
    times = Counter(row["PRODUCT_ID"] for row in rows)
    top = sorted(times, key=lambda product: (-times[product], product))[:8]
    assert baskets.product_ids.tolist() == [int(product) for product in top]
    raw = []
    for product in top:
        lines = [row for row in rows if row["PRODUCT_ID"] == product]
        price = sum(float(r["SALES_PRICE"]) for r in lines) / sum(int(r["AMOUNT"]) for r in lines)
        units = sum(
            int(row["AMOUNT"])
            for row in rows
            if row["PRODUCT_SUBCLASS"] == lines[0]["PRODUCT_SUBCLASS"]
        )
        raw.append([math.log(price), math.log(units)])
    table = np.array(raw)
    np.testing.assert_allclose(baskets.products, (table - table.mean(0)) / table.std(0), atol=1e-9)
    assert baskets.product_names == ("log_unit_price", "log_subclass_units")


def test_users_are_their_age_groups(baskets: TaFengBaskets, rows: list[Row]) -> None:
    ages = list({key(row): row["AGE_GROUP"] for row in rows}.values())
    assert baskets.users.shape == (400, 10)
    for column, name in enumerate(baskets.user_names):
        group = name.removeprefix("age:").replace("?", "")
        mine = np.array([age == group for age in ages])
        assert baskets.users[mine, column].min() > 0 > baskets.users[~mine, column].max()
    np.testing.assert_allclose(baskets.users.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(baskets.users.std(axis=0), 1, atol=1e-12)


def test_a_choice_is_the_top_product_bought_most_of(
    baskets: TaFengBaskets, rows: list[Row]
) -> None:
    rank = {f"{product}": place for place, product in enumerate(baskets.product_ids.tolist())}
    best: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        best.setdefault(key(row), (0, NO_ITEM))
        if row["PRODUCT_ID"] in rank and int(row["AMOUNT"]) > best[key(row)][0]:
            best[key(row)] = int(row["AMOUNT"]), rank[row["PRODUCT_ID"]]
    assert baskets.choice.tolist() == [choice for _, choice in best.values()]
    assert 0.02 < (baskets.choice == NO_ITEM).mean() < 0.5
    for values in (baskets.choice, baskets.products, baskets.users, baskets.product_ids):
        assert not values.flags.writeable


def test_a_product_in_two_subclasses_belongs_to_the_more_frequent_one(tmp_path: Path) -> None:
    rows = synthetic(n_products=5)

    def alike(share: float) -> bool:
        """Whether product 0, of which a share of lines is in product 1's subclass, equals it."""
        filed = []
        for place, row in enumerate(rows):
            own = {"0": "2" if place % 10 >= 10 * share else "1", "1": "1"}
            filed.append(row | {"PRODUCT_SUBCLASS": own.get(row["PRODUCT_ID"][-1], "5")})
        found = load(write(tmp_path / "ta_feng.csv", filed), n_items=5)
        units = dict(zip((found.product_ids % 10).tolist(), found.products[:, 1], strict=True))
        return bool(units[0] == units[1])

    assert not alike(0.3)
    assert alike(0.7)


def test_the_order_of_lines_only_orders_the_transactions(tmp_path: Path, rows: list[Row]) -> None:
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    mixed = [rows[place] for place in order]
    first, second = (load(write(tmp_path / "f.csv", lines)) for lines in (rows, mixed))
    np.testing.assert_array_equal(first.product_ids, second.product_ids)
    np.testing.assert_allclose(first.products, second.products, atol=1e-9)
    old, new = (list(dict.fromkeys(map(key, lines))) for lines in (rows, mixed))
    place = [new.index(transaction) for transaction in old]
    np.testing.assert_allclose(first.users, second.users[place], atol=1e-12)


def test_progress_tells_the_bytes_of_one_pass(tmp_path: Path, rows: list[Row]) -> None:
    path = write(tmp_path / "ta_feng.csv", rows)
    told: list[int] = []
    load_ta_feng(path, declare_public=True, n_items=3, progress=told.append)
    assert sum(told) == path.stat().st_size


# --- what is refused -------------------------------------------------------------------------


def test_without_the_declaration_nothing_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"declare_public = False: must be True") as refusal:
        load_ta_feng(tmp_path / "is not there.csv")
    for sentence in SIDE_INFORMATION:
        assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "cell", "accepted"),
    [
        ("TRANSACTION_DT", "2000-11-01", "a date m/d/yyyy"),
        ("TRANSACTION_DT", "2/30/2001", "a date m/d/yyyy"),
        ("CUSTOMER_ID", "C17", "an integer >= 0"),
        ("AGE_GROUP", "25-30", "one of <25, 25-29"),
        ("PIN_CODE", "", "one of 105, 106"),
        ("PRODUCT_SUBCLASS", "-1", "an integer >= 0"),
        ("PRODUCT_ID", "NULL", "an integer >= 0"),
        ("AMOUNT", "0", "an integer >= 1"),
        ("AMOUNT", "1.5", "an integer >= 1"),
        ("ASSET", "nan", "a finite number >= 0"),
        ("SALES_PRICE", "0", "a finite number >= 0.01"),
        ("SALES_PRICE", "inf", "a finite number >= 0.01"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, name: str, cell: str, accepted: str) -> None:
    rows = synthetic(n_baskets=5)
    rows[4] = rows[4] | {name: cell}
    path = write(tmp_path / "ta_feng.csv", rows)
    with pytest.raises(DataError) as found:
        load(path)
    what = repr(cell) if cell else "an empty cell"
    assert str(found.value).startswith(f"{path}, line 6: column {name}: found {what}, accepted is ")
    assert accepted in str(found.value)


def test_contradictions_between_lines(tmp_path: Path) -> None:
    rows = synthetic(n_baskets=5)
    path = tmp_path / "ta_feng.csv"
    again = rows[1] | {"AMOUNT": "7"}
    with pytest.raises(DataError, match=rf"line {len(rows) + 2}: .* found the three of line 3"):
        load(write(path, [*rows, again]))
    age = "<25" if rows[1]["AGE_GROUP"] != "<25" else ">65"
    older = rows[1] | {"AGE_GROUP": age, "PRODUCT_ID": "9"}
    with pytest.raises(DataError, match=rf"line {len(rows) + 2}: column AGE_GROUP: found '{age}'"):
        load(write(path, [*rows, older]))


def test_headers_and_files_that_are_something_else(tmp_path: Path) -> None:
    path = tmp_path / "ta_feng.csv"
    with pytest.raises(DataError, match="the header lacks AGE_GROUP, PIN_CODE"):
        load(write(path, synthetic(3), [n for n in HEADER if n not in ("AGE_GROUP", "PIN_CODE")]))
    extra = [row | {"COLOUR": "1"} for row in synthetic(3)]
    with pytest.raises(DataError, match="has the unknown 'COLOUR'"):
        load(write(path, extra, [*HEADER, "COLOUR"]))
    path.write_bytes(b"PK\x03\x04" + b"\x00" * 30)
    with pytest.raises(DataError, match="is a zip archive: unpack it"):
        load(path)
    with pytest.raises(DataError, match="has a header and no transactions"):
        load(write(path, []))
    with pytest.raises(ValueError, match=r"n_items = 31: the file has only \d+ products"):
        load(write(path, synthetic()), n_items=31)
    with pytest.raises(ValueError, match="n_items = 0"):
        load(path, n_items=0)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 40])
@pytest.mark.parametrize("quoted", [True, False])
def test_a_torn_file(tmp_path: Path, cut: int, quoted: bool) -> None:
    """Also within the last number, which would still be one."""
    path = write(tmp_path / "ta_feng.csv", synthetic(5))
    content = path.read_bytes() if quoted else path.read_bytes().replace(b'"', b"")
    path.write_bytes(content[:-cut])
    with pytest.raises(DataError, match="no newline at its end: the file looks cut off"):
        load(path)


# --- the market ------------------------------------------------------------------------------


def joint(baskets: TaFengBaskets, users: list[int]) -> Array:
    rows = [[[*item, *baskets.users[user], 1.0] for item in baskets.products] for user in users]
    return clip_items(np.array(rows), SCALE)


def test_true_preferences_are_the_ridge_fit(baskets: TaFengBaskets) -> None:
    market = ta_feng_market(baskets, horizon=5, seed=0)
    answer = Answer(joint(baskets, list(range(400))), np.ones((400, 8)), baskets.choice)
    expected = fit_mle(answer, outside=True, prior_precision=1.0)
    np.testing.assert_allclose(market.theta, expected, atol=1e-6)
    assert market.theta.shape == (13,)


def test_simulated_choices_follow_the_model(baskets: TaFengBaskets) -> None:
    n, items = 20_000, [0, 3, 6]
    market = ta_feng_market(baskets, horizon=n, seed=1)
    features = market.features_of(range(n))
    assert features.shape == (n, 8, 13)
    private = np.stack([market.uniforms, np.arange(n)], axis=1)
    zeros = np.zeros((n, 8))
    choices = market.respond(
        Arrival(features, zeros + 1, zeros, private), np.broadcast_to(np.array(items), (n, 3))
    )
    chances = probabilities(
        Answer(features[:, items], np.ones((n, 3)), choices), market.theta, outside=True
    )
    for place, item in enumerate(items):
        p = chances[:, place]
        error = 4 * math.sqrt((p * (1 - p)).sum())
        assert (choices == item).sum() == pytest.approx(p.sum(), abs=error)


def test_a_market_is_a_function_of_its_seeds(baskets: TaFengBaskets) -> None:
    def of(seed: int, replicate: int) -> tuple[list[float], list[float]]:
        market = ta_feng_market(baskets, horizon=40, seed=seed, replicate=replicate)
        return market.uniforms.tolist(), market.features_of(range(40))[:, 0].ravel().tolist()

    assert of(1, 2) == of(1, 2)
    for other in ((1, 3), (2, 2)):
        assert all(a != b for a, b in zip(of(*other), of(1, 2), strict=True))
    known = joint(baskets, list(range(400))).round(9)
    drawn = ta_feng_market(baskets, horizon=30, seed=4).features_of(range(30)).round(9)
    assert {person.tobytes() for person in drawn + 0.0} <= {
        person.tobytes() for person in known + 0.0
    }


def test_a_private_run_prints_what_was_declared(baskets: TaFengBaskets) -> None:
    market = ta_feng_market(baskets, horizon=300, seed=0)
    accountant = JointAccountant(
        ZCDP(1),
        users=range(300),
        noise=NoiseSource.simulation(1),
        side_information=baskets.side_information,
    )
    learner = OnePassNewtonMNL(n_items=8, dim=13, max_items=3, random_state=0).start(accountant)
    assert market.serve(learner).shape == (300,)
    (guarantee,) = accountant.certificate().guarantees
    for sentence in SIDE_INFORMATION:
        assert f"Declared public side information: {sentence}." in guarantee.assumptions
