"""Verifies a privlearn ledger without privlearn: ``python verify_ledger.py ledger.db``.

Only Python's standard library, for format 2 of docs/ledger.md.  It checks the chain, the Merkle
roots, the envelopes, the life of every token, the cap at every arrival index, and that Gaussian
noise earns the stated loss.  What it does not recompute, such as other prices, it lists.

Prints JSON.  Exit codes: 0 no problem, 1 problems, 4 unreadable, 6 unknown critical extension.
"""

import hashlib
import json
import re
import sqlite3
import sys
from fractions import Fraction
from itertools import accumulate

MOST_BYTES, MOST_DEPTH = 8 * 2**20, 64
NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,400}/[0-9]{1,400}|(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})"
    r"(?:[eE][+-]?0*([0-9]{1,3}))?)"
)
MINUTE = r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]Z"
FEATURE = r"[a-z][a-z0-9-]{0,63}/[1-9][0-9]{0,3}"
ENTRIES = """CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT NOT NULL
) STRICT"""
RELEASED = """CREATE TABLE released (
    digest TEXT PRIMARY KEY, value BLOB NOT NULL
) STRICT, WITHOUT ROWID"""
# fmt: off
FIELDS = {  # of each entry; those behind the bar may be missing
    "open": "software trust adjacency users cap promise noise simulated side_information durable"
            " | failure odometer population attested functions_named features",
    "plan": "items |", "functions": "token names |", "retire": "token outcome | digest",
    "issue": "token label users budget | planned failure allowance", "close": "|",
    "delegate": "allowance label users budget | failure", "return": "allowance |",
    "spend": "token mechanism users trust adjacency domain noise simulated gain loss arithmetic"
             " derived calibration parameters | interactive profile",
    "attest": "by mechanism label users adjacency loss most_messages count | planned unseen",
}
TYPES = {  # where one name has one type
    str: "accountant software trust adjacency token label mechanism arithmetic outcome failure by",
    dict: "cap budget domain loss parameters features",
    bool: "simulated durable attested functions_named derived interactive",
    list: "users items names side_information unseen profile",
}
# fmt: on
WRONG = ValueError, KeyError, TypeError, AttributeError, ArithmeticError


class Unreadable(Exception):
    """Not a ledger of format 2, torn, beyond a limit; code 6: needs an unknown extension."""


def once(pairs):
    found = dict(pairs)
    need(len(found) == len(pairs), "a name stands twice in one object")
    return found


def number(text):
    value = float(text) if set(text) & set(".eENIa") else int(text[:18])
    most = 2**53 if type(value) is int else float("inf")
    need(len(text) <= 400 and abs(value) < most, "a number that is too large, or none")
    return value


def parse(data):
    brackets = re.sub(rb'"(?:[^"\\]|\\.)*"|[^][{}]', b"", data, flags=re.S)
    depths = accumulate(1 if bracket in b"{[" else -1 for bracket in brackets)
    need(max(depths, default=0) <= MOST_DEPTH, "nested too deeply")
    hooks = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), number)
    value = json.loads(data.decode(), object_pairs_hook=once, **hooks)
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair
    return value


def rows(path):
    with open(path, "rb") as file:
        if file.read(1) == b"{":
            file.seek(0)
            need(parse(file.readline(1024)) == {"privlearn_ledger": 2}, "not of format 2")
            for seq, line in enumerate(iter(lambda: file.readline(MOST_BYTES + 100), b"")):
                frame = line[:9], line[-76:-67], line[-3:]
                need(frame == (b'{"entry":', b',"hash":"', b'"}\n'), "a line is torn, or no entry")
                yield seq, line[9:-76], line[-67:-3]
            return
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES + 1024)
        connection.execute("PRAGMA trusted_schema = OFF")
        for pragma, value in ("application_id", 0x70726C6E), ("user_version", 2):
            need(connection.execute(f"PRAGMA {pragma}").fetchone() == (value,), "not of format 2")
        found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema LIMIT 9")}
        need({ENTRIES} <= found <= {ENTRIES, RELEASED}, "other tables than those of a ledger")
        connection.text_factory = bytes
        yield from connection.execute("SELECT seq, entry, hash FROM entries ORDER BY seq")


def users_of(body):
    first, stop = body["users"]
    need(type(first) is int and type(stop) is int and 0 <= first < stop, "users")
    return first, stop


