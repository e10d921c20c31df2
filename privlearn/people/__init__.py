"""Who came how often: the sealed registry that a rule for persons who return is kept by."""

from privlearn.people.registry import Admission, People

__all__ = ["Admission", "People"]
