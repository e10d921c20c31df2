"""Hotel searches from your own copy of Expedia's ``train.csv``, coded as Cho and Sun (2025) did.

The file (Kaggle, "Personalize Expedia Hotel Searches - ICDM 2013", 9.9 million lines) may not be
passed on and does not ship.  The recipe is that of Cho and Sun, "Privacy-preserving dynamic
assortment selection", Section 5.2.1, Table 1 and S.3.4; where they are silent, the choice is ours
and a named constant here, made from the published description of the columns without the data.

Everything `load_expedia` computes is computed from people's searches without noise.  A run on
`expedia_market` is private towards the *simulated* people; the searches are its public side
information and get no guarantee.
"""

from __future__ import annotations

import math
import os
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from privlearn.errors import DataError
from privlearn.mechanisms.choice_model import NO_ITEM, Items
from privlearn.rows.domains import Array
from privlearn.runs.simulated_choices import Market
from privlearn.values.validate import probability
from privlearn_studies.data.csv_tables import (
    BytesRead,
    CsvTable,
    above_reference,
    fitted_tastes,
    flag,
    identity,
    moment,
    number,
    open_table,
    require_declared,
    resampled_market,
    shown,
    standardised,
)

SCALE: Final = 6.0
"""Public divisor of the joint features; ours.

28 standardised features have a root-mean-square length of √28 = 5.3.
"""

MISSING_LIMIT: Final = 0.9
"""By default, a column missing in more than this share of searches is dropped (S.3.4)."""

PRICE_CAP: Final = 1_000.0
"""Current prices are capped here before they are averaged, USD; ours."""

TREE_DEPTH: Final = 4
"""Depth of the imputation trees; ours, S.3.4 says "a simple regression tree"."""

HOTEL_EDGES: Final = {
    "prop_starrating": (2.5, 3.5, 4.5),
    "prop_review_score": (3.75, 4.25),
}
"""Where the levels of a hotel's mean rating begin; ours, the numbers of levels are Table 1's.

The reference is the lowest level: up to 2 stars or unrated; a review score up to 3.5, no reviews,
or no score known.
"""

HOTEL_NUMBERS: Final = (
    "prop_brand_bool",
    "prop_location_score1",
    "prop_log_historical_price",
    "price_usd",
    "promotion_flag",
)
"""Hotel features that stay numbers, as means over searches.

Of the two location scores it is the first: it is never missing.  A historical price of 0 (not sold
in that period) enters the mean as it is.
"""

USER_EDGES: Final = {
    "srch_length_of_stay": (2, 3, 4),
    "srch_booking_window": (7, 30, 90),
    "srch_adults_count": (2, 3),
    "srch_children_count": (1, 2),
    "srch_room_count": (2,),
    "visitor_hist_starrating": (3, 4),
    "visitor_hist_adr_usd": (100, 150, 200),
}
"""Where the levels of a search begin (nights, days, heads, rooms, stars, USD); ours, the numbers of
levels are Table 1's.  The reference is the lowest level."""

HISTORY: Final = ("visitor_hist_starrating", "visitor_hist_adr_usd")
"""The columns that are imputed."""

PREDICTORS: Final = (
    "srch_length_of_stay",
    "srch_booking_window",
    "srch_adults_count",
    "srch_children_count",
    "srch_room_count",
    "srch_saturday_night_bool",
)
"""What the imputation trees see, besides whether the search was on the most frequent site."""

SIDE_INFORMATION: Final = (
    "Expedia searches: the destination with the most searches, and how many there were",
    "Expedia searches: which hotels were listed for that destination, and each hotel's mean star "
    "rating, review score, brand, location score, log historical price, price capped at USD 1000 "
    "and promotion over its searches",
    "Expedia searches: which columns are missing in so many of that destination's searches (more "
    "than 90% unless the run says otherwise) that they are dropped",
    "Expedia searches: the website with the most of that destination's searches",
    "Expedia searches: regression trees fitted to the visitor histories that are known, which "
    "fill in those that are missing",
    "Expedia searches: mean and variance of every hotel and user feature, used to standardise",
    "Expedia searches: the joint user features that simulated people are drawn from; the "
    "guarantee is about the simulated people and not about the people who searched",
    "Expedia searches: the simulated people's true preferences, a ridge fit to which listed hotel "
    "each search booked, if any",
)
"""What a certificate of the Expedia market has to declare."""