class Tree:
    def __init__(self):  # RFC 6962, section 2.1
        self.size, self.peaks = 0, []

    def add(self, leaf):
        node, left = hashlib.sha256(b"\0" + leaf).digest(), self.size
        while left & 1:
            node, left = hashlib.sha256(b"\1" + self.peaks.pop() + node).digest(), left >> 1
        self.peaks.append(node)
        self.size += 1

    def root(self):
        node = self.peaks[-1] if self.peaks else hashlib.sha256(b"").digest()
        for peak in self.peaks[-2::-1]:
            node = hashlib.sha256(b"\1" + peak + node).digest()
        return node.hex()


def form(pattern, value):
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def need(condition, problem):
    if not condition:
        raise ValueError(problem)


def exact(text):
    found = NUMBER.fullmatch(text) if isinstance(text, str) else None
    need(found is not None and int(found[1] or 0) <= 400, "not an exact number")
    return Fraction(text)


def check_envelope(envelope, kind, last):  # last: epoch and writer of the entry before
    epoch, writer = envelope.get("epoch"), envelope.get("writer")
    need(type(epoch) is int and epoch >= 1 and form("[0-9a-f]{16}", writer), "writer or epoch")
    need(epoch >= last[0] and (epoch == last[0]) == (writer == last[1]), "writers and epochs")
    last[:] = epoch, writer
    need(form("[0-9a-f]{32}", envelope.get("nonce")), "nonce")
    need("at" not in envelope if kind == "retire" else form(MINUTE, envelope.get("at")), "time")
    need(("root" in envelope) == (kind == "close"), "root")


class Account:
    def __init__(self, body, unchecked):
        self.cap, self.unchecked, self.body = body["cap"], unchecked, body
        self.users = users_of(body)
        need(body["adjacency"] in ("replace-one", "zero-out", "add-remove"), "adjacency")
        self.counts = self.cap.get("kind") == "zcdp"
        self.cap_rho = exact(self.cap["rho"]) if self.counts else None
        need(not self.counts or self.cap_rho > 0, "a cap of nothing")
        self.charges, self.tokens, self.plan, self.closed = [], {}, None, False
        if not self.counts or body.get("attested"):
            self.leave("the sums of an accountant that does not spend in zCDP")

    def leave(self, what):
        self.counts = False
        self.unchecked.add(what)

    def add(self, body):
        kind = body["entry"]
        need(not self.closed and kind != "open", "after the close, or opened twice")
        if kind == "plan":
            need(self.plan is None and not self.tokens, "a plan comes first, and once")
            self.plan = body["items"]
            self.leave("the sums of a committed plan")
        elif kind in ("delegate", "return", "attest"):
            self.leave(f"sums with {kind} entries")
        elif kind == "close":
            need(all(t.get("outcome") for t in self.tokens.values()), "tokens without an end")
            self.closed = True
        else:
            getattr(self, kind)(body)

    def issue(self, body):
        need(body["token"] not in self.tokens, "issued twice")
        users = users_of(body)
        need(self.users[0] <= users[0] and users[1] <= self.users[1], "users of nobody")
        token = {"users": users, "names": set()}
        if self.counts:
            need(body["budget"].get("kind") == "zcdp", "a budget of another currency")
            token["charge"] = [users, exact(body["budget"]["rho"])]
            need(token["charge"][1] > 0, "a budget of nothing")
            self.charges.append(token["charge"])
            for edge in {n for (n, _), _ in self.charges if users[0] <= n < users[1]}:  # sums grew
                total = sum(rho for users, rho in self.charges if users[0] <= edge < users[1])
                need(total <= self.cap_rho, f"the cap is exceeded at index {edge}")
        self.tokens[body["token"]] = token

    def spend(self, body):
        token = self.tokens[body["token"]]
        need("spend" not in token and "outcome" not in token, "spent twice")
        need(users_of(body) == token["users"], "spent for other users")
        for name in ("trust", "adjacency", "simulated"):
            need(body[name] == self.body[name], f"{name} is not the accountant's")
        token["spend"] = body
        loss, noise, domain = body["loss"], body["noise"], body["domain"]
        need(loss.get("adjacency") == body["adjacency"], "a loss for another relation")
        if loss.get("kind") != "gaussian":
            return self.leave(f"losses of kind {loss.get('kind')}, and sums with them")
        mass = exact(loss["mu_squared"])
        if "charge" in token:  # ρ = μ²/2
            need(mass / 2 <= token["charge"][1], "the loss costs more than the token holds")
            token["charge"][1] = mass / 2
        if not body["derived"] or noise.get("family") != "gaussian" or body.get("profile"):
            self.unchecked.add("losses that are a mechanism's word")
        elif domain.get("kind") == "ball" and domain.get("norm") == "l2":
            two = 2 if body["adjacency"] == "replace-one" else 1
            numbers = domain["radius"], body["gain"], noise["std"]
            need(all(type(n) in (int, float) and n > 0 for n in numbers), "numbers above zero")
            radius, gain, std = map(Fraction, numbers)
            need(mass >= (two * radius * gain / std) ** 2, "the noise earns a larger loss")
        else:
            self.unchecked.add(f"the sensitivity of domains of kind {domain.get('kind')}")

    def functions(self, body):
        token = self.tokens[body["token"]]
        need("spend" in token and "outcome" not in token, "functions of a token without rows")
        need(body["names"] and not token["names"] & set(body["names"]), "named before, or nothing")
        token["names"].update(body["names"])

    def retire(self, body):
        token = self.tokens[body["token"]]
        need("outcome" not in token, "retired twice")
        need(body["outcome"] in ("released", "unused", "lost", "uncovered"), "outcome")
        need((body["outcome"] == "unused") == ("spend" not in token), "no such end for this token")
        token["outcome"] = body["outcome"]
        if "charge" in token and body["outcome"] == "unused":
            self.charges = [charge for charge in self.charges if charge is not token["charge"]]
        need(body["outcome"] != "uncovered", "an end that may depend on the rows")


