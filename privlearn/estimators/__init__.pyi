from .choice import PrivateChoiceModel
from .choice_models import PublicChoiceModel
from .coefficients import Coefficient, CoefficientTable
from .displays import CalibrationDisplay, CoefficientsDisplay, GuaranteeDisplay, HeldOutDisplay
from .linear import PrivateLinearRegression
from .logistic import PrivateLogisticRegression
from .models import PublicModel, load_model
from .sparse import PrivateSparseRegression

__all__ = [
    "CalibrationDisplay",
    "Coefficient",
    "CoefficientTable",
    "CoefficientsDisplay",
    "GuaranteeDisplay",
    "HeldOutDisplay",
    "PrivateChoiceModel",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateSparseRegression",
    "PublicChoiceModel",
    "PublicModel",
    "load_model",
]