COLUMNS: Final = (
    identity("srch_id"),
    moment("date_time", "%Y-%m-%d %H:%M:%S", "a time YYYY-mm-dd HH:MM:SS"),
    identity("site_id"),
    identity("visitor_location_country_id"),
    number("visitor_hist_starrating", 0, 5, missing=True),
    number("visitor_hist_adr_usd", 0, missing=True),
    identity("prop_country_id"),
    identity("prop_id"),
    number("prop_starrating", 0, 5),
    number("prop_review_score", 0, 5, missing=True),
    flag("prop_brand_bool"),
    number("prop_location_score1", -math.inf),
    number("prop_location_score2", -math.inf, missing=True),
    number("prop_log_historical_price", 0),
    number("position", 1, whole=True),
    number("price_usd", 0),
    flag("promotion_flag"),
    identity("srch_destination_id"),
    number("srch_length_of_stay", 1, whole=True),
    number("srch_booking_window", 0, whole=True),
    number("srch_adults_count", 0, whole=True),
    number("srch_children_count", 0, whole=True),
    number("srch_room_count", 0, whole=True),
    flag("srch_saturday_night_bool"),
    number("srch_query_affinity_score", -math.inf, missing=True),
    number("orig_destination_distance", 0, missing=True),
    flag("random_bool"),
    *(
        column
        for rival in range(1, 9)
        for column in (
            number(f"comp{rival}_rate", -1, 1, whole=True, missing=True),
            number(f"comp{rival}_inv", -1, 1, whole=True, missing=True),
            number(f"comp{rival}_rate_percent_diff", 0, missing=True),
        )
    ),
    flag("click_bool"),
    number("gross_bookings_usd", 0, missing=True),
    flag("booking_bool"),
)
"""The 54 columns of ``train.csv``, in order, with what a cell may hold."""

_NOT_IN_TEST: Final = {"position", "click_bool", "gross_bookings_usd", "booking_bool"}

_PER_SEARCH: Final = tuple(
    place
    for place, column in enumerate(COLUMNS)
    if column.name in ("date_time", "site_id", "random_bool", "visitor_location_country_id")
    or column.name.startswith("visitor_hist_")
    or (column.name.startswith("srch_") and column.name != "srch_query_affinity_score")
)
"""Places of the columns that must not change within a search."""


@dataclass(frozen=True, eq=False)
class ExpediaSearches:
    """T searches for one destination with N hotels; the arrays are read-only.

    How features are counted: a feature with m levels gives m - 1 columns (its lowest level is the
    reference), any other feature gives one.  Hotels: 3 + 2 + 5 = 10.  Users: 3 + 3 + 2 + 2 + 1 for
    the five counts of the search, 1 Saturday night, 1 website domain, 2 + 3 for the history, = 18;
    without a history column that is missing too often, its columns are gone.
    """

    hotels: Array
    """Hotel features, shape (N, 10): mean 0 and variance 1 over the hotels; constant ones are 0."""
    users: Array
    """User features, shape (T, 18): mean 0 and variance 1 over the searches; constant ones are
    0."""
    offered: Items
    """Hotels (rows of `hotels`) each search listed, by position, filled with -1; shape (T, L)."""
    choice: Items
    """Hotel that each search booked (row of `hotels`), or -1; shape (T,)."""
    hotel_names: tuple[str, ...]
    """Names of the columns of `hotels`; ``[a,b)`` is the level a <= value < b."""
    user_names: tuple[str, ...]
    """Names of the columns of `users`."""
    hotel_ids: Items
    """``prop_id`` of each hotel, ascending; shape (N,)."""
    destination: int
    """``srch_destination_id``."""
    dropped: tuple[str, ...]
    """Columns missing in too many searches (in a search: on all its lines)."""
    side_information: tuple[str, ...] = SIDE_INFORMATION
    """What the accountant has to be told: ``JointAccountant(..., side_information=...)``."""


