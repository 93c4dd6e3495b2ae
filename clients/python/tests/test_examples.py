"""The examples, against the real agent, and what the guides show of them."""

import asyncio
import contextlib
import http.server
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from stack import Agent, Backend
from variables import environment

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER / "examples"))


def setUpModule():
    global backend
    backend = Backend()
    unittest.addModuleCleanup(backend.stop)


class LlmFunction(unittest.TestCase):
    def test_a_call_settles_what_it_used_and_a_failed_one_used_nothing(self):
        agent = Agent({**backend.variables, "WEIRGATE_AGENT_TOKEN": "session"})
        self.addCleanup(agent.stop)
        model = Model()
        self.addCleanup(model.stop)
        lambdas = {
            "AWS_LAMBDA_FUNCTION_NAME": "ask",
            "AWS_SESSION_TOKEN": "session",
            "WEIRGATE_AGENT_URL": agent.url,
            "MODEL_URL": model.url,
            "MODEL_KEY": "key",
        }
        with environment(**lambdas):
            os.environ.pop("WEIRGATE_AGENT_TOKEN", None)
            function = importlib.import_module("llm_function")
            self.addCleanup(function.client.close)
            event = {"prompt": "x" * 30, "max_tokens": 400}
            model.answers = [(200, {"usage": {"total_tokens": 120}}), (500, {})]
            self.assertEqual(function.handler(event, None)["statusCode"], 200)
            remaining = lambda limit: function.client.remaining("openai", "gpt-4", limit)
            self.assertEqual((remaining("tpm"), remaining("slots")), (880, 2))
            with self.assertRaises(OSError):
                function.handler(event, None)
            self.assertEqual((remaining("tpm"), remaining("slots")), (880, 2))
            refused = function.handler({**event, "max_tokens": 880}, None)
            self.assertEqual(refused["statusCode"], 429)
            self.assertIn("retry-after", refused["headers"])
            self.assertEqual(model.requests, 2)
            self.attack(function, model, event, remaining)
            self.settlement_failed(function, model, event, agent)
            agent.stop()
            self.assertEqual(function.handler(event, None)["statusCode"], 503)
            self.assertEqual(model.answers, [])

    def settlement_failed(self, function, model, event, agent):
        """The agent leaves while the model works: what the caller gets is the outcome of the work."""
        # Each leaves one of the two slots leased.
        for body, raises in [({"usage": {"total_tokens": 1}}, None), ("no json", json.JSONDecodeError)]:
            model.answers, model.meanwhile = [(200, body)], agent.stop
            with self.assertLogs("weirgate", "WARNING"):
                with self.assertRaises(raises) if raises else contextlib.nullcontext():
                    self.assertEqual(function.handler({**event, "max_tokens": 1}, None)["statusCode"], 200)
            agent.restart()
        model.meanwhile = lambda: None

    def attack(self, function, model, event, remaining):
        """A caller that wants the model without its cost."""
        before, asked = remaining("tpm"), model.requests
        for wrong in [None, "", 5, ["x"], {"a": 1}, True, "x" * 100_001]:
            self.assertEqual(function.handler({**event, "prompt": wrong}, None)["statusCode"], 400)
        self.assertEqual(function.handler({}, None)["statusCode"], 400)
        # Each costs as much as the longest answer, which is more than the limit here.
        self.assertGreater(function.MAX_ANSWER, 1000)
        for wrong in [-1, -(10**9), 0, "abc", "1", 1.5, None, True, [1], 10**9, 10**400, float("nan"), float("inf")]:
            self.assertEqual(function.handler({**event, "max_tokens": wrong}, None)["statusCode"], 413, wrong)
        self.assertEqual(function.handler({"prompt": "x"}, None)["statusCode"], 413)
        self.assertEqual((remaining("tpm"), model.requests), (before, asked))
        # A model that may have worked is paid for.
        for reply in [(None, None), (200, {}), (200, "no json"), (200, {"usage": {"total_tokens": "abc"}})]:
            model.answers = [reply]
            with self.assertLogs("weirgate") if "abc" in str(reply) else self.assertRaises(Exception):
                function.handler({**event, "max_tokens": 100}, None)
            before -= 110
            self.assertEqual((remaining("tpm"), remaining("slots")), (before, 2))


