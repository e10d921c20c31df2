"""Verifies a privlearn ledger without privlearn: ``python verify_ledger.py ledger.db``.
Format 2 of docs/ledger.md: chain, Merkle roots, envelopes, JSON types, the life of tokens, plans,
streams that end early, phases, a cap in zCDP or pure epsilon at every arrival index, caps inside it
in every epoch, that Gaussian or Laplace noise has its loss, and exact noise a grid.  Prints JSON
with what is left unchecked.
Exit codes: 0 no problem, 1 problems, 4 unreadable, 6 unknown critical extension."""

# fmt: off
# ruff: noqa: E401, E701, E704, I001
import calendar, contextlib, functools, hashlib, itertools, json, math, pathlib, re, sqlite3
import struct, sys, time
from fractions import Fraction
MOST_BYTES, MOST_FILE, MOST_ENTRIES, MOST_DEPTH = 8 * 2**20, 64 * 2**30, 50_000_000, 64
TABLES = ["CREATE TABLE entries (\n    seq INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash "
          "TEXT NOT NULL\n) STRICT", "CREATE TABLE released (\n    digest TEXT PRIMARY KEY, value "
          "BLOB NOT NULL\n) STRICT, WITHOUT ROWID"]
# Names and types in objects, text if none: [ a list, / one of these, ? may be missing, ~ be null
FORMS = """envelope body:object writer:writer epoch:count nonce:nonce at:minute? root:hash? ext:ext?
; open software trust:trust adjacency:relation users:users cap:budget promise:object~ noise
simulated:bool side_information:[text durable:bool failure:chance? odometer:chance?~ attested:bool?
population:name?~ features:features? ; close ; plan items:[item ; item label users:users loss:loss
count:count? ; issue token label users:users budget:budget planned:int?~ failure:chance?
allowance:text?~ epochs:[index?~ ; cap allowance label:name users:users budget:budget
failure:chance? within:text?~ every:count?~ since:minute?~ epochs:users?~ to:name?~ until:minute?~ ;
spend token mechanism users:users trust:trust adjacency:relation domain:domain noise:noise
simulated:bool gain:real loss:loss arithmetic:sum/own/each derived:bool parameters:object
calibration:proved/published interactive:bool? profile:[list? ; retire token
outcome:released/unused/lost/uncovered digest:text?~ ; kept digest:hash upto:index ; learner
name:name parameters:object made:object ; reach token stop:count ; phase token stop:count ; phases
horizon:count outputs:count ; publish token digest:hash upto:index ; resume head:unknown ; heads
heads:elsewhere ; batches starts:[int ; functions token names:[name ; delegate allowance label
users:users budget:budget failure:chance? within:text?~ epochs:[index?~ ; return allowance ; attest
by:name mechanism:name label users:users adjacency:relation loss:loss most_messages:count
count:count planned:int?~ unseen:[name? ; sums label number:index upto:index heard:index
rejected:object step:real digest:hash ; lease runs:count ; metered package:name version:name
parameters:object ; budget.zcdp kind rho:exact ; budget.pure kind epsilon:exact ; budget.gdp kind
mu_squared:exact ; budget.renyi kind curve:[list ; budget.approx kind epsilon:exact delta:exact ;
loss.gaussian mu_squared:exact ; loss.zcdp rho:exact ; loss.pure epsilon:exact ; loss.laplace
epsilon:exact ; loss.bounded-range epsilon:exact ; loss.renyi-curve curve:[list ; loss.approx
epsilon:exact delta:exact ; loss.randomized-response epsilon:exact categories:int ;
loss.discrete-laplace epsilon:exact sensitivity:int ; loss.discrete-gaussian sensitivity:exact
std:exact ; loss.generalized-gaussian kappa:exact sensitivity:exact std:exact ;
loss.subsampled-gaussian noise_multiplier:exact sampling_probability:exact ; loss.may-fail loss:loss
failure:exact ; loss.composed parts:[part ; part loss:loss count:int ; loss.by-arrival
parts:[stretch ; stretch users:int loss:loss ; loss.objective-perturbation difference:real
trace:real ridge:real noise_std:real rank:int directions:int dimension:int? ; loss.visits loss:loss
most:count apart:count ; loss.least losses:[loss ; loss.declared of:object loss:loss
distribution:text? ; loss.repeat-and-select mu_squared:exact delta:exact gamma:exact eta:exact ;
loss.selected loss:loss delta:exact tries:exact eta:exact? ; loss.poisson-sampled sample:loss
rate:exact ; loss.truncated-poisson sample:loss rate:exact dataset_size:int largest_batch:int ;
loss.fixed-batch sample:loss population:int batch:int replacement:with/without ;
loss.gaussian-mixture sensitivities:[exact probabilities:[exact std:exact ; noise.gaussian family
std:real ; noise.laplace family scale:real ; domain.ball kind radius:real size:count norm:norm ;
domain.box kind low:real high:real size:count ; domain.one-of kind inner:domain arms:count ;
domain.gradient-hessian kind dim:count weight:real ; drawn sampler tables:hash grid:grid?
bound:object? ; grid scale:double bits:int"""
FORMS = {name: ({"kind": "text", "adjacency": "relation"} if name[:5] == "loss." else {})
         | dict([*field.split(":"), "text"][:2] for field in fields)
         for name, *fields in map(str.split, FORMS.split(";"))}
