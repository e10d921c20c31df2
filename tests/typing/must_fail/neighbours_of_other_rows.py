# expect: (call-overload|arg-type|Cannot infer value of type parameter "X")
"""A mechanism of matrices takes no lists of text."""

from privlearn.budgets import ZCDP
from privlearn.checking.asserts import assert_private
from privlearn.domains import Ball
from privlearn.mechanisms import NoisySum

assert_private(NoisySum.calibrated(Ball(1.0, 2), ZCDP(1)), neighbours=(["a"], ["b"]))
