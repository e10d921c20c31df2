from . import accountants as accountants
from . import checking as checking
from . import learners as learners
from . import losses as losses
from . import mechanisms as mechanisms
from . import noise as noise
from .contract.protocols import Plan
from .contract.receipts import Released
from .contract.spends import Spend
from .contract.tokens import Token
from .ledger import Ledger
from .losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from .noise import NoiseSource
from .people import People
from .rows import Rows
from .rows.domains import Ball, Box, Categories, PSDTrace
from .values.adjacency import Adjacency, Trust
from .values.participation import Participation

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
