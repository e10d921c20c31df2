# expect: call-overload
"""What has no price makes no claim of its own."""

from typing import Any

from privlearn.checking import check_mechanism


class Unpriced:
    def release(self, rows: Any, token: Any) -> Any:
        return None


check_mechanism(Unpriced())