def load_expedia(
    path: str | os.PathLike[str],
    *,
    declare_public: bool = False,
    max_missing: float = MISSING_LIMIT,
    progress: BytesRead = lambda n: None,
) -> ExpediaSearches:
    """The searches of the most searched destination of Expedia's ``train.csv`` (unpacked).

    Two passes: the first counts searches per destination (of each line it reads the number of
    cells, ``srch_id`` and ``srch_destination_id``), the second reads every cell of the lines of the
    destination found (of equal ones that with the lowest id).  Memory: two integers per search of
    the file, and the destination's own lines.

    Source: Cho and Sun (2025), S.3.4 and Table 1; on the original file they report T = 4465
    searches and N = 124 hotels (not checked here: the file cannot be had without an account).

    Args:
        path: ``train.csv``, plain text.
        declare_public: must be True; says that the statistics in `SIDE_INFORMATION` are public.
        max_missing: drop the columns missing in more than this share of the searches, in (0, 1).
            Should the visitor histories fall to the papers' 0.9, a higher share keeps the 18 user
            features of Table 1.
        progress: is told the bytes read since its last call; twice the file's size in all.

    Raises:
        ValueError: ``declare_public`` is not True, or ``max_missing`` not in (0, 1).
        DataError: the file cannot be read, or not as described (file, line and column are named).
    """
    probability(max_missing=max_missing)
    require_declared(declare_public, "Expedia searches", SIDE_INFORMATION)
    with open_table(path, COLUMNS) as table:
        table.check_header(_advice)
        spelled, destination = _top_destination(table, progress)
        lines = _Lines(table)
        for at, cells in table.rows(progress, final_newline=False):
            if spelled.get(cells[_DESTINATION]) == destination:
                lines.read(at, cells)
    return _coded(lines, destination, max_missing)


def expedia_market(
    searches: ExpediaSearches,
    *,
    horizon: int = 100_000,
    seed: int,
    replicate: int = 0,
    constant: bool = False,
) -> Market:
    """Simulated people, drawn with replacement from the searches, who choose among the N hotels.

    Features x = [hotel, user] / `SCALE`, clipped to the unit ball: d = 10 + 18 = 28.  The papers do
    not say how the two are joined; this is the simplest way, in which the user's part is common to
    all hotels and moves only the outside option.  True preferences: ridge fit (λ = 1) to the
    searches' own bookings, no booking being the outside option.

    Args:
        searches: from `load_expedia`; give its ``side_information`` to the accountant.
        horizon: number of simulated people; the papers' is 100,000.
        seed: of the people and their random choices.
        replicate: independent repetitions under one seed.
        constant: append a constant feature (d = 29).  Without one, as in the papers, an average
            hotel is as attractive as booking nothing, whatever share of the searches booked.

    Raises:
        ValueError: horizon < 1, or seed or replicate < 0.
    """
    hotels, users = searches.hotels, searches.users
    theta = fitted_tastes(hotels, users, searches.offered, searches.choice, SCALE, constant)
    return resampled_market(
        hotels, users, theta, SCALE, constant, horizon=horizon, seed=seed, replicate=replicate
    )


def _place(name: str) -> int:
    return [column.name for column in COLUMNS].index(name)


_SEARCH: Final = _place("srch_id")
_DESTINATION: Final = _place("srch_destination_id")
_HOTEL: Final = _place("prop_id")
_BOOKED: Final = _place("booking_bool")
_HOTEL_COLUMNS: Final = (*HOTEL_EDGES, *HOTEL_NUMBERS)


