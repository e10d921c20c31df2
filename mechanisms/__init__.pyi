from .above_threshold import AboveThreshold
from .ball_reports import BallReport
from .banded_blt import BandedBLT
from .batched_sums import BatchedPrefixSum
from .binary_tree import BinaryTree
from .buffered_toeplitz import AnytimeBLT, BufferedToeplitz
from .category_reports import CategoryReport
from .constraint_sets import ConstraintSet, LpBall, Polytope, Simplex
from .cvxpy_sets import CvxpySet
from .envelope import LipschitzEnvelope
from .function_mechanism import FunctionMechanism, mechanism
from .linear_models import LinearObjective
from .multinomial import MultinomialLogit
from .noisy_max import ReportNoisyMax
from .noisy_max_batches import NoisyMaxBatches
from .noisy_max_stream import NoisyMaxStream
from .noisy_report import NoisyReport
from .noisy_sum import NoisySum
from .objective_perturbation import ObjectivePerturbation
from .objectives import Objective
from .one_of_k import OneOfK, local_one_of_k
from .one_of_k_reports import OneOfKReport, report_from_dict
from .phase_sums import PhaseStream, PhaseSum
from .prefix_sums import PrefixSum, PrefixSumStream
from .projected_reports import ProjectedReport
from .quantiles import ReportQuantiles
from .receipt_stream import ReceiptStream
from .scalar_objectives import (
    CustomObjective,
    HuberObjective,
    LogisticObjective,
    PoissonObjective,
    ScalarObjective,
    SquaredObjective,
)
from .vertices import CrossPolytope, ExplicitVertices, SimplexVertices

__all__ = [
    "AboveThreshold",
    "AnytimeBLT",
    "BallReport",
    "BandedBLT",
    "BatchedPrefixSum",
    "BinaryTree",
    "BufferedToeplitz",
    "CategoryReport",
    "ConstraintSet",
    "CrossPolytope",
    "CustomObjective",
    "CvxpySet",
    "ExplicitVertices",
    "FunctionMechanism",
    "HuberObjective",
    "LinearObjective",
    "LipschitzEnvelope",
    "LogisticObjective",
    "LpBall",
    "MultinomialLogit",
    "NoisyMaxBatches",
    "NoisyMaxStream",
    "NoisyReport",
    "NoisySum",
    "Objective",
    "ObjectivePerturbation",
    "OneOfK",
    "OneOfKReport",
    "PhaseStream",
    "PhaseSum",
    "PoissonObjective",
    "Polytope",
    "PrefixSum",
    "PrefixSumStream",
    "ProjectedReport",
    "ReceiptStream",
    "ReportNoisyMax",
    "ReportQuantiles",
    "ScalarObjective",
    "Simplex",
    "SimplexVertices",
    "SquaredObjective",
    "local_one_of_k",
    "mechanism",
    "report_from_dict",
]
