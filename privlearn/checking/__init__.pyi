from .asserts import assert_budget, assert_private
from .evidence import Evidence
from .exact.check import Exact, check_loss, white_box
from .laws.check import check_mechanism, mechanism_checks
from .laws.domains import check_domain
from .laws.row_maps import check_row_local
from .replay.check import (
    Replay,
    assert_noninterference,
    assert_pipeline_noninterference,
)
from .replay.populations import Person, generated_pairs
from .replay.protocols import Assorting, Drive, User
from .sampling.check import black_box
from .targets import Subject, subject_of

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
