"""What is refused before anything is sent, by the table of all clients and by what Python has beside it."""

import asyncio
import collections
import decimal
import enum
import fractions
import http.client
import json
import math
import random
import types
import unittest

import weirgate
from served import GRANTED, Server, answer
from stack import CONTRACT
from variables import environment
from weirgate import request
from weirgate.request import Options
from weirgate.values import OnUnavailable

TABLE = json.loads((CONTRACT / "client/checks.json").read_text(encoding="utf-8"))
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "-0": -0.0}
SETTLED = answer(200, {"grant": "g2", "settlement": "settled", "lease": None, "amounts": [{"rpm": 1}]})


def number(value):
    return SPECIAL.get(value, value) if isinstance(value, str) else value


class Whole(int):
    pass


class Real(float):
    pass


class Numpy:
    """A number of another library: not one of Python's, but nearly."""

    def __int__(self):
        return 1

    __index__ = __int__

    def __float__(self):
        return 1.0

    def __ge__(self, other):
        return True

    __le__ = __ge__


class Color(enum.IntEnum):
    RED = 1


NO_NUMBERS = [
    None, True, False, "1", "", b"1", [1], (1,), {}, {"at_least": 1, "at_most": 2}, {1}, object(), lambda: 1, iter([1]),
    decimal.Decimal(1), fractions.Fraction(1, 2), 1j, Whole(1), Real(1.5), Color.RED, Numpy(), type, float("nan"),
    10**400, -(10**400), weirgate.Limit.slots("a", 1),
]


class Case(unittest.TestCase):
    def refused(self, call, *mentions):
        with self.assertRaises(weirgate.InvalidRequest) as caught:
            call()
        for word in mentions:
            self.assertIn(word, str(caught.exception))
        self.assertLess(len(str(caught.exception)), 300)


