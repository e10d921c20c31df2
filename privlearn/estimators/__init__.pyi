from .linear import PrivateLinearRegression
from .logistic import PrivateLogisticRegression
from .models import PublicModel, load_model

__all__ = [
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PublicModel",
    "load_model",
]
