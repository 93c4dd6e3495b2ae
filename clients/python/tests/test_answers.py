"""Every answer of a server that is no agent ends in an error of this package, or in a value that can be used."""

import asyncio
import contextlib
import copy
import json
import logging
import random
import threading
import traceback
import unittest
import urllib.parse
import zlib

import weirgate
from served import Server

SECRET = "the-secret-token"
LIMIT = {
    "entity": "a", "resource": "api", "limit": "rpm", "mode": "enforced", "capacity_tokens": 10, "refill_tokens": 10,
    "refill_period_ms": 60_000, "available_tokens": 9.5, "requested_tokens": 1, "is_requested": True,
    "retry_after_ms": None,
}
GRANTED = {
    "grant": "g1", "lease": {"expires_at_ms": 1_900_000_000_000}, "amounts": [{"rpm": 1}], "limits": [LIMIT],
    "would_deny": {"retry_after_ms": 5, "limits": [{**LIMIT, "requested_tokens": 50}], "degraded": None},
    "degraded": {"reason": "no answer"}, "starts_at_ms": 1_900_000_000_000, "missing_plan": "pro",
}
SETTLED = {"grant": "g2", "settlement": "settled", "lease": {"expires_at_ms": 5}, "amounts": [{"rpm": 0.5}]}
QUOTA_STATUS = {
    **LIMIT, "limit": "tpm", "refill_tokens": 0, "refill_period_ms": 0, "window": {"every": "month", "day": 15},
    "resets_at_ms": 1_797_321_600_000, "resets_in_ms": 5, "paused_ms": 7,
}
REPORTED = {"paused_until_ms": 1_900_000_000_000}
SAID = {**SETTLED, **REPORTED}
BALANCES = {"status": "enforced", "limits": [LIMIT, QUOTA_STATUS], "retry_after_ms": 12}
USED = {
    "usage": {"tokens": {"rpm": 6.5, "tpm": "9300000000000000000"}, "acquires": 2}, "state": "interim", "complete_until_ms": 5,
}
UNREADABLE = [{"entity": None, "resource": None, "shard": None, "pk": "a", "sk": "b", "error": "wrong: correct it"}]
TOTAL = {**USED, "unreadable": UNREADABLE}
PAGE = {
    "items": [{"entity": "a", "resource": "api", "start_ms": 0, "end_ms": 3_600_000, **USED}], "next": "p2",
    "unreadable": UNREADABLE,
}
LEVEL = {"level": "entity_resource", "entity": "a", "resource": "api"}
RATE = {"name": "rpm", "capacity_tokens": 10, "refill_tokens": 5, "refill_period_ms": 60_000, "mode": "enforced"}
QUOTA = {
    "text": "tpm=quota:10/month,day=15,mode=soft", "name": "tpm", "quota_tokens": 10,
    "window": {"every": "month", "day": 15}, "mode": "soft",
}
SCHEDULED = {
    **RATE, "text": "rpm=5/minute,burst=10,schedule=0 8 * * * for 1h scale 2/1",
    "schedule": [{"cron": "0 8 * * *", "for": "1h", "scale": "2/1"}],
}
CLASSES = {
    **RATE, "text": "rpm=5/minute,burst=10,class=batch:10%:30%,class=night:5%",
    "classes": {"batch": {"at_least_percent": 10, "leaves_percent": 30}, "night": {"at_least_percent": 5, "leaves_percent": 0}},
}
CONFIG = {
    "limits": [RATE, {"name": "slots", "slots": 2, "mode": "soft"}, QUOTA, SCHEDULED, CLASSES], "status": "enforced",
    "is_shadow": False, "class": "batch",
}
EFFECTIVE = {
    "buckets": [{"entity": "a", "level": LEVEL, "status": "enforced", "limits": CONFIG["limits"]}],
    "levels": [
        {"level": LEVEL, "config": CONFIG, "is_from_file": False},
        {"level": {"level": "plan_resource", "plan": "pro", "resource": "api"}, "config": None, "is_from_file": False},
        {"level": {"level": "plan", "plan": "pro"}, "config": None, "is_from_file": False},
    ],
    "missing_plan": "pro",
}
CHANGED = {"changed": True, "before": CONFIG, "after": CONFIG}
PROBLEM = {
    "type": "about:blank", "title": "Denied", "status": 429, "detail": "too few", "applied": "no", "retry": False,
    "grant": "g3", "paused": True, "retry_after_ms": 1_500, "starts_in_ms": 2_500, "violated-policies": ["rpm"], "retry_after": 2,
    "missing_plan": "pro",
    "blocking": {"policy": "rpm", "quota": 10, "remaining": 0, "requested": 1},
}
WRONG = [
    "null", "true", '"x"', '""', "-1", "0", "1.5", "[]", "{}", "[null]", '{"a": null}', "1e999", "NaN", "-Infinity",
    "1" * 400, "1" * 5_000, "[" * 3_000 + "]" * 3_000, '{"a":' * 3_000 + "1" + "}" * 3_000, '"\\ud800"', "1e400",
    "1e300", "9" * 25, None,
]


