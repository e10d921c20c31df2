"""Verifies a privlearn ledger without privlearn: ``python verify_ledger.py ledger.db``.

Only Python's standard library, for format 2 of docs/ledger.md: chain, Merkle roots, envelopes, JSON
types, the life of tokens, plans, a cap in zCDP at every arrival index, that Gaussian noise has the
stated loss, and exact noise a grid of its scale.  Prints JSON that lists what is left unchecked.
Exit codes: 0 no problem, 1 problems, 4 unreadable, 6 unknown critical extension.
"""

import hashlib
import json
import math
import re
import sqlite3
import sys
from contextlib import closing
from fractions import Fraction
from functools import reduce
from itertools import accumulate
from pathlib import Path

# fmt: off
MOST_BYTES, MOST_FILE, MOST_ENTRIES, MOST_DEPTH = 8 * 2**20, 64 * 2**30, 50_000_000, 64
TABLES = ["CREATE TABLE entries (\n    seq INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash "
          "TEXT NOT NULL\n) STRICT", "CREATE TABLE released (\n    digest TEXT PRIMARY KEY, value "
          "BLOB NOT NULL\n) STRICT, WITHOUT ROWID"]
# Objects: names and their types, text where none stands; [ is a list of such, / one of these words,
# ? may be missing, ~ may be null.  Entries, budgets, losses, … of other kinds are not looked into.
FORMS = """envelope body:object writer:writer epoch:count nonce:nonce at:minute? root:hash?
  ext:ext? ; open software trust:trust adjacency:relation users:users cap:budget promise:object~
  noise simulated:bool side_information:[text durable:bool failure:exact? odometer:exact?~
  population:name?~ attested:bool? features:features? ; close
; plan items:[item ; item label users:users loss:loss count:count?
; issue token label users:users budget:budget planned:int?~ failure:exact? allowance:text?~
; spend token mechanism users:users trust:trust adjacency:relation domain:domain noise:noise
  simulated:bool gain:real loss:loss arithmetic:sum/own/each derived:bool parameters:object
  calibration:proved/published interactive:bool? profile:[list?
; retire token outcome:released/unused/lost/uncovered digest:text?~
; budget.zcdp kind rho:exact ; loss.gaussian kind adjacency:relation mu_squared:exact
; noise.gaussian family std:real ; domain.ball kind radius:real size:count norm:norm
; drawn sampler tables:hash grid:grid? bound:object? ; grid scale:double bits:int"""
FORMS = {name: dict([*field.split(":"), "text"][:2] for field in fields)
         for name, *fields in map(str.split, FORMS.split(";"))}
TEXTS = {"text": "(?s).*", "name": "(?s).+", "relation": "replace-one|zero-out|add-remove",
         "writer": "[0-9a-f]{16}", "nonce": "[0-9a-f]{32}", "hash": "[0-9a-f]{64}",
         "minute": "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]Z",
         "double": r"0x1\.[0-9a-f]{13}p[+-][0-9]{1,4}", "whole": "0|[1-9][0-9]{0,18}",
         "family": "(generalized-)?gaussian|laplace|gumbel|exponential|cap|category",
         "feature": "[a-z][a-z0-9-]{0,63}/[1-9][0-9]{0,3}", "trust": "central|joint|local"}
TYPES = {"bool": [bool], "int": [int], "real": [int, float], "norm": [str, int, float]}
TYPES |= {"object": [dict], "list": [list]}
TESTS = {"exact": lambda v: exact(v) >= 0, "count": lambda v: type(v) is int and v >= 1,
         "ext": lambda v: "exact/1" not in v or fits("drawn", v["exact/1"]),
         "users": lambda v: [type(n) for n in v] == [int, int] and 0 <= v[0] < v[1],
         "features": lambda v: fits("[feature", [*v]) and fits("[critical/optional", [*v.values()])}
NUMBER = (r"[+-]?(?:[0-9]{1,400}/[0-9]{1,400}|(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})"
          r"(?:[eE][+-]?0*([0-9]{1,3}))?)")
KINDS = "open/plan/issue/spend/retire/close/delegate/return/attest/functions/batches"
KNOWN = {"exact/1", "participation/1"}
WRONG = ValueError, LookupError, TypeError, AttributeError, ArithmeticError
class Unreadable(Exception):
    """Not a ledger of format 2, torn, beyond a limit; code 6: needs an unknown extension."""
def need(condition, problem):
    if not condition:
        raise ValueError(problem)
def exact(text):
    need((m := re.fullmatch(NUMBER, text)) and int(m[1] or 0) <= 400, "not an exact number")
    return Fraction(text)
