"""The middleware before a real Starlette, by uvicorn, and a real agent, as clients use it that want more than their limit."""

import asyncio
import contextlib
import http.client
import inspect
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
PYTHON = FOLDER.parent / "python"
sys.path.insert(0, str(PYTHON / "tests"))

import uvicorn
import weirgate
from served import GRANTED, Server, answer
from stack import Agent, Backend, without_database
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from variables import environment
from weirgate_asgi import GRANT, RateLimit

LEASED = answer(200, {**json.loads(GRANTED.partition(b"\r\n\r\n")[2]), "lease": {"expires_at_ms": 1_900_000_000_000}})
LIMITS = [weirgate.Limit.rate("requests", 1, 86_400, capacity=2), weirgate.Limit.slots("slots", 10)]
KEYS = {"key-a": "ann", "key-b": "bob"}


def setUpModule():
    global backend, agent
    backend = Backend()
    unittest.addModuleCleanup(backend.stop)
    agent = Agent(backend.variables)
    unittest.addModuleCleanup(agent.stop)


class ByKey(AuthenticationBackend):
    """Authentication, which comes first."""

    def __init__(self, prefix):
        self.prefix = prefix

    async def authenticate(self, connection):
        keys = connection.headers.getlist("x-api-key")
        name = KEYS.get(keys[0]) if len(keys) == 1 else None
        return (AuthCredentials(), SimpleUser(f"{self.prefix}-{name}")) if name else None


def tenant_of(scope):
    return scope["user"].display_name if scope["user"].is_authenticated else None


class Served:
    """An application behind the middleware, by uvicorn."""

    def __init__(self, tenant, url=None, **options):
        self.passed = 0
        self.goes_on = threading.Event()
        client = weirgate.AsyncClient(url or agent.url, retries=0)
        defaults = {"resource": "api", "key": tenant_of, "on_unavailable": "deny", "limits": LIMITS, "client": client}
        options = {**defaults, "take": {"requests": 1, "slots": 1}, **options}
        routes = [Route("/", self.index), Route("/broken", self.broken), Route("/used/{tokens:int}", self.used), Route("/stream", self.stream), Route("/echo", self.echo)]
        middleware = [Middleware(AuthenticationMiddleware, backend=ByKey(tenant)), Middleware(RateLimit, **options)]
        app = Starlette(routes=routes, middleware=middleware)
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.001)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    async def index(self, request):
        self.passed += 1
        return JSONResponse({"of": request.user.display_name})

    async def broken(self, request):
        raise KeyError("the application")

    async def used(self, request):
        self.passed += 1
        await request.scope[GRANT].adjust({"requests": request.path_params["tokens"]})
        return JSONResponse({})

    async def echo(self, request):
        return Response(await request.body())

    async def stream(self, request):
        async def parts():
            yield b"begun"
            await asyncio.get_running_loop().run_in_executor(None, self.goes_on.wait, 30)

        return StreamingResponse(parts())

    def open(self, path="/", headers=(("x-api-key", "key-a"),), body=b""):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest("GET", path)
        for name, value in headers:
            connection.putheader(name, value)
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        return connection

    def get(self, *args, **options):
        """Returns status, headers and body."""
        with contextlib.closing(self.open(*args, **options)) as connection:
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.goes_on.set()
        self._server.should_exit = True
        self._thread.join()


class Case(unittest.TestCase):
    def setUp(self):
        self.tenant = self.id().rpartition(".")[2]

    def served(self, **options):
        served = Served(self.tenant, **options)
        self.addCleanup(served.__exit__)
        return served

    def all_slots(self):
        """Returns once all slots are free."""
        with weirgate.Client(agent.url) as client:
            client.acquire(f"{self.tenant}-ann", "api", {"slots": 10}, limits=LIMITS, wait=20).roll_back()


