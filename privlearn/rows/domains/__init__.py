"""Public sets that bound what one user can contribute; clipping lives here and nowhere else.

A domain turns a block of records into vectors that provably lie in the set, whatever comes in: a
record with NaN, infinity or a wrong shape becomes the null value ``clip(0)``.  `sensitivity` is
then the largest distance, in a norm ℓp, between two contributions (replace-one) or between a
contribution and the null value (zero-out, add-remove).

`integers` clips to integers in steps of a public grid, for exact noise: only a check of these
integers is trusted (docs/proofs.md, "Clipping on integers").
"""

from privlearn.rows.domains.balls import Ball
from privlearn.rows.domains.base import (
    Domain,
    IntegerDomain,
    accepted_by,
    encoded,
    fitting_grid,
    has_integers,
    largest_number,
)
from privlearn.rows.domains.boxes import Box
from privlearn.rows.domains.categories import Categories
from privlearn.rows.domains.clipping import Bound
from privlearn.rows.domains.counted import Counted
from privlearn.rows.domains.gradients import GradientHessian
from privlearn.rows.domains.matrices import Layout, PSDTrace
from privlearn.rows.domains.norms import Array, Norm, exponent_of
from privlearn.rows.domains.one_of import OneOf
from privlearn.rows.domains.reading import domain_from_dict, is_shipped
from privlearn.rows.record_forms import Numbers as Numbers
from privlearn.values.calls import explained

__all__ = [
    "Array",
    "Ball",
    "Bound",
    "Box",
    "Categories",
    "Counted",
    "Domain",
    "GradientHessian",
    "IntegerDomain",
    "Layout",
    "Norm",
    "Numbers",
    "OneOf",
    "PSDTrace",
    "accepted_by",
    "domain_from_dict",
    "encoded",
    "exponent_of",
    "fitting_grid",
    "has_integers",
    "is_shipped",
    "largest_number",
]

for _kind in (Ball, Box, Categories, Counted, GradientHessian, OneOf, PSDTrace):
    explained(_kind)
