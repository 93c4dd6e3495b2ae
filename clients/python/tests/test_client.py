"""Scopes, decorators and options, against the real agent."""

import asyncio
import contextlib
import copy
import json
import logging
import os
import pickle
import re
import tempfile
import unittest
from pathlib import Path

import weirgate
from stack import CONTRACT, Agent, Backend
from variables import environment

YEAR = 365 * 86_400
LIMITS = [weirgate.Limit.rate("tpm", 1, YEAR, capacity=1000), weirgate.Limit.slots("slots", 2)]
ALL = {"tpm": 1000, "slots": 2}


def setUpModule():
    global backend, agent, folder
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    backend = Backend()
    unittest.addModuleCleanup(backend.stop)
    agent = Agent(backend.variables, Path(folder.name) / "agent.sock")
    unittest.addModuleCleanup(lambda: agent.stop())


class Case(unittest.TestCase):
    def setUp(self):
        self.client = weirgate.Client(agent.url)
        self.addCleanup(self.client.close)
        self.entity = self.id().rpartition(".")[2]

    def balances(self):
        return {status.limit: status.available for status in self.client.peek(self.entity, "api", limits=LIMITS).limits}


class Scopes(Case):
    def scope(self, **take):
        return self.client.acquire(self.entity, "api", take, limits=LIMITS)

    def test_a_scope_releases_after_its_block(self):
        with self.scope(tpm=100, slots=1) as grant:
            self.assertEqual(self.balances(), {"tpm": 900, "slots": 1})
            self.assertEqual((grant.amount("tpm"), grant.remaining("tpm")), (100, 900))
        self.assertTrue(grant.is_ended)
        self.assertEqual(self.balances(), {"tpm": 900, "slots": 2})

    def test_a_scope_rolls_back_if_its_block_raises(self):
        with self.assertRaisesRegex(KeyError, "the work"), self.scope(tpm=100, slots=1):
            raise KeyError("the work")
        self.assertEqual(self.balances(), ALL)

    def test_an_interrupted_scope_keeps_rate_tokens_used(self):
        with self.assertRaises(KeyboardInterrupt), self.scope(tpm=100, slots=1):
            raise KeyboardInterrupt
        self.assertEqual(self.balances(), {"tpm": 900, "slots": 2})

    def test_a_grant_that_was_ended_in_the_block_is_left_alone(self):
        with self.scope(tpm=100, slots=1) as grant:
            self.assertEqual(grant.release({"tpm": 40}), weirgate.Settlement.SETTLED)
        self.assertEqual(self.balances(), {"tpm": 960, "slots": 2})
        with self.assertRaisesRegex(weirgate.InvalidRequest, "has ended"):
            grant.adjust({"tpm": 1})

    def test_the_block_of_a_denied_scope_does_not_run(self):
        with self.scope(tpm=1000):
            with self.assertRaises(weirgate.Denied) as caught, self.scope(tpm=1):
                self.fail("the block ran")
        denied = caught.exception
        self.assertEqual((denied.status, denied.limits), (429, ("tpm",)))
        self.assertEqual(denied.blocking, weirgate.Blocking("tpm", 1000, 0, 1))
        self.assertGreater(denied.retry_after, 86_400)
        self.assertIn("retry-after", denied.headers)
        self.assertIn("ratelimit", denied.headers)

    def test_a_settlement_that_fails_leaves_the_outcome_of_the_block(self):
        with self.assertLogs("weirgate", logging.WARNING), contextlib.ExitStack() as stack:
            grant = stack.enter_context(self.scope(slots=1))
            grant.token = "nonsense"
        self.assertEqual(self.balances()["slots"], 1)

    def test_a_release_without_a_lease_sends_nothing(self):
        grant = self.scope(tpm=1)
        grant._client = weirgate.Client("http://127.0.0.1:1", retries=0)
        self.assertEqual(grant.release(), weirgate.Settlement.SETTLED)

    def test_a_grant_is_settled_in_another_process_by_its_token(self):
        token = self.scope(tpm=500, slots=2).token
        other = weirgate.Client(agent.url)
        self.addCleanup(other.close)
        self.assertEqual(other.restore(token).release({"tpm": 10}), weirgate.Settlement.SETTLED)
        self.assertEqual(self.balances(), {"tpm": 990, "slots": 2})

    def test_headers_of_a_grant_are_those_of_a_response(self):
        with self.scope(tpm=1) as grant:
            self.assertIn('"tpm";r=999', grant.headers["ratelimit"])
            self.assertNotIn("content-length", grant.headers)

    def test_remaining_reads_one_balance(self):
        self.assertEqual(self.client.remaining(self.entity, "api", "tpm", limits=LIMITS), 1000)
        self.assertIsNone(self.client.remaining(self.entity, "api", "unknown", limits=LIMITS))

    def test_a_unix_socket_reaches_the_agent(self):
        client = weirgate.Client(f"unix:{folder.name}/agent.sock")
        self.addCleanup(client.close)
        self.assertEqual(client.remaining(self.entity, "api", "tpm", limits=LIMITS), 1000)