class Calls(unittest.TestCase):
    def test_the_calls_of_the_guide_print_what_remains(self):
        backend = Backend()
        self.addCleanup(backend.stop)
        agent = Agent(backend.variables)
        self.addCleanup(agent.stop)
        variables = {**os.environ, "WEIRGATE_AGENT_URL": agent.url}
        run = [sys.executable, str(FOLDER / "examples/calls.py")]
        said = subprocess.run(run, env=variables, check=True, capture_output=True, text=True).stdout
        self.assertEqual(said.split(), ["600", "HOW", "MANY?", "591"])


class Gateway(unittest.TestCase):
    """The application behind the limits, as clients use it that want more than theirs."""

    def setUp(self):
        import weirgate

        self.gateway = importlib.import_module("gateway")
        # Not into the output of the tests.
        logging.getLogger("weirgate").addHandler(logging.NullHandler())
        self.agent = Agent(backend.variables)
        self.addCleanup(lambda: self.agent.stop())
        self.limits = [weirgate.Limit.rate("requests", 1, 86_400, capacity=2), weirgate.Limit.slots("slots", 10)]
        self.addCleanup(setattr, self.gateway, "LIMITS", self.gateway.LIMITS)
        self.gateway.LIMITS = self.limits
        self.tenants = {"key-a": f"{self.id()}-a", "key-b": f"{self.id()}-b", "odd": "not a name"}
        self.passed = 0

    async def app(self, scope, receive, send):
        self.passed += 1
        if scope.get("path") == "/broken":
            raise KeyError("the application")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"done"})

    async def ask(self, client, *keys, **scope):
        """Returns the messages of an answer."""
        sent = []

        async def send(message):
            sent.append(message)

        limited = self.gateway.limited(self.app, client, self.tenants)
        headers = [(b"x-api-key", key) for key in keys]
        await limited({"type": "http", "headers": headers, **scope}, None, send)
        return sent

    def run_with(self, work, url=None):
        import weirgate

        async def run():
            async with weirgate.AsyncClient(url or self.agent.url, retries=0) as client:
                return await work(client)

        return asyncio.run(run())

    def test_requests_of_a_key_pass_until_its_limit_and_all_pass_while_the_agent_restarts(self):
        async def work(client):
            answers = [await self.ask(client, key) for key in [b"key-a", b"key-a", b"key-a", b"key-b", b"odd"]]
            slots = await client.remaining(self.tenants["key-a"], "api", "slots", limits=self.limits)
            self.agent.stop()
            return [*answers, await self.ask(client, b"key-a")], slots

        answers, slots = self.run_with(work)
        self.assertEqual([sent[0]["status"] for sent in answers], [200, 200, 429, 200, 400, 200])
        self.assertEqual(slots, 10)
        first, third, last = (dict(answers[place][0]["headers"]) for place in (0, 2, 5))
        self.assertIn(b'"requests";r=1', first[b"ratelimit"])
        self.assertEqual(first[b"a"], b"b")
        self.assertIn(b"retry-after", third)
        self.assertEqual(json.loads(answers[2][1]["body"])["violated-policies"], ["requests"])
        self.assertNotIn(b"ratelimit", last)

    def test_a_client_without_a_key_of_a_tenant_does_not_pass(self):
        async def work(client):
            wrong = [(), (b"",), (b"made up",), (b"key-a", b"key-b"), (b"key-a", b"key-a"), (b"\xff",), (b"KEY-A",)]
            answers = [await self.ask(client, *keys) for keys in wrong]
            answers.append(await self.ask(client, b"key-a", type="http", headers=[(b"x-api-keys", b"key-a")]))
            closed = [await self.ask(client, *keys, type="websocket") for keys in wrong]
            return answers, closed

        answers, closed = self.run_with(work)
        self.assertEqual({sent[0]["status"] for sent in answers}, {401})
        self.assertEqual({sent[0]["type"] for sent in closed}, {"websocket.close"})
        self.assertEqual(self.passed, 0)

    def test_what_a_client_says_of_its_tenant_or_cost_changes_nothing(self):
        said = [(b"x-tenant", b"other"), (b"x-estimate", b"-1"), (b"x-cost", b"0"), (b"x-forwarded-for", b"1.2.3.4")]

        async def work(client):
            headers = [(b"x-api-key", b"key-a"), *said]
            return [(await self.ask(client, headers=headers))[0]["status"] for _ in range(4)]

        self.assertEqual(self.run_with(work), [200, 200, 429, 429])

    def test_websockets_and_requests_that_fail_count(self):
        async def work(client):
            with self.assertRaises(KeyError):
                await self.ask(client, b"key-a", path="/broken")
            await self.ask(client, b"key-a", type="websocket")
            http = await self.ask(client, b"key-a")
            socket = await self.ask(client, b"key-a", type="websocket")
            slots = await client.remaining(self.tenants["key-a"], "api", "slots", limits=self.limits)
            return http[0]["status"], socket[0]["type"], slots

        self.assertEqual(self.run_with(work), (429, "websocket.close", 10))

    def test_nothing_passes_if_only_a_repair_brings_a_decision(self):
        missing = Agent({**backend.variables, "WEIRGATE_TABLE": "missing"})
        self.addCleanup(missing.stop)
        other = Agent({**backend.variables, "WEIRGATE_AGENT_TOKEN": "another-token-of-others"})
        self.addCleanup(other.stop)
        answers = [(200, "{}"), (200, "no json"), (302, ""), (404, "no such path"), (500, "{}"), (403, "")]
        with Model() as stranger:
            urls = [missing.url, other.url, *[stranger.url.rstrip("/")] * len(answers)]
            stranger.answers = list(answers)

            for url in urls:
                with self.subTest(url=url):
                    status = self.run_with(lambda client: self.ask(client, b"key-a"), url)[0]["status"]
                    self.assertGreaterEqual(status, 400)
        self.assertEqual(self.passed, 0)


