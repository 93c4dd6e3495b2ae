"""A real Envoy with the configuration and the rules of docs/guide/envoy.md, before a real agent: `make envoy`, which installs
Envoy."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import tempfile
import unittest

from fences import blocks, page
from processes import LOCAL, PROGRAMS, ROOT, end_with_signals, free_port, listens, run, running, started, until
from served import Service, served

RULES = dict(blocks(page("guide/envoy")))["yaml rules.yaml"]
CONFIG = (ROOT / "docs/guide/envoy.yaml").read_text()
# Seconds for a process, or for what follows from a response.
PATIENCE = 20
TENANT, OTHER = ("x-api-key", "key-of-acme"), ("x-api-key", "key-of-initech")
# What the page's configuration takes before each call of the model, of this limit.
ESTIMATE, LLM = 4_000, "tpd=100000/day"
STRICT = {"failure_mode_deny: false": "failure_mode_deny: true"}


class Upstream(Service):
    """Answers with the tokens that it used, or without if a request says so, or never. Before the answer it resumes the
    process that a request names."""

    def do_GET(self):
        if process := self.headers.get("x-resume"):
            os.kill(int(process), signal.SIGCONT)
        if "x-hang" in self.headers:
            return self.never_answer()
        used = self.headers.get("x-use", "0")
        self.answer(200, {} if used == "none" else {"x-tokens-used": used}, b"from the upstream")


class Response:
    def __init__(self, answer):
        self.status, self.header, self.body = answer.status, answer.getheader, answer.read().decode()


class Gateway:
    """Envoy, the agent and the server behind them."""

    def __init__(self, opened, envoy=None, agent=(), is_silent=False):
        """Starts the processes. `envoy` has texts of the configuration, and what stands there instead; `agent` has flags.
        Where it is silent, DynamoDB accepts connections and never answers."""
        folder = pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="weirgate-envoy-")))
        self.backend = opened.enter_context(started(LOCAL))
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        table = f"http://127.0.0.1:{silent.getsockname()[1]}" if is_silent else self.backend["endpoint_url"]
        upstream = opened.enter_context(served(Upstream)).server_port
        grpc, self.port = free_port(), free_port()
        (folder / "rules.yaml").write_text(RULES)
        ports = {"10000": str(self.port), "8081": str(grpc), "8080": str(upstream)}
        (folder / "envoy.yaml").write_text(replaced(replaced(CONFIG, ports), envoy or {}))
        command = [PROGRAMS / "weirgate-agent", "--table", "weirgate", "--endpoint-url", table, "--region", "eu-central-1"]
        command += ["--listen", "127.0.0.1:0", "--grpc", f"127.0.0.1:{grpc}", "--rules", folder / "rules.yaml", *agent]
        environment = {name: value for name, value in os.environ.items() if name != "AWS_LAMBDA_RUNTIME_API"}
        self.agent = opened.enter_context(running(command, env=environment, stdout=subprocess.DEVNULL))
        until(lambda: listens(grpc), "the agent listens", PATIENCE)
        [binary] = (ROOT / ".venv/envoy/lib").glob("*/site-packages/envoy/_bin/envoy")
        command = [binary, "-c", folder / "envoy.yaml", "--concurrency", "1", "--log-level", "warn"]
        opened.enter_context(running([*command, "--use-dynamic-base-id", "--disable-hot-restart"]))
        until(lambda: listens(self.port), "Envoy listens", PATIENCE)

    @contextlib.contextmanager
    def sent(self, path, *headers):
        """Sends a GET with these headers, and disconnects in the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
            for name, value in [("host", "gateway"), *headers]:
                connection.putheader(name, value.encode())
            connection.endheaders()
            yield connection

    def get(self, path, *headers):
        with self.sent(path, *headers) as connection:
            return Response(connection.getresponse())

    def weirgate(self, command, tenant, resource, amount, limit):
        """Runs the command line on the table. Returns its answer."""
        arguments = [PROGRAMS / "weirgate", "--json", command, tenant, resource, amount, "--limit", limit]
        return json.loads(run(arguments, env={**os.environ, **self.backend["variables"]}))

    def take(self, resource, amount, limit):
        """Takes from acme's limit, by another process. A denial fails."""
        self.weirgate("acquire", "acme", resource, amount, limit)

    def left(self, tokens, tenant="acme"):
        """Waits until a tenant's limit of the model has so many tokens left, of which some come back meanwhile."""
        def found():
            # Without a need a debt counts as nothing left.
            [limit] = self.weirgate("peek", tenant, "llm", "tpd=0", LLM)["limits"]
            return tokens <= limit["available_tokens"] < tokens + 100
        until(found, f"{tokens} tokens of {tenant} are left", PATIENCE)


def replaced(text, texts):
    """Replaces texts of the guide, all at once."""
    assert all(written in text for written in texts), texts
    return re.sub("|".join(map(re.escape, texts)) or "$^", lambda written: texts[written[0]], text)


