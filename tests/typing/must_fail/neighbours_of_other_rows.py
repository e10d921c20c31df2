# expect: (call-overload|arg-type|Cannot infer value of type parameter "X")
"""A mechanism of matrices takes no lists of text."""

from privlearn.checking import check_mechanism
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.rows.domains import Ball

check_mechanism(NoisySum.calibrated(Ball(1.0, 2), ZCDP(1)), neighbours=(["a"], ["b"]))