class Shown(Case):
    def test_what_is_printed_names_the_agent_and_not_the_token(self):
        with weirgate.Client(agent.url, token="secret") as client:
            self.assertEqual(repr(client), f"Client(url='{agent.url}')")
        self.assertEqual(repr(weirgate.AsyncClient("unix:/run/a.sock")), "AsyncClient(url='unix:/run/a.sock')")
        with self.scope(tpm=100) as grant:
            self.assertNotIn(grant.token, repr(grant))
            self.assertIn("amounts=({'tpm': 100},)", repr(grant))

    def scope(self, **take):
        return self.client.acquire(self.entity, "api", take, limits=LIMITS)

    def test_an_error_is_whole_in_another_process(self):
        for take in ({"tpm": 2000}, {"wpm": 1}):
            with self.assertRaises(weirgate.WeirgateError) as caught:
                self.scope(**take)
            for error in (pickle.loads(pickle.dumps(caught.exception)), copy.deepcopy(caught.exception)):
                self.assertEqual((type(error), str(error)), (type(caught.exception), str(caught.exception)))
                self.assertEqual(vars(error), vars(caught.exception))

    def test_kinds_are_words(self):
        self.scope(tpm=1).release()
        kinds = {status.limit: status.kind for status in self.client.peek(self.entity, "api", limits=LIMITS).limits}
        self.assertEqual(kinds, {limit.name: limit.kind for limit in LIMITS})
        self.assertEqual(kinds, {"tpm": "rate", "slots": "slots"})


class Decorators(Case):
    def test_a_decorated_function_runs_with_a_grant_and_settles_what_it_used(self):
        @self.client.limited(
            lambda user, **_: f"{self.entity}:{user}",
            "api",
            {"tpm": 500, "slots": 1},
            actual=lambda answer: {"tpm": len(answer)},
            limits=LIMITS,
        )
        def ask(user, *, question):
            """Asks."""
            return question * 2

        self.assertEqual(ask("ann", question="ab"), "abab")
        self.assertEqual((ask.__name__, ask.__doc__), ("ask", "Asks."))
        self.entity += ":ann"
        self.assertEqual(self.balances(), {"tpm": 996, "slots": 2})

    def test_a_decorated_function_that_raises_used_nothing(self):
        @self.client.limited(self.entity, "api", {"tpm": 500, "slots": 1}, limits=LIMITS)
        def fail():
            raise OSError("no vendor")

        with self.assertRaisesRegex(OSError, "no vendor"):
            fail()
        self.assertEqual(self.balances(), ALL)

    def test_a_slot_returns_if_actual_names_a_limit_that_there_is_not(self):
        options = {"actual": lambda _: {"wpm": 5}, "limits": LIMITS}

        @self.client.limited(self.entity, "api", {"tpm": 500, "slots": 1}, **options)
        def work():
            return "done"

        async def run():
            async with weirgate.AsyncClient(agent.url) as client:

                @client.limited(self.entity, "api", {"tpm": 500, "slots": 1}, **options)
                async def later():
                    return "done"

                return await later()

        with self.assertLogs("weirgate", logging.WARNING):
            self.assertEqual([work(), asyncio.run(run())], ["done", "done"])
        self.assertEqual(self.balances(), {"tpm": 0, "slots": 2})

    def test_functions_that_end_before_their_work_are_refused(self):
        async def coroutine():
            pass

        def generator():
            yield

        asynchronous = weirgate.AsyncClient(agent.url)
        for client, function in [(self.client, coroutine), (self.client, generator), (asynchronous, generator)]:
            with self.assertRaises(TypeError):
                client.limited("a", "api", {"tpm": 1})(function)


