"""Published calibrations as rows: texts in a table, numbers computed when asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from textwrap import dedent
from typing import Any, Literal, NamedTuple

from privlearn.losses import GaussianLoss, Loss, gaussian_loss
from privlearn.mechanisms.binary_tree import BinaryTree
from privlearn.values.adjacency import Adjacency

Comparison = Literal["=", "<=", ">="]

EPSILON, DELTA = 1.0, 1e-5
"""Where (ε, δ) claims are compared, unless a row says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erratum:
    """One published number and what it is in truth, both in ``unit`` and at ``setting``."""

    id: str
    source: str
    unit: str
    setting: str
    claimed: float
    relation: Comparison = "="
    """How the exact value compares with ``true``: equal, at most (proved), at least (instance)."""
    true: float
    verdict: str
    """CORRECT, WRONG, REPAIRABLE or AMBIGUOUS, and a few words."""
    page: str

    @property
    def ratio(self) -> float:
        """true / claimed."""
        return self.true / self.claimed

    def to_dict(self) -> dict[str, str | float]:
        """JSON form."""
        row = asdict(self)
        verdict, page = row.pop("verdict"), row.pop("page")
        return row | {"ratio": self.ratio, "verdict": verdict, "page": f"docs/errata/{page}.md"}


class Numbers(NamedTuple):
    """The numbers of a row."""

    id: str
    claimed: float
    true: float
    relation: Comparison
    others: dict[str, float]


def numbers(
    id: str, claimed: float, true: float, relation: Comparison = "=", **others: float
) -> Numbers:
    """The numbers of a row; others are those that its texts have fields for."""
    return Numbers(id, claimed, true, relation, others)


Page = Callable[[], Iterator[Erratum]]


def page(name: str, paper: str, table: str) -> Callable[[Callable[[], Iterator[Numbers]]], Page]:
    """Makes the rows of a page, from a table of texts and a function that has their numbers.

    A row of the table has the fields id, place in the paper, unit, setting and verdict, with ``|``
    between them; lines that are indented belong to the row above.
    """
    rows = re.split(r"\n(?=\S)", dedent(table).strip())
    texts = {id: rest for id, *rest in (re.split(r"\s+\|\s+", row) for row in rows)}

    def with_texts(computed: Callable[[], Iterator[Numbers]]) -> Page:
        def errata() -> Iterator[Erratum]:
            for id, claimed, true, relation, others in computed():
                known: dict[str, Any] = {"EPSILON": EPSILON, "DELTA": DELTA, **others}
                place, unit, setting, verdict = (
                    " ".join(text.split()).format_map(known) for text in texts[id]
                )
                yield Erratum(
                    id=id,
                    source=f"{paper}, {place}",
                    unit=unit,
                    setting=setting,
                    claimed=claimed,
                    relation=relation,
                    true=true,
                    verdict=verdict,
                    page=name,
                )

        return errata

    return with_texts


# Losses as numbers ------------------------------------------------------------------------------


def gaussian(sensitivity: float, std: float) -> GaussianLoss:
    """The loss of Gaussian noise on a value that one user replaces."""
    return gaussian_loss(sensitivity, std, Adjacency.REPLACE_ONE)


def zcdp(loss: Loss) -> Fraction:
    """The zCDP constant of a loss that has one."""
    rho = loss.zcdp()
    assert rho is not None, "only losses with a zCDP constant are asked"
    return rho


def tree_nodes(horizon: int) -> int:
    """Nodes of the binary tree that hold one user."""
    return round(BinaryTree(horizon).column_norm() ** 2)