class Guides(unittest.TestCase):
    """Code of a guide is part of an example, whose types are checked; options are those of the agent."""

    GUIDES = [ROOT / "docs/guide" / name for name in ("python.md", "node.md", "go.md")]

    def test_code_is_part_of_an_example(self):
        examples = [path for path in (ROOT / "clients").glob("*/examples/**/*") if path.is_file()]
        texts = [path.read_text(encoding="utf-8") for path in examples]
        blocks = 0
        for guide in self.GUIDES:
            for block in re.findall(r"^```(?:python|js|go) \S+\n(.*?)^```", guide.read_text(encoding="utf-8"), re.S | re.M):
                blocks += 1
                self.assertTrue(any(block in text for text in texts), f"{guide.name}: no example has\n{block}")
        self.assertEqual(blocks, 3)

    def test_options_are_those_of_the_agent(self):
        known = subprocess.run(
            [os.environ["WEIRGATE_AGENT_BIN"], "--help"], capture_output=True, text=True, check=True
        ).stdout
        files = [*self.GUIDES, *(ROOT / "clients/typescript/examples").glob("*")]
        found = 0
        for path in files:
            text = path.read_text(encoding="utf-8")
            options = re.findall(r"weirgate-agent((?:[ \\\n]+(?:--[a-z-]+|[^-\s`]\S*))+)", text)
            names = {name for line in options for name in re.findall(r"--[a-z-]+", line)}
            names |= set(re.findall(r"WEIRGATE_AGENT_[A-Z_]+", text)) - {"WEIRGATE_AGENT_URL", "WEIRGATE_AGENT_TOKEN"}
            for name in names:
                found += 1
                self.assertIn(name, known, f"{path.name} has {name}")
        self.assertGreater(found, 2)


class Model:
    """A model's server."""

    def __init__(self):
        self.answers = []
        self.meanwhile = lambda: None
        self.requests = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer.requests += 1
                self.rfile.read(int(self.headers["content-length"]))
                status, body = outer.answers.pop(0)
                outer.meanwhile()
                if status is None:
                    return
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:{}/".format(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


if __name__ == "__main__":
    unittest.main()
