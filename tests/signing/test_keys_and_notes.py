"""Keys in files, and signed notes against the vectors that others publish."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privlearn.errors import PassphraseError, SigningError, WrongSignatureError
from privlearn.signing import Note, PublicKey, SigningKey
from privlearn.signing.keys import SIGNER
from privlearn.signing.notes import MOST_SIGNATURES, sign_text

# https://c2sp.org/signed-note
FOO = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
FOO_NOTE = """This is an example message.

— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=
"""  # noqa: E501
# golang.org/x/mod/sumdb/note
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETER_SEED = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]
ENOCH = "EnochRoot+af0cfe78+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
PETER_LINE = "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"  # noqa: E501
ENOCH_LINE = "— EnochRoot rwz+eBzmZa0SO3NbfRGzPCpDckykFXSdeX+MNtCOXm2/5n2tiOHp+vAF1aGrQ5ovTG01oOTGwnWLox33WWd1RvMc+QQ=\n"  # noqa: E501


def note(text: str) -> Note:
    return Note.parse(text.encode())


def test_published_notes_verify_and_are_made_to_the_byte() -> None:
    note(FOO_NOTE).check_text(PublicKey.parse(FOO))
    signer = SigningKey("PeterNeumann", SIGNER, Ed25519PrivateKey.from_private_bytes(PETER_SEED))
    assert signer.public.text == PETER
    assert sign_text(TEXT, signer).encode() == f"{TEXT}\n{PETER_LINE}".encode()
    both = note(f"{TEXT}\n{PETER_LINE}{ENOCH_LINE}")
    both.check_text(PublicKey.parse(PETER))
    both.check_text(PublicKey.parse(ENOCH))
    assert Note.parse(both.encode()) == both


def test_every_mangling_of_a_public_key_is_refused() -> None:
    assert PublicKey.parse(PETER).text == PETER
    bad = [PETER[i:j] for i in range(len(PETER)) for j in range(i, len(PETER) + 1)]
    bad.remove(PETER)
    bad += [PETER[:i] + chr(ord(c) + 1) + PETER[i + 1 :] for i, c in enumerate(PETER)]
    bad += [  # of a wrong length and of an unknown type, with ids that fit
        "PeterNeumann+cc469956+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TWBADKEY==",
        "PeterNeumann+173116ae+ZRpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        PETER + "\n",
    ]
    for text in bad:
        with pytest.raises(SigningError):
            PublicKey.parse(text)


def test_a_signature_is_of_these_bytes_and_of_this_key() -> None:
    peter = PublicKey.parse(PETER)
    with pytest.raises(WrongSignatureError, match="not signed by PeterNeumann"):
        note(f"{TEXT}\n{ENOCH_LINE}").check_text(peter)
    with pytest.raises(WrongSignatureError, match="is wrong"):
        note(f"{TEXT}more\n\n{PETER_LINE}").check_text(peter)
    # one wrong line of a known key is enough, whatever stands beside it
    wrong = "— PeterNeumann x08go/" + "A" * 82 + "AAA=\n"
    for lines in (PETER_LINE + wrong, wrong + PETER_LINE):
        with pytest.raises(WrongSignatureError, match="is wrong"):
            note(f"{TEXT}\n{lines}").check_text(peter)


def test_a_key_with_the_same_name_and_id_is_another_key() -> None:
    """Ids have 32 bits, and somebody can look for a key that has a given one."""
    key = PublicKey.parse(PETER)
    other = Ed25519PrivateKey.generate()
    forged = PETER_LINE.split(" ")[1]
    data = key.id + other.sign(TEXT.encode())
    line = f"— {forged} {base64.b64encode(data).decode()}\n"
    with pytest.raises(WrongSignatureError, match="another key made it"):
        note(f"{TEXT}\n{line}").check_text(key)


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        TEXT + "\n",
        f"{TEXT}\n{PETER_LINE}"[:-1],
        f"\x01{TEXT}\n{PETER_LINE}",
        f"\t{TEXT}\n{PETER_LINE}",
        f"{TEXT}\n{PETER_LINE}".replace("\n", "\r\n"),
        f"{TEXT}\n— Bad Name x08go/ZJkuBS9UG/\n",
        f"{TEXT}\n— Bad\u2003Name x08go/ZJkuBS9UG/\n",
        f"{TEXT}\n—  x08go/ZJkuBS9UG/\n",
        f"{TEXT}\n— a+b x08go/ZJkuBS9UG/\n",
        f"{TEXT}\n— name x08goA==\n",
        f"{TEXT}\n— name x08go/ZJkuB=\n",
        f"{TEXT}\n— name x08go/ZJk uBS9UG/\n",
        f"{TEXT}\n{PETER_LINE}Unexpected line.\n",
        f"{TEXT}\n{PETER_LINE}\n",
        f"{TEXT}\n" + PETER_LINE * (MOST_SIGNATURES + 1),
        f"{TEXT}\n— name {'A' * 20_000}\n",
        "\n\n" + PETER_LINE,
        "",
    ],
)
def test_what_is_no_note_is_refused(data: str) -> None:
    with pytest.raises(SigningError):
        note(data)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(SigningError, match="UTF-8"):
        Note.parse(b"\xff" + f"{TEXT}\n{PETER_LINE}".encode())


def test_base64_has_one_form() -> None:
    """Bits that no byte needs could be changed, and a note have several forms."""
    last = PETER_LINE.index("AM=")
    changed = PETER_LINE[:last] + "AN=" + PETER_LINE[last + 3 :]
    assert base64.b64decode(changed.split(" ")[2]) == base64.b64decode(PETER_LINE.split(" ")[2])
    with pytest.raises(SigningError, match="canonical base64"):
        note(f"{TEXT}\n{changed}")


def test_keys_of_small_order_are_refused() -> None:
    """Such a key has signatures that verify for every text."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p
    found = []
    for y in (0, 1, p - 1, p, p + 1):
        found.append(y)
    half = (pow(4 + 4 * d, (p + 3) // 8, p) * r % p for r in (1, pow(2, (p - 1) // 4, p)))
    for disc in half:
        for sign in (1, -1):
            square = (-2 + sign * disc) * pow(2 * d, -1, p) % p
            if (d * square * square + 2 * square - 1) % p == 0:
                for r in (1, pow(2, (p - 1) // 4, p)):
                    y = pow(square, (p + 3) // 8, p) * r % p
                    if y * y % p == square:
                        found += [y, p - y]
    assert len(set(found)) == 7
    for y in found:
        for high in (0, 1):
            data = (y | high << 255).to_bytes(32, "little")
            with pytest.raises(SigningError, match="small order"):
                PublicKey("example.com/weak", SIGNER, data)


# Files --------------------------------------------------------------------------------------------


def test_a_key_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    key = SigningKey.new("example.com/audits")
    key.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(path).public == key.public
    assert PublicKey.given(str(tmp_path / "audit.key.pub")) == key.public
    assert PublicKey.given(key.public.text) == key.public
    with pytest.raises(SigningError, match="is a private key"):
        PublicKey.given(str(path))
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(SigningError, match=r"read or written by others .*chmod 600"):
            SigningKey.load(path)


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    path, key = tmp_path / "audit.key", SigningKey.new("example.com/audits")
    (tmp_path / "audit.key.pub").write_text("somebody's\n")
    with pytest.raises(SigningError, match="never overwritten"):
        key.save(path)
    assert not path.exists()
    (tmp_path / "audit.key.pub").unlink()
    key.save(path)
    kept = path.read_bytes()
    with pytest.raises(SigningError, match="never overwritten"):
        SigningKey.new("example.com/audits").save(path)
    path.with_name("dangling.key").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SigningError, match="never overwritten"):
        key.save(tmp_path / "dangling.key")
    assert path.read_bytes() == kept


def test_a_passphrase_is_needed_where_there_is_one(tmp_path: Path) -> None:
    path, key = tmp_path / "audit.key", SigningKey.new("example.com/audits")
    with pytest.raises(SigningError, match="empty passphrase"):
        key.save(path, b"")
    key.save(path, b"a long one")
    assert SigningKey.load(path, b"a long one").public == key.public
    for wrong in (None, b"another"):
        with pytest.raises(PassphraseError):
            SigningKey.load(path, wrong)
    open_path = tmp_path / "open.key"
    key.save(open_path)
    with pytest.raises(PassphraseError, match="leave it out"):
        SigningKey.load(open_path, b"a long one")


@pytest.mark.parametrize(
    "content", [b"", b"nothing", b"-----BEGIN PRIVATE KEY-----\n", b"x" * 20_000]
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SigningError):
        SigningKey.load(path)


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.key"
    SigningKey.new("example.com/audits").save(path)
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(SigningError, match="damaged"):
        SigningKey.load(path)


@pytest.mark.parametrize(
    "name", ["", "a b", "a+b", "a\n", "a\x1b[2J", "аudits", "x" * 201, "a\u2003"]
)
def test_names_of_keys_are_plain(name: str) -> None:
    with pytest.raises(SigningError, match="name = "):
        SigningKey.new(name)


def test_a_private_key_does_not_leave_its_process() -> None:
    key = SigningKey.new("example.com/audits")
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)
    assert repr(key) == f"SigningKey({key.public.text!r})"