class Requests(Case):
    def test_requests_of_a_tenant_pass_until_its_limit(self):
        served = self.served()
        answers = [served.get() for _ in range(3)] + [served.get(headers=[("x-api-key", "key-b")])]
        self.assertEqual([status for status, _, _ in answers], [200, 200, 429, 200])
        self.assertIn('"requests";r=1', answers[0][1]["ratelimit"])
        denied = answers[2]
        self.assertEqual(denied[1]["content-type"], "application/problem+json")
        self.assertGreater(int(denied[1]["retry-after"]), 0)
        self.assertEqual(json.loads(denied[2])["violated-policies"], ["requests"])
        self.all_slots()

    def test_a_client_that_is_not_authenticated_does_not_pass(self):
        served = self.served()
        wrong = [
            [], [("x-api-key", "")], [("x-api-key", "made up")], [("x-tenant", "ann")], [("x-api-keys", "key-a")],
            [("x-api-key", "key-a"), ("x-api-key", "key-b")], [("authorization", "key-a")],
        ]
        for headers in wrong:
            status, _, body = served.get(headers=headers)
            self.assertEqual((status, json.loads(body)["detail"]), (401, "authenticate first"), headers)
        self.assertEqual(served.passed, 0)

    def test_what_a_client_says_of_its_tenant_or_its_cost_changes_nothing(self):
        served = self.served()
        statuses = []
        for cost in ["-1", "0", "abc", "", "1e9", "18446744073709551616"]:
            said = [(name, cost) for name in ("x-cost", "x-estimate", "x-forwarded-for")]
            statuses.append(served.get(headers=[("x-api-key", "key-a"), ("x-tenant", "bob"), *said])[0])
        self.assertEqual(statuses, [200, 200, 429, 429, 429, 429])

    def test_requests_that_fail_count_and_a_handler_can_adjust_its_grant(self):
        served = self.served()
        self.assertEqual([served.get(path)[0] for path in ("/broken", "/broken", "/")], [500, 500, 429])
        self.all_slots()
        self.tenant += "-other"
        served = self.served()
        self.assertEqual([served.get(path)[0] for path in ("/used/2", "/")], [200, 429])

    def test_a_slot_is_held_until_the_response_ends_or_its_client_leaves(self):
        for leaves in (False, True):
            with self.subTest(leaves=leaves):
                self.tenant += "-again"
                served = self.served(take={"slots": 10})
                connection = served.open("/stream")
                self.assertEqual(connection.getresponse().status, 200)
                self.assertEqual(served.get()[0], 429)
                if leaves:
                    connection.close()
                served.goes_on.set()
                self.all_slots()
                connection.close()

    def test_a_client_that_leaves_while_it_waits_takes_nothing_below_64_kib_of_body(self):
        served = self.served(take={"slots": 10}, wait=60)
        with weirgate.Client(agent.url) as client:
            for length in (0, 100, (64 << 10) - 1, 100_000):
                held = client.acquire(f"{self.tenant}-ann", "api", {"slots": 10}, limits=LIMITS)
                connection = served.open(body=b"x" * length)
                while agent.in_flight() == 0:
                    pass
                connection.close()
                left = time.monotonic() + 20
                while length < 64 << 10 and agent.in_flight() > 0 and time.monotonic() < left:
                    pass
                self.assertEqual(agent.in_flight() == 0, length < 64 << 10, length)
                held.release()
                self.all_slots()
        self.assertEqual(served.passed, 1)

    def test_what_a_client_sends_while_it_waits_reaches_the_application(self):
        served = self.served(take={"slots": 10}, wait=60)
        with weirgate.Client(agent.url) as client:
            for length in (0, 100, 1_000_000):
                body = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
                held = client.acquire(f"{self.tenant}-ann", "api", {"slots": 10}, limits=LIMITS)
                releasing = threading.Timer(0.1, held.release)
                releasing.start()
                self.assertEqual(served.get("/echo", body=body)[::2], (200, body))
                releasing.join()
                self.all_slots()

    def test_a_request_without_a_cost_passes_without_a_limit_and_without_a_key(self):
        served = self.served(take=lambda scope: {"requests": 2} if scope["path"] == "/" else None)
        self.assertEqual([served.get("/broken", headers=[])[0], served.get()[0], served.get()[0]], [500, 200, 429])


