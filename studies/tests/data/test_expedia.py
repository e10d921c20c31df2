"""The Expedia loader, on synthetic files of the schema of ``train.csv``; no line of it is real."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privlearn.accountants import JointAccountant
from privlearn.errors import DataError
from privlearn.learners import OnePassNewtonMNL
from privlearn.learners.serving import Arrival
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.choice_model import (
    NO_ITEM,
    Answer,
    Items,
    clip_items,
    fit_mle,
    probabilities,
)
from privlearn.noise import NoiseSource
from privlearn.runs.simulated_choices import Market
from privlearn_studies.data import expedia
from privlearn_studies.data.expedia import (
    SCALE,
    SIDE_INFORMATION,
    ExpediaSearches,
    expedia_market,
    load_expedia,
)

Row = dict[str, str]

# Written down from the competition's data page, not taken from the loader.
HEADER = (
    "srch_id date_time site_id visitor_location_country_id visitor_hist_starrating "
    "visitor_hist_adr_usd prop_country_id prop_id prop_starrating prop_review_score "
    "prop_brand_bool prop_location_score1 prop_location_score2 prop_log_historical_price position "
    "price_usd promotion_flag srch_destination_id srch_length_of_stay srch_booking_window "
    "srch_adults_count srch_children_count srch_room_count srch_saturday_night_bool "
    "srch_query_affinity_score orig_destination_distance random_bool "
    + " ".join(
        f"comp{k}_{what}" for k in range(1, 9) for what in ("rate", "inv", "rate_percent_diff")
    )
    + " click_bool gross_bookings_usd booking_bool"
).split()

TOP, OTHER = 8192, 77


def synthetic(n_searches: int = 60, n_hotels: int = 12, shown: int = 6, seed: int = 0) -> list[Row]:
    """Made-up searches for `TOP`, each followed by a line or two of a search for another place."""
    rng = np.random.default_rng(seed)
    stars, scores = rng.integers(1, 6, n_hotels), rng.integers(5, 11, n_hotels) / 2
    rows: list[Row] = []

    def search(number: int, destination: int, hotels: list[int]) -> None:
        shared = {
            "srch_id": str(number),
            "date_time": f"2013-04-{1 + number % 28:02d} 08:32:15",
            "site_id": str(rng.choice([5, 5, 5, 14])),
            "visitor_location_country_id": "219",
            "visitor_hist_starrating": f"{rng.uniform(2, 5):.2f}",
            "visitor_hist_adr_usd": f"{rng.uniform(50, 260):.2f}",
            "prop_country_id": "219",
            "srch_destination_id": str(destination),
            "srch_length_of_stay": str(rng.integers(1, 8)),
            "srch_booking_window": str(rng.integers(0, 200)),
            "srch_adults_count": str(rng.integers(1, 5)),
            "srch_children_count": str(rng.integers(0, 4)),
            "srch_room_count": str(rng.integers(1, 4)),
            "srch_saturday_night_bool": str(rng.integers(0, 2)),
            "random_bool": "0",
        }
        booked = rng.integers(0, len(hotels) + 2)
        for place, hotel in enumerate(hotels):
            rows.append(
                dict.fromkeys(HEADER, "NULL")
                | shared
                | {
                    "prop_id": str(1000 + hotel),
                    "prop_starrating": str(stars[hotel % n_hotels]),
                    "prop_review_score": f"{scores[hotel % n_hotels]:.1f}"
                    if rng.random() < 0.9
                    else "",
                    "prop_brand_bool": str(hotel % 2),
                    "prop_location_score1": f"{hotel / 3:.2f}",
                    "prop_location_score2": "" if rng.random() < 0.3 else "0.0437",
                    "prop_log_historical_price": f"{rng.uniform(4, 6):.2f}",
                    "position": str(place + 1),
                    "price_usd": f"{rng.uniform(40, 1200):.2f}",
                    "promotion_flag": str(rng.integers(0, 2)),
                    "comp5_rate": "-1" if place == 0 and number % 3 == 0 else "NULL",
                    "click_bool": str(int(place == booked)),
                    "gross_bookings_usd": "250.50" if place == booked else "NULL",
                    "booking_bool": str(int(place == booked)),
                }
            )

    for number in range(n_searches):
        # The first searches show every hotel, so that no hotel is missing from the file.
        order = rng.permutation(n_hotels)[:shown] if number > 1 else np.arange(n_hotels)
        search(2 * number + 1, TOP, order.tolist())
        if number % 2:
            search(2 * number + 2, OTHER, [1, 500 + number] if number % 4 == 1 else [3])
    return rows


def write(path: Path, rows: list[Row], header: list[str] = HEADER) -> Path:
    lines = [",".join(header), *(",".join(row[name] for name in header) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return path


def load(path: Path) -> ExpediaSearches:
    return load_expedia(path, declare_public=True)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    # Bigger stocks have every level of every feature.
    return synthetic(n_hotels=30, n_searches=150, shown=8)


@pytest.fixture(scope="module")
def searches(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> ExpediaSearches:
    return load(write(tmp_path_factory.mktemp("expedia") / "train.csv", rows))


# --- what is loaded --------------------------------------------------------------------------


def test_table_1_gives_ten_hotel_and_eighteen_user_features(searches: ExpediaSearches) -> None:
    assert searches.hotels.shape == (30, 10)
    assert searches.users.shape == (150, 18)
    assert len(set(searches.hotel_names)) == 10
    assert len(set(searches.user_names)) == 18
    for values in (searches.hotels, searches.users):
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(values.std(axis=0), 1, atol=1e-12)
        assert not values.flags.writeable
    assert searches.destination == TOP
    assert searches.side_information == SIDE_INFORMATION


def test_levels_are_counted_as_in_table_1(searches: ExpediaSearches) -> None:
    def levels(names: tuple[str, ...], feature: str) -> int:
        return 1 + sum(name.startswith(f"{feature}[") for name in names)

    assert levels(searches.hotel_names, "prop_starrating") == 4
    assert levels(searches.hotel_names, "prop_review_score") == 3
    counts = {name: levels(searches.user_names, name) for name in expedia.USER_EDGES}
    assert counts == {
        "srch_length_of_stay": 4,
        "srch_booking_window": 4,
        "srch_adults_count": 3,
        "srch_children_count": 3,
        "srch_room_count": 2,
        "visitor_hist_starrating": 3,
        "visitor_hist_adr_usd": 4,
    }


def test_hotel_features_are_means_over_searches(searches: ExpediaSearches, rows: list[Row]) -> None:
    """An independent count with plain Python, per hotel."""
    here = [row for row in rows if row["srch_destination_id"] == str(TOP)]
    raw: list[list[float]] = []
    for hotel in searches.hotel_ids.tolist():
        lines = [row for row in here if row["prop_id"] == str(hotel)]

        def mean(name: str, lines: list[Row] = lines) -> float:
            known = [float(row[name]) for row in lines if row[name] not in ("", "NULL")]
            return sum(known) / len(known) if known else 0.0

        star, score = mean("prop_starrating"), mean("prop_review_score")
        price = sum(min(float(row["price_usd"]), 1000.0) for row in lines) / len(lines)
        raw.append(
            [
                *(2.5 <= star < 3.5, 3.5 <= star < 4.5, star >= 4.5),
                *(3.75 <= score < 4.25, score >= 4.25),
                mean("prop_brand_bool"),
                mean("prop_location_score1"),
                mean("prop_log_historical_price"),
                price,
                mean("promotion_flag"),
            ]
        )
    table = np.array(raw, dtype=float)
    expected = (table - table.mean(axis=0)) / table.std(axis=0)
    np.testing.assert_allclose(searches.hotels, expected, atol=1e-9)


def test_user_features_are_levels_of_the_search(searches: ExpediaSearches, rows: list[Row]) -> None:
    first: dict[str, Row] = {}
    for row in rows:
        if row["srch_destination_id"] == str(TOP):
            first.setdefault(row["srch_id"], row)
    sites = [row["site_id"] for row in first.values()]
    column = {name: place for place, name in enumerate(searches.user_names)}

    def check(name: str, holds: Callable[[Row], bool]) -> None:
        values = searches.users[:, column[name]]
        dummy = np.array([holds(row) for row in first.values()])
        assert dummy.any()
        assert values[dummy].min() > 0 > values[~dummy].max(), name

    assert max(set(sites), key=sites.count) == "5"
    check("site_id:most_frequent", lambda row: row["site_id"] == "5")
    check("srch_saturday_night_bool", lambda row: row["srch_saturday_night_bool"] == "1")
    check("srch_length_of_stay[2,3)", lambda row: row["srch_length_of_stay"] == "2")
    check("srch_length_of_stay[4,inf)", lambda row: int(row["srch_length_of_stay"]) >= 4)
    check("srch_booking_window[7,30)", lambda row: 7 <= int(row["srch_booking_window"]) < 30)
    check("srch_adults_count[3,inf)", lambda row: int(row["srch_adults_count"]) > 2)
    check("srch_children_count[1,2)", lambda row: row["srch_children_count"] == "1")
    check("srch_room_count[2,inf)", lambda row: int(row["srch_room_count"]) > 1)
    check("visitor_hist_starrating[3,4)", lambda r: 3 <= float(r["visitor_hist_starrating"]) < 4)
    check("visitor_hist_adr_usd[200,inf)", lambda row: float(row["visitor_hist_adr_usd"]) >= 200)


def test_every_search_keeps_what_it_listed_and_booked(tmp_path: Path) -> None:
    rows = synthetic()
    shuffled = [rows[place] for place in np.random.default_rng(1).permutation(len(rows))]
    found = load(write(tmp_path / "train.csv", shuffled))
    numbers = list(
        dict.fromkeys(r["srch_id"] for r in shuffled if r["srch_destination_id"] == str(TOP))
    )
    assert len(found.offered) == len(found.choice) == len(numbers) == 60
    for search, number in enumerate(numbers):
        lines = sorted(
            (row for row in rows if row["srch_id"] == number), key=lambda row: int(row["position"])
        )
        listed = found.offered[search][found.offered[search] != NO_ITEM]
        assert found.hotel_ids[listed].tolist() == [int(row["prop_id"]) for row in lines]
        booked = [int(row["prop_id"]) for row in lines if row["booking_bool"] == "1"]
        choice = found.choice[search]
        assert ([] if choice == NO_ITEM else [found.hotel_ids[choice]]) == booked
    assert {NO_ITEM} < set(found.choice.tolist())


def test_columns_missing_in_most_searches_are_dropped(tmp_path: Path) -> None:
    rows = synthetic()
    gone = load(write(tmp_path / "a.csv", rows)).dropped
    assert {"comp1_rate", "srch_query_affinity_score", "orig_destination_distance"} <= set(gone)
    assert "comp5_rate" not in gone, "on one line of every third search"
    assert "prop_location_score2" not in gone
    for row in rows:
        if int(row["srch_id"]) > 11:  # known in the first 6 of 60 searches: 90%, not more
            row["visitor_hist_starrating"] = "NULL"
    assert len(load(write(tmp_path / "b.csv", rows)).user_names) == 18
    for row in rows:
        if int(row["srch_id"]) > 9:
            row["visitor_hist_starrating"] = ""
    found = load(write(tmp_path / "c.csv", rows))
    assert "visitor_hist_starrating" in found.dropped
    assert found.users.shape == (60, 16)
    assert not any(name.startswith("visitor_hist_starrating") for name in found.user_names)
    kept = load_expedia(tmp_path / "c.csv", declare_public=True, max_missing=0.95)
    assert kept.users.shape == (60, 18)
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="max_missing = "):
            load_expedia(tmp_path / "c.csv", declare_public=True, max_missing=wrong)


def test_missing_histories_are_imputed_by_a_tree_of_the_other_features(tmp_path: Path) -> None:
    rows = synthetic(n_searches=120)
    for row in rows:  # the price paid before is a function of the length of stay
        row["visitor_hist_adr_usd"] = "175.0" if int(row["srch_length_of_stay"]) > 3 else "60"
    whole = load(write(tmp_path / "whole.csv", rows))
    for row in rows:
        if int(row["srch_id"]) % 3 == 0:
            row["visitor_hist_adr_usd"] = "NULL"
    holes = load(write(tmp_path / "holes.csv", rows))
    np.testing.assert_allclose(holes.users, whole.users, atol=1e-9)
    np.testing.assert_array_equal(holes.users, load(tmp_path / "holes.csv").users)


def test_a_constant_feature_is_zero(tmp_path: Path) -> None:
    rows = [row | {"promotion_flag": "1"} for row in synthetic(n_searches=10)]
    found = load(write(tmp_path / "train.csv", rows))
    assert not found.hotels[:, found.hotel_names.index("promotion_flag")].any()


def test_of_equally_searched_destinations_the_lowest_id_is_taken(tmp_path: Path) -> None:
    rows = synthetic(n_searches=4)
    for row in rows:
        if row["srch_id"] in ("1", "3"):
            row["srch_destination_id"] = "9000"
    rows = [row for row in rows if row["srch_id"] in ("1", "3", "5", "7")]
    assert load(write(tmp_path / "train.csv", rows)).destination == TOP


def test_destinations_are_ranked_by_searches_and_not_by_lines(tmp_path: Path) -> None:
    rows = synthetic(n_searches=4, shown=2)
    long = [
        rows[0] | {"srch_id": "999", "prop_id": str(h), "srch_destination_id": "5"}
        for h in range(500)
    ]
    assert load(write(tmp_path / "train.csv", long + rows)).destination == TOP


@pytest.mark.parametrize("dialect", ["quoted", "crlf", "bom", "no final newline"])
def test_spellings_of_the_same_file(tmp_path: Path, dialect: str) -> None:
    rows = synthetic(n_searches=8)
    plain = write(tmp_path / "plain.csv", rows)
    text = plain.read_text("ascii")
    other = {
        "quoted": "\n".join(
            ",".join(f'"{cell}"' for cell in line.split(",")) for line in text.splitlines()
        )
        + "\n",
        "crlf": text.replace("\n", "\r\n"),
        "bom": "\ufeff" + text,
        "no final newline": text[:-1],
    }[dialect]
    (tmp_path / "other.csv").write_bytes(other.encode())
    a, b = load(plain), load(tmp_path / "other.csv")
    np.testing.assert_array_equal(a.users, b.users)
    np.testing.assert_array_equal(a.hotels, b.hotels)
    np.testing.assert_array_equal(a.offered, b.offered)


def test_progress_tells_the_bytes_of_two_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privlearn_studies.data.csv_tables.LINES_PER_CALL", 50)
    path = write(tmp_path / "train.csv", synthetic())
    told: list[int] = []
    load_expedia(path, declare_public=True, progress=told.append)
    assert sum(told) == 2 * path.stat().st_size
    assert len(told) > 10


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [False, None, 1, "yes"])
def test_without_the_declaration_nothing_is_opened(tmp_path: Path, declared: object) -> None:
    with pytest.raises(ValueError, match="declare_public = ") as refusal:
        load_expedia(tmp_path / "is not there.csv", declare_public=declared)  # type: ignore[arg-type]
    for sentence in SIDE_INFORMATION:
        assert sentence in str(refusal.value)
    assert "side_information" in str(refusal.value)


def broken(tmp_path: Path, line: int, name: str, cell: str) -> Path:
    """A file whose line (the header is line 1) has ``cell`` in column ``name``."""
    rows = synthetic(n_searches=6)
    rows[line - 2] = rows[line - 2] | {name: cell}
    return write(tmp_path / "train.csv", rows)


@pytest.mark.parametrize(
    ("name", "cell", "accepted"),
    [
        ("srch_id", "", "an integer >= 0"),
        ("srch_id", "1e3", "an integer >= 0"),
        ("date_time", "2013-02-30 10:00:00", "a time YYYY-mm-dd HH:MM:SS"),
        ("date_time", "NULL", "a time YYYY-mm-dd HH:MM:SS"),
        ("site_id", "five", "an integer >= 0"),
        ("visitor_hist_starrating", "7", "a finite number from 0 to 5, or empty or NULL"),
        ("visitor_hist_adr_usd", "-1", "a finite number >= 0, or empty or NULL"),
        ("visitor_hist_adr_usd", "nan", "a finite number >= 0, or empty or NULL"),
        ("prop_id", "NULL", "an integer >= 0"),
        ("prop_starrating", "", "a finite number from 0 to 5"),
        ("prop_review_score", "5.5", "a finite number from 0 to 5, or empty or NULL"),
        ("prop_brand_bool", "2", "an integer from 0 to 1"),
        ("prop_location_score1", "inf", "a finite number"),
        ("prop_location_score2", "0,5", "accepted are 54"),
        ("prop_log_historical_price", "1e999", "a finite number >= 0"),
        ("position", "0", "an integer >= 1"),
        ("price_usd", "$99", "a finite number >= 0"),
        ("price_usd", "NaN", "a finite number >= 0"),
        ("price_usd", "1_000", "a finite number >= 0"),
        ("price_usd", " 99", "a finite number >= 0"),
        ("promotion_flag", "NULL", "an integer from 0 to 1"),
        ("srch_destination_id", "Paris", "an integer >= 0"),
        ("srch_length_of_stay", "0", "an integer >= 1"),
        ("srch_booking_window", "2.5", "an integer >= 0"),
        ("srch_adults_count", "-2", "an integer >= 0"),
        ("srch_children_count", "", "an integer >= 0"),
        ("srch_room_count", "x" * 500, "an integer >= 0"),
        ("srch_saturday_night_bool", "yes", "an integer from 0 to 1"),
        ("srch_query_affinity_score", "-", "a finite number, or empty or NULL"),
        ("orig_destination_distance", "-3", "a finite number >= 0, or empty or NULL"),
        ("comp3_rate", "2", "an integer from -1 to 1, or empty or NULL"),
        ("comp8_rate_percent_diff", "many", "a finite number >= 0, or empty or NULL"),
        ("click_bool", "", "an integer from 0 to 1"),
        ("gross_bookings_usd", "-1", "a finite number >= 0, or empty or NULL"),
        ("booking_bool", "True", "an integer from 0 to 1"),
    ],
)
def test_a_bad_cell_is_named_with_file_line_column_and_what_is_accepted(
    tmp_path: Path, name: str, cell: str, accepted: str
) -> None:
    path = broken(tmp_path, 4, name, cell)
    with pytest.raises(DataError) as found:
        load(path)
    text = str(found.value)
    assert text.startswith(f"{path}, line 4: ")
    assert text.endswith(f"accepted is {accepted}") or text.endswith(accepted)
    assert len(text) < 300
    if "accepted are" not in text:
        assert f"column {name}: found {repr(cell)[:40] if cell else 'an empty cell'}" in text


def test_every_column_is_checked(tmp_path: Path) -> None:
    for name in HEADER:
        with pytest.raises(DataError, match=f"line 5: column {name}: found 'no such value'"):
            load(broken(tmp_path, 5, name, "no such value"))


def test_lines_of_other_destinations_are_only_counted(tmp_path: Path) -> None:
    rows = synthetic()
    clean = load(write(tmp_path / "a.csv", rows))
    wild = [
        row
        if row["srch_destination_id"] == str(TOP)
        else row | {"price_usd": "?", "booking_bool": "1", "prop_id": "1"}
        for row in rows
    ]
    found = load(write(tmp_path / "b.csv", wild))
    np.testing.assert_array_equal(found.hotels, clean.hotels)
    other = next(place for place, row in enumerate(rows) if row["srch_destination_id"] != str(TOP))
    wild[other] = wild[other] | {"srch_id": "n/a"}
    with pytest.raises(DataError, match=rf"line {other + 2}: column srch_id: found 'n/a'"):
        load(write(tmp_path / "c.csv", wild))


def test_contradictions_between_lines(tmp_path: Path) -> None:
    def refuse(message: str, line: int, **cells: str) -> None:
        rows = synthetic(n_searches=6)
        rows[line - 2] = rows[line - 2] | cells
        with pytest.raises(DataError, match=message):
            load(write(tmp_path / "train.csv", rows))

    rows = synthetic(n_searches=6)
    booked = {row["srch_id"]: at for at, row in enumerate(rows, 2) if row["booking_bool"] == "1"}
    at = next(iter(booked.values()))
    other = at + 1 if rows[at - 1]["srch_id"] == rows[at - 2]["srch_id"] else at - 1
    first, second = sorted((at, other))
    refuse(
        rf"line {second}: column booking_bool: found 1, .* on line {first}", other, booking_bool="1"
    )
    refuse(
        r"line 3: columns srch_id, prop_id: found search 1 and hotel 1000 again, .* line 2",
        3,
        prop_id="1000",
    )
    refuse(r"line 3: column site_id: found '99', accepted is the value of line 2", 3, site_id="99")
    refuse(r"line 3: column date_time: ", 3, date_time="2013-04-02 08:32:16")
    refuse(r"line 3: column visitor_hist_adr_usd: ", 3, visitor_hist_adr_usd="NULL")
    refuse(
        r"line 3: column srch_destination_id: found '77', .* search 1 has 8192",
        3,
        srch_destination_id="77",
    )


def test_the_test_file_of_the_competition_is_recognised(tmp_path: Path) -> None:
    gone = ("position", "click_bool", "gross_bookings_usd", "booking_bool")
    header = [name for name in HEADER if name not in gone]
    path = write(tmp_path / "test.csv", synthetic(n_searches=3), header)
    with pytest.raises(DataError, match=r"lacks position, click_bool.*looks like test\.csv"):
        load(path)


def test_headers_that_are_not_those_of_train_csv(tmp_path: Path) -> None:
    rows = [row | {"extra": "1", "Price": "2"} for row in synthetic(n_searches=3)]
    path = tmp_path / "train.csv"

    def refuse(message: str, header: list[str]) -> None:
        with pytest.raises(DataError, match=message):
            load(write(path, rows, header))

    refuse(
        "line 1: the header lacks price_usd. Accepted: 54", [n for n in HEADER if n != HEADER[15]]
    )
    refuse("the header has the unknown 'extra', 'Price'", [*HEADER, "extra", "Price"])
    refuse(
        "the header lacks price_usd; has the unknown 'Price'", [*HEADER[:15], "Price", *HEADER[16:]]
    )
    refuse("the header has twice site_id", [*HEADER, "site_id"])
    refuse("has date_time as column 1, where srch_id must be", [HEADER[1], HEADER[0], *HEADER[2:]])
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"lacks srch_id, date_time.* and 46 more"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00s,\n")
    with pytest.raises(DataError, match="line 1: the header is not UTF-8 text"):
        load(path)
    write(path, [])
    with pytest.raises(DataError, match="has a header and no searches"):
        load(path)


@pytest.mark.parametrize("keep", [-2, -3, -20, -150])
def test_a_torn_file(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "train.csv", synthetic(n_searches=4))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"line \d+: the last line has \d+ of 54 .* looks cut off"):
        load(path)


def test_lines_of_another_length(tmp_path: Path) -> None:
    path = write(tmp_path / "train.csv", synthetic(n_searches=4))
    lines = path.read_text("ascii").splitlines()
    for line, cells in ((lines[5] + ",1", 55), ("", 1), (lines[5].rpartition(",")[0], 53)):
        path.write_text("\n".join([*lines[:5], line, *lines[6:]]) + "\n")
        with pytest.raises(DataError, match=f"line 6: {cells} cells, accepted are 54"):
            load(path)
    path.write_text("\n".join([*lines[:5], "1" * 70_000]))
    with pytest.raises(DataError, match="line 6: longer than 65536 bytes"):
        load(path)


@pytest.mark.parametrize(("start", "kind"), [(b"PK\x03\x04", "a zip"), (b"\x1f\x8b\x08", "a gzip")])
def test_archives_have_to_be_unpacked(tmp_path: Path, start: bytes, kind: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(start + b"\x00" * 50)
    with pytest.raises(DataError, match=f"is {kind}.*unpack it"):
        load(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "train.csv"):
        with pytest.raises(DataError, match=f"{re.escape(str(path))} cannot be read: "):
            load(path)


# --- the market ------------------------------------------------------------------------------


def test_the_market_has_the_joint_features(searches: ExpediaSearches) -> None:
    market = expedia_market(searches, horizon=50, seed=3)
    features = market.features_of(range(10, 30))
    assert features.shape == (20, 30, 28)
    assert market.theta.shape == (28,)
    assert market.horizon == 50
    assert market.revenues is None
    assert np.linalg.norm(features, axis=2).max() <= 1 + 1e-12
    np.testing.assert_array_equal(features, market.features_of(range(50))[10:30])
    # A clipped item keeps its direction: undo its length by the hotel's part.
    hotel = searches.hotels[4]
    length = features[:, 4, :10] @ hotel / (hotel @ hotel)
    joint = features[:, 4] / length[:, None]
    np.testing.assert_allclose(joint[:, :10], np.broadcast_to(hotel, (20, 10)), atol=1e-9)
    people = {tuple(user) for user in searches.users.round(6) + 0.0}
    assert {tuple(user) for user in joint[:, 10:].round(6) + 0.0} <= people
    assert (length <= 1 / SCALE + 1e-12).all()


def test_true_preferences_are_the_ridge_fit_to_the_bookings(searches: ExpediaSearches) -> None:
    """The same likelihood over all N hotels with a mask, instead of the listed ones in a row."""
    n, (items, _) = len(searches.users), searches.hotels.shape
    features = np.concatenate(
        [
            np.broadcast_to(searches.hotels, (n, items, 10)),
            np.broadcast_to(searches.users[:, None], (n, items, 18)),
        ],
        axis=2,
    )
    mask = np.zeros((n, items))
    for search, listed in enumerate(searches.offered):
        mask[search, listed[listed != NO_ITEM]] = 1
    answer = Answer(clip_items(features, SCALE), mask, searches.choice)
    expected = fit_mle(answer, outside=True, prior_precision=1.0)
    found = expedia_market(searches, horizon=1, seed=0).theta
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.linalg.norm(found) > 0.5
    more = expedia_market(searches, horizon=1, seed=0, constant=True)
    assert more.theta.shape == (29,)
    assert more.features_of(range(1)).shape == (1, 30, 29)
    assert more.theta[-1] < -1, "hotels are less attractive than nothing, each for itself"


def shown_to_all(market: Market, items: list[int]) -> tuple[Items, Answer]:
    """Everybody's choice among ``items``, and the answers' model."""
    users = range(market.horizon)
    features = market.features_of(users)
    private = np.stack([market.uniforms, np.arange(market.horizon)], axis=1)
    zeros = np.zeros(features.shape[:2])
    shown = np.broadcast_to(np.array(items), (market.horizon, len(items)))
    choices = market.respond(Arrival(features, zeros + 1, zeros, private), shown)
    offered = features[:, items]
    return choices, Answer(offered, np.ones(offered.shape[:2]), choices)


def test_simulated_choices_follow_the_model(searches: ExpediaSearches) -> None:
    market = expedia_market(searches, horizon=20_000, seed=1)
    items = [2, 5, 11, 17]
    choices, answer = shown_to_all(market, items)
    chances = probabilities(answer, market.theta, outside=True)
    for place, item in enumerate(items):
        p = chances[:, place]
        error = 4 * math.sqrt((p * (1 - p)).sum())
        assert (choices == item).sum() == pytest.approx(p.sum(), abs=error)
    assert set(choices.tolist()) == {*items, NO_ITEM}
    # A model with other preferences is told apart.
    wrong = probabilities(answer, -market.theta, outside=True)
    misfit = [abs((choices == i).sum() - wrong[:, k].sum()) for k, i in enumerate(items)]
    assert max(misfit) > 400


def test_people_are_drawn_with_replacement_from_the_searches(searches: ExpediaSearches) -> None:
    market = expedia_market(searches, horizon=30_000, seed=2)
    people = market.features_of(range(30_000))[:, 0, 10:].round(9)
    distinct, times = np.unique(people, axis=0, return_counts=True)
    _, copies = np.unique(searches.users.round(9), axis=0, return_counts=True)
    assert len(distinct) == len(copies)
    np.testing.assert_array_less(np.abs(np.sort(times) - 200 * np.sort(copies)), 100)


def test_a_market_is_a_function_of_its_seeds(searches: ExpediaSearches) -> None:
    def of(seed: int, replicate: int) -> tuple[list[float], list[float]]:
        market = expedia_market(searches, horizon=40, seed=seed, replicate=replicate)
        return market.uniforms.tolist(), market.features_of(range(40))[:, 0, -1].tolist()

    assert of(1, 2) == of(1, 2)
    for other in ((1, 3), (2, 2)):
        assert all(a != b for a, b in zip(of(*other), of(1, 2), strict=True))
    for horizon, seed, replicate in ((0, 0, 0), (1, -1, 0), (1, 0, -1)):
        with pytest.raises(ValueError, match="must be an integer >="):
            expedia_market(searches, horizon=horizon, seed=seed, replicate=replicate)


def test_large_markets_hold_no_features(searches: ExpediaSearches) -> None:
    """100,000 people, 30 hotels and 28 features would be 672 MB."""
    market = expedia_market(searches, seed=0)
    assert market.horizon == 100_000
    assert market.features_of(range(99_990, 100_000)).shape == (10, 30, 28)


def test_a_private_run_prints_what_was_declared(searches: ExpediaSearches) -> None:
    market = expedia_market(searches, horizon=300, seed=0)
    accountant = JointAccountant(
        ZCDP(1),
        users=range(300),
        noise=NoiseSource.simulation(1),
        side_information=searches.side_information,
    )
    learner = OnePassNewtonMNL(n_items=30, dim=28, max_items=5, random_state=0).start(accountant)
    regret = market.serve(learner)
    assert regret.shape == (300,)
    assert regret.min() >= -1e-12
    (guarantee,) = accountant.certificate().guarantees
    for sentence in SIDE_INFORMATION:
        assert f"Declared public side information: {sentence}." in guarantee.assumptions
