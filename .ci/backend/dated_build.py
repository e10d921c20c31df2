"""Setuptools, with one date for all files of a wheel: two builds of one commit are then the same.

Whoever sets SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/) chooses
another date.
"""

import os

os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # 1980, where a zip's time begins

from setuptools.build_meta import *  # noqa: E402, F403
