"""What calls raise instead of an answer, by `clients/contract/client/failures.json`."""

import asyncio
import json
import unittest

import weirgate
from served import Server, answer
from stack import CONTRACT

FAILURES = json.loads((CONTRACT / "client/failures.json").read_text(encoding="utf-8"))["failures"]
BUCKETS = [weirgate.Bucket("a", "api", {"rpm": 1.5}), weirgate.Bucket("b", "api", {"rpm": weirgate.UpTo(1, 5)})]
CALLS = {
    "acquire": lambda client: client.acquire("a", "api", {"rpm": 1.5}),
    "acquire_all": lambda client: client.acquire_all(BUCKETS),
    "settle": lambda client: client.restore("g").adjust({"rpm": 1}),
    "peek": lambda client: client.peek("a", "api"),
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

    def raised(self, client, run, call):
        with self.assertRaises(weirgate.WeirgateError) as raised:
            run(CALLS[call](client))
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


if __name__ == "__main__":
    unittest.main()
