"""Accountants hold caps, issue tokens, write the ledger and answer for the guarantee."""

if __name__ != "privlearn.accountants":
    raise ImportError("import privlearn.accountants, not the folder: a second copy would not match")

from privlearn.accountants.accountant import CentralAccountant, JointAccountant
from privlearn.accountants.audit import Certificate, Guarantee, audit
from privlearn.accountants.guarantee import in_gaussian, in_zcdp

__all__ = [
    "CentralAccountant",
    "Certificate",
    "Guarantee",
    "JointAccountant",
    "audit",
    "in_gaussian",
    "in_zcdp",
]