class Asyncio(Case):
    def test_scopes_and_decorators_settle(self):
        async def run():
            async with weirgate.AsyncClient(agent.url) as client:
                async with client.acquire(self.entity, "api", {"tpm": 100, "slots": 1}, limits=LIMITS) as grant:
                    await grant.adjust({"tpm": 60})

                @client.limited(self.entity, "api", {"tpm": 100}, actual=lambda used: {"tpm": used}, limits=LIMITS)
                async def work(used):
                    return used

                self.assertEqual(await work(30), 30)
                with self.assertRaises(OSError):
                    async with await client.acquire(self.entity, "api", {"slots": 2}, limits=LIMITS):
                        raise OSError
                self.assertEqual(await client.remaining(self.entity, "api", "slots", limits=LIMITS), 2)

        asyncio.run(run())
        self.assertEqual(self.balances(), {"tpm": 910, "slots": 2})

    def test_a_cancelled_scope_releases_its_slot_and_keeps_rate_tokens_used(self):
        async def run():
            client = weirgate.AsyncClient(agent.url)
            entered = asyncio.Event()

            async def work():
                async with client.acquire(self.entity, "api", {"tpm": 100, "slots": 1}, limits=LIMITS):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(work())
            await entered.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            client.close()

        asyncio.run(run())
        self.assertEqual(self.balances(), {"tpm": 900, "slots": 2})

    def test_a_release_that_is_cancelled_in_any_turn_gives_the_slot_back(self):
        # Without the shield, the slot would be held for its lease of 60 s.
        async def run():
            async with weirgate.AsyncClient(agent.url) as client:
                for turns in range(25):
                    for explicit in (True, False):
                        await asyncio.wait_for(self.cancel_a_release(client, turns, explicit), 30)

        asyncio.run(run())
        self.assertEqual(self.balances()["slots"], 2)

    async def cancel_a_release(self, client, turns, explicit):
        """Cancels a task so many turns of the loop after its release has begun, and takes all slots again."""
        begun = asyncio.Event()

        async def work():
            grant = await client.acquire(self.entity, "api", {"slots": 2}, limits=LIMITS, wait=30)
            async with grant:
                begun.set()
                if explicit:
                    await grant.release()

        task = asyncio.ensure_future(work())
        await begun.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        # Less than the lease of slots that nothing would give back.
        again = await client.acquire(self.entity, "api", {"slots": 2}, limits=LIMITS, wait=20)
        await again.release()

    def test_an_acquire_that_is_cancelled_while_it_waits_takes_nothing(self):
        async def run():
            client = weirgate.AsyncClient(agent.url)
            held = await client.acquire(self.entity, "api", {"slots": 2}, limits=LIMITS)
            waiting = asyncio.ensure_future(client.acquire(self.entity, "api", {"slots": 2}, limits=LIMITS, wait=60))
            loop = asyncio.get_running_loop()
            while await loop.run_in_executor(None, agent.in_flight) == 0:
                pass
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await held.release()
            # Less than the lease of slots that nothing would give back.
            await (await client.acquire(self.entity, "api", {"slots": 2}, limits=LIMITS, wait=30)).release()
            client.close()

        asyncio.run(run())
        self.assertEqual(self.balances()["slots"], 2)

    def test_a_slot_that_is_released_goes_to_a_request_that_waits(self):
        async def run():
            client = weirgate.AsyncClient(agent.url)
            held = await client.acquire(self.entity, "api", {"slots": 2}, limits=LIMITS)
            waiting = asyncio.ensure_future(client.acquire(self.entity, "api", {"slots": 1}, limits=LIMITS, wait=60))
            await held.release()
            await asyncio.wait_for(waiting, 30)
            client.close()

        asyncio.run(run())
        self.assertEqual(self.balances()["slots"], 1)


