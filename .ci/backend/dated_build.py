"""Setuptools, with one date and one owner for all files: two builds of one commit are the same.

Whoever sets SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/) chooses
another date.
"""

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

DATE = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800"))  # 1980: a zip's time begins

from setuptools import build_meta  # noqa: E402
from setuptools.build_meta import *  # noqa: E402, F403


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """As setuptools does; of a wheel it takes the date by itself, and of this it does not."""
    name: str = build_meta.build_sdist(sdist_directory, config_settings)
    archive, packed = Path(sdist_directory, name), io.BytesIO()
    with (
        tarfile.open(archive) as before,
        gzip.GzipFile("", "wb", fileobj=packed, mtime=DATE) as zipped,
        tarfile.open(mode="w", fileobj=zipped) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda each: each.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = DATE, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    archive.write_bytes(packed.getvalue())
    return name