class Failures(Case):
    def setUp(self):
        super().setUp()
        logging.getLogger("weirgate").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("weirgate").setLevel, logging.NOTSET)

    def test_the_policy_decides_without_the_agent_and_without_its_database(self):
        without = Agent(without_database())
        self.addCleanup(without.stop)
        for url in ("http://127.0.0.1:1", without.url):
            # Whatever the client would do: its own, and those of others.
            for client in (None, "raise", "deny", "allow"):
                for policy, expected in {"allow": (200, 1), "deny": (429, 0)}.items():
                    with self.subTest(url=url, client=client, policy=policy):
                        self.check_policy(url, client, policy, expected)

    def check_policy(self, url, client, policy, expected):
        with environment(WEIRGATE_AGENT_URL=url):
            made = client and weirgate.AsyncClient(url, retries=0, on_agent_unavailable=client)
            served = self.served(client=made, on_unavailable=policy, timeout=0.5, take={"requests": 1})
        # A handler that settles does so without the agent, too.
        for path in ("/", "/used/2"):
            served.passed = 0
            status, headers, body = served.get(path)
            self.assertEqual((status, served.passed), expected)
            self.assertEqual(headers["x-ratelimit-degraded"], "true")
            self.assertEqual("retry-after" in headers, policy == "deny")
            self.assertNotIn(b"127.0.0.1", body)
        self.assertEqual(served.get(headers=[])[0], 401)

    def test_nothing_passes_if_only_a_repair_brings_a_decision(self):
        missing = Agent({**backend.variables, "WEIRGATE_TABLE": "missing"})
        self.addCleanup(missing.stop)
        guarded = Agent({**backend.variables, "WEIRGATE_AGENT_TOKEN": "another-token-of-others"})
        self.addCleanup(guarded.stop)
        cases = [
            {"url": missing.url}, {"url": guarded.url}, {"limits": None, "resource": "nowhere"}, {"take": {"wpm": 1}},
            {"take": lambda scope: 5}, {"key": lambda scope: 5}, {"key": lambda scope: b"a"},
        ]
        for status in (401, 403, 404):
            refused = answer(status, "of a proxy")
            proxy = Server(lambda peer, _, refused=refused: peer.answer_all(refused))
            self.addCleanup(proxy.__exit__)
            cases.append({"url": proxy.url})
        for options in cases:
            with self.subTest(options=list(options)):
                served = self.served(**{"on_unavailable": "allow", **options})
                status, _, body = served.get()
                self.assertEqual((status, served.passed), (500, 0))
                self.assertNotIn(b"127.0.0.1", body)

    def test_a_failed_settlement_does_not_replace_the_failure_of_the_application(self):
        """An application that fails, or is cancelled, and an agent that fails the release in each way."""
        for release in (None, answer(500, {}), answer(400, {"detail": "no", "applied": "no", "retry": False}), b"no HTTP\r\n\r\n"):

            def serve(peer, _):
                while asked := peer.read():
                    if asked[0] == "/v1/acquire":
                        peer.send(LEASED)
                    elif release is None:
                        return
                    else:
                        peer.send(release)

            for failure in (KeyError("the application"), asyncio.CancelledError(), SystemExit(3)):
                with self.subTest(release=release, failure=failure), Server(serve) as server:

                    async def app(scope, receive, send):
                        raise failure

                    async def run():
                        async with weirgate.AsyncClient(server.url, retries=0) as client:
                            limited = RateLimit(app, resource="api", key=lambda scope: "a", on_unavailable="deny", client=client)
                            await limited({"type": "http"}, None, None)

                    with self.assertLogs("weirgate", "WARNING") as logs, self.assertRaises(type(failure)) as raised:
                        asyncio.run(run())
                    self.assertIs(raised.exception, failure)
                    self.assertIn("could not be settled", logs.output[0])
                    # A request that fails counts.
                    self.assertEqual({body["end"] for path, _, body in server.requests if path == "/v1/settle"}, {"release"})

    def test_what_is_not_chosen_is_refused_at_the_start(self):
        options = {"resource": "api", "key": tenant_of, "on_unavailable": "deny"}
        for name in options:
            with self.assertRaisesRegex(TypeError, name):
                RateLimit(None, **{key: value for key, value in options.items() if key != name})
        for wrong in ("alow", None, "raise"):
            with self.assertRaisesRegex(ValueError, "on_unavailable must be 'allow' or 'deny'"):
                RateLimit(None, **{**options, "on_unavailable": wrong})
        with self.assertRaisesRegex(TypeError, "key must be a function"):
            RateLimit(None, **{**options, "key": "x-api-key"})


