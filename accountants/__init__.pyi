from .accountant import CentralAccountant, JointAccountant
from .arrivals import ArrivalSpend
from .audit import audit
from .certificate import Certificate, Guarantee
from .delegated import Delegated, Nested
from .filters import Filter, Odometer, RunningBound
from .guarantee import in_gaussian, in_zcdp
from .local import LocalAccountant
from .metering import Meter, TrustedCode

__all__ = [
    "ArrivalSpend",
    "CentralAccountant",
    "Certificate",
    "Delegated",
    "Filter",
    "Guarantee",
    "JointAccountant",
    "LocalAccountant",
    "Meter",
    "Nested",
    "Odometer",
    "RunningBound",
    "TrustedCode",
    "audit",
    "in_gaussian",
    "in_zcdp",
]
