"""Checks that a guarantee is earned: each can fail, and says what it cannot conclude."""

from privlearn.checking.drives import Assorting, Drive, User
from privlearn.checking.populations import Person, generated_pairs
from privlearn.checking.replay import (
    Replay,
    assert_noninterference,
    assert_pipeline_noninterference,
)
from privlearn.checking.row_maps import check_row_local

__all__ = [
    "Assorting",
    "Drive",
    "Person",
    "Replay",
    "User",
    "assert_noninterference",
    "assert_pipeline_noninterference",
    "check_row_local",
    "generated_pairs",
]