def _advice(missing: list[str]) -> str:
    if set(missing) == _NOT_IN_TEST:
        return " (this looks like test.csv, which does not tell what was booked: give train.csv)"
    return ""


def _top_destination(table: CsvTable, progress: BytesRead) -> tuple[dict[bytes, int], int]:
    """All spellings of destinations, and the one with most searches."""
    spelled: dict[bytes, int] = {}
    destinations: dict[int, int] = {}
    last: tuple[bytes, bytes] | None = None
    for at, cells in table.rows(progress, final_newline=False):
        if (pair := (cells[_SEARCH], cells[_DESTINATION])) == last:
            continue
        search = int(table.value(at, cells, _SEARCH))
        destination = int(table.value(at, cells, _DESTINATION))
        if destinations.setdefault(search, destination) != destination:
            raise table.error(
                at,
                f"column srch_destination_id: found {shown(cells[_DESTINATION])}, but an earlier "
                f"line of search {search} has {destinations[search]}; accepted is one per search",
            )
        spelled[cells[_DESTINATION]] = destination
        last = pair
    if not destinations:
        raise DataError(f"{table.path} has a header and no searches")
    counts = Counter(destinations.values())
    return spelled, min(counts, key=lambda destination: (-counts[destination], destination))


class _Lines:
    """The destination's lines as they are read, checked within and across lines."""

    def __init__(self, table: CsvTable):
        self.table = table
        self.searches: dict[int, int] = {}
        """srch_id -> number of the search in order of appearance."""
        self.first: list[tuple[int, list[float]]] = []
        """Per search: its first line's number and cells of `_PER_SEARCH`."""
        self.absent: list[int] = []
        """Per search: bit c is set while column c is missing on all its lines."""
        self.listed: dict[tuple[int, int], int] = {}
        """(number of the search, prop_id) -> line."""
        self.booked: dict[int, tuple[int, int]] = {}
        """Number of the search -> line and prop_id."""
        self.positions = array("d")
        self.hotel_values = array("d")
        """One row of `_HOTEL_COLUMNS` per line."""

    def read(self, at: int, cells: Sequence[bytes]) -> None:
        """Takes one line.

        Raises:
            DataError: a cell is not acceptable, or contradicts the search's earlier lines.
        """
        table = self.table
        values = [table.value(at, cells, place) for place in range(len(COLUMNS))]
        bits = sum(1 << place for place, value in enumerate(values) if value != value)
        identifier, hotel = int(values[_SEARCH]), int(values[_HOTEL])
        own = [values[place] for place in _PER_SEARCH]
        search = self.searches.setdefault(identifier, len(self.searches))
        if search == len(self.first):
            self.first.append((at, own))
            self.absent.append(bits)
        self.absent[search] &= bits
        earlier, expected = self.first[search]
        for place, value, other in zip(_PER_SEARCH, own, expected, strict=True):
            if value != other and not (value != value and other != other):
                raise table.error(
                    at,
                    f"column {COLUMNS[place].name}: found {shown(cells[place])}, accepted is the "
                    f"value of line {earlier}, which is of the same search {identifier}",
                )
        seen = self.listed.setdefault((search, hotel), at)
        if seen != at:
            raise table.error(
                at,
                f"columns srch_id, prop_id: found search {identifier} and hotel {hotel} again, "
                f"they are on line {seen}; accepted is one line for each hotel of a search",
            )
        if values[_BOOKED]:
            if search in self.booked:
                raise table.error(
                    at,
                    f"column booking_bool: found 1, accepted is 0, because search {identifier} "
                    f"has its booking on line {self.booked[search][0]}",
                )
            self.booked[search] = at, hotel
        self.positions.append(values[table.place["position"]])
        self.hotel_values.extend(values[table.place[name]] for name in _HOTEL_COLUMNS)


