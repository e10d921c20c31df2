"""Verifies a privlearn ledger without privlearn: ``python verify_ledger.py ledger.db``.
Format 2 of docs/ledger.md: chain, Merkle roots, envelopes, JSON types, the life of tokens, plans,
streams that end early, a cap in zCDP at every arrival index, that Gaussian noise has its loss, and
exact noise a grid.  Prints JSON that lists what is left unchecked.
Exit codes: 0 no problem, 1 problems, 4 unreadable, 6 unknown critical extension."""

# fmt: off
# ruff: noqa: E401, E701, E704, I001
import contextlib, functools, hashlib, itertools, json, math, pathlib, re, sqlite3, sys
from fractions import Fraction
MOST_BYTES, MOST_FILE, MOST_ENTRIES, MOST_DEPTH = 8 * 2**20, 64 * 2**30, 50_000_000, 64
TABLES = ["CREATE TABLE entries (\n    seq INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash "
          "TEXT NOT NULL\n) STRICT", "CREATE TABLE released (\n    digest TEXT PRIMARY KEY, value "
          "BLOB NOT NULL\n) STRICT, WITHOUT ROWID"]
# Names and types in objects, text if none: [ a list, / one of these, ? may be missing, ~ be null
FORMS = """envelope body:object writer:writer epoch:count nonce:nonce at:minute? root:hash? ext:ext?
; open software trust:trust adjacency:relation users:users cap:budget promise:object~ noise
simulated:bool side_information:[text durable:bool failure:exact? odometer:exact?~ population:name?~
attested:bool? features:features? ; close ; plan items:[item ; item label users:users loss:loss
count:count? ; issue token label users:users budget:budget planned:int?~ failure:exact?
allowance:text?~ ; spend token mechanism users:users trust:trust adjacency:relation domain:domain
noise:noise simulated:bool gain:real loss:loss arithmetic:sum/own/each derived:bool
parameters:object calibration:proved/published interactive:bool? profile:[list? ; retire token
outcome:released/unused/lost/uncovered digest:text?~ ; kept digest:hash upto:index ; learner
name:name parameters:object made:object ; reach token stop:count ; publish token digest:hash
upto:index ; resume head:unknown ; budget.zcdp kind rho:exact ; loss.gaussian kind
adjacency:relation mu_squared:exact ; noise.gaussian family std:real ; domain.ball kind radius:real
size:count norm:norm ; drawn sampler tables:hash grid:grid? bound:object? ; grid scale:double
bits:int"""
FORMS = {name: dict([*field.split(":"), "text"][:2] for field in fields)
         for name, *fields in map(str.split, FORMS.split(";"))}
TEXTS = {"text": "(?s).*", "name": "(?s).+", "relation": "replace-one|zero-out|add-remove",
         "writer": "[0-9a-f]{16}", "nonce": "[0-9a-f]{32}", "hash": "[0-9a-f]{64}",
         "minute": "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]Z",
         "double": r"0x1\.[0-9a-f]{13}p[+-][0-9]{1,4}", "whole": "0|[1-9][0-9]{0,18}",
         "family": "(generalized-)?gaussian|laplace|gumbel|exponential|cap|category",
         "feature": "[a-z][a-z0-9-]{0,63}/[1-9][0-9]{0,3}", "trust": "central|joint|local"}
TYPES = {"bool": [bool], "int": [int], "real": [int, float], "norm": [str, int, float],
         "object": [dict], "list": [list]}
TESTS = {"exact": lambda v: exact(v) >= 0, "count": lambda v: type(v) is int and v >= 1,
         "ext": lambda v: "exact/1" not in v or fits("drawn", v["exact/1"]),
         "index": lambda v: type(v) is int and v >= 0,
         "users": lambda v: [type(n) for n in v] == [int, int] and 0 <= v[0] < v[1],
         "features": lambda v: fits("[feature", [*v]) and fits("[critical/optional", [*v.values()])}
NUMBER = r"[+-]?(\d{1,400}/\d{1,400}|(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?0*(\d{1,3}))?)"
KINDS = ("open/plan/issue/spend/retire/close/learner/reach/publish/resume/"  # and, not looked into:
         "delegate/return/attest/functions/batches/sums")
