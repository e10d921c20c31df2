from .asserts import assert_budget, assert_private
from .evidence import Evidence
from .exact.check import ExactResult, check_loss, white_box
from .laws.check import check_mechanism, mechanism_checks
from .laws.domains import check_domain
from .laws.row_maps import check_row_local
from .leased import UnderLease
from .replay.check import Replay, assert_noninterference, assert_pipeline_noninterference
from .replay.interleavings import Tardy, assert_answers_in_any_order, offered
from .replay.learners import LearnerReport, check_learner
from .replay.populations import Person, generated_pairs, returning_pair
from .replay.protocols import AssortmentLearner, InteractionProtocol, User, serve_people
from .sampling.check import black_box
from .survival import Survival, assert_survives
from .targets import SamplingTarget, sampling_target

__all__ = [
    "AssortmentLearner",
    "Evidence",
    "ExactResult",
    "InteractionProtocol",
    "LearnerReport",
    "Person",
    "Replay",
    "SamplingTarget",
    "Survival",
    "Tardy",
    "UnderLease",
    "User",
    "assert_answers_in_any_order",
    "assert_budget",
    "assert_noninterference",
    "assert_pipeline_noninterference",
    "assert_private",
    "assert_survives",
    "black_box",
    "check_domain",
    "check_learner",
    "check_loss",
    "check_mechanism",
    "check_row_local",
    "generated_pairs",
    "mechanism_checks",
    "offered",
    "returning_pair",
    "sampling_target",
    "serve_people",
    "white_box",
]
