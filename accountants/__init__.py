"""Accountants hold caps, issue tokens, write the ledger and answer for the guarantee."""

if __name__ != "privlearn.accountants":
    raise ImportError("import privlearn.accountants, not the folder: a second copy would not match")

from privlearn.accountants.accountant import CentralAccountant, JointAccountant
from privlearn.accountants.arrivals import ArrivalSpend
from privlearn.accountants.audit import audit
from privlearn.accountants.certificate import Certificate, Guarantee
from privlearn.accountants.delegated import Delegated, Nested
from privlearn.accountants.filters import Filter, Odometer, RunningBound
from privlearn.accountants.guarantee import in_gaussian, in_zcdp
from privlearn.accountants.local import LocalAccountant
from privlearn.contract.metering import Meter, TrustedCode
from privlearn.values.calls import explained

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

for _kind in (CentralAccountant, JointAccountant, LocalAccountant):
    explained(_kind, ("__init__", "issue"))
