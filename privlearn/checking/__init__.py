"""Checks that a guarantee is earned: each can fail, and says what it cannot conclude.

Four ways, usable alone or together: the exact divergence of a mechanism (`white_box`), lower bounds
from samples of anything (`black_box`, `assert_private`), record / freeze / replay of learners
(`assert_noninterference`), and types.  `check_mechanism` runs all that applies to a mechanism.
"""

from privlearn.checking.asserts import assert_budget, assert_private
from privlearn.checking.black_box import black_box
from privlearn.checking.domain_laws import check_domain
from privlearn.checking.drives import Assorting, Drive, User
from privlearn.checking.evidence import Evidence
from privlearn.checking.laws import check_mechanism, mechanism_checks
from privlearn.checking.populations import Person, generated_pairs
from privlearn.checking.replay import (
    Replay,
    assert_noninterference,
    assert_pipeline_noninterference,
)
from privlearn.checking.row_maps import check_row_local
from privlearn.checking.subjects import Subject, subject_of
from privlearn.checking.white_box import Exact, check_loss, white_box

__all__ = [
    "Assorting",
    "Drive",
    "Evidence",
    "Exact",
    "Person",
    "Replay",
    "Subject",
    "User",
    "assert_budget",
    "assert_noninterference",
    "assert_pipeline_noninterference",
    "assert_private",
    "black_box",
    "check_domain",
    "check_loss",
    "check_mechanism",
    "check_row_local",
    "generated_pairs",
    "mechanism_checks",
    "subject_of",
    "white_box",
]
