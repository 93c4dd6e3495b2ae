"""Calls of the client of asyncio that are cancelled: nothing of them stays taken, and no cancellation is lost."""

import asyncio
import threading
import time
import unittest

import weirgate
from served import GRANTED, Server, answer

TAKE = ("a", "api", {"rpm": 1})
ROLLED_BACK = answer(200, {"grant": None, "settlement": "settled", "lease": None, "amounts": []})


class Answering(Server):
    """Answers the first request after `go`, and keeps requests that roll back in `settled`."""

    def __init__(self):
        self.asked, self.go, self.answered = threading.Event(), threading.Event(), threading.Event()
        self.settled, self.ended = threading.Event(), threading.Event()
        super().__init__(self.serve_one)

    def serve_one(self, peer, _):
        while request := peer.read():
            if request[0] == "/v1/settle":
                peer.send(ROLLED_BACK)
                self.settled.set()
                continue
            self.asked.set()
            self.go.wait(10)
            peer.send(GRANTED)
            self.answered.set()
        self.ended.set()


async def until_set(event):
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, 10)


async def taken_back(client):
    """Returns once nothing of a cancelled call is in progress."""
    while client._connections._given_up:
        await asyncio.wait(client._connections._given_up, timeout=10)


class Cancellations(unittest.TestCase):
    def run_with(self, work):
        """Runs work that cancels an acquire, which has been sent, and returns once nothing of it is in progress."""
        with Answering() as server:

            async def run():
                async with weirgate.AsyncClient(server.url) as client:
                    acquire = asyncio.ensure_future(client.acquire(*TAKE))
                    await until_set(server.asked)
                    await work(server, acquire)
                    with self.assertRaises(asyncio.CancelledError):
                        await acquire
                    server.go.set()
                    await taken_back(client)

            asyncio.run(run())
            return server

    def test_a_cancelled_call_ends_its_connection(self):
        async def work(server, acquire):
            acquire.cancel()
            await asyncio.wait({acquire})
            server.go.set()
            await until_set(server.ended)

        self.run_with(work)

    def test_a_grant_whose_answer_has_arrived_unread_is_rolled_back(self):
        async def work(server, acquire):
            server.go.set()
            # Blocks the loop, so that the answer stays unread.
            self.assertTrue(server.answered.wait(10))
            acquire.cancel()

        self.check_rolled_back(self.run_with(work))

    def test_a_grant_that_is_cancelled_in_any_turn_after_its_answer_was_read_is_rolled_back(self):
        def cancel_after(turns, acquire):
            if turns:
                asyncio.get_running_loop().call_soon(cancel_after, turns - 1, acquire)
            else:
                acquire.cancel()

        # Three for the answer to reach the caller.
        for turns in range(3):

            async def work(server, acquire, turns=turns):
                server.go.set()
                self.assertTrue(server.answered.wait(10))
                # Timers run after sockets are read, and before the tasks that waited for them.
                asyncio.get_running_loop().call_later(0, cancel_after, turns, acquire)

            with self.subTest(turns=turns):
                self.check_rolled_back(self.run_with(work))

    def check_rolled_back(self, server):
        self.assertTrue(server.settled.wait(10))
        self.assertEqual([path for path, _, _ in server.requests], ["/v1/acquire", "/v1/settle"])
        self.assertEqual(server.requests[1][2], {"grant": "g1", "end": "roll_back"})

    def test_a_cancellation_at_the_deadline_is_one(self):
        async def work(server, acquire):
            loop = asyncio.get_running_loop()
            loop.slow_callback_duration = 1_000
            # The next turn of the loop finds first the deadline, and then the cancellation.
            loop.time = lambda: time.monotonic() + 60
            loop.call_later(0, acquire.cancel)

        self.run_with(work)


if __name__ == "__main__":
    unittest.main()
