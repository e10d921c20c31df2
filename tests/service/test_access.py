"""Access tokens: made, kept as hashes, compared in constant time, ended."""

from __future__ import annotations

import hmac
import json
from datetime import timedelta
from pathlib import Path

import pytest

from privlearn.errors import DataError
from privlearn.service import access
from privlearn.service.access import AccessTokens, Caller


def test_a_token_is_nowhere_kept_and_opens_what_its_role_may(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    token = access.add(path, "shop", "serve")
    other = access.add(path, "boss", "operator")
    assert len(token) > 50
    assert token != other
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    tokens = AccessTokens(path)
    assert tokens.caller(token) == Caller("shop", "serve")
    assert tokens.caller(token[:-1]) is None
    assert tokens.caller("") is None
    assert tokens.caller("ä\udc80") is None
    assert [Caller("x", "operator").may(role) for role in ("serve", "watch", "operator")] == [
        False,
        True,
        True,
    ]
    assert not Caller("x", "watch").may("operator")
    assert not Caller("x", "serve").may("watch")


def test_all_hashes_are_compared_each_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "access.json"
    first = access.add(path, "first", "serve")
    access.add(path, "second", "serve")
    tokens, real, compared = AccessTokens(path), hmac.compare_digest, []

    def counting(a: str, b: str) -> bool:
        compared.append(a)
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    assert tokens.caller(first) == Caller("first", "serve")
    tokens.caller("unknown")
    assert len(compared) == 4
    assert all(len(each) == 64 for each in compared)


def test_a_removed_or_expired_token_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "access.json"
    kept, gone = access.add(path, "kept", "serve"), access.add(path, "gone", "serve")
    old = access.add(path, "old", "serve", expires=timedelta(seconds=-1))
    tokens = AccessTokens(path)
    assert tokens.caller(old) is None
    assert tokens.caller(gone) is not None
    access.remove(path, "gone")
    monkeypatch.setattr(access, "_LOOK_AGAIN", 0.0)
    assert tokens.caller(gone) is None
    assert tokens.caller(kept) is not None
    path.chmod(0o644)  # and a file that others may read is trusted no more
    path.touch()
    assert tokens.caller(kept) is None


def test_files_and_names_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    access.add(path, "shop", "serve")
    with pytest.raises(DataError, match="has it already"):
        access.add(path, "shop", "watch")
    with pytest.raises(DataError, match=r"name = 'A b': must be 1 to 40"):
        access.add(path, "A b", "watch")
    with pytest.raises(DataError, match="role = 'root': must be one of serve, watch, operator"):
        access.add(path, "x", "root")
    with pytest.raises(DataError, match="has no such access token; it has shop"):
        access.remove(path, "x")
    with pytest.raises(DataError, match="cannot be read"):
        AccessTokens(tmp_path / "none.json")
    told = json.loads(path.read_text())
    path.write_text(json.dumps({"access": told["access"] * 2}))
    with pytest.raises(DataError, match="a name stands twice"):
        AccessTokens(path)
    path.write_text('{"acess": []}')
    with pytest.raises(DataError, match="holds no access tokens"):
        AccessTokens(path)
    path.chmod(0o640)
    with pytest.raises(DataError, match="chmod 600"):
        AccessTokens(path)