def check_body(body, accounts, unchecked):
    kind, name = body.get("entry"), body.get("accountant")
    need(kind in FIELDS, f"an unknown entry {kind!r}")
    must, may = (set(names.split()) for names in FIELDS[kind].split("|"))
    need(must <= body.keys() - {"accountant", "entry"} <= must | may, f"fields of {kind}")
    for kept, names in TYPES.items():
        for field in body.keys() & set(names.split()):
            need(isinstance(body[field], kept), f"{field} is of another type")
    if kind == "open" and name not in accounts:
        features = body.get("features", {})
        said = {"critical", "optional"}.issuperset(features.values())
        need(said and all(form(FEATURE, name) for name in features), "features")
        accounts[name] = Account(body, unchecked)
    else:
        need(name in accounts, "an accountant that is not open")
        accounts[name].add(body)


def verify(path):
    """Head, Merkle root, problems and what was not checked; raises Unreadable."""
    head, tree, last, accounts = bytes(32), Tree(), [0, ""], {}
    problems, unchecked, optional, size = [], set(), set(), 0
    try:
        for seq, data, stored in rows(path):
            envelope = parse(data)
            body = envelope.pop("body")
            need(envelope.keys() <= {"at", "epoch", "ext", "nonce", "root", "writer"}, "envelope")
            need(isinstance(body, dict), "an entry without a body")
            need(form("[0-9a-f]{64}", stored.decode()), "the form of a hash")
            features = body.get("features", {}) if body.get("entry") == "open" else {}
            if isinstance(features, dict):
                if "critical" in features.values():
                    raise Unreadable(f"unknown critical extensions: {features}", 6)
                optional |= features.keys()
            try:
                need(seq == size, "entries were cut or moved")
                head = hashlib.sha256(head + data).digest()
                need(head.hex() == stored.decode(), "its hash does not fit")
                check_envelope(envelope, body.get("entry"), last)
                need(body.get("entry") != "close" or envelope["root"] == tree.root(), "root")
                need(envelope.get("ext", {}).keys() <= optional, "undeclared extensions")
                check_body(body, accounts, unchecked)
            except WRONG as error:
                problems.append(f"entry {seq}: {error}")
            head = bytes.fromhex(stored.decode())
            tree.add(head)
            size = seq + 1
    except (OSError, RecursionError, sqlite3.Error, *WRONG) as error:
        raise Unreadable(str(error)) from None
    if not accounts:
        problems.append("no accountant was opened")
    told = {"entries": size, "head": head.hex(), "root": tree.root(), "problems": problems}
    return told | {"unchecked": sorted(unchecked), "optional_extensions": sorted(optional)}


if __name__ == "__main__":
    try:
        found = verify(sys.argv[1])
    except Unreadable as error:
        print(f"error: {error.args[0]}", file=sys.stderr)
        sys.exit(*error.args[1:] or [4])
    print(json.dumps(found, indent=2))
    sys.exit(1 if found["problems"] else 0)