KNOWN = {"exact/1", "participation/1", "resume/1"}
OF = {"exact/1": ["spend"], "resume/1": ["open", "retire"]}  # kinds of entries that have such data
WRONG = ValueError, LookupError, TypeError, AttributeError, ArithmeticError
class Unreadable(Exception): pass  # no ledger of format 2, or torn; code 6: unknown extension
def need(condition, problem):
    if not condition: raise ValueError(problem)
def sha(*parts): return hashlib.sha256(b"".join(parts)).digest()
def exact(text):
    need((m := re.fullmatch(NUMBER, text, re.A)) and int(m[5] or 0) <= 400, "not an exact number")
    return Fraction(text)
def fits(kind, value):  # whether a JSON value is what FORMS says
    if kind[0] == "[": return type(value) is list and all(fits(kind[1:], one) for one in value)
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
    if not set(text) & set(".eENI") and len(text) < 18 and abs(int(text)) < 2**53: return int(text)
    value = float(text)
    need(len(text) <= 400 and abs(value) < float("inf"), "a number that is too large, or none")
    whole = abs(value) < 1e21 and text == str(int(Fraction(repr(value))))  # as RFC 8785 writes it
    need(whole or set(text) & set(".eE"), "a large integer")
    return value
def parse(data):
    text = data.decode()
    brackets = re.sub(r'"(?:[^"\\]|\\.)*+"?|[^][{}]', "", text, flags=re.S)
    depths = itertools.accumulate(2 * (b in "{[") - 1 for b in brackets)
    need(max(depths, default=0) <= MOST_DEPTH, "depth")
    hooks, pairs = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), number), []
    value = json.loads(text, object_pairs_hook=lambda p: pairs.append(p) or dict(p), **hooks)
    need(all(len(dict(p)) == len(p) for p in pairs), "a name stands twice in one object")
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair
    return value