def head(status, length, fields=""):
    return f"HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{fields}\r\n".encode()


def whole(status, body, fields=""):
    data = body if isinstance(body, bytes) else body.encode("utf-8")
    return head(status, len(data), fields) + data


def mutations(value):
    """Returns texts of a JSON value with one part replaced by each wrong text, or left out."""
    paths = []

    def walk(part, path):
        paths.append(path)
        entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, inner in entries:
            walk(inner, [*path, key])

    walk(value, [])
    for path in paths:
        for wrong in WRONG:
            changed = copy.deepcopy(value)
            if not path:
                if wrong is not None:
                    yield wrong
                continue
            parent = changed
            for key in path[:-1]:
                parent = parent[key]
            if wrong is None:
                del parent[path[-1]]
                yield json.dumps(changed)
            else:
                parent[path[-1]] = "@@"
                yield json.dumps(changed).replace('"@@"', wrong, 1)


# What a server that repeats a token writes into JSON: by the name of the encoding.
ENCODINGS = {
    "JSON": json.dumps,
    "JSON with a slash escaped": lambda token: json.dumps(token).replace("/", "\\/"),
    "code units": lambda token: '"{}"'.format("".join(f"\\u{ord(letter):04x}" for letter in token)),
    "code units in capitals": lambda token: '"{}"'.format("".join(f"\\u{ord(letter):04X}" for letter in token)),
    "JSON in JSON": lambda token: json.dumps(json.dumps({"detail": token})),
    "JSON in JSON in JSON": lambda token: json.dumps(json.dumps({"detail": json.dumps({"detail": token})})),
    "code units in JSON": lambda token: json.dumps(ENCODINGS["code units"](token)),
    "a URL": lambda token: json.dumps(urllib.parse.quote(token, safe="")),
    "a URL in lowercase": lambda token: json.dumps(urllib.parse.quote(token, safe="").lower()),
    "capitals": lambda token: json.dumps(token.upper()),
}
TOKENS = [
    SECRET, "hunter2hunter2", 'sec"ret\\tail', "a/b+c=d%e&f<g>", "two words", 'q\\\\\\"q\\', "u005c%41u0041-%5c\\u0041", "a$&b$1.*c",
]