TEXTS = {"text": "(?s).*", "name": "(?s).+", "elsewhere": "elsewhere", "unknown": "unknown",
         "relation": "replace-one|zero-out|add-remove",
         "writer": "[0-9a-f]{16}", "nonce": "[0-9a-f]{32}", "hash": "[0-9a-f]{64}",
         "minute": "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]Z",
         "double": r"0x1\.[0-9a-f]{13}p[+-][0-9]{1,4}", "whole": "0|[1-9][0-9]{0,18}",
         "family": "(generalized-)?gaussian|laplace|gumbel|exponential|cap|category",
         "feature": "[a-z][a-z0-9-]{0,63}/[1-9][0-9]{0,3}", "trust": "central|joint|local"}
TYPES = {"bool": [bool], "int": [int], "real": [int, float], "norm": [str, int, float],
         "object": [dict], "list": [list]}
TESTS = {"exact": lambda v: exact(v) >= 0, "chance": lambda v: 0 <= exact(v) < 1,
         "count": lambda v: type(v) is int and v >= 1,
         "ext": lambda v: all(type(v[n]) is dict for n in KNOWN & v.keys())
         and ("exact/1" not in v or fits("drawn", v["exact/1"])),
         "index": lambda v: type(v) is int and v >= 0,
         "users": lambda v: [type(n) for n in v] == [int, int] and 0 <= v[0] < v[1],
         "features": lambda v: fits("[feature", [*v]) and fits("[critical/optional", [*v.values()])}
HEAD = rb"(privlearn ledger head\nentries (\d{12})\nhash ([0-9a-f]{64})\n)check ([0-9a-f]{16})\n"
NUMBER = r"[+-]?(\d{1,400}/\d{1,400}|(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?0*(\d{1,3}))?)"
UNLOOKED = "delegate", "return", "attest", "sums"  # entries of which only the form is checked
KINDS = ("open", "plan", "issue", "spend", "retire", "close", "learner", "reach", "publish",
         "phase", "resume", "functions", "batches", "cap", *UNLOOKED)
KNOWN = {"exact/1", "participation/1", "resume/1"}
OF = {"exact/1": ["spend"], "resume/1": ["open", "retire"],  # kinds of entries that have such data
      "participation/1": ["open", "issue", "spend", "retire"]}