def rows(path):
    need(path.is_file() and path.stat().st_size <= MOST_FILE, "no file, or too large a one")
    with open(path, "rb") as file:
        if file.peek(1)[:1] == b"{":
            need(repr(parse(file.readline(1024))["privlearn_ledger"]) == "2", "not of format 2")
            for seq, line in enumerate(iter(lambda: file.readline(MOST_BYTES + 86), b"")):
                found = re.fullmatch(rb'{"entry":(.*),"hash":"(.{64})"}\n', line, re.DOTALL)
                need(found, "a line is torn, or no entry")
                yield seq, *found.groups()
            return
    log, size, steps = pathlib.Path(f"{path}-wal"), path.stat().st_size, []
    mode, size = ("mode=ro", size + log.stat().st_size) if log.exists() else ("immutable=1", size)
    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as db:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES + 1024)
        db.set_progress_handler(lambda: steps.append(1) or len(steps) > 100, 10_000)
        for of, is_ in ("application_id", 0x70726C6E), ("user_version", 2), ("encoding", "UTF-8"):
            need(db.execute(f"PRAGMA {of}").fetchone() == (is_,), "not of format 2")
        found = [str(sql) for (sql,) in db.execute("SELECT sql FROM sqlite_schema LIMIT 9")]
        need(sorted(found) in (TABLES[:1], TABLES), "other tables than those of a ledger")
        db.text_factory = bytes
        for seq, data, stored in db.execute("SELECT * FROM entries ORDER BY seq"):
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
        features, rule = body.get("features", {}), (body["told"] or {"rule": {"most": 1}})["rule"]
        self.resumes, self.begun = features.get("resume/1"), False
        need(self.resumes in (None, "critical"), "resume/1 must be critical")
        self.early = self.resumes and body["adjacency"] != "add-remove" and rule["most"] == 1
        if body["told"] or "participation/1" in features:
            self.leave("what a person pays who comes back (verify_persons.py)")
    def leave(self, what): self.known = self.unchecked.add(f"{what}, and sums with them")
    def amount(self, value, kind="zcdp", name="rho", part=1):
        need(value.get("adjacency") in (None, self.body["adjacency"]), "another relation's loss")
        if value["kind"] != kind: return self.leave(f"what has the kind {value['kind']}")
        found = exact(value[name]) * part
        common = math.lcm(self.common, found.denominator)
        need(found > 0 and common.bit_length() <= 4096, "zero, or no short common denominator")
        self.common = common
        return found
    def charge(self, users, rho):
        whole, shifts = self.body["users"], self.body["adjacency"] == "add-remove"
        within = whole[0] <= users[0] and users[1] <= whole[1]
        need(within and not (shifts and users != whole), "these are not its users")
        self.charges += [(users, rho)] * bool(self.known)
    def exceeded(self):  # at which index the cap is, at some time: a tree over time, by index
        half, edges = 1 << len(self.charges).bit_length(), {}
        sums, most = [0] * 2 * half, [0] * 2 * half  # of a stretch of time; of its beginnings
        for leaf, (users, rho) in enumerate(self.charges, half):
            for at, by in zip(users, (rho, -rho), strict=True):
                edges.setdefault(at, []).append((leaf, int(by * self.common)))
        for at in sorted(edges):
            for node, by in edges[at]:
                sums[node] += by
                most[node] = max(sums[node], 0)
                while node := node // 2:
                    sums[node] = sums[2 * node] + sums[2 * node + 1]
                    most[node] = max(most[2 * node], sums[2 * node] + most[2 * node + 1])
            if most[1] > self.cap * self.common: return (yield f"the cap is exceeded at index {at}")
    def add(self, body):
        kind = body["entry"]
        need(not self.closed, "after the close")
        self.closed = kind == "close"
        if kind not in FORMS:
            self.known = self.known and kind == "functions"
            self.unchecked.add(f"entries of kind {kind}, and sums with them")
        elif self.closed: need(all("outcome" in t for t in self.tokens.values()), "open tokens")
        elif kind == "plan":
            need(body["items"] and not self.tokens and self.items is None, "a plan comes first")
            self.items = [i | {"left": i.get("count", 1), "rests": []} for i in body["items"]]
            for item in self.items:
                item["rho"] = self.amount(item["loss"], "gaussian", "mu_squared", Fraction(1, 2))
                self.charge(item["users"], item["rho"] and item["rho"] * item["left"])
        elif kind != "open": getattr(self, kind)(body)
    def issue(self, body):
        rho, planned = self.amount(body["budget"]), body.get("planned")
        need(body["budget"]["kind"] == self.body["cap"]["kind"], "a budget of another currency")
        if body.get("failure", "0") != "0" or body.get("allowance") is not None:
            self.leave("tokens that may fail, or are of an allowance")
        need(body["token"] not in self.tokens and not self.body.get("attested"), "issued twice")
        need((planned is None) == (self.items is None), "planned without a plan, or not planned")
        item, users = {"rho": rho, "rests": []}, body["users"]
        if planned is None: self.charge(users, rho)
        else:
            item = self.items[planned]
            rests = [at for at in item["rests"] if at <= users[0] and users[1] == item["users"][1]]
            if item["left"] > 0 and users == item["users"]:  # as a rest, of a run that begins
                item["left"], rests = item["left"] - 1, [users[0]]
                item["rests"] += rests
            need(planned >= 0 and item["label"] == body["label"] and rests, "not left in the plan")
            need(not self.known or rho <= item["rho"], "more than was planned")
            item["rests"].remove(max(rests))
        self.tokens[body["token"]] = {"users": users, "rho": rho, "item": item, "upto": users[0]}
    def spend(self, body):
        token, noise, domain = self.tokens[body["token"]], body["noise"], body["domain"]
        need(not {"spend", "outcome"} & token.keys() and body["users"] == token["users"], "spent")
        need(all(body[n] == self.body[n] for n in ("trust", "adjacency", "simulated")), "of others")
        shared = body["trust"] == "local" and body["users"][1] - body["users"][0] > 1
        need(not shared or body["arithmetic"] == "each", "noise that several users share")
        stream = body.get("interactive") or body.get("profile")
        need(not stream or body["arithmetic"] != "sum", "a stream, or a profile, is no plain sum")
        if "lease" in body["parameters"]: self.leave("that leases pay for all of their runs")
        price = self.amount(body["loss"], "gaussian", "mu_squared", Fraction(1, 2))
        need(not self.known or price <= token["rho"], "more than was reserved")
        self.pay(token, price, token["users"][0])
        token["spend"], drawn = True, body["drawn"] or {}
        token["reach"] = body["users"][not (self.early and body.get("interactive"))]
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
    def learner(self, body):
        need(self.resumes and not self.begun and not self.tokens and self.items is None, "learner")
        self.begun = True
    def resume(self, body): need(self.resumes, "resume/1 was not declared")
    def publish(self, body):  # or a last value, or a stream that comes further
        token = self.tokens[body["token"]]
        need(self.resumes and "spend" in token and "outcome" not in token, "no rows are open")
        upto = body.get("upto", token["upto"])
        need(not self.known or token["upto"] <= upto <= token["reach"], "rows beyond the reach")
        token["upto"] = upto
        return token
    def reach(self, body):
        own, end = self.publish(body), body["stop"]
        own["reach"] = need(not self.known or own["reach"] < end <= own["users"][1], "stop") or end
    def retire(self, body):
        token, outcome = self.tokens[body["token"]], body["outcome"]
        need((outcome == "unused") == ("spend" not in token), "no such end for this token")
        need("outcome" not in token and outcome != "uncovered", "a second end, or one by the rows")
        if "kept" in body:
            need(outcome == "released", "a value of what released none")
            self.publish(fits("kept", body["kept"]) and body["kept"] | {"token": body["token"]})
        token["outcome"], back = outcome, token["users"][0]
        if self.known and outcome != "unused": back = token["reach"]  # it did not take the rest
        token["item"]["rests"].append(back)
        self.pay(token, 0, back)
    def pay(self, token, rho, back):  # the rest of what was reserved is free again
        if self.known and self.items is None:
            self.charges.append(([back, token["users"][1]], rho - token["rho"]))
        token["rho"] = rho
