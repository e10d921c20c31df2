from .accountant import CentralAccountant, JointAccountant
from .arrivals import ArrivalSpend
from .audit import audit
from .certificate import Certificate, Guarantee
from .delegated import Delegated
from .filters import Filter, Odometer, RunningBound
from .guarantee import in_gaussian, in_zcdp
from .local import LocalAccountant

__all__ = [
    "ArrivalSpend",
    "CentralAccountant",
    "Certificate",
    "Delegated",
    "Filter",
    "Guarantee",
    "JointAccountant",
    "LocalAccountant",
    "Odometer",
    "RunningBound",
    "audit",
    "in_gaussian",
    "in_zcdp",
]
