"""What calls raise instead of an answer, by `clients/contract/client/failures.json`."""

import asyncio
import contextlib
import itertools
import json
import unittest

import weirgate
from served import Server, answer
from stack import CONTRACT

TABLE = json.loads((CONTRACT / "client/failures.json").read_text(encoding="utf-8"))
FAILURES, FOREIGN = TABLE["failures"], TABLE["foreign"]
POLICIES = ("raise", "deny", "allow")
BUCKETS = [weirgate.Bucket("a", "api", {"rpm": 1.5}), weirgate.Bucket("b", "api", {"rpm": weirgate.UpTo(1, 5)})]
CALLS = {
    "acquire": lambda client, **options: client.acquire("a", "api", {"rpm": 1.5}, **options),
    "acquire_all": lambda client, **options: client.acquire_all(BUCKETS, **options),
    "settle": lambda client: client.restore("g").adjust({"rpm": 1}),
    "peek": lambda client: client.peek("a", "api"),
    "usage": lambda client: client.usage(entity="a", start=0, end=86_400),
    "usage_rows": lambda client: client.usage_rows(resource="api", by="hour", start=0, end=3_600),
    "limits": lambda client: client.limits("a", "api"),
    "set_limits": lambda client: client.set_limits(["rpm=5/minute"], resource="api"),
    "delete_limits": lambda client: client.delete_limits(entity="a"),
}


def failing(failure):
    """Returns a server that fails in one way."""

    def serve(peer, _):
        while peer.read() and failure != "lost":
            peer.send(answer(*failure))

    return Server(serve)


class Failures(unittest.TestCase):
    def both(self, failure, work, **options):
        """Runs work with each client; `run` waits for what a call returns."""
        with failing(failure) as server:
            url = "http://127.0.0.1:1" if failure == "refused" else server.url
            client = weirgate.Client(url, retries=0, **options)
            work(client, lambda value: value)
            client.close()

            async def later():
                client = weirgate.AsyncClient(url, retries=0, **options)
                loop = asyncio.get_running_loop()

                async def value_of(awaitable):
                    return await awaitable

                def run(awaitable):
                    return asyncio.run_coroutine_threadsafe(value_of(awaitable), loop).result(60)

                await loop.run_in_executor(None, work, client, run)
                await client.close()

            asyncio.run(later())
            return server.requests

    def raised(self, client, run, call, **options):
        with self.assertRaises(weirgate.WeirgateError) as raised:
            run(CALLS[call](client, **options))
        return raised.exception

    def check_raised(self, error, case):
        self.assertIs(type(error), getattr(weirgate, case["raises"]))
        self.assertEqual(getattr(error, "is_transient", None), case.get("is_transient"))

    def test_each_failure_is_an_error_of_its_class(self):
        for case in FAILURES:
            for call in CALLS:

                def work(client, run, case=case, call=call):
                    self.check_raised(self.raised(client, run, call), case)

                with self.subTest(case=case, call=call):
                    self.both(case["failure"], work)

    def test_an_answer_that_is_not_of_the_agent_leaves_unknown_what_was_applied(self):
        for body in FOREIGN["bodies"]:
            failure = [None, body]

            def work(client, run, body=body, failure=failure):
                for status in range(400, 600):
                    failure[0] = status
                    is_transient = status in FOREIGN["transient"] or status > 500
                    with self.subTest(status=status, body=body):
                        error = self.raised(client, run, "acquire")
                        self.check_raised(error, {"raises": "Unavailable", "is_transient": is_transient})
                        self.assertEqual((error.applied, error.status), ("unknown", status))
                        self.assertNotIn("of a proxy", str(error))

            self.both(failure, work)

    def test_a_policy_decides_what_may_pass_by_itself_and_nothing_else(self):
        asked = {"acquire": ({"rpm": 1.5},), "acquire_all": ({"rpm": 1.5}, {"rpm": 5})}
        for case in FAILURES:
            # Of the client, and of one call.
            for of_client, of_call in [("raise", None), ("deny", None), ("allow", None), *itertools.permutations(POLICIES, 2)]:
                decides = (of_call or of_client) if case.get("is_transient") else "raise"
                options = {"on_agent_unavailable": of_call} if of_call else {}

                def work(client, run, case=case, decides=decides, options=options):
                    for call in CALLS.keys() - asked:
                        self.check_raised(self.raised(client, run, call), case)
                    for call, amounts in asked.items():
                        if decides == "allow":
                            self.check_allowed(run(CALLS[call](client, **options)), amounts, client, run)
                            continue
                        error = self.raised(client, run, call, **options)
                        if decides == "raise":
                            self.check_raised(error, case)
                            continue
                        self.assertIs(type(error), weirgate.Denied)
                        self.check_raised(error.__cause__, case)
                        self.assertEqual((error.status, error.retry_after, error.limits), (429, 1, ()))
                        self.assertEqual(error.headers, {"x-ratelimit-degraded": "true", "retry-after": "1"})
                        self.assertNotIn("127.0.0.1", json.dumps(error.problem))

                with self.subTest(case=case, of_client=of_client, of_call=of_call):
                    requests = self.both(case["failure"], work, on_agent_unavailable=of_client)
                    settled = [body["grant"] for path, _, body in requests if path == "/v1/settle"]
                    self.assertLessEqual(set(settled), {"g"}, "what was not taken is not settled")

    def check_allowed(self, grant, amounts, client, run):
        self.assertIn("without the agent", grant.degraded)
        self.assertEqual((grant.amounts, grant.limits, grant.expires_at), (amounts, (), None))
        self.assertEqual(grant.headers, {"x-ratelimit-degraded": "true"})
        restored = client.restore(grant.token)
        for held in (grant, restored):
            self.assertEqual(run(held.adjust({"rpm": 2})), weirgate.Settlement.SETTLED)
            run(held.give_back({"rpm": 1})), run(held.take_more({"rpm": 1})), run(held.renew(60))
            with self.assertRaises(weirgate.InvalidRequest):
                run(held.adjust({"rpm": -1}))
        run(grant.release({"rpm": 3})), run(restored.roll_back())
        for held in (grant, restored):
            self.assertTrue(held.is_ended)
            with self.assertRaises(weirgate.InvalidRequest):
                run(held.release())

    def test_a_scope_runs_without_the_agent_if_the_policy_allows(self):
        client = weirgate.Client("http://127.0.0.1:1", retries=0, on_agent_unavailable="allow")
        self.addCleanup(client.close)
        limited = client.limited("a", "api", {"rpm": 1}, actual=lambda result: {"rpm": result})
        with self.assertNoLogs("weirgate") if hasattr(self, "assertNoLogs") else contextlib.nullcontext():
            with client.acquire("a", "api", {"rpm": 1}) as grant:
                self.assertFalse(grant.is_ended)
            self.assertEqual(limited(lambda: 5)(), 5)
        self.assertTrue(grant.is_ended)

    def test_another_policy_is_refused(self):
        for kind in (weirgate.Client, weirgate.AsyncClient):
            for given in ("alow", "error", None, True, ["allow"]):
                with self.assertRaises(weirgate.InvalidRequest) as raised:
                    kind("http://127.0.0.1:1", on_agent_unavailable=given)
                self.assertIn("on_agent_unavailable must be 'raise', 'deny' or 'allow'", str(raised.exception))
                client = kind("http://127.0.0.1:1")
                for call in (CALLS["acquire"], CALLS["acquire_all"]) if given is not None else ():
                    with self.assertRaises(weirgate.InvalidRequest):
                        call(client, on_agent_unavailable=given)


if __name__ == "__main__":
    unittest.main()
