from . import accountants as accountants
from . import checking as checking
from . import learners as learners
from . import losses as losses
from . import mechanisms as mechanisms
from . import noise as noise
from .adjacency import Adjacency, Trust
from .budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from .domains import Ball, Box, Categories, PSDTrace
from .ledger import Ledger
from .noise import NoiseSource
from .participation import Participation
from .people import People
from .protocols import Plan
from .rows import Rows
from .tokens import Released, Spend, Token

__version__: str

__all__ = [
    "ZCDP",
    "Adjacency",
    "ApproxDP",
    "Ball",
    "Box",
    "Categories",
    "GaussianDP",
    "Ledger",
    "NoiseSource",
    "PSDTrace",
    "Participation",
    "People",
    "Plan",
    "PureDP",
    "Released",
    "Renyi",
    "Rows",
    "Spend",
    "Token",
    "Trust",
    "__version__",
    "accountants",
    "checking",
    "learners",
    "losses",
    "mechanisms",
    "noise",
]
