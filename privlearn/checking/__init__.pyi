from .budgets import assert_budget
from .exact.check import ExactResult
from .exact.loss_curves import check_loss
from .laws.check import check_mechanism
from .laws.domains import check_domain, check_row_local
from .replay.check import Replay
from .replay.learners import check_learner
from .replay.populations import Person, generated_pairs
from .replay.protocols import InteractionProtocol, Tardy, User, offered
from .reports import Axis, CheckReport, Coverage, Evidence, Finding
from .survival import Survival, assert_survives
from .targets import SamplingTarget, sampling_target
from .training import check_training

__all__ = [
    "Axis",
    "CheckReport",
    "Coverage",
    "Evidence",
    "ExactResult",
    "Finding",
    "InteractionProtocol",
    "Person",
    "Replay",
    "SamplingTarget",
    "Survival",
    "Tardy",
    "User",
    "assert_budget",
    "assert_survives",
    "check_domain",
    "check_learner",
    "check_loss",
    "check_mechanism",
    "check_row_local",
    "check_training",
    "generated_pairs",
    "offered",
    "sampling_target",
]