class Amounts(Case):
    """Every call that has amounts, with every one that JSON would drop or change."""

    def calls(self, amount):
        """Returns calls with an amount, each with a function that runs it."""
        client, asynchronous = self.client, weirgate.AsyncClient(self.server.url)

        def run(call):
            async def work():
                await call()

            asyncio.run(work())

        take = {"rpm": amount}
        restored = lambda: client.restore("g")
        later = lambda: asynchronous.restore("g")
        calls = {
            "take": lambda: client.acquire("a", "api", take),
            "take of several": lambda: client.acquire_all([weirgate.Bucket("a", "api", take)]),
            "adjust": lambda: restored().adjust(take),
            "give_back": lambda: restored().give_back(take),
            "release": lambda: restored().release(take),
            "take, asyncio": lambda: run(lambda: asynchronous.acquire("a", "api", take)),
            "adjust, asyncio": lambda: run(lambda: later().adjust(take)),
            "give_back, asyncio": lambda: run(lambda: later().give_back(take)),
            "release, asyncio": lambda: run(lambda: later().release(take)),
        }
        whole = {
            "at_least": lambda: client.acquire("a", "api", {"rpm": weirgate.UpTo(amount, 10**12)}),
            "at_most": lambda: client.acquire("a", "api", {"rpm": weirgate.UpTo(0, amount)}),
            "take_more": lambda: restored().take_more(take),
            "take_more, asyncio": lambda: run(lambda: later().take_more(take)),
            "need": lambda: client.peek("a", "api", need=take),
        }
        return calls, whole

    def setUp(self):
        self.server = Server(lambda peer, _: self.serve(peer))
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.client = weirgate.Client(self.server.url, retries=0)
        self.addCleanup(self.client.close)

    def serve(self, peer):
        while asked := peer.read():
            peer.send(GRANTED if asked[0] == "/v1/acquire" else SETTLED)

    def test_an_amount_that_json_would_drop_or_change_is_not_sent(self):
        for value in [*map(number, TABLE["amounts"]["refused"]), *NO_NUMBERS]:
            for name, call in {**self.calls(value)[0], **self.calls(value)[1]}.items():
                with self.subTest(call=name, value=type(value).__name__):
                    self.refused(call, "rpm")
        for value in map(number, TABLE["whole_amounts"]["refused"]):
            for name, call in self.calls(value)[1].items():
                with self.subTest(call=name, value=value):
                    self.refused(call, "rpm")
        self.assertEqual(self.server.requests, [])

    def test_other_amounts_are_sent_as_they_are(self):
        for value in TABLE["amounts"]["kept"]:
            for name, call in self.calls(value)[0].items():
                with self.subTest(call=name, value=value):
                    call()
                    body = self.server.requests[-1][2]
                    sent = body.get("take") or body.get("adjust") or body.get("give_back")
                    self.assertEqual(sent, {"rpm": value})

    def test_what_is_no_mapping_from_limits_is_not_sent(self):
        class Text(str):
            __hash__ = object.__hash__

            def __eq__(self, other):
                return self is other

        wrong = [
            None, {}, [], [("rpm", 1)], "rpm", 5, object(), types.SimpleNamespace(rpm=1), collections.Counter(),
            {1: 1}, {1: 1, "1": 2}, {None: 1}, {b"rpm": 1}, {("rpm",): 1}, {"": 1}, {True: 1},
            {Text("rpm"): 1, Text("rpm"): 2},
        ]
        for take in wrong:
            for name, call in {
                "take": lambda: self.client.acquire("a", "api", take),
                "adjust": lambda: self.client.restore("g").adjust(take),
                "take_more": lambda: self.client.restore("g").take_more(take),
                "limited": lambda: self.client.limited("a", "api", take)(lambda: None)(),
            }.items():
                with self.subTest(call=name, take=str(take)):
                    self.refused(call)
        self.assertEqual(self.server.requests, [])
        self.client.acquire("a", "api", types.MappingProxyType({"rpm": 1}))
        self.assertEqual(self.server.requests[-1][2]["take"], {"rpm": 1})

    def test_a_range_is_of_its_order(self):
        self.refused(lambda: self.client.acquire("a", "api", {"rpm": weirgate.UpTo(2, 1)}), "rpm", "at_most")

    def test_the_slot_returns_if_actual_gives_what_is_no_amount(self):
        for used in [None, {}, {"tpm": math.nan}, {"tpm": "5"}, 5]:
            with self.subTest(used=used):
                grant = answer(200, {**json.loads(GRANTED.partition(b"\r\n\r\n")[2]), "lease": {"expires_at_ms": 1}})
                with Server(lambda peer, _: self.serve_lease(peer, grant)) as server:
                    with weirgate.Client(server.url, retries=0) as client:
                        limited = client.limited("a", "api", {"slots": 1}, actual=lambda _: used)
                        self.refused(limited(lambda: "done"), "actual")
                    self.assertEqual(server.requests[-1][2], {"grant": "g1", "end": "release"})

    def serve_lease(self, peer, grant):
        ended = answer(200, {"grant": None, "settlement": "settled", "lease": None, "amounts": []})
        while asked := peer.read():
            peer.send(grant if asked[0] == "/v1/acquire" else ended)

    def test_random_numbers_are_kept_or_refused(self):
        draw = random.Random(20_261_125)
        for _ in range(20_000):
            value = draw.choice([
                lambda: draw.randrange(-10, 10**13) / draw.choice([1, 10, 100, 1000, 10_000]),
                lambda: draw.randrange(-(2**60), 2**60),
                lambda: draw.uniform(-1, 1) * 10 ** draw.randrange(-320, 308),
            ])()
            try:
                sent = json.loads(request.acquire((weirgate.Bucket("a", "b", {"rpm": value}),), Options()).body)
            except weirgate.InvalidRequest:
                # What is refused has more than three decimals in Python's own text of it, or is out of range.
                exact = decimal.Decimal(repr(value))
                is_kept = 0 <= exact <= 10**12 and exact == round(exact, 3)
                self.assertFalse(is_kept, value)
            else:
                self.assertEqual(sent["take"], {"rpm": value})
                self.assertEqual(round(decimal.Decimal(repr(value)), 3), decimal.Decimal(repr(value)))