def fits(kind, value):  # whether a JSON value is what FORMS says
    if kind[0] == "[":
        return type(value) is list and all(fits(kind[1:], one) for one in value)
    if kind in ("budget", "loss", "noise", "domain"):
        kind += "." + value.get("family" if kind == "noise" else "kind", "")
        return type(value) is dict if kind not in FORMS else fits(kind, value)
    if kind in TEXTS or "/" in kind:
        return type(value) is str and re.fullmatch(TEXTS.get(kind, kind.replace("/", "|")), value)
    if kind not in FORMS:
        return type(value) in TYPES[kind] if kind in TYPES else TESTS[kind](value)
    need(value.keys() <= FORMS[kind].keys(), f"other names than those of {kind}")
    for name, form in FORMS[kind].items():
        there = name in value and not ("~" in form and value[name] is None)
        good = fits(form.rstrip("?~"), value[name]) if there else name in value or "?" in form
        need(good, f"{name} is missing or of another form")
    return True
def number(text):
    if not set(text) & set(".eENI") and len(text) < 18 and abs(int(text)) < 2**53:
        return int(text)
    value = float(text)
    need(len(text) <= 400 and abs(value) < float("inf"), "a number that is too large, or none")
    whole = abs(value) < 1e21 and text == str(int(Fraction(repr(value))))  # as RFC 8785 writes it
    need(whole or set(text) & set(".eE"), "a large integer")
    return value
def parse(data):
    text = data.decode()
    brackets = re.sub(r'"(?:[^"\\]|\\.)*+"?|[^][{}]', "", text, flags=re.S)
    need(max(accumulate(2 * (b in "{[") - 1 for b in brackets), default=0) <= MOST_DEPTH, "depth")
    hooks, pairs = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), number), []
    value = json.loads(text, object_pairs_hook=lambda p: pairs.append(p) or dict(p), **hooks)
    need(all(len(dict(p)) == len(p) for p in pairs), "a name stands twice in one object")
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair
    return value
def rows(path):
    need(path.is_file() and path.stat().st_size <= MOST_FILE, "no file, or too large a one")
    with open(path, "rb") as file:
        if file.read(1) == b"{":
            file.seek(0)
            need(repr(parse(file.readline(1024))["privlearn_ledger"]) == "2", "not of format 2")
            for seq, line in enumerate(iter(lambda: file.readline(MOST_BYTES + 86), b"")):
                frame = line[:9], line[-76:-67], line[-3:]
                need(frame == (b'{"entry":', b',"hash":"', b'"}\n'), "a line is torn, or no entry")
                yield seq, line[9:-76], line[-67:-3]
            return
    log, size, steps = Path(f"{path}-wal"), path.stat().st_size, []
    mode, size = ("mode=ro", size + log.stat().st_size) if log.exists() else ("immutable=1", size)
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES + 1024)
        connection.set_progress_handler(lambda: steps.append(1) or len(steps) > 100, 10_000)
        for of, is_ in ("application_id", 0x70726C6E), ("user_version", 2), ("encoding", "UTF-8"):
            need(connection.execute(f"PRAGMA {of}").fetchone() == (is_,), "not of format 2")
        found = [str(sql) for (sql,) in connection.execute("SELECT sql FROM sqlite_schema LIMIT 9")]
        need(sorted(found) in (TABLES[:1], TABLES), "other tables than those of a ledger")
        connection.text_factory = bytes
        for seq, data, stored in connection.execute("SELECT * FROM entries ORDER BY seq"):
            size -= len(data) + len(stored)
            need(size >= 0, "entries that are larger than their file")
            steps.clear()
            yield seq, data, stored