def root_of(peaks):  # RFC 6962, section 2.1
    root, *before = peaks[::-1] or [sha()]
    return functools.reduce(lambda node, peak: sha(b"\1", peak, node), before, root).hex()
def verify(path):  # head, root, problems, and what was not checked; raises Unreadable
    head, peaks, size, last, accounts, declared, by = bytes(32), [], 0, (0, ""), {}, {}, {}
    problems, unchecked = [], {"promises, odometers, heads, what several accountants share"}
    try:
        for seq, data, stored in rows(pathlib.Path(path)):
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
                need(sha(head, data).hex() == hash, "its hash does not fit")
                fits("envelope", envelope)
                then, last = last, (envelope["epoch"], envelope["writer"])
                need(last == then or (last[0] > then[0] and last[1] != then[1]), "writers")
                timed, root = kind not in ("retire", "publish"), kind == "close" and root_of(peaks)
                need(timed is ("at" in envelope) and root == envelope.get("root", False), "form")
                ext, theirs = envelope.get("ext", {}), declared.get(str(name), set())
                need(ext.keys() <= {n for n in theirs if kind in OF.get(n, [kind])}, "ext")
                need(fits("text", name) and fits(KINDS, kind), "no accountant, or an unknown kind")
                own = {k: v for k, v in body.items() if k not in ("accountant", "entry")}
                need(kind not in FORMS or fits(kind, own), kind)
                need((kind == "open") != (name in accounts), "opened twice, or not at all")
                body |= {"drawn": ext.get("exact/1"), "told": ext.get("participation/1")}
                body |= {"kept": ext["resume/1"]} if "resume/1" in ext else {}
                accounts[name] = accounts[name] if name in accounts else Account(body, unchecked)
                accounts[name].add(body)
                need(kind != "issue" or by.setdefault(envelope["nonce"], seq) == seq, "nonce twice")
            except WRONG as error:
                problems.append(f"entry {seq}: {error}")
            node, size, left = sha(b"\0", head := bytes.fromhex(hash)), seq + 1, seq
            while left & 1: node, left = sha(b"\1", peaks.pop(), node), left >> 1
            peaks.append(node)
        problems += [text for account in accounts.values() for text in account.exceeded()]
    except (OSError, RecursionError, sqlite3.Error, *WRONG) as error:
        raise Unreadable(str(error)) from None
    problems += [] if accounts else ["no accountant was opened"]
    optional = sorted(set().union(*declared.values()) - KNOWN)
    return {"entries": size, "head": head.hex(), "root": root_of(peaks), "problems": problems,
            "optional_extensions": optional, "unchecked": sorted(unchecked)}
if __name__ == "__main__":
    try: found = verify(sys.argv[1])
    except Unreadable as e: sys.exit(print("error:", e.args[0], file=sys.stderr) or (*e.args, 4)[1])
    sys.exit(print(json.dumps(found, indent=2)) or bool(found["problems"]))
