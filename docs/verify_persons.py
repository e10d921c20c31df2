"""Verifies what persons pay in a privlearn ledger: ``python verify_persons.py ledger.db``.

Only Python's standard library and verify_ledger.py beside it, which checks chain, entries and
tokens.  This adds what `participation/1` of docs/ledger.md says, for caps in zCDP and Gaussian
losses: the rule, its batches, the price of every token for all visits of one person in it, and the
most that any pattern of visits within the rule adds up to.  How far all visits move a stream (loss
of the kind `visits`) is taken as it is recorded.  Exit codes as those of verify_ledger.py.
"""

import json
import math
import sys
from fractions import Fraction
from itertools import pairwise

import verify_ledger
from verify_ledger import Unreadable, exact, need

MOST_PIECES = 512
LEFT = "what a person pays who comes back (verify_persons.py)"
WORDS = {"pattern": ("public", "private"), "clock": ("arrivals", "timetable")}
NUMBERS = ("most", "apart", "per_batch")


class Persons(verify_ledger.Account):
    """An account that may have a rule; without one it is what verify_ledger.py makes of it."""

    rule = None

    def __init__(self, body, unchecked):
        super().__init__(body, unchecked)
        self.starts, self.plan, self.clock = [], None, body["users"][0]
        self.held = {}  # by token: users, what is charged to a person, how
        self.sure = body["cap"]["kind"] == "zcdp"
        critical = body.get("features", {}).get("participation/1")
        need((critical is None) == (body["told"] is None), "the rule or its declaration is missing")
        if body["told"] is None:
            return
        rule = body["told"]["rule"]
        need(critical == "critical" and body["told"].keys() == {"rule", "registry"}, "its form")
        need(rule.keys() == {*NUMBERS, *WORDS, "pooled"}, "the names of a rule")
        need(all(rule[name] in words for name, words in WORDS.items()), "pattern or clock")
        counts = [rule[n] for n in NUMBERS if n != "per_batch" or rule[n] is not None]
        need(all(type(n) is int and n >= 1 for n in counts), "a number of the rule")
        need(type(rule["pooled"]) is bool and (rule["per_batch"] or 1) <= rule["most"], "the rule")
        alone = rule["per_batch"] is None and rule["apart"] == 1
        need(not rule["pooled"] or alone, "a pooled rule counts batches alone")
        private = rule["pattern"] == "private"
        good = ("zero-out",) if private else ("zero-out", "replace-one")
        need(body["adjacency"] in good, "the relation is not one of this pattern")
        need(private or rule["clock"] == "arrivals", "a timetable with a public pattern")
        unique = body.get("population") is None and body.get("odometer") is None
        need(unique and not body.get("attested"), "a population, odometer or attestation")
        self.rule = rule
        unchecked.discard(f"{LEFT}, and sums with them")

    def amount(self, value, *kind):  # of visits: what all of them together cost
        inner = value["loss"] if self.rule and value["kind"] == "visits" else value
        return super().amount(inner, *kind)

    def unsure(self, what):
        self.sure = False
        self.unchecked.add(f"what persons pay, for {what}")

    def most(self, users):  # rows of one person
        per_batch = 1 if self.rule["pooled"] else self.rule["per_batch"]
        most = min(self.rule["most"], -(-(users[1] - users[0]) // self.rule["apart"]))
        if per_batch is None:
            return most
        edges = [*self.starts, self.body["users"][1]]
        need(self.starts and users[0] in edges and users[1] in edges, "a token cuts a batch")
        return min(most, per_batch * (edges.index(users[1]) - edges.index(users[0])))

    def price(self, loss, users):  # for all visits in a range, and by how many it may be divided
        most, stated = self.most(users), loss["kind"] == "visits"
        inner = loss["loss"] if stated else loss
        if inner["kind"] != "gaussian" or self.body["trust"] == "local":
            return self.unsure(f"a loss of the kind {inner['kind']}") or (None, 0)
        rho = exact(inner["mu_squared"]) / 2
        if not stated:
            return rho * most**2, most
        self.unchecked.add("how far all visits of a person move streams")
        if most > loss["most"] or self.rule["apart"] < loss["apart"]:
            return self.unsure("a stream of fewer visits") or (None, 0)
        return rho, 0

    def add(self, body):
        super().add(body)
        if self.rule is None:
            need(body["entry"] == "open" or body["told"] is None, "data of no rule")
            return
        kind, told = body["entry"], body["told"]
        need(kind != "spend" or told is not None, "a spend without the registry's clock")
        if kind in ("spend", "retire") and told is not None:
            need(type(told["clock"]) is int and self.clock <= told["clock"], "an older registry")
            self.clock = told["clock"]
        if kind == "batches":
            begun, users = self.held or self.plan is not None, self.body["users"]
            need((self.rule["pooled"] or self.rule["per_batch"]) and not self.starts, "batches")
            ascend = all(a < b for a, b in pairwise(body["starts"]))
            need(not begun and ascend and body["starts"][0] == users[0], "batches")
            need(body["starts"][-1] < users[1], "batches")
            self.starts = body["starts"]
            self.unchecked.discard("entries of kind batches, and sums with them")
        elif kind == "plan":
            self.plan = []
            for item in body["items"]:
                priced = self.price(item["loss"], item["users"])
                self.plan.append((item["users"], *priced, item.get("count", 1)))
        elif kind in ("delegate", "return", "attest"):
            need(False, f"{kind} under a rule of participation")
        elif kind == "issue":
            self.reserve(body, told)
        elif kind == "spend":
            self.charge_person(body)
        elif kind == "retire":
            self.end(body)

    def end(self, body):  # a stream that ended early is charged to whole batches
        token, (users, rho, divided) = self.tokens[body["token"]], self.held[body["token"]]
        if body["outcome"] == "unused":
            del self.held[body["token"]]
        elif self.early and rho is not None and token["reach"] < token["users"][1]:
            edges = [at for at in self.starts or [token["reach"]] if at >= token["reach"]]
            stop = min(edges, default=token["users"][1])
            token["item"]["rests"][-1] = stop
            if self.plan is None:
                need(not list(self.exceeded()), "the cap was exceeded before this end")
                self.held[body["token"]] = [users[0], stop], rho, divided
                if stop == users[0]:
                    del self.held[body["token"]]

    def reserve(self, body, told):
        planned = body.get("planned")
        need(told is None or (told == {} and self.plan is None), "told of a token")
        if body.get("failure", "0") != "0" or body["budget"]["kind"] != "zcdp":
            self.unsure("tokens that may fail, or of another currency")
        rho = exact(body["budget"].get("rho", "0"))
        if planned is None:
            shared = 0 if told is None else self.most(body["users"])
            self.held[body["token"]] = body["users"], rho, shared
        else:
            self.most(body["users"])  # no batch is cut
            users, most_rho, shared, _ = self.plan[planned]
            need(most_rho is None or rho <= most_rho, "more than was planned")
            self.held[body["token"]] = users, most_rho, shared

    def charge_person(self, body):
        users, held, shared = self.held[body["token"]]
        need(body["loss"]["kind"] != "visits" or body["arithmetic"] != "sum", "a sum of visits")
        over = "lease" not in body["parameters"] or body["told"]["clock"] >= body["users"][1]
        need(over, "a lease is of slots that are over")
        rho, divided = self.price(body["loss"], users)
        if rho is None or held is None:
            return
        need(rho <= held, "it costs a person more than the token holds")
        need(divided or not shared, "a token for a loss that grows with visits, and this does not")
        if self.plan is None:
            self.held[body["token"]] = users, rho, divided

    def exceeded(self):
        yield from super().exceeded()
        if self.rule is None or not self.sure:
            return
        items = [(*item[:3], item[3]) for item in self.plan or []]
        charges = items if self.plan is not None else [(*held, 1) for held in self.held.values()]
        edges = sorted({edge for users, *_ in charges for edge in users})
        if len(edges) > MOST_PIECES or self.rule["most"] > MOST_PIECES:
            self.unsure("more than 512 pieces or visits")
            return
        try:
            if charges and self.largest(edges, charges) > self.cap:
                yield "a person can be charged more than the cap"
        except ValueError as error:
            yield f"what a person pays: {error}"

    def largest(self, edges, charges):
        """Over all patterns: visits in pieces between edges, of which two are far enough apart."""
        pieces = list(pairwise(edges))
        divided = [(u, rho * n / d) for u, rho, d, n in charges if d]
        whole = [(u, rho * n) for u, rho, d, n in charges if not d]
        each = [sum(v for (a, b), v in divided if a <= p[0] and p[1] <= b) for p in pieces]
        best, most = [], self.rule["most"]
        for at, (first, stop) in enumerate(pieces):
            stands = [(a, rho) for (a, b), rho in whole if a <= first and stop <= b]
            found = [-math.inf] * (most + 1)  # by the number of visits, the last of them here
            before = [(None, [0] + [-math.inf] * most), *enumerate(best)]
            for earlier, sums in before:
                if earlier is not None and stop - 1 - pieces[earlier][0] < self.rule["apart"]:
                    continue
                begun = -1 if earlier is None else pieces[earlier][0]
                new = sum((rho for a, rho in stands if a > begun), Fraction(0))
                for number, value in enumerate(sums[:most]):
                    for more in range(1, min(self.most((first, stop)), most - number) + 1):
                        total = value + new + more * each[at]
                        found[number + more] = max(found[number + more], total)
            best.append(found)
        return max(max(found) for found in best)


verify_ledger.Account = Persons

if __name__ == "__main__":
    try:
        found = verify_ledger.verify(sys.argv[1])
    except Unreadable as error:
        sys.exit(print(f"error: {error.args[0]}", file=sys.stderr) or (*error.args[1:], 4)[0])
    sys.exit(print(json.dumps(found, indent=2)) or bool(found["problems"]))