class Account:
    def __init__(self, body, unchecked):
        self.body, self.unchecked, self.known, self.closed = body, unchecked, True, False
        self.tokens, self.items, self.charges, self.common = {}, None, [], 1
        need(body["trust"] == "central" or body["adjacency"] != "add-remove", "users shift")
        need(body["trust"] == "local" or not body.get("attested"), "attested is for local trust")
        self.cap, self.common = self.amount(body["cap"]), 1
        if body["told"] or "participation/1" in body.get("features", {}):
            self.leave("what a person pays who comes back (verify_persons.py)")
    def leave(self, what):
        self.known = False
        self.unchecked.add(f"{what}, and sums with them")
    def amount(self, value, kind="zcdp", name="rho", part=1):
        need(value.get("adjacency") in (None, self.body["adjacency"]), "another relation's loss")
        if value["kind"] != kind:
            return self.leave(f"what has the kind {value['kind']}")
        found = exact(value[name]) * part
        common = math.lcm(self.common, found.denominator)
        need(found > 0 and common.bit_length() <= 4096, "zero, or no short common denominator")
        self.common = common
        return found
    def charge(self, users, rho):
        (first, stop), whole = users, self.body["users"]
        shifting = self.body["adjacency"] == "add-remove" and users != whole
        need(whole[0] <= first and stop <= whole[1] and not shifting, "these are not its users")
        self.charges += [(self.seq, users, rho)] * self.known
    def exceeded(self):  # the entries whose charge exceeds the cap, by a tree over indices
        edges = sorted({edge for _, users, _ in self.charges for edge in users})
        place, most = {edge: i for i, edge in enumerate(edges)}, [0] * 4 * len(edges)
        def add(node, low, high, first, stop, by):  # and the largest sum of these within the node
            left, middle = 2 * node, (low + high) // 2
            if first <= low and high <= stop:
                most[node] += by
                return most[node]
            halves = (left, low, middle), (left + 1, middle, high)
            above = most[node] - max(most[left : left + 2])
            found = [add(*h, first, stop, by) for h in halves if first < h[2] and h[1] < stop]
            most[node] = above + max(most[left : left + 2])
            return above + max(found)
        for seq, users, rho in self.charges:
            total = add(1, 0, len(edges) - 1, *map(place.get, users), int(rho * self.common))
            if rho > 0 and total > self.cap * self.common:
                yield f"entry {seq}: the cap is exceeded"
    def add(self, body, seq):
        kind, self.seq = body["entry"], seq
        need(not self.closed, "after the close")
        if kind not in FORMS:
            self.known = self.known and kind == "functions"
            self.unchecked.add(f"entries of kind {kind}, and sums with them")
        elif kind == "close":
            need(all("outcome" in token for token in self.tokens.values()), "tokens without an end")
            self.closed = True
        elif kind == "plan":
            need(body["items"] and not self.tokens and self.items is None, "a plan comes first")
            self.items = [item | {"left": item.get("count", 1)} for item in body["items"]]
            for item in self.items:
                item["rho"] = self.amount(item["loss"], "gaussian", "mu_squared", Fraction(1, 2))
                self.charge(item["users"], item["rho"] and item["rho"] * item["left"])
        elif kind != "open":
            getattr(self, kind)(body)
    def issue(self, body):
        rho, planned = self.amount(body["budget"]), body.get("planned")
        need(body["budget"]["kind"] == self.body["cap"]["kind"], "a budget of another currency")
        if body.get("failure", "0") != "0" or body.get("allowance") is not None:
            self.leave("tokens that may fail, or are of an allowance")
        need(body["token"] not in self.tokens and not self.body.get("attested"), "issued twice")
        need((planned is None) == (self.items is None), "planned without a plan, or not planned")
        item = {"left": 0, "rho": rho} if planned is None else self.items[planned]
        if planned is None:
            self.charge(body["users"], rho)
        else:
            named = (item["label"], item["users"]) == (body["label"], body["users"])
            need(planned >= 0 and item["left"] > 0 and named, "no such token is left in the plan")
            need(not self.known or rho <= item["rho"], "more than was planned")
            item["left"] -= 1
        self.tokens[body["token"]] = {"users": body["users"], "rho": rho, "item": item}
    def spend(self, body):
        token, noise, domain = self.tokens[body["token"]], body["noise"], body["domain"]
        need("spend" not in token and "outcome" not in token, "spent twice")
        need(body["users"] == token["users"], "spent for other users")
        for name in ("trust", "adjacency", "simulated"):
            need(body[name] == self.body[name], f"{name} is not the accountant's")
        shared = body["trust"] == "local" and body["users"][1] - body["users"][0] > 1
        need(not shared or body["arithmetic"] == "each", "noise that several users share")
        stream = body.get("interactive") or body.get("profile")
        need(not stream or body["arithmetic"] != "sum", "a stream, or a profile, is no plain sum")
        price = self.amount(body["loss"], "gaussian", "mu_squared", Fraction(1, 2))
        if self.known:
            need(price <= min(token["rho"], token["item"]["rho"]), "more than was reserved")
            self.pay(token, price)
        token["spend"], drawn = True, body["drawn"] or {}
        family, kind = noise.get("family"), domain.get("kind")
        self.unchecked |= {"tables, samplers, most bounds of exact noise"} if drawn else set()
        if drawn and ({"grid", "bound"} & drawn.keys() or body["arithmetic"] == "sum"):
            bits, scale = drawn["grid"]["bits"], float.fromhex(drawn["grid"]["scale"])
            largest, unit = drawn["bound"]["largest"], noise.get("std", noise.get("scale"))
            need(fits("whole", largest) and int(largest) < 2**61 and 30 <= bits <= 40, "grid")
            within = kind != "ball" or int(largest) * Fraction(scale) / 2**bits <= domain["radius"]
            need(not fits("family", family) or (unit == scale and within), "not the noise's grid")
        if not body["derived"] or body.get("profile"):
            self.unchecked.add("losses, domains and noise that are a mechanism's word")
        elif (family, kind, domain.get("norm")) != ("gaussian", "ball", "l2"):
            self.unchecked.add(f"what {family} noise earns in a {kind} domain")
        elif price is not None:
            radius, gain, std = map(Fraction, (domain["radius"], body["gain"], noise["std"]))
            reach = radius * gain * (2 if body["adjacency"] == "replace-one" else 1)
            need(min(reach, std) > 0 and 2 * price >= (reach / std) ** 2, "it earns a larger loss")
    def retire(self, body):
        token, outcome = self.tokens[body["token"]], body["outcome"]
        need((outcome == "unused") == ("spend" not in token), "no such end for this token")
        need("outcome" not in token and outcome != "uncovered", "a second end, or one by the rows")
        token["outcome"] = outcome
        if outcome == "unused":
            token["item"]["left"] += 1
            self.pay(token, 0)
    def pay(self, token, rho):  # of what was reserved, the rest is free again
        if self.known and self.items is None:
            self.charges.append((self.seq, token["users"], rho - token["rho"]))
        token["rho"] = rho
