from .linear import PrivateLinearRegression
from .logistic import PrivateLogisticRegression
from .models import PublicModel, load_model
from .search import Chosen, PrivateSearchCV, select_best
from .search_plan import SearchPlan

__all__ = [
    "Chosen",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateSearchCV",
    "PublicModel",
    "SearchPlan",
    "load_model",
    "select_best",
]
