from .choice import PrivateChoiceModel
from .choice_models import PublicChoiceModel
from .coefficients import Coefficient, CoefficientTable
from .displays import CalibrationDisplay, CoefficientsDisplay, GuaranteeDisplay, HeldOutDisplay
from .linear import PrivateLinearRegression
from .logistic import PrivateLogisticRegression
from .models import PublicModel, load_model
from .search import Chosen, PrivateSearchCV, select_best
from .search_plan import SearchPlan
from .sparse import PrivateSparseRegression

__all__ = [
    "CalibrationDisplay",
    "Chosen",
    "Coefficient",
    "CoefficientTable",
    "CoefficientsDisplay",
    "GuaranteeDisplay",
    "HeldOutDisplay",
    "PrivateChoiceModel",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateSearchCV",
    "PrivateSparseRegression",
    "PublicChoiceModel",
    "PublicModel",
    "SearchPlan",
    "load_model",
    "select_best",
]