class OfAcquires(Case):
    def acquire(self, **options):
        return json.loads(request.acquire((weirgate.Bucket("a", "api", {"rpm": 1}),), Options(**options)).body)

    def test_times_are_those_of_the_agent(self):
        for name, times in TABLE["times_ms"].items():
            for ms in times["kept"]:
                self.assertEqual(self.acquire(**{name: ms / 1000})[f"{name}_ms"], ms)
            for value in [*(number(ms) for ms in times["refused"]), *NO_NUMBERS]:
                given = value / 1000 if type(value) is float or type(value) is int and abs(value) < 10**300 else value
                if given is not None:
                    with self.subTest(time=name, value=str(value)[:20]):
                        self.refused(lambda: self.acquire(**{name: given}), name)
        for value in NO_NUMBERS:
            self.refused(lambda: weirgate.Client("http://127.0.0.1:1").restore("g").renew(value), "seconds")
            self.refused(lambda: weirgate.Client("http://127.0.0.1:1", answer_timeout=value), "answer_timeout")
            self.refused(lambda: weirgate.AsyncClient("http://127.0.0.1:1", answer_timeout=value), "answer_timeout")

    def test_a_time_is_rounded_to_milliseconds(self):
        self.assertEqual(self.acquire(wait=1.23456)["wait_ms"], 1235)

    def test_a_client_waits_as_long_as_the_request_and_not_for_a_start_of_which_it_is_told_at_once(self):
        def ask(**options):
            return request.acquire((weirgate.Bucket("a", "api", {"rpm": 1}),), Options(**options))

        self.assertEqual(ask(wait=5, timeout=2).longer, 7)
        self.assertEqual(ask(queue=30, timeout=2).longer, 32)
        self.assertEqual(ask(queue=30, now=True).longer, 0)
        self.assertEqual(self.acquire(queue=1, now=True)["answer"], "now")
        self.assertNotIn("answer", self.acquire(queue=1))

    def test_other_options_are_checked(self):
        wrong = ["", "alow", "local", "local 0", "local 101", "local 5.5", "local  5", "Allow", b"allow", 5, True, []]
        for value in wrong:
            self.refused(lambda: self.acquire(on_unavailable=value), "on_unavailable")
        for value in ["yes", 1, 0, None, []]:
            self.refused(lambda: self.acquire(bypass=value), "bypass")
            self.refused(lambda: self.acquire(queue=1, now=value), "now")
        self.refused(lambda: self.acquire(now=True), "now must be left out without queue, got True")
        client = weirgate.Client("http://127.0.0.1:1")
        self.refused(lambda: client.acquire("a", "b", {"rpm": 1}, wait="2"), "wait must be 0 to 86400 seconds, got '2'")
        for value in [-1, 1.5, True, "1", 2**53, math.nan]:
            self.refused(lambda: client.acquire("a", "b", {"rpm": 1}, limits_version=value), "limits_version")
            self.refused(lambda: client.restore("g").adjust({"rpm": 1}, bucket=value), "bucket")
        for value in [None, "", 5, b"a", ["a"]]:
            self.refused(lambda: client.acquire(value, "b", {"rpm": 1}), "entity")
            self.refused(lambda: client.peek("a", value), "resource")
            self.refused(lambda: client.restore(value), "grant")
        for value in ["yes", 1, None]:
            self.refused(lambda: client.acquire("a", "b", {"rpm": 1}, cascading=value), "cascading")
        for value in ["", 5, b"a", ["a"]]:
            self.refused(lambda: client.acquire("a", "b", {"rpm": 1}, caller_class=value), "caller_class")
            self.refused(lambda: client.set_limits(entity="a", caller_class=value), "caller_class")
        for refill, period, classes in [(0, 0, "batch:10%"), (5, 60, None), (5, 60, 5), (5, 60, ["batch:10%"])]:
            self.refused(lambda: weirgate.Limit("rpm", 5, refill, period, classes=classes), "classes")
        for value in ["rpm", [{"name": "rpm"}], 5, weirgate.Limit.slots("a", 1), [None], [b"rpm=1"], ["rpm"], [""], ["=5"]]:
            self.refused(lambda: client.acquire("a", "b", {"rpm": 1}, limits=value), "limits")
            self.refused(lambda: client.set_limits(value, system=True), "limits")
        for value in [None, [], 5, "a", [{"entity": "a"}], {}]:
            self.refused(lambda: client.acquire_all(value), "buckets")
        for level in [{}, {"system": False}, {"system": True, "entity": "a"}, {"system": 1}, {"entity": ""}, {"resource": 5}]:
            self.refused(lambda: client.set_limits(["rpm=5"], **level))
            self.refused(lambda: client.delete_limits(**level))
        both, during = {"entity": "a", "plan": "pro"}, {"start": 0, "end": 86_400}
        for call in [client.set_limits, client.delete_limits, client.usage, client.usage_rows]:
            more = during if call in (client.usage, client.usage_rows) else {}
            self.refused(lambda: call(**both, **more), "plan must be left out beside entity, got 'pro'")
            self.refused(lambda: call(plan="", **more), "plan must be text that is not empty, got ''")
            self.refused(lambda: call(**more), "entity or plan, resource, or both")
        self.refused(lambda: client.delete_limits(plan="pro", system=True), "system")
        self.refused(lambda: client.set_limits(entity="a"), "sets nothing")
        for name, values in {"status": ["off", 1], "is_shadow": [1, "yes"], "replace": [1, None], "author": ["", 5]}.items():
            for value in values:
                self.refused(lambda: client.set_limits(["rpm=5"], entity="a", **{name: value}), name)
        for value in [-1, 1.5, True, "1", None, 101]:
            self.refused(lambda: weirgate.Client("http://127.0.0.1:1", retries=value), "retries")
            self.refused(lambda: weirgate.AsyncClient("http://127.0.0.1:1", max_idle=-1), "max_idle")

    def test_what_no_request_can_use_is_refused_at_construction(self):
        for kind in (weirgate.Client, weirgate.AsyncClient):
            for url in ["", " ", "http://", "127.0.0.1:2774", "http://a b", "unix:", "unix:agent.sock", 5, b"http://a", True]:
                self.refused(lambda: kind(url), "url")
            for token in ["a\r\nx: y", "a\n", "a\0", " a", "a ", "\u00fc", "\x7f", " ", 5, b"a"]:
                self.refused(lambda: kind("http://127.0.0.1:1", token=token), "token")
            with environment(WEIRGATE_AGENT_TOKEN="a\nb"):
                self.refused(lambda: kind("http://127.0.0.1:1"), "WEIRGATE_AGENT_TOKEN")
            # Of the environment an empty one is none.
            with environment(WEIRGATE_AGENT_URL="", WEIRGATE_AGENT_TOKEN=""):
                self.assertEqual(kind(None).url, "http://127.0.0.1:2774")

    def test_the_type_of_on_unavailable_has_every_percentage(self):
        texts = {"error", "deny", "allow", *(f"local {percent}" for percent in range(1, 101))}
        self.assertEqual(set(OnUnavailable.__args__), texts)


