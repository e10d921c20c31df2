"""Mechanisms state their loss, spend a token, and only then open rows and draw noise."""

if __name__ != "privlearn.mechanisms":
    raise ImportError("import privlearn.mechanisms, not the folder: a second copy would not match")

from privlearn.mechanisms.ball_reports import BallReport
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.mechanisms.category_reports import CategoryReport
from privlearn.mechanisms.envelope import LipschitzEnvelope
from privlearn.mechanisms.factorization import (
    AnytimeBLT,
    BinaryTree,
    BufferedToeplitz,
    ColumnNormalizedBLT,
)
from privlearn.mechanisms.function_mechanism import FunctionMechanism, mechanism
from privlearn.mechanisms.linear_models import LinearObjective
from privlearn.mechanisms.multinomial import MultinomialLogit
from privlearn.mechanisms.noisy_max import ReportNoisyMax
from privlearn.mechanisms.noisy_max_stream import NoisyMaxStream
from privlearn.mechanisms.noisy_report import NoisyReport
from privlearn.mechanisms.noisy_sum import NoisySum
from privlearn.mechanisms.objective_perturbation import ObjectivePerturbation
from privlearn.mechanisms.objectives import Objective
from privlearn.mechanisms.one_of_k import OneOfK, local_one_of_k
from privlearn.mechanisms.one_of_k_reports import OneOfKReport, report_from_dict
from privlearn.mechanisms.prefix_sums import PrefixSum, PrefixSumStream
from privlearn.mechanisms.projected_reports import ProjectedReport
from privlearn.mechanisms.scalar_objectives import (
    CustomObjective,
    HuberObjective,
    LogisticObjective,
    PoissonObjective,
    ScalarObjective,
    SquaredObjective,
)
from privlearn.mechanisms.vertices import CrossPolytope, ExplicitVertices, SimplexVertices

__all__ = [
    "AnytimeBLT",
    "BallReport",
    "BatchedPrefixSum",
    "BinaryTree",
    "BufferedToeplitz",
    "CategoryReport",
    "ColumnNormalizedBLT",
    "CrossPolytope",
    "CustomObjective",
    "ExplicitVertices",
    "FunctionMechanism",
    "HuberObjective",
    "LinearObjective",
    "LipschitzEnvelope",
    "LogisticObjective",
    "MultinomialLogit",
    "NoisyMaxStream",
    "NoisyReport",
    "NoisySum",
    "Objective",
    "ObjectivePerturbation",
    "OneOfK",
    "OneOfKReport",
    "PoissonObjective",
    "PrefixSum",
    "PrefixSumStream",
    "ProjectedReport",
    "ReportNoisyMax",
    "ScalarObjective",
    "SimplexVertices",
    "SquaredObjective",
    "local_one_of_k",
    "mechanism",
    "report_from_dict",
]