class Places(unittest.TestCase):
    def test_the_environment_says_where_the_agent_is(self):
        from weirgate.endpoint import endpoint

        names = ["WEIRGATE_AGENT_URL", "WEIRGATE_AGENT_TOKEN", "WEIRGATE_HTTP_PORT", "AWS_LAMBDA_FUNCTION_NAME"]
        with environment():
            for name in names:
                os.environ.pop(name, None)
            self.assertEqual(endpoint(None, None).address, ("127.0.0.1", 2774))
            os.environ["WEIRGATE_HTTP_PORT"] = "2800"
            self.assertEqual(endpoint(None, None).address, ("127.0.0.1", 2800))
            os.environ["WEIRGATE_AGENT_URL"] = "unix:/run/agent.sock"
            self.assertEqual(endpoint(None, None).address, "/run/agent.sock")
            self.assertEqual(endpoint("http://[::1]:9", None).address, ("::1", 9))

    def only(self, **variables):
        """Sets these variables, and none of others that say where the agent is."""
        block = environment(**variables)
        block.__enter__()
        self.addCleanup(block.__exit__)
        names = ["WEIRGATE_AGENT_URL", "WEIRGATE_AGENT_TOKEN", "WEIRGATE_HTTP_PORT", "AWS_LAMBDA_FUNCTION_NAME"]
        for name in set(names) - variables.keys():
            os.environ.pop(name, None)

    def test_variables_of_services_and_empty_ones_are_no_address(self):
        from weirgate.endpoint import endpoint

        of_services = {
            "WEIRGATE_HTTP_PORT": "tcp://10.0.0.1:2774",
            "WEIRGATE_HTTP_SERVICE_HOST": "10.0.0.1",
            "WEIRGATE_HTTP_PORT_2774_TCP": "tcp://10.0.0.1:2774",
            "WEIRGATE_AGENT_PORT": "tcp://10.0.0.1:2774",
            "WEIRGATE_AGENT_SERVICE_HOST": "10.0.0.1",
            "WEIRGATE_AGENT_SERVICE_PORT": "1",
        }
        for variables in [
            of_services,
            {**of_services, "WEIRGATE_HTTP_PORT": "udp://10.0.0.1:53"},
            {**of_services, "WEIRGATE_HTTP_PORT": "tcp://[fd00::1]:1"},
            {"WEIRGATE_HTTP_PORT": "", "WEIRGATE_AGENT_URL": "", "WEIRGATE_AGENT_TOKEN": ""},
            {"AWS_LAMBDA_FUNCTION_NAME": "", "AWS_SESSION_TOKEN": "secret"},
            {"AWS_LAMBDA_FUNCTION_NAME": "f", "AWS_SESSION_TOKEN": "", "AWS_CONTAINER_AUTHORIZATION_TOKEN": ""},
        ]:
            with self.subTest(variables=variables):
                self.only(**variables)
                found = endpoint(None, None)
                self.assertEqual(found.address, ("127.0.0.1", 2774))
                self.assertNotIn(b"token", found.head()[0])

    def test_an_error_names_the_variable_that_was_read(self):
        from weirgate.endpoint import endpoint

        for port in ["x", "0", "65536", "-1", "1.5", "2774 ", "１２", "10.0.0.1:2774"]:
            self.only(WEIRGATE_HTTP_PORT=port)
            with self.assertRaisesRegex(weirgate.InvalidRequest, "^WEIRGATE_HTTP_PORT must be"):
                endpoint(None, None)
        self.only(WEIRGATE_AGENT_URL="tcp://10.0.0.1:2774")
        with self.assertRaisesRegex(weirgate.InvalidRequest, "^WEIRGATE_AGENT_URL must be"):
            endpoint(None, None)
        self.only(AWS_LAMBDA_FUNCTION_NAME="f", AWS_SESSION_TOKEN="ü")
        with self.assertRaisesRegex(weirgate.InvalidRequest, "correct AWS_SESSION_TOKEN"):
            endpoint(None, None).head()

    def test_the_sessions_token_goes_to_the_agent_of_this_machine_alone(self):
        from weirgate.endpoint import endpoint

        with environment(AWS_SESSION_TOKEN="secret"):
            os.environ.pop("WEIRGATE_AGENT_TOKEN", None)
            os.environ.pop("AWS_LAMBDA_FUNCTION_NAME", None)
            self.assertNotIn(b"secret", endpoint("http://127.0.0.1:1", None).head()[0])
            os.environ["AWS_LAMBDA_FUNCTION_NAME"] = "f"
            self.assertIn(b"x-weirgate-token: secret\r\n", endpoint("http://127.0.0.1:1", None).head()[0])
            self.assertIn(b"x-weirgate-token: secret\r\n", endpoint("unix:/run/agent.sock", None).head()[0])
            self.assertNotIn(b"secret", endpoint("http://agent.internal:1", None).head()[0])
            os.environ["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = os.environ.pop("AWS_SESSION_TOKEN")
            self.assertIn(b"x-weirgate-token: secret\r\n", endpoint("http://127.0.0.1:1", None).head()[0])
            self.assertIn(b": mine\r\n", endpoint("http://agent.internal:1", "mine").head()[0])

    def test_the_sessions_token_goes_to_the_agents_that_the_guide_names(self):
        from weirgate.endpoint import endpoint

        table = json.loads((CONTRACT / "client/checks.json").read_text(encoding="utf-8"))["session_token"]
        self.only(AWS_LAMBDA_FUNCTION_NAME="f", AWS_SESSION_TOKEN="secret")
        for url in table["sent_to"]:
            self.assertIn(b"x-weirgate-token: secret\r\n", endpoint(url, None).head()[0], url)
        for url in table["kept_from"]:
            self.assertNotIn(b"secret", endpoint(url, None).head()[0], url)
        guide = (CONTRACT.parents[1] / "docs/guide/clients.md").read_text(encoding="utf-8")
        named = " ".join(re.search(r"token, sent only\s+to\s+(.*?)\n\n", guide, re.S)[1].split())
        hosts = {re.sub(r"http://\[?|\]?(:[0-9]+)?$", "", url).lower() for url in table["sent_to"] if url.startswith("http")}
        self.assertEqual(set(re.split(", | and ", named)), {*hosts, "Unix sockets"})

    def test_what_is_no_address_or_token_is_refused_with_the_variable_to_correct(self):
        from weirgate.endpoint import endpoint

        for url in ["https://a:1", "a:1", "unix:agent.sock", "http://a/path", "http://a:b", "http://u@a:1"]:
            with self.assertRaisesRegex(weirgate.InvalidRequest, "^url must be"):
                endpoint(url, None)
            with environment(WEIRGATE_AGENT_URL=url):
                with self.assertRaisesRegex(weirgate.InvalidRequest, "correct WEIRGATE_AGENT_URL"):
                    endpoint(None, None)
        for token in ["a\r\nb: c", " a", "a\0", "ü"]:
            with self.assertRaisesRegex(weirgate.InvalidRequest, "correct token"):
                endpoint("http://127.0.0.1:1", token).head()
        with environment(WEIRGATE_AGENT_TOKEN="ü"):
            with self.assertRaisesRegex(weirgate.InvalidRequest, "correct WEIRGATE_AGENT_TOKEN"):
                endpoint("http://127.0.0.1:1", None).head()


if __name__ == "__main__":
    unittest.main()