class Vendors(Case):
    """What a vendor said, in the responses of each library."""

    def setUp(self):
        reported = answer(200, {**json.loads(SETTLED.split(b"\r\n\r\n", 1)[1]), "paused_until_ms": 5_000})

        def serve(peer, _):
            while peer.read():
                peer.send(reported)

        self.server = Server(serve)
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.client = weirgate.Client(self.server.url, retries=0)
        self.addCleanup(self.client.close)

    def sent(self, *response, **given):
        """Returns what both calls send."""
        self.assertEqual(self.client.report_vendor("a", "api", *response, **given), 5.0)
        grant = self.client.restore("g")
        self.assertEqual((grant.vendor_said(*response, **given), grant.token, grant.is_uncertain), (5.0, "g", False))
        (path, _, reported), (settling, _, settled) = self.server.requests[-2:]
        self.assertEqual((path, settling, {*settled}), ("/v1/report", "/v1/settle", {"grant", "vendor"}))
        self.assertEqual(reported, {"entity": "a", "resource": "api", "vendor": settled["vendor"]})
        return settled["vendor"]

    def test_only_the_fields_of_limits_are_sent(self):
        for row in TABLE["vendor"]:
            given = {"status": row["status"], "headers": row["headers"]}
            with self.subTest(row=row):
                if "mentions" in row:
                    before = len(self.server.requests)
                    self.refused(lambda: self.client.restore("g").vendor_said(**given), *row["mentions"])
                    self.refused(lambda: self.client.report_vendor("a", "api", **given), *row["mentions"])
                    self.assertEqual(len(self.server.requests), before)
                else:
                    self.assertEqual(self.sent(**given), {"status": row["status"], "headers": row["sent"]})

    def test_no_vendor_makes_a_request_of_more_than_8_kib(self):
        headers = {f"x-ratelimit-{place}": "9" * 200 for place in range(1_000)}
        sent = self.sent(status=429, headers=headers)["headers"]
        self.assertLessEqual(sum(len(name) + len(texts[0]) for name, texts in sent.items()), 8_192)
        self.assertGreater(len(sent), 30)

    def test_a_response_of_each_library_is_taken(self):
        fields = http.client.HTTPMessage()
        fields["Retry-After"], fields["retry-after"], fields["Set-Cookie"] = "1", "2", "secret"
        sent = {"status": 429, "headers": {"retry-after": ["1", "2"]}}
        # requests, httpx and vendors' clients; aiohttp and urllib.
        for named in ("status_code", "status"):
            response = types.SimpleNamespace(headers=fields, **{named: 429})
            self.assertEqual(self.sent(response), sent)
        self.assertEqual(self.sent(status=http.HTTPStatus.TOO_MANY_REQUESTS), {"status": 429, "headers": {}})
        mixed = {"retry-after": b"1", b"retry-after": "2", 5: 5, "Retry-After-Ms": None}
        self.assertEqual(self.sent(status=429, headers=mixed), {"status": 429, "headers": {}})

    def test_what_is_no_response_is_refused(self):
        grant = self.client.restore("g")
        for given in [None, 5, "429", object(), types.SimpleNamespace(status="429", headers={}), {"status": 429}]:
            self.refused(lambda: grant.vendor_said(given), "status")
        for status in [True, *NO_NUMBERS]:
            self.refused(lambda: grant.vendor_said(status=status), "status")
        for headers in [5, "a", [("retry-after", "1")]]:
            self.refused(lambda: grant.vendor_said(status=429, headers=headers), "headers")
        both = types.SimpleNamespace(status=429, headers={})
        self.refused(lambda: grant.vendor_said(both, status=429), "response")
        self.refused(lambda: self.client.report_vendor("", "api", both), "entity")
        self.assertEqual(self.server.requests, [])

    def test_without_the_agent_a_grant_says_nothing(self):
        without = weirgate.Client("http://127.0.0.1:1", on_agent_unavailable="allow", retries=0)
        with without.acquire("a", "api", {"rpm": 1}) as grant:
            self.assertIsNone(grant.vendor_said(status=429))


