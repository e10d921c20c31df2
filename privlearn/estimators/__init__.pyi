from .coefficients import Coefficient, CoefficientTable
from .displays import CalibrationDisplay, CoefficientsDisplay, GuaranteeDisplay, HeldOutDisplay
from .linear import PrivateLinearRegression
from .logistic import PrivateLogisticRegression
from .models import PublicModel, load_model

__all__ = [
    "CalibrationDisplay",
    "Coefficient",
    "CoefficientTable",
    "CoefficientsDisplay",
    "GuaranteeDisplay",
    "HeldOutDisplay",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PublicModel",
    "load_model",
]