PRICED = {  # what is added up, by the kinds of the cap and of a budget or loss: where, times what
    ("zcdp", "zcdp"): ("rho", 1), ("zcdp", "gaussian"): ("mu_squared", Fraction(1, 2)),
    ("pure", "pure"): ("epsilon", 1), ("pure", "laplace"): ("epsilon", 1)}
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
        need(kind in FORMS or kind[0] in "nd", f"{kind}: not known")  # but noise, domains
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
def whole(path, log, db):  # not so a copy without the log of an open ledger; a head vouches for it
    if log.exists() and db.execute("PRAGMA journal_mode").fetchone() != ("wal",): return True
    with open(log if log.exists() else path, "rb") as file:
        header = file.read(32)
        if not log.exists() and header[18:20] != b"\2\2": return True
        while log.exists() and (frame := file.read(24))[8:16] == header[16:24] != b"":
            if any(frame[4:8]): return True  # the log holds a commit
            file.seek(int.from_bytes(header[8:12], "big"), 1)
    head = pathlib.Path(f"{path.resolve()}.head")
    said = re.fullmatch(HEAD, head.read_bytes()) if head.is_file() else None
    need(said is None or sha(said[1]).hex()[:16] == said[4].decode(), "its head is damaged")
    sql = "SELECT hash FROM entries WHERE seq = ?"
    return said and db.execute(sql, [int(said[2]) - 1]).fetchone() == (said[3].decode(),)
def held(value, digest):  # whether a value is what it is called
    form, _, numbers = value.partition(b"\n")
    try: told = json.loads(form)
    except ValueError: return False
    return sha(f"{told['dtype']}{(*told['shape'],)}".encode(), numbers) == digest
def waiting(path, seq, head):  # beside an open ledger: what continues its chain, and needs no sync
    tail, at = path.read_bytes() if path.is_file() else b"", 0
    need(len(tail) <= 2**20 + 2 * MOST_BYTES, "a tail that is too large")
    while at + 72 <= len(tail) and any(tail[at : at + 4]):
        size, more, stored, digest = struct.unpack_from(">II32s32s", tail, at)
        begin, at = at + 72, at + 72 + size + more
        data, value = tail[begin : begin + size], tail[begin + size : at]
        ends = value[-1:] == b"\0" and not any(tail[at:])  # torn, and these are bytes of an end?
        if at > len(tail) or (ends and not held(value, digest)): return
        if sha(head, data) == stored:
            seq, head, body = seq + 1, stored, parse(data)["body"]
            waits = body["entry"] in ("issue", "publish", "sums", "retire")
            need(waits and body.get("outcome") != "uncovered", "its tail holds what cannot wait")
            yield seq, data, head.hex().encode()
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
        need(whole(path, log, db), "its log, which may hold its last entries, is missing or empty")
        db.text_factory = bytes
        seq, stored = -1, b"0" * 64
        for seq, data, stored in db.execute("SELECT * FROM entries ORDER BY seq"):
            size -= len(data) + len(stored)
            need(size >= 0, "entries that are larger than their file")
            steps.clear()
            yield seq, data, stored
        yield from waiting(path.resolve().with_name(f"{path.resolve().name}-tail"), seq,
                           bytes.fromhex(stored.decode()))
def minute(text): return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%MZ")) // 60
def kinds(loss):  # of a loss and of all in it
    inner = [loss.get("loss"), *(part["loss"] for part in loss.get("parts", []))]
    return {loss["kind"]}.union(*map(kinds, filter(None, inner + loss.get("losses", []))))
