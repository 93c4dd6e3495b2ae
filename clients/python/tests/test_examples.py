"""The examples, against the real agent, and what the guides show of them."""

import asyncio
import http.server
import importlib
import json
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
    def test_requests_of_a_key_pass_until_its_limit_and_all_pass_without_an_agent(self):
        import weirgate

        gateway = importlib.import_module("gateway")
        agent = Agent(backend.variables)
        self.addCleanup(agent.stop)
        limits = [weirgate.Limit.rate("requests", 1, 86_400, capacity=2), weirgate.Limit.slots("slots", 10)]

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
            await send({"type": "http.response.body", "body": b"done"})

        async def run():
            before, gateway.LIMITS = gateway.LIMITS, limits
            client = weirgate.AsyncClient(agent.url)
            limited = gateway.RateLimit(app, client)
            answers = []

            async def ask(key):
                sent = []

                async def send(message):
                    sent.append(message)

                headers = [(b"x-api-key", key)] if key else []
                await limited({"type": "http", "headers": headers}, None, send)
                answers.append((sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]))

            for key in [b"ann", b"ann", b"ann", b"bob", None, b"not a name"]:
                await ask(key)
            slots = await client.remaining("ann", "api", "slots", limits=limits)
            agent.stop()
            await ask(b"ann")
            client.close()
            gateway.LIMITS = before
            return answers, slots

        answers, slots = asyncio.run(run())
        self.assertEqual([status for status, _, _ in answers], [200, 200, 429, 200, 200, 400, 200])
        self.assertEqual(slots, 10)
        self.assertIn(b'"requests";r=1', answers[0][1][b"ratelimit"])
        self.assertEqual(answers[0][1][b"a"], b"b")
        _, fields, body = answers[2]
        self.assertIn(b"retry-after", fields)
        self.assertEqual(json.loads(body)["violated-policies"], ["requests"])
        self.assertNotIn(b"ratelimit", answers[4][1])


class Guides(unittest.TestCase):
    """Code of a guide is part of an example, which another test runs; options are those of the agent."""

    GUIDES = [ROOT / "docs/guide/python.md", ROOT / "docs/guide/node.md"]

    def test_code_is_part_of_an_example(self):
        examples = [path for path in (ROOT / "clients").glob("*/examples/*") if path.is_file()]
        texts = [path.read_text(encoding="utf-8") for path in examples]
        blocks = 0
        for guide in self.GUIDES:
            for _, block in re.findall(r"^```(\w+)\n(.*?)^```", guide.read_text(encoding="utf-8"), re.S | re.M):
                shown = re.sub(r"^#? ?\.\.\.\n", "", block, flags=re.M)
                if not re.match(r"(pip|npm|export|sudo|docker) ", block):
                    blocks += 1
                    self.assertTrue(any(shown in text for text in texts), f"{guide.name}: no example has\n{shown}")
        self.assertGreater(blocks, 5)

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
        self.assertGreater(found, 3)


class Model:
    """A model's server."""

    def __init__(self):
        self.answers = []
        self.requests = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer.requests += 1
                self.rfile.read(int(self.headers["content-length"]))
                status, body = outer.answers.pop(0)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_):
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:{}/".format(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


if __name__ == "__main__":
    unittest.main()