def _coded(lines: _Lines, destination: int, max_missing: float) -> ExpediaSearches:
    pairs = np.array(list(lines.listed), dtype=np.int64)
    hotel_ids, rows = np.unique(pairs[:, 1], return_inverse=True)
    hotels = _hotel_features(lines, rows.reshape(-1), len(hotel_ids))
    dropped = _dropped(lines.absent, max_missing)
    users = _user_features(lines, dropped)
    offered = _offered(pairs[:, 0], rows.reshape(-1), np.array(lines.positions))
    choice = np.full(len(lines.first), NO_ITEM)
    for search, (_, hotel) in lines.booked.items():
        choice[search] = np.searchsorted(hotel_ids, hotel)
    for integers in (offered, choice, hotel_ids):
        integers.flags.writeable = False
    return ExpediaSearches(
        hotels=standardised(hotels),
        users=standardised(users),
        offered=offered,
        choice=choice,
        hotel_names=tuple(hotels),
        user_names=tuple(users),
        hotel_ids=hotel_ids,
        destination=destination,
        dropped=dropped,
    )


def _dropped(absent: list[int], max_missing: float) -> tuple[str, ...]:
    """Columns missing throughout more than a share of the searches."""
    limit = max_missing * len(absent)
    return tuple(
        column.name
        for place, column in enumerate(COLUMNS)
        if sum(bits >> place & 1 for bits in absent) > limit
    )


def _hotel_features(lines: _Lines, rows: Items, n_hotels: int) -> dict[str, Array]:
    """Hotel features before standardisation: means over searches, ratings in levels."""
    values = np.array(lines.hotel_values).reshape(-1, len(_HOTEL_COLUMNS))
    features: dict[str, Array] = {}
    for name, column in zip(_HOTEL_COLUMNS, values.T, strict=True):
        known = ~np.isnan(column)
        if name == "price_usd":
            column = np.minimum(column, PRICE_CAP)
        total = np.bincount(rows[known], column[known], minlength=n_hotels)
        mean = total / np.maximum(np.bincount(rows[known], minlength=n_hotels), 1)
        if name in HOTEL_EDGES:
            features |= above_reference(name, mean, HOTEL_EDGES[name])
        else:
            features[name] = mean
    return features


def _user_features(lines: _Lines, dropped: tuple[str, ...]) -> dict[str, Array]:
    """User features before standardisation."""
    names = [COLUMNS[place].name for place in _PER_SEARCH]
    columns = dict(zip(names, np.array([own for _, own in lines.first]).T, strict=True))
    sites, times = np.unique(columns["site_id"], return_counts=True)
    domain = columns["site_id"] == sites[times.argmax()]
    predictors = np.stack([*(columns[name] for name in PREDICTORS), domain], axis=1)
    for name in HISTORY:
        if name not in dropped:
            columns[name] = _imputed(columns[name], predictors)
    features: dict[str, Array] = {}
    for name, edges in USER_EDGES.items():
        if name not in dropped:
            features |= above_reference(name, columns[name], edges)
    features["srch_saturday_night_bool"] = columns["srch_saturday_night_bool"]
    features["site_id:most_frequent"] = domain.astype(float)
    return features


def _imputed(values: Array, predictors: Array) -> Array:
    """``values`` with a regression tree's predictions in place of NaN."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    from sklearn.tree import DecisionTreeRegressor

    tree = DecisionTreeRegressor(max_depth=TREE_DEPTH, random_state=0)
    tree.fit(predictors[~missing], values[~missing])
    filled = values.copy()
    filled[missing] = tree.predict(predictors[missing])
    return filled


def _offered(searches: Items, hotels: Items, positions: Array) -> Items:
    """Hotels of each search by position, filled up with `NO_ITEM`: (T, L)."""
    order = np.lexsort((positions, searches))
    sizes = np.bincount(searches)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    offered = np.full((len(sizes), sizes.max()), NO_ITEM)
    offered[searches[order], place] = hotels[order]
    return offered