class Account:
    """One accountant. What is asked of entries one by one, of the life of tokens, of plans, of how
    far streams come and of batches is asked in any case; `adds_up` is for sums alone."""
    def __init__(self, body):
        self.body, self.unchecked, self.adds_up, self.closed = body, set(), True, False
        self.tokens, self.items, self.begun, self.learned = {}, None, False, False
        self.charges, self.common, self.waits = {}, 1, []
        self.caps, self.labels, self.parts = {}, set(), set()  # inside; of caps; that are reserved
        need(body["trust"] == "central" or body["adjacency"] != "add-remove", "users shift")
        need(body["trust"] == "local" or not body.get("attested"), "attested is for local trust")
        self.cap, self.common = self.amount(body["cap"]), 1
        late, features = exact(body.get("odometer") or "1e-9"), body.get("features", {})
        need(0 < late < 1 - exact(body.get("failure", "0")), "odometer and failure")
        self.resumes = features.get("resume/1")
        need(self.resumes in (None, "critical"), "resume/1 must be critical")
        need(fits("heads", body.get("kept", {"heads": "elsewhere"})), "data of resume/1")
        rule, said = body["told"], features.get("participation/1")
        need(said == (None if rule is None else "critical"), "the rule, or its declaration")
        self.early = self.resumes and body["adjacency"] != "add-remove"
        self.once = rule is None or rule["rule"]["most"] == 1
        if rule is not None: self.of_persons(rule)
        if body["simulated"]: self.unchecked.add("nothing protects anybody: the noise is simulated")
    def of_persons(self, told): self.leave("what a person pays who comes back (verify_persons.py)")
    def leave(self, what):
        self.unchecked.add(f"{what}, and sums with them")
        self.adds_up = False
    def amount(self, value):  # in what the cap is in; None: of another kind
        need(value.get("adjacency") in (None, self.body["adjacency"]), "another relation's loss")
        name, part = PRICED.get((self.body["cap"]["kind"], value["kind"]), (None, 1))
        if name is None: return self.leave(f"what has the kind {value['kind']}")
        found = exact(value[name]) * part
        common = math.lcm(self.common, found.denominator)
        need(found > 0 and common.bit_length() <= 4096, "zero, or no short common denominator")
        self.common = common
        return found
    def stated(self, loss):  # of one row, or of all visits of a person if it says so
        return self.amount(loss["loss"] if loss["kind"] == "visits" else loss)
    def price(self, loss, users):  # None: of persons, verify_persons.py
        return None if self.body["told"] else self.stated(loss)
    def kept_until(self, token): return token["reach"]
    def within(self, users):
        whole, shifts = self.body["users"], self.body["adjacency"] == "add-remove"
        need(whole[0] <= users[0] and users[1] <= whole[1], "these are not its users")
        need(users == whole or not shifts, "only all users together")
    def charge(self, users, rho, levels=(None,)):  # or free, if below zero
        for level in levels if self.adds_up and rho and users[0] < users[1] else ():
            self.charges.setdefault(level, []).append((users, rho))
    def planned(self, item): self.charge(item["users"], item["rho"] and item["rho"] * item["left"])
    def reserved(self, token, body): self.charge(token["users"], token["rho"], token["levels"])
    def spent(self, token, rho, body):
        more = token["rho"] and rho and rho - token["rho"]
        self.charge(token["users"], more, token["levels"])
    def ended(self, token, stop):
        self.charge([stop, token["users"][1]], token["rho"] and -token["rho"], token["levels"])
    def limit(self, level):  # of the account, or of a cap inside it in an epoch, and its name
        if level is None: return self.cap, "the cap"
        return self.caps[level[0]]["rho"], "the cap {}, epoch {},".format(*level)
    def exceeded(self):
        for level, charges in self.charges.items():
            yield from self.above(charges, *self.limit(level))
    def above(self, charges, cap, name):  # at which index, at some time: a tree over time, by index
        half, edges = 1 << len(charges).bit_length(), {}
        sums, most = [0] * 2 * half, [0] * 2 * half  # of a stretch of time; of its beginnings
        for leaf, (users, rho) in enumerate(charges, half):
            for at, by in zip(users, (rho, -rho), strict=True):
                edges.setdefault(at, []).append((leaf, int(by * self.common)))
        for at in sorted(edges):
            for node, by in edges[at]:
                sums[node] += by
                most[node] = max(sums[node], 0)
                while node := node // 2:
                    sums[node] = sums[2 * node] + sums[2 * node + 1]
                    most[node] = max(most[2 * node], sums[2 * node] + most[2 * node + 1])
            if most[1] > cap * self.common: return (yield f"{name} is exceeded at index {at}")
    def add(self, body):
        kind = body["entry"]
        need(not self.closed, "after the close")
        if kind == "cap": self.inside(body)
        elif kind == "return" and body["allowance"] in self.caps:
            self.path(body["allowance"])[-1]["ended"] = True
        elif kind in UNLOOKED:
            self.begun = self.begun or kind in ("delegate", "attest")
            self.leave(f"entries of kind {kind}")
            if kind == "delegate": self.parts.add(body["allowance"])
        elif kind != "open": getattr(self, kind)(body)
    def path(self, name):  # of a cap that is open: all that it is inside of, and itself
        found = [self.caps[name]] if name in self.caps else []
        need(found or name is None or name in self.parts, "of a cap that was not made")
        above = found and self.path(found[0].get("within"))
        need(not any(cap["ended"] for cap in found), "of a cap that has ended")
        return [*above, *found]
    def inside(self, body):  # a cap inside the account, or inside another one
        named = body.get("within"), body["label"]
        fresh = body["allowance"] not in {*self.caps, *self.parts} and named not in self.labels
        plain = self.items is None and not self.body.get("attested")
        need(fresh and plain, "a cap that was made before, or beside a plan")
        need(body["budget"]["kind"] == self.body["cap"]["kind"], "a cap in another currency")
        path, rho = self.path(named[0]), self.amount(body["budget"])
        need(len(path) < 64, "caps that lie too deep")
        if exact(body.get("failure", "0")): self.leave("caps of what may fail")
        self.begun = True
        self.within(body["users"])
        every, since, numbers = map(body.get, ("every", "since", "epochs"))
        need((every is None) == (since is None) and not (every and numbers), "renews in two ways")
        need(since is None or minute(since) <= minute(body["at"]), "it renews from a later time")
        for outer in path:
            (low, high), within, above = body["users"], outer["users"], outer.get("epochs")
            need(within[0] <= low < high <= within[1], "users of none that it is inside of")
            need(None in (rho, outer["rho"]) or rho <= outer["rho"], "larger than what it is in")
            if every and outer.get("every"):
                shift = minute(since) - minute(outer["since"])
                need(outer["every"] % every == shift % every == 0, "epochs that overlap")
            numbered = not (numbers and above) or above[0] <= numbers[0] < numbers[1] <= above[1]
            need(numbered, "epochs that it is not inside of")
        need(rho is None or self.cap is None or rho <= self.cap, "larger than the account's")
        self.labels.add(named)
        self.caps[body["allowance"]] = body | {"rho": rho, "ended": False, "latest": 0}
    def levels(self, path, told, at):  # that a token is charged to, in the epochs that it tells
        numbers, levels, alike = iter(told or []), [None], set()
        need(told != [], "epochs of nothing")
        for cap in path:
            need(not cap.get("until") or minute(at) < minute(cap["until"]), "a grant that ended")
            number = next(numbers, -1) if cap.get("every") or cap.get("epochs") else None
            if cap.get("every"):
                now = (minute(at) - minute(cap["since"])) // cap["every"]
                need(number == now >= cap["latest"], "another epoch than that of its time")
                cap["latest"] = number
            elif number is not None: alike.add(number if number in range(*cap["epochs"]) else -1)
            levels.append((cap["allowance"], number))
        need(next(numbers, None) is None and len(alike - {-1}) == len(alike) < 2, "its epochs")
        return levels
    def close(self, body):
        need(all("outcome" in token for token in self.tokens.values()), "open tokens")
        self.closed = True
    def batches(self, body): need(self.body["told"], "batches of no rule")
    def learner(self, body):
        first = not (self.learned or self.tokens or self.items)
        self.learned = need(self.resumes and first, "learner") or True
    def resume(self, body): need(self.resumes, "resume/1 was not declared")
    def plan(self, body):
        need(body["items"] and not self.begun and self.items is None, "a plan comes first")
        self.items = [i | {"left": i.get("count", 1), "rests": []} for i in body["items"]]
        for item in self.items:
            self.within(item["users"])
            item["rho"] = self.price(item["loss"], item["users"])
            self.planned(item)
    def issue(self, body):
        users, number, self.begun = body["users"], body.get("planned"), True
        token = {"users": users, "rho": self.amount(body["budget"]), "upto": users[0], "item": None}
        token |= {"of": [body["label"], number], "phase": None}
        need(body["budget"]["kind"] == self.body["cap"]["kind"], "a budget of another currency")
        name, told = body.get("allowance"), body.get("epochs")
        if exact(body.get("failure", "0")) or name not in (None, *self.caps):
            self.leave("tokens that may fail, or are of an allowance")
        token |= {"path": self.path(name) if name in self.caps else [], "epochs": told}
        token["levels"] = self.levels(token["path"], told, body["at"])
        for low, high in (cap["users"] for cap in token["path"]):
            need(low <= users[0] and users[1] <= high, "not users of the cap")
        need(body["token"] not in self.tokens and not self.body.get("attested"), "issued twice")
        need((number is None) == (self.items is None), "planned without a plan, or not planned")
        self.within(users)
        if number is None: self.reserved(token, body)
        else: self.take(token, number, body)
        self.tokens[body["token"]] = token
    def take(self, token, number, body):  # a run of a plan, or of one that ended early the rest
        need(number >= 0 and body.get("allowance") is None, "no item, or an allowance")
        token["item"], users = (item := self.items[number]), token["users"]
        rests = [at for at in item["rests"] if at <= users[0] and users[1] == item["users"][1]]
        run = item["left"] > 0 and users == item["users"]
        need(item["label"] == body["label"] and (run or rests), "not left in the plan")
        most = self.price(item["loss"], users)
        need(None in (token["rho"], most) or token["rho"] <= most, "more than was planned")
        if run: item["left"] -= 1
        else: item["rests"].remove(max(rests))
    def spend(self, body):
        token = self.tokens[body["token"]]
        need(not {"loss", "outcome"} & token.keys() and body["users"] == token["users"], "spent")
        self.levels(token["path"], token["epochs"], body["at"])
        need(all(body[n] == self.body[n] for n in ("trust", "adjacency", "simulated")), "of others")
        several = body["trust"] == "local" and body["users"][1] - body["users"][0] > 1
        need(not several or body["arithmetic"] == "each", "noise that several users share")
        stream = body.get("interactive") or body.get("profile")
        need(not stream or body["arithmetic"] != "sum", "a stream, or a profile, is no plain sum")
        need("visits" not in kinds(body["loss"]) or body["arithmetic"] != "sum", "a sum of visits")
        need(body["gain"] == 1 or body["arithmetic"] != "sum", "the gain of a plain sum is 1")
        if "lease" in body["parameters"]:
            form = fits("object", lease := body["parameters"]["lease"]) and fits("lease", lease)
            need(form and not body.get("interactive"), "lease")
            self.leave("that leases pay for all of their runs")
        self.metered(body, (body["domain"].get("kind"), body["noise"].get("family")))
        phased = "phases" in body["parameters"] and self.in_phases(token, body)
        price, row = self.price(body["loss"], body["users"]), self.stated(body["loss"])
        need(None in (price, token["rho"]) or price <= token["rho"], "more than was reserved")
        self.spent(token, price, body)
        token["rho"], token["loss"], drawn = price, body["loss"], body["drawn"] or {}
        fails = kinds(body["loss"]) & {"approx", "may-fail"}
        early = self.early and (self.once or phased) and body.get("interactive") and not fails
        token["reach"] = body["users"][not early]
        self.draws(body, drawn, row)
    def metered(self, body, own):  # code that is not the package's
        if "metered" not in {*own, *(told := body["parameters"])}: return
        form = told.get("metered") == {} or fits("metered", told["metered"])
        plain = not any(map(body.get, ("derived", "drawn", "interactive", "profile")))
        named = (*own, body["arithmetic"], body["gain"]) == ("metered", "metered", "own", 1)
        need(form and plain and named, "metered")
    def in_phases(self, token, body):  # each user is in one release, whose price is that of all
        told, (start, stop) = body["parameters"]["phases"], body["users"]
        form = fits("object", told) and fits("phases", told) and stop - start <= told["horizon"]
        own = (body["gain"], body["arithmetic"], body.get("interactive")) == (1, "own", True)
        kept = (self.resumes or not self.body["durable"]) and body["adjacency"] != "add-remove"
        row = not body.get("profile") and not kinds(body["loss"]) & {"approx", "may-fail", "visits"}
        token["phase"] = start if self.resumes else None
        return need(form and own and kept and row, "no such phases") or True
    def draws(self, body, drawn, row):  # noise: that it is on a grid, and earns the loss of a row
        noise, domain = body["noise"], body["domain"]
        family, kind = noise.get("family"), domain.get("kind")
        self.unchecked |= {"tables, samplers, most bounds of exact noise"} if drawn else set()
        if drawn and ({"grid", "bound"} & drawn.keys() or body["arithmetic"] == "sum"):
            bits, scale = drawn["grid"]["bits"], float.fromhex(drawn["grid"]["scale"])
            largest, unit = drawn["bound"]["largest"], noise.get("std", noise.get("scale"))
            need(fits("whole", largest) and int(largest) < 2**61 and 30 <= bits <= 40, "grid")
            within = kind != "ball" or int(largest) * Fraction(scale) / 2**bits <= domain["radius"]
            need(not fits("family", family) or (unit == scale and within), "not the noise's grid")
        if body["derived"] and body["arithmetic"] != "sum":
            self.unchecked.add("gains of what is no plain sum, which are a mechanism's word")
        if not body["derived"] or body.get("profile"):
            self.unchecked.add("losses, domains and noise that are a mechanism's word")
        elif not (least := self.earned(family, noise, domain, body)) or row is None:
            self.unchecked.add(f"what {family} noise earns in a {kind} domain")
        else: need(row >= least, "it earns a larger loss")
    def earned(self, family, noise, domain, body):  # at least; None: it is left unchecked
        norm = {"gaussian": 2, "laplace": 1}.get(family) if family in kinds(body["loss"]) else None
        pair = domain["inner"] if domain.get("kind") == "one-of" else domain  # at one of K places
        if norm == 2 and pair.get("kind") == "gradient-hessian":
            need(1e-100 <= pair["weight"] <= 1e100 and domain.get("arms") != 1, "weight or arms")
            far = 2 + 2 * (w := Fraction(pair["weight"]) ** 2)  # two of the K places
            top = far + 1 / (2 * w) if pair["dim"] > 1 and 2 * w**2 >= 1 else far * (pair != domain)
            square = max(4 + w, top) if self.body["adjacency"] == "replace-one" else 1 + w
            return square * (Fraction(body["gain"]) / Fraction(noise["std"])) ** 2 / 2
        box, size = domain.get("kind") == "box", domain.get("size")
        round = domain.get("kind") == "ball" and (size == 1 or domain["norm"] == f"l{norm}")
        if norm is None or not (box or round): return None
        low, high = (domain["low"], domain["high"]) if box else (0, domain["radius"])
        high, low = Fraction(high), Fraction(low) if box else -Fraction(high)
        reach = high - low if self.body["adjacency"] == "replace-one" else max(high, -low)
        shift = reach * Fraction(body["gain"]) / Fraction(noise["std" if norm == 2 else "scale"])
        need(shift > 0, "no noise, or a domain without a size")
        return shift**norm * (size if box else 1) / norm
    def running(self, body):
        token = self.tokens[body["token"]]
        need("loss" in token and "outcome" not in token, "no rows are open")
        return token
    def functions(self, body):
        named = self.running(body).setdefault("functions", set())
        need(body["names"] and named.isdisjoint(body["names"]), "no names, or named before")
        named |= set(body["names"])
    def publish(self, body):  # or a last value, or a stream that comes further
        token = self.running(body)
        need(self.resumes, "resume/1 was not declared")
        upto = body.get("upto", token["upto"])
        need(token["upto"] <= upto <= token["reach"], "rows beyond the reach")
        once = token["phase"] is None or token["upto"] < upto == token["phase"]
        need(once or body.get("entry") != "publish", "not one value of a whole phase")
        token["upto"] = upto
        return token
    def reach(self, body):
        token, stop = self.publish(body), body["stop"]
        need(token["phase"] in (None, stop), "the rows of a phase are opened together")
        token["reach"] = need(token["reach"] < stop <= token["users"][1], "stop") or stop
    def phase(self, body):
        token, stop = self.publish(body), body["stop"]
        need(token["phase"] == token["upto"] < stop <= token["users"][1], "no next phase")
        first = token["phase"] if token["phase"] == token["users"][0] else -1
        left = [one for one in self.waits if one[0] == token["of"] and one[1] <= first < one[2]]
        same = [one for one in left if one[2] == stop]
        need(same or not left, "another end than where it was to end before")
        if same: self.waits.remove(same[0])
        token["phase"] = stop
    def retire(self, body):
        token, outcome = self.tokens[body["token"]], body["outcome"]
        need((outcome == "unused") == ("loss" not in token), "no such end for this token")
        need("outcome" not in token and outcome != "uncovered", "a second end, or one by the rows")
        if "kept" in body:
            need(outcome == "released", "a value of what released none")
            self.publish(fits("kept", body["kept"]) and body["kept"] | {"token": body["token"]})
        good = "kept" not in body and (outcome != "released" or token["upto"] == token["users"][1])
        need(good or token["phase"] is None, "released is one whose last phase has a value")
        if outcome == "lost" and token["reach"] < (token["phase"] or 0):
            self.waits.append([token["of"], token["reach"], token["phase"]])
        token["outcome"], item, users = outcome, token["item"], token["users"]
        stop = users[0] if outcome == "unused" else self.kept_until(token)
        if item and outcome == "unused" and users == item["users"]: item["left"] += 1
        elif not item: self.ended(token, stop)
        elif stop < users[1] and "by-arrival" not in kinds(token.get("loss", item["loss"])):
            item["rests"].append(stop)
