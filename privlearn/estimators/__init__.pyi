from .choice import PrivateChoiceModel
from .choice_models import PublicChoiceModel
from .coefficients import Coefficient, CoefficientTable
from .displays import CalibrationDisplay, CoefficientsDisplay, GuaranteeDisplay, HeldOutDisplay
from .linear import PrivateLinearRegression
from .logistic import PrivateLogisticRegression
from .models import PublicModel, load_model, load_reward_model
from .reward_models import PublicRewardModel
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
    "PublicRewardModel",
    "SearchPlan",
    "load_model",
    "load_reward_model",
    "select_best",
]