class Envoy(unittest.TestCase):
    maxDiff = None

    def gateway(self, **differences):
        opened = contextlib.ExitStack()
        self.addCleanup(opened.close)
        return Gateway(opened, **differences)

    def assert_taken(self, response, left, what):
        """The limit of the model decided, and the estimate was taken of what was left."""
        ours = re.match(r'"tpd";r=(\d+);', response.header("ratelimit") or "")
        self.assertTrue(ours, f"{what}: {response.header('ratelimit')}")
        self.assertIn(int(ours[1]) - (left - ESTIMATE), range(100), what)

    def test_an_allowed_request_passes_with_our_fields_and_envoys_in_the_order_of_the_descriptors(self):
        gateway = self.gateway()
        response = gateway.get("/v1", TENANT)
        self.assertEqual((response.status, response.body), (200, "from the upstream"))
        self.assertEqual(response.header("ratelimit"), '"rpd";r=999;t=86314')
        self.assertEqual(response.header("ratelimit-policy"), '"rpd";q=1000;w=86400')
        self.assertEqual(response.header("x-ratelimit-limit"), '1000, 1000;w=86400;name="rpd"')
        self.assertEqual(response.header("x-ratelimit-remaining"), "999")
        self.assertEqual(response.header("x-ratelimit-reset"), "86314")
        response = gateway.get("/static/a.png", TENANT)
        self.assertEqual(response.status, 200)
        self.assertIsNone(response.header("ratelimit"), "no limit applies")

    def test_a_denied_request_gets_our_body_and_our_fields(self):
        gateway = self.gateway()
        # All but one request of the day.
        gateway.take("api", "rpd=999", "rpd=1000/day")
        self.assertEqual(gateway.get("/v1", TENANT).status, 200)
        response = gateway.get("/v1", TENANT)
        self.assertEqual(response.status, 429)
        self.assertEqual(response.header("content-type"), "application/problem+json")
        self.assertEqual(response.header("x-envoy-ratelimited"), "true")
        self.assertIn(int(response.header("retry-after")), range(1, 88), "a token comes back every 86.4 s")
        self.assertRegex(response.header("ratelimit"), r'^"rpd";r=0;t=')
        problem = json.loads(response.body)
        self.assertEqual(problem["status"], 429)
        self.assertEqual(problem["violated-policies"], ["rpd"])
        self.assertEqual(gateway.get("/v1", OTHER).status, 200, "another tenant")

    def test_after_the_response_the_estimate_comes_back_and_what_was_used_is_debited(self):
        gateway = self.gateway()
        response = gateway.get("/llm", TENANT, ("x-use", "1500"))
        self.assertEqual(response.status, 200)
        self.assertRegex(response.header("ratelimit"), r'^"tpd";r=96000;t=', "the estimate is taken")
        self.assertIsNone(response.header("x-tokens-used"))
        gateway.left(98_500)
        # More than was estimated, and more than is there.
        self.assertEqual(gateway.get("/llm", TENANT, ("x-use", "150000")).status, 200)
        gateway.left(-51_500)
        self.assertEqual(gateway.get("/llm", TENANT, ("x-use", "0")).status, 429, "the debt is paid first")

    def test_a_client_has_no_say_in_its_tenant_and_its_cost(self):
        """Whatever a client sends, its key decides the tenant, and the configuration the cost."""
        gateway = self.gateway()
        left = 100_000
        estimates = ["-1", "0", "abc", "", "1e9", "99999999999999999999", "18446744073709551615"]
        for attack in [
            *([("x-estimate", estimate)] for estimate in estimates),
            [],
            [("x-tenant", "initech")],
            [("x-tenant", "made-up"), ("X-Tenant", "other")],
            [("x-tenant", "")],
            [("x_tenant", "initech"), ("x-tokens-used", "0"), ("x-weirgate", "1")],
        ]:
            response = gateway.get("/llm", *attack, TENANT, ("x-use", "1000"))
            self.assertEqual(response.status, 200, attack)
            self.assert_taken(response, left, attack)
            left -= 1_000
            gateway.left(left)
        for key in [None, "", "key-of-nobody", "acme", "key-of-acme,key-of-initech"]:
            headers = [] if key is None else [("x-api-key", key)]
            for path in ["/llm", "/v1", "/static/a.png"]:
                response = gateway.get(path, *headers, ("x-tenant", "acme"), ("x-estimate", "1"))
                self.assertEqual(response.status, 401, (key, path))
        response = gateway.get("/llm", OTHER)
        self.assertRegex(response.header("ratelimit"), r'^"tpd";r=96000;', "its bucket is full")

    def test_a_client_has_no_say_in_the_limit_by_how_it_writes_a_path(self):
        """Servers read these paths as `/llm/chat`, so the gateway must too: it has the limit of the model, or is refused."""
        gateway = self.gateway()
        left = 100_000
        for path in [
            "/llm/chat",
            "/static/../llm/chat",
            "/static/%2e%2e/llm/chat",
            "/static/%2E./llm/chat",
            "/static/.%2e/llm/chat?a=/static/",
            "/static/./../llm/chat",
            "/static/a/../../llm/chat",
            "/static//../../llm/chat",
            "http://gateway/static/../llm/chat",
            "/x/../llm/chat",
            "/./llm/chat",
            "//llm/chat",
            "///llm//chat",
            "/%6clm/chat",
        ]:
            self.assertEqual(gateway.get(path, ("x-tenant", "acme")).status, 401, path)
            response = gateway.get(path, TENANT, ("x-use", "1000"))
            self.assertEqual(response.status, 200, path)
            self.assert_taken(response, left, path)
            left -= 1_000
            gateway.left(left)
        for path in [
            "/static/..%2fllm/chat",
            "/static/..%2Fllm/chat",
            "/static/%2e%2e%2fllm/chat",
            "/static/..%5cllm/chat",
            "/static%2f../llm/chat",
            "/%2fllm/chat",
        ]:
            self.assertEqual(gateway.get(path, ("x-tenant", "acme")).status, 400, path)
            response = gateway.get(path, TENANT, ("x-use", "1000"))
            self.assertEqual((response.status, response.header("ratelimit")), (400, None), path)

    def test_a_client_that_disconnects_or_an_upstream_that_fails_pays_the_estimate(self):
        """Work that was begun costs its estimate, if its usage is not known."""
        gateway = self.gateway()
        with gateway.sent("/llm", TENANT, ("x-hang", "1")) as connection:
            gateway.left(96_000)
            self.assertEqual(select.select([connection.sock], [], [], 0)[0], [], "the upstream does not answer")
        self.assertEqual(gateway.get("/llm", TENANT, ("x-use", "none")).status, 200)
        gateway.left(92_000)
        self.assertEqual(gateway.get("/llm", TENANT, ("x-use", "500")).status, 200)
        gateway.left(91_500)

    def test_a_usage_that_cannot_be_debited_costs_the_estimate(self):
        """Whatever an upstream says of its usage: if it cannot be debited, the estimate stays taken."""
        gateway = self.gateway()
        left = 100_000
        for usage in [
            "abc", "-50", "+50", "", "1.5", "1e3", "0x10", "5, 7", "5 7", "é", "3004001", "999999999", "1000000000", "99999999999",
            "1000000000001", "9223372036854775808", "18446744073709551615", "18446744073709551616", "nan",
        ]:
            self.assertEqual(gateway.get("/llm", TENANT, ("x-use", usage)).status, 200, usage)
            left -= ESTIMATE
            gateway.left(left)
        # The bound, and another notation of a number.
        for usage, tokens in [("0000001000", 1_000), ("3000000", 3_000_000)]:
            self.assertEqual(gateway.get("/llm", TENANT, ("x-use", usage)).status, 200, usage)
            left -= tokens
            gateway.left(left)

    def test_a_denied_request_gives_nothing_back(self):
        """Envoy applies the refund after every request, also after one that took nothing."""
        gateway = self.gateway()
        gateway.take("llm", "tpd=97000", LLM)
        for _ in range(3):
            self.assertEqual(gateway.get("/llm", TENANT, ("x-use", "0")).status, 429)
        # What was used of this request is debited after the denied ones.
        self.assertEqual(gateway.get("/llm", OTHER, ("x-use", "10000")).status, 200)
        gateway.left(90_000, "initech")
        gateway.left(3_000)

    def test_a_request_without_a_decision_gives_nothing_back(self):
        gateway = self.gateway()
        gateway.take("llm", "tpd=70000", LLM)
        gateway.agent.send_signal(signal.SIGSTOP)
        # The upstream resumes the agent before it answers, so it would get the refund.
        response = gateway.get("/llm", TENANT, ("x-use", "0"), ("x-resume", str(gateway.agent.pid)))
        self.assertEqual((response.status, response.header("ratelimit")), (200, None), "there is no decision")
        self.assertEqual(gateway.get("/llm", TENANT, ("x-use", "10000")).status, 200)
        gateway.left(20_000)

    def test_without_a_decision_the_failure_mode_decides(self):
        self.assertEqual(self.gateway(is_silent=True).get("/v1", TENANT).status, 200, "it passes")
        response = self.gateway(is_silent=True, envoy=STRICT).get("/v1", TENANT)
        self.assertEqual((response.status, response.body), (500, ""))

    def test_the_agents_own_answer_comes_before_the_deadline_of_the_filter(self):
        """The answer is the agent's own, so it came before the deadline, also before the one that Envoy has by default."""
        for timeout in ["0.25s", "0.02s"]:
            envoy = {"timeout: 0.25s": f"timeout: {timeout}"}
            gateway = self.gateway(is_silent=True, envoy=envoy, agent=["--on-unavailable", "deny"])
            # The first call waits for Envoy's connection too.
            statuses = [gateway.get("/v1", TENANT).status for _ in range(5)]
            self.assertIn(429, statuses[1:], f"{timeout}: {statuses}")

    def test_an_unavailable_agent_is_a_failure_and_no_request_of_the_gateway_hangs(self):
        gateway = self.gateway(envoy=STRICT)
        self.assertEqual(gateway.get("/v1", TENANT).status, 200)
        gateway.agent.kill()
        gateway.agent.wait()
        self.assertEqual(gateway.get("/v1", TENANT).status, 500)


if __name__ == "__main__":
    end_with_signals()
    unittest.main(verbosity=2)