def root_of(peaks):  # RFC 6962, section 2.1
    root, *before = peaks[::-1] or [sha()]
    return functools.reduce(lambda node, peak: sha(b"\1", peak, node), before, root).hex()
def verify(path, kind_of_account=Account):
    """Head, root, problems, and what was not checked; raises Unreadable."""
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
                need(fits("text", name) and kind in KINDS, "no accountant, or an unknown kind")
                fits(kind, {k: v for k, v in body.items() if k not in ("accountant", "entry")})
                need((kind == "open") != (name in accounts), "opened twice, or not at all")
                body |= {"drawn": ext.get("exact/1"), "told": ext.get("participation/1")}
                body |= {"at": envelope["at"]} if "at" in envelope else {}
                body |= {"kept": ext["resume/1"]} if "resume/1" in ext else {}
                if kind == "open":
                    alike = all(a.body["simulated"] == body["simulated"] for a in accounts.values())
                    accounts[name] = kind_of_account(body)
                    need(alike, "simulations and real noise")
                else: accounts[name].add(body)
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
    unchecked = unchecked.union(*(account.unchecked for account in accounts.values()))
    return {"entries": size, "head": head.hex(), "root": root_of(peaks), "problems": problems,
            "optional_extensions": optional, "unchecked": sorted(unchecked)}
def main(arguments, verify=verify):
    try: found = verify(*arguments)
    except Unreadable as e: sys.exit(print("error:", e.args[0], file=sys.stderr) or (*e.args, 4)[1])
    sys.exit(print(json.dumps(found, indent=2)) or bool(found["problems"]))
if __name__ == "__main__": main(sys.argv[1:2])
