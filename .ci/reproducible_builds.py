"""setuptools, with the same bytes for the same files: whoever builds again can compare.

Without this, archives hold the time of the build and of the checkout, and the builder's name.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path
from typing import Any

from setuptools import build_meta as _setuptools
from setuptools.build_meta import *  # noqa: F403

_FIRST_OF_ZIP = 315532800
"""1 January 1980, before which a zip file has no dates; the time of every file, if none is set."""
os.environ.setdefault("SOURCE_DATE_EPOCH", str(_FIRST_OF_ZIP))


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """As setuptools', with one time and mode for all files, and no owner."""
    name = _setuptools.build_sdist(sdist_directory, config_settings)
    path, time = Path(sdist_directory, name), int(os.environ["SOURCE_DATE_EPOCH"])

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.pax_headers = time, {}
        member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    made = path.with_name(f"{name}.part")
    with (
        tarfile.open(path) as old,
        gzip.GzipFile(made, "wb", mtime=time) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            new.addfile(plain(member), old.extractfile(member) if member.isfile() else None)
    made.replace(path)
    return name