def root_of(peaks):  # RFC 6962, section 2.1
    last = peaks[-1] if peaks else hashlib.sha256(b"").digest()
    return reduce(lambda n, p: hashlib.sha256(b"\1" + p + n).digest(), peaks[-2::-1], last).hex()
def verify(path):  # head, root, problems, and what was not checked; raises Unreadable
    head, peaks, size, last, accounts, declared = bytes(32), [], 0, (0, ""), {}, {}
    problems, unchecked = [], {"promises, odometers, what several accountants have in common"}
    try:
        for seq, data, stored in rows(Path(path)):
            envelope, hash = parse(data), stored.decode()
            body = envelope["body"]
            name, kind, features = map(body.get, ("accountant", "entry", "features"))
            need(envelope.keys() <= FORMS["envelope"].keys() and seq < MOST_ENTRIES, "envelope")
            need(fits("object", body) and fits("hash", hash), "body or hash")
            if kind == "open" and isinstance(features, dict):
                if any(v == "critical" and k not in KNOWN for k, v in features.items()):
                    raise Unreadable(f"unknown critical extensions: {features}", 6)
                declared.setdefault(str(name), features.keys())
            try:
                need(seq == size, "entries were cut or moved")
                need(hashlib.sha256(head + data).hexdigest() == hash, "its hash does not fit")
                fits("envelope", envelope)
                then, last = last, (envelope["epoch"], envelope["writer"])
                need(last == then or (last[0] > then[0] and last[1] != then[1]), "writers")
                need(("at" in envelope) == (kind != "retire"), "time")
                need(envelope.get("root") == (root_of(peaks) if kind == "close" else None), "root")
                ext, theirs = envelope.get("ext", {}), declared.get(str(name), set())
                need(ext.keys() <= theirs - {"exact/1" * (kind != "spend")}, "ext")
                need(fits("text", name) and fits(KINDS, kind), "no accountant, or an unknown kind")
                own = {k: v for k, v in body.items() if k not in ("accountant", "entry")}
                need(kind not in FORMS or fits(kind, own), kind)
                need((kind == "open") != (name in accounts), "opened twice, or not at all")
                body |= {"drawn": ext.get("exact/1"), "told": ext.get("participation/1")}
                accounts[name] = accounts[name] if name in accounts else Account(body, unchecked)
                accounts[name].add(body, seq)
            except WRONG as error:
                problems.append(f"entry {seq}: {error}")
            head, size, left = bytes.fromhex(hash), seq + 1, seq
            node = hashlib.sha256(b"\0" + head).digest()
            while left & 1:
                node, left = hashlib.sha256(b"\1" + peaks.pop() + node).digest(), left >> 1
            peaks.append(node)
        problems += [text for account in accounts.values() for text in account.exceeded()]
    except (OSError, RecursionError, sqlite3.Error, *WRONG) as error:
        raise Unreadable(str(error)) from None
    problems += [] if accounts else ["no accountant was opened"]
    told = {"entries": size, "head": head.hex(), "root": root_of(peaks), "problems": problems}
    told["optional_extensions"] = sorted(set().union(*declared.values()) - KNOWN)
    return told | {"unchecked": sorted(unchecked)}

if __name__ == "__main__":
    try:
        found = verify(sys.argv[1])
    except Unreadable as error:
        sys.exit(print(f"error: {error.args[0]}", file=sys.stderr) or (*error.args[1:], 4)[0])
    sys.exit(print(json.dumps(found, indent=2)) or bool(found["problems"]))
