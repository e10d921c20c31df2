# expect: call-overload
"""What has no price makes no claim of its own."""

from typing import Any

from privlearn.checking.asserts import assert_private


class Unpriced:
    def release(self, rows: Any, token: Any) -> Any:
        return None


assert_private(Unpriced())
