"""Streams that say a whole segment ahead what they take, whatever the size of their blocks is."""

from __future__ import annotations

import pytest

from privlearn.accountants.streams import SEGMENT, Stream


def far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `Stream.ahead` is for reports."""
    monkeypatch.setattr(Stream, "ahead", lambda self, stop: max(stop, self.reach + SEGMENT))