def shown(found):
    """Yields every text of a value or an error, and of its parts."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for name, part in found.items():
            yield from (name, *shown(part))
    elif isinstance(found, list):
        for part in found:
            yield from shown(part)
    elif isinstance(found, BaseException):
        yield from traceback.format_exception(type(found), found, found.__traceback__)
        yield from shown([*found.args, vars(found)])
    elif hasattr(found, "headers"):
        yield from shown([repr(found), found.headers])


def use(found):
    """Reads all that a value or an error has."""
    repr(found), str(found)
    if isinstance(found, weirgate.WeirgateError):
        for name in ("limits", "blocking", "is_paused", "headers", "problem", "applied", "grant", "status"):
            getattr(found, name, None)
        for name in ("retry_after", "starts_in"):
            (getattr(found, name, None) or 0) + 1
        (getattr(found, "missing_plan", None) or "") + ""
    elif found is None or isinstance(found, float):
        (found or 0) + 1
    elif isinstance(found, weirgate.Balances):
        found.remaining("rpm"), found.limits, found.headers, [status.is_short for status in found.limits]
    elif isinstance(found, (weirgate.UsageTotal, weirgate.UsagePage)):
        rows = found.rows if isinstance(found, weirgate.UsagePage) else (found,)
        [(row.tokens.get("rpm"), row.acquires + 1, row.state, row.complete_until + 1) for row in rows]
        ", ".join(found.unreadable)
    elif isinstance(found, weirgate.EffectiveLimits):
        [(str(of.level), of.status, [limit.json() for limit in of.limits]) for of in found.buckets]
        [(of.level.json(), of.config and of.config.limits, of.is_from_file) for of in found.levels]
        (found.missing_plan or "") + ""
    elif isinstance(found, weirgate.LimitsChange):
        [(config.status, config.is_shadow, config.limits) for config in (found.before, found.after) if config]
        [(config.caller_class or "") + "" for config in (found.before, found.after) if config]
    elif not isinstance(found, weirgate.Settlement):
        found.limits, found.would_deny, found.degraded, found.headers, found.amount("rpm"), found.remaining("rpm")
        found.token, found.expires_at, found.amounts, (found.starts_at or 0) + 1, (found.missing_plan or "") + ""


class Subject:
    """Both clients by the same calls. Each returns a value, or an error of the package."""

    def __init__(self, url, token=SECRET, **options):
        self.client = weirgate.Client(url, token=token, retries=0, **options)
        self.later = weirgate.AsyncClient(url, token=token, retries=0, **options)
        self.loop = asyncio.new_event_loop()

    def answers(self, call):
        """Returns what a call, by its name, answers in both clients."""
        calls = {
            "acquire": lambda client: client.acquire("a", "api", {"rpm": 1}),
            "settle": lambda client: client.restore("g").adjust({"rpm": 1}),
            "vendor_said": lambda client: client.restore("g").vendor_said(status=429),
            "report_vendor": lambda client: client.report_vendor("a", "api", status=429),
            "peek": lambda client: client.peek("a", "api"),
            "usage": lambda client: client.usage(entity="a", start=0, end=86_400),
            "usage_rows": lambda client: client.usage_rows(entity="a", start=0, end=86_400),
            "limits": lambda client: client.limits("a", "api"),
            "set_limits": lambda client: client.set_limits(["rpm=5/minute"], resource="api"),
        }

        async def later():
            return await calls[call](self.later)

        runs = [lambda: calls[call](self.client), lambda: self.loop.run_until_complete(later())]
        return [self._answer(run) for run in runs]

    def _answer(self, run):
        try:
            return run()
        except weirgate.WeirgateError as error:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            assert SECRET not in text, text
            return error

    def close(self):
        self.client.close(), self.later.close(), self.loop.close()


class Answers(unittest.TestCase):
    def within(self, work):
        """Runs work that must not hang."""
        failures = []

        def run():
            try:
                work()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(60)
        self.assertFalse(thread.is_alive(), "a call hangs")
        if failures:
            raise failures[0]

    def subject(self, server, **options):
        subject = Subject(server.url, **options)
        self.addCleanup(subject.close)
        return subject

    def check_whole(self, call, answers, kind=None):
        """Each answer, on connections that stay if they can."""
        current = []

        def serve(peer, _):
            while peer.read():
                peer.send(current[0])

        def work():
            for data in answers:
                current[:] = [data]
                for found in subject.answers(call):
                    use(found)
                    if kind:
                        self.assertIsInstance(found, kind, data[:200])

        with Server(serve) as server:
            subject = self.subject(server)
            self.within(work)

    def test_each_part_of_a_success_of_each_wrong_type(self):
        values = {
            "acquire": GRANTED, "settle": SETTLED, "vendor_said": SAID, "report_vendor": REPORTED, "peek": BALANCES, "usage": TOTAL, "usage_rows": PAGE,
            "limits": EFFECTIVE, "set_limits": CHANGED,
        }
        for call, value in values.items():
            with self.subTest(call=call):
                self.check_whole(call, [whole(200, json.dumps(value))])
                self.check_whole(call, [whole(200, text) for text in mutations(value)])

    def test_limits_in_force_have_the_levels_of_the_plan_and_the_plan_that_lacks_them(self):
        current = []

        def serve(peer, _):
            while peer.read():
                peer.send(whole(200, json.dumps(current[0])))

        with Server(serve) as server:
            subject = self.subject(server)
            current[:] = [EFFECTIVE]
            for found in subject.answers("limits"):
                levels = [of.level for of in found.levels]
                self.assertEqual(levels[1:], [weirgate.Level(plan="pro", resource="api"), weirgate.Level(plan="pro")])
                self.assertEqual([level.kind for level in levels], ["entity_resource", "plan_resource", "plan"])
                self.assertEqual([level.json() for level in levels], [of["level"] for of in EFFECTIVE["levels"]])
                self.assertEqual([*map(str, levels)], ["entity a on resource api", "plan pro on resource api", "plan pro"])
                self.assertEqual(found.missing_plan, "pro")
            current[:] = [{name: value for name, value in EFFECTIVE.items() if name != "missing_plan"}]
            for found in subject.answers("limits"):
                self.assertIsNone(found.missing_plan)

    def test_each_part_of_a_refusal_of_each_wrong_type(self):
        texts = list(mutations(PROBLEM))
        for status in (400, 401, 403, 408, 413, 429, 500, 503):
            with self.subTest(status=status):
                self.check_whole("acquire", [whole(status, text) for text in texts], weirgate.WeirgateError)
        self.check_whole("settle", [whole(503, text) for text in texts], weirgate.WeirgateError)

    def test_each_status_with_and_without_a_body_that_fits(self):
        for status in range(100, 600):
            closes = "connection: close\r\n"
            for body in (json.dumps(GRANTED), "", f'{{"detail": "{SECRET}"}}'):
                self.send_and_close("acquire", whole(status, body, closes), status)

    def send_and_close(self, call, data, shown, kind=None):
        """One answer on a connection of its own, which the server closes."""
        server, subject = self.closing()
        server.data = data
        for found in subject.answers(call):
            with self.subTest(answer=shown):
                use(found)
                self.assertNotIn(SECRET, repr(found))
                if kind:
                    self.assertIsInstance(found, kind)

    def closing(self):
        if not hasattr(self, "_closing"):

            def serve(peer, _):
                if peer.read():
                    peer.send(server.data)

            server = Server(serve)
            server.__enter__()
            self.addCleanup(server.__exit__)
            self._closing = server, self.subject(server)
        return self._closing

    def test_framings_that_are_wrong(self):
        body = json.dumps(GRANTED).encode()
        size = len(body)
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
        start = b"HTTP/1.1 200 OK\r\n"
        framings = {
            "chunked": start + b"transfer-encoding: chunked\r\n\r\n" + chunked,
            "both": start + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n" + chunked,
            "chunked garbage": start + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + body,
            "no length": start + b"\r\n" + body,
            "5,000 digits": start + b"content-length: " + b"9" * 5_000 + b"\r\n\r\n" + body,
            "20 digits": start + b"content-length: " + b"9" * 20 + b"\r\n\r\n" + body,
            "negative": start + b"content-length: -5\r\n\r\n" + body,
            "signed": start + b"content-length: +%d\r\n\r\n" % size + body,
            "other digits": start + "content-length: ٣\r\n\r\n".encode() + body,
            "superscript": start + b"content-length: \xb2\r\n\r\n" + body,
            "two lengths": start + b"content-length: 5\r\ncontent-length: %d\r\n\r\n" % size + body,
            "list of lengths": start + b"content-length: %d, %d\r\n\r\n" % (size, size) + body,
            "short body": head(200, size + 5) + body,
            "long body": head(200, size - 5) + body,
            "two answers": whole(200, body) + whole(200, body),
            "empty head": b"\r\n\r\n",
            "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
            "nothing": b"",
            "no status": b"HTTP/1.1 \r\n\r\n",
            "two digits": b"HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n",
            "four digits": b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/2": b"HTTP/2 200\r\ncontent-length: 0\r\n\r\n",
            "HTTP/0.9": body,
            "another protocol": b"SSH-2.0-server\r\n\r\n",
            "frames": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" * 50,
            "a line without a colon": start + b"nothing\r\ncontent-length: 0\r\n\r\n",
            "a name with a space": start + b"a b: c\r\ncontent-length: 0\r\n\r\n",
            "a folded line": start + b"a: b\r\n c\r\ncontent-length: 0\r\n\r\n",
            "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
            "a line feed in a value": start + b"ratelimit: a\nb: c\r\ncontent-length: %d\r\n\r\n" % size + body,
            "a zero in a value": start + b"ratelimit: a\x00\r\ncontent-length: %d\r\n\r\n" % size + body,
            "latin-1": start + b"ratelimit: \xfc\r\ncontent-length: %d\r\n\r\n" % size + body,
            "a long line": start + b"a: " + b"b" * 100_000 + b"\r\ncontent-length: 0\r\n\r\n",
            "many lines": start + b"a: b\r\n" * 20_000 + b"content-length: 0\r\n\r\n",
            "many interim answers": b"HTTP/1.1 103 X\r\n\r\n" * 20_000 + whole(200, body),
            "switching": b"HTTP/1.1 101 X\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
            "switching, then an answer": b"HTTP/1.1 101 X\r\n\r\n" + whole(200, body),
            "compressed": whole(200, zlib.compress(body), "content-encoding: deflate\r\n"),
            "no UTF-8": whole(200, body.replace(b"g1", b"\xff\xfe")),
            "UTF-16": whole(200, json.dumps(GRANTED).encode("utf-16")),
            "a byte order mark": whole(200, b"\xef\xbb\xbf" + body),
            "a redirect": whole(302, b"", f"location: http://{SECRET}/\r\n"),
            "a redirect to itself": whole(307, b"", "location: /v1/acquire\r\n"),
            "duplicate fields": whole(200, body[:-1] + b', "grant": 5}'),
            "a comment": whole(200, b"/* */" + body),
            "two values": whole(200, body + body),
            "the secret as a status": f"HTTP/1.1 {SECRET}\r\n\r\n".encode(),
            "the secret as a field": f"HTTP/1.1 200 X\r\n{SECRET}\r\n\r\n".encode(),
            "9 MB": whole(200, b" " * 9_000_000 + body),
        }
        usable = {"chunked", "two lengths", "latin-1", "a byte order mark"}
        for name, data in framings.items():
            for call in ("acquire", "settle", "peek"):
                kind = None if name in usable else weirgate.WeirgateError
                self.within(lambda: self.send_and_close(call, data, name, kind))

    def test_random_bytes_in_an_answer(self):
        draw = random.Random(20_261_125)
        valid = whole(200, json.dumps(GRANTED), "connection: close\r\n")
        for _ in range(500):
            data = bytearray(valid)
            for _ in range(draw.randrange(1, 5)):
                place = draw.randrange(len(data))
                data[place : place + draw.randrange(4)] = draw.randbytes(draw.randrange(4))
            self.send_and_close("acquire", bytes(data), bytes(data))

    def test_answers_that_do_not_end(self):
        endless = {
            "nothing": (b"", b""),
            "half a head": (b"HTTP/1.1 200 OK\r\n", b""),
            "a head": (b"HTTP/1.1 200 OK\r\na: ", b"b" * 1_000),
            "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
            "one interim answer": (b"HTTP/1.1 102 X\r\n\r\n", b""),
            "a body byte for byte": (head(200, 8_000_000), b" "),
            "half a body": (head(200, 500) + b"{", b""),
            "a long body": (head(200, 10**9), b" " * 60_000),
            "chunks": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 1_000),
            "a body without a length": (b"HTTP/1.1 200 OK\r\n\r\n", b" " * 60_000),
            "after switching": (b"HTTP/1.1 101 X\r\nupgrade: a\r\nconnection: upgrade\r\n\r\n", b"x"),
        }
        for name, (begin, again) in endless.items():

            def serve(peer, _, begin=begin, again=again):
                peer.read()
                peer.send(begin)
                while again:
                    peer.send(again)
                peer.wait_for_end()

            with self.subTest(answer=name), Server(serve) as server:
                subject = self.subject(server, answer_timeout=0.2)
                for call in ("acquire", "peek"):
                    with contextlib.suppress(OSError):
                        self.within(lambda: self.check_unavailable(subject, call))

    def check_unavailable(self, subject, call):
        for found in subject.answers(call):
            self.assertIsInstance(found, weirgate.Unavailable)

    def test_a_secret_in_any_encoding_is_in_no_part_of_an_error(self):
        current = []
        with Server(lambda peer, _: peer.answer_all_of(current)) as server:
            for token in TOKENS:
                subject = self.subject(server, token=token)
                for encoding, encode in ENCODINGS.items():
                    repeated = json.loads(encode(token))
                    body = json.dumps(
                        {
                            **PROBLEM, "detail": "@", "title": "bad @", "grant": "@", "violated-policies": ["@", "a @@ b"],
                            "blocking": {**PROBLEM["blocking"], "policy": "@", "@": [["@"], {"@": {"a @": "@"}}]}, "@": 1,
                        }
                    ).replace("@", encode(token)[1:-1])
                    for status in (400, 401, 403, 413, 429, 500, 503):
                        current[:] = [whole(status, body)]
                        for found in subject.answers("acquire"):
                            with self.subTest(token=token, encoding=encoding, status=status):
                                self.assertIsInstance(found, weirgate.WeirgateError)
                                for text in shown(found):
                                    self.assertNotIn(repeated.lower(), text.lower())
                                if status == 429:
                                    self.assertEqual(found.retry_after, 1.5)

    def test_a_secret_is_in_no_field_that_is_passed_on(self):
        current = []
        with Server(lambda peer, _: peer.answer_all_of(current)) as server:
            for token in TOKENS:
                subject = self.subject(server, token=token)
                for encode in (str, str.upper, urllib.parse.quote, json.dumps):
                    repeated = encode(token)
                    fields = f"retry-after: {repeated}\r\nratelimit: a;{repeated}\r\nx-ratelimit-a: {repeated}, b\r\n"
                    if encode is str and token.replace("-", "").isalnum():
                        fields += f"ratelimit-{token}: 5\r\n"
                    granted = whole(200, json.dumps(GRANTED), fields)
                    balances = whole(200, json.dumps(BALANCES), fields)
                    denied = whole(429, json.dumps(PROBLEM), fields)
                    for call, data in [("acquire", granted), ("peek", balances), ("acquire", denied)]:
                        current[:] = [data]
                        for found in subject.answers(call):
                            with self.subTest(token=token, repeated=repeated, call=call):
                                self.assertIn("retry-after", found.headers)
                                for text in shown(found):
                                    self.assertNotIn(repeated.lower(), text.lower())

    def test_every_text_of_an_error_is_one_of_utf_8(self):
        lone = "a \ud800 b \udc00\ud800"
        body = json.dumps({**PROBLEM, "detail": lone, lone: [lone], "grant": lone, "title": "whole \U0001f600"})
        for token in (SECRET, ""):
            for status in (400, 401, 429, 500):
                with Server(lambda peer, _: peer.answer_all(whole(status, body))) as server:
                    for found in self.subject(server, token=token).answers("acquire"):
                        self.assertIn("a \ufffd b \ufffd\ufffd", str(found))
                        for text in shown(found):
                            text.encode("utf-8")
                        if status == 429:
                            self.assertEqual(found.problem["title"], "whole \U0001f600")

    def test_no_secret_is_in_a_log(self):
        data = whole(500, json.dumps({"detail": SECRET * 3}))

        def serve(peer, _):
            while asked := peer.read():
                peer.send(whole(200, json.dumps(GRANTED)) if asked[0] == "/v1/acquire" else data)

        with Server(serve) as server, self.assertLogs("weirgate", logging.WARNING) as logs:
            client = weirgate.Client(server.url, token=SECRET, retries=0)
            self.addCleanup(client.close)
            with client.acquire("a", "api", {"rpm": 1}) as grant:
                self.assertNotIn("g1", repr(grant))
                self.assertNotIn(SECRET, repr(vars(client)) + repr(vars(client._connections)))
        self.assertNotIn(SECRET, "".join(logs.output))

    def test_no_secret_of_a_url_is_in_an_error(self):
        for url in [
            "http://user:{}@host:1", "http://{}@host", "https://user:{}@host", "http://host/?token={}",
            "http://host/#{}", "http://host/{}", "http://user:{}/x@host", "http://user:{}?x@host", "http://host:{}", "http://[::1@{}@",
            "user:{}@host", "ftp://{}:a@host", "http://\u2100{}@host", "http://user:{}@[::1", "http:///{}",
            "http://host\n/{}",
        ]:
            for make in (weirgate.Client, weirgate.AsyncClient):
                with self.subTest(url=url):
                    try:
                        make(url.format(SECRET))
                        self.fail("it is no address")
                    except weirgate.InvalidRequest as error:
                        lines = traceback.format_exception(type(error), error, error.__traceback__)
                        self.assertNotIn(SECRET, "".join(lines))

    def test_names_and_paths_that_nothing_can_connect_to_are_unavailable(self):
        names = ["unix:/" + "x" * 500, "unix:/no/agent.sock"]
        for url in [*names, "http://" + "a" * 70, "http://a..b", "http://[::ffff:1.2.3]:1"]:
            with self.subTest(url=url):
                subject = Subject(url, answer_timeout=5)
                self.addCleanup(subject.close)
                for found in subject.answers("acquire"):
                    self.assertIsInstance(found, weirgate.Unavailable)
                    self.assertEqual(found.applied, "no")


if __name__ == "__main__":
    unittest.main()
