# expect: arg-type
"""Balls have one of three norms."""

from privlearn.rows.domains import Ball

Ball(1.0, 2, "l3")
