from .coefficients import Coefficient, CoefficientTable
from .displays import CalibrationDisplay, CoefficientsDisplay, GuaranteeDisplay, HeldOutDisplay
from .linear import PrivateLinearRegression
from .logistic import PrivateLogisticRegression
from .models import PublicModel, load_model
from .search import Chosen, PrivateSearchCV, select_best
from .search_plan import SearchPlan

__all__ = [
    "CalibrationDisplay",
    "Chosen",
    "Coefficient",
    "CoefficientTable",
    "CoefficientsDisplay",
    "GuaranteeDisplay",
    "HeldOutDisplay",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateSearchCV",
    "PublicModel",
    "SearchPlan",
    "load_model",
    "select_best",
]