class Bare(Case):
    """Messages of ASGI, without a server."""

    def ask(self, scope, *, number=1, names=(), **options):
        """Returns the messages that each of several requests is answered with, by one tenant or by names."""

        async def app(scope, receive, send):
            if scope["type"] == "lifespan":
                await send({"type": "lifespan.shutdown.complete"})
            else:
                await send({"type": "websocket.accept", "headers": [(b"a", b"b")]})

        async def run():
            async def key(scope):
                return scope["name"]

            async with weirgate.AsyncClient(agent.url) as client:
                given = {"resource": "api", "key": key, "on_unavailable": "deny", "limits": LIMITS, "client": client, **options}
                limited, answers = RateLimit(app, **given), []
                for name in names or [self.tenant] * number:
                    sent = []

                    async def send(message):
                        sent.append(message)

                    await limited({**scope, "name": name}, None, send)
                    answers.append(sent)
                return answers

        return asyncio.run(run())

    def test_a_websocket_is_limited_as_a_request(self):
        accepted, again, closed = self.ask({"type": "websocket"}, number=3)
        self.assertEqual([name for name, _ in accepted[0]["headers"]], [b"a", b"ratelimit-policy", b"ratelimit"])
        self.assertEqual(again[0]["type"], "websocket.accept")
        self.assertEqual(closed, [{"type": "websocket.close", "code": 1013}])
        extensions = {"websocket.http.response": {}}
        start, body = self.ask({"type": "websocket", "extensions": extensions})[0]
        self.assertEqual((start["type"], start["status"]), ("websocket.http.response.start", 429))
        self.assertEqual(json.loads(body["body"])["status"], 429)
        self.tenant = ""
        self.assertEqual(self.ask({"type": "websocket"})[0], [{"type": "websocket.close", "code": 1008}])

    def test_what_is_no_name_is_answered_400_and_the_agent_refuses_the_same(self):
        names = ["user+x@y.com", "a b", "a/b", "..", "a\n", "\u00fc", "a\u00fc", "\u0661", "a\u0661", "a" * 256, "a" * 257, "\ud800"]
        names += [f"{before}{chr(code)}" for before in ("", "a") for code in range(128)]
        extensions = {"websocket.http.response": {}}
        with weirgate.Client(agent.url) as client:
            for name, answered in zip(names, self.ask({"type": "websocket", "extensions": extensions}, names=names)):
                try:
                    client.peek(name, "api", limits=LIMITS)
                    expected = "websocket.accept"
                except weirgate.InvalidRequest:
                    expected = 400
                with self.subTest(name=name):
                    self.assertEqual(answered[0].get("status", answered[0]["type"]), expected)
                    if expected == 400:
                        detail = json.loads(answered[1]["body"])["detail"]
                        self.assertIn("must be 1 to 256 of", detail)
                        self.assertIn(f"got {len(name)} characters", detail)

    def lasting(self, url, lease, until):
        """Opens a WebSocket that ends as `until` says, given the grant. Returns the answer to another one before its end."""

        async def run():
            opened = asyncio.get_running_loop().create_future()
            ends = asyncio.Event()

            async def app(scope, receive, send):
                if not opened.done():
                    opened.set_result(scope[GRANT])
                    await ends.wait()

            async with weirgate.AsyncClient(url) as client:
                given = {"key": lambda scope: self.tenant, "on_unavailable": "deny", "limits": LIMITS, "client": client}
                limited = RateLimit(app, resource="api", take={"slots": 10}, lease=lease, **given)
                first = asyncio.ensure_future(limited({"type": "websocket"}, None, None))
                await until(await opened)
                sent = []

                async def send(message):
                    sent.append(message)

                await limited({"type": "websocket"}, None, send)
                ends.set()
                await first
                return sent

        return asyncio.run(run())

    def test_a_request_that_ends_as_it_is_granted_takes_nothing(self):
        """Its task is cancelled, or its client leaves, in the turn of the event loop in which the acquire is done."""
        for ends in ("cancelled", "left"):
            passed = []

            async def app(scope, receive, send):
                passed.append(scope)

            async def run():
                left = asyncio.get_running_loop().create_future()

                class Client(weirgate.AsyncClient):
                    async def acquire(self, *args, **options):
                        grant = await super().acquire(*args, **options)
                        if ends == "cancelled":
                            serving.cancel()
                        else:
                            left.set_result({"type": "http.disconnect"})
                            await asyncio.sleep(0)
                        return grant

                async def receive():
                    return await left

                async with Client(agent.url) as client:
                    given = {"key": lambda scope: f"{self.tenant}-ann", "on_unavailable": "deny", "limits": LIMITS, "client": client}
                    limited = RateLimit(app, resource="api", take={"slots": 10}, wait=60, **given)
                    serving = asyncio.ensure_future(limited({"type": "http"}, receive, None))
                    await asyncio.wait({serving})
                    left.cancel()
                    self.assertEqual(serving.cancelled(), ends == "cancelled")

            with self.subTest(ends):
                asyncio.run(run())
                self.all_slots()
                self.assertEqual(passed, [])

    def test_a_slot_is_held_while_a_websocket_lasts_longer_than_its_lease(self):
        async def lapse(grant):
            expired = grant.expires_at + 0.5
            while time.time() < expired:
                await asyncio.sleep(0.05)

        self.assertEqual(self.lasting(agent.url, 3, lapse), [{"type": "websocket.close", "code": 1013}])

    def test_a_lease_that_is_lost_or_cannot_be_renewed_is_logged_once(self):
        gone = answer(200, {"grant": "g2", "settlement": "lease_gone", "lease": {"expires_at_ms": 1}, "amounts": []})
        ended = answer(200, {"grant": None, "settlement": "settled", "lease": None, "amounts": []})
        for renewed, said in ((gone, "a lease expired"), (answer(500, {}), "a lease was not renewed")):

            def serve(peer, _):
                while asked := peer.read():
                    peer.send(LEASED if asked[0] == "/v1/acquire" else renewed if "renew_ms" in asked[2] else ended)

            async def log(_):
                # Such an error is of each renewal.
                enough = 1 if renewed is gone else 3
                while not logs.output or sum("renew_ms" in body for _, _, body in server.requests) < enough:
                    await asyncio.sleep(0.01)

            with self.subTest(said), Server(serve) as server, self.assertLogs("weirgate", "WARNING") as logs:
                self.lasting(server.url, 0.03, log)
                of_first = [record.getMessage() for record in logs.records]
                self.assertTrue(all(said in text for text in of_first), of_first)
                self.assertLessEqual(len(of_first), 2, "one for each WebSocket")

    def test_a_cost_may_be_awaited(self):
        async def take(scope):
            return {"requests": 2}

        first, second = self.ask({"type": "websocket"}, number=2, take=take)
        self.assertEqual((first[0]["type"], second[0]["type"]), ("websocket.accept", "websocket.close"))

    def test_a_client_of_its_own_ends_with_the_application(self):
        closed = []

        class Client(weirgate.AsyncClient):
            def close(self):
                closed.append(self)
                return super().close()

        made, weirgate.AsyncClient = weirgate.AsyncClient, Client
        self.addCleanup(setattr, weirgate, "AsyncClient", made)
        with self.subTest("its own"):
            self.assertEqual(self.ask({"type": "lifespan"}, client=None)[0], [{"type": "lifespan.shutdown.complete"}])
            self.assertEqual(len(closed), 2, "its own, and that of the test")
        with self.subTest("another's"):
            del closed[:]
            self.ask({"type": "lifespan"})
            self.assertEqual(len(closed), 1)


class Install(unittest.TestCase):
    def test_pip_installs_both_folders_without_an_index(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            python = Path(folder) / "bin/python"
            install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
            subprocess.run([*install, PYTHON, FOLDER], check=True)
            code = "import weirgate_asgi, weirgate; print(weirgate_asgi.__version__, weirgate.__version__)"
            said = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=folder).stdout
            self.assertEqual(said.split(), [weirgate.__version__] * 2)

    def test_the_example_of_the_readme_is_an_application(self):
        text = (FOLDER / "README.md").read_text(encoding="utf-8")
        code = text.split("```python\n")[1].split("```")[0]
        names = {"RateLimit": RateLimit, "AuthenticationMiddleware": AuthenticationMiddleware, "backend": ByKey("a")}
        app = Starlette()
        exec(code, {**names, "app": app})
        kinds = [middleware.cls for middleware in app.user_middleware]
        self.assertEqual(kinds, [AuthenticationMiddleware, RateLimit])
        self.assertTrue(inspect.isfunction(app.user_middleware[1].kwargs["key"]))


if __name__ == "__main__":
    unittest.main()