class Limits(Case):
    def limit(self, row):
        given = {name: number(value) for name, value in (row.get("rate") or row.get("slots") or row["quota"]).items()}
        name = given.pop("name", "rpm")
        if "quota" in row:
            return weirgate.Limit.quota(name, given.pop("quota"), given.pop("window"), **given)
        if "slots" in row:
            return weirgate.Limit.slots(name, given.pop("slots"), **given)
        period = given.pop("period_ms")
        period = period / 1000 if type(period) in (int, float) else period
        return weirgate.Limit.rate(name, given.pop("refill"), period, **given)

    def test_limits_are_those_of_the_table_of_all_clients(self):
        for row in TABLE["limits"]:
            with self.subTest(row=row):
                if isinstance(row.get("sent"), str):
                    self.assertEqual((self.limit(row).json(), self.limit(row).kind), (row["sent"], "quota"))
                elif "sent" in row:
                    self.assertEqual(self.limit(row).json(), {"name": "rpm", "mode": "enforced", **row["sent"]})
                else:
                    self.refused(lambda: self.limit(row), *row["mentions"])

    def test_no_rate_becomes_another_kind_of_limit(self):
        limit = weirgate.Limit
        for make in [limit.per_second, limit.per_minute, limit.per_hour, limit.per_day]:
            self.assertIn("refill_tokens", make("rpm", 1).json())
            self.assertNotIn(".", json.dumps(make("rpm", 1.0, burst=2.0).json()))
            for value in [0, 0.0, -0.0, -1, 1.5, *NO_NUMBERS]:
                self.refused(lambda: make("rpm", value, burst=5), "rpm", "refill")
                if value is not None:
                    self.refused(lambda: make("rpm", 5, burst=value), "rpm", "capacity")
            with self.assertRaises(TypeError):
                make("rpm", 5, slots=5)
        self.refused(lambda: weirgate.Limit("rpm", 5, 5, 60.0, "enforced", "month"), "rpm", "window")
        for refill, period in [(0, 60.0), (5, 0), (0.0, 0), (False, 0), (None, None), (0, None), (-0.0, 0)]:
            with self.subTest(refill=refill, period=period):
                self.refused(lambda: weirgate.Limit("rpm", 5, refill, period), "rpm")


if __name__ == "__main__":
    unittest.main()
