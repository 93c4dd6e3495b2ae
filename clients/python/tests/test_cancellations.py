"""Calls that are cancelled or interrupted: nothing of them stays taken, and no cancellation is lost."""

import asyncio
import json
import os
import select
import signal
import sys
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


class Ends(unittest.TestCase):
    def test_a_loop_that_ends_while_acquires_are_in_flight_reports_nothing(self):
        reports, asked = [], threading.Event()

        def serve(peer, _):
            peer.read()
            if len(server.requests) == 20:
                asked.set()
            # As the agent does: no answer to a request that was given up.
            peer.wait_for_end()

        async def run():
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
            client = weirgate.AsyncClient(server.url)
            running.extend(asyncio.ensure_future(client.acquire(*TAKE)) for _ in range(20))
            await until_set(asked)

        running = []
        with Server(serve) as server:
            asyncio.run(run())
        self.assertTrue(all(task.cancelled() for task in running))
        self.assertEqual(reports, [])


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


LEASED = answer(200, {**json.loads(GRANTED.partition(b"\r\n\r\n")[2]), "lease": {"expires_at_ms": 1_900_000_000_000}})


class Leasing(Server):
    """Grants slots, and counts those that are held.

    `closes` ends each connection after an answer. `drops` forgets a settlement whose client leaves within 20 ms.
    """

    def __init__(self, closes=False, drops=False, on_settle=None, on_acquire=None):
        self.held = 0
        self.granted = 0
        self.ends = []
        self.lock = threading.Lock()
        self.answered = threading.Event()
        self.closes, self.drops, self.on_settle, self.on_acquire = closes, drops, on_settle, on_acquire
        super().__init__(self.serve_one)

    def serve_one(self, peer, _):
        while asked := peer.read():
            path, _, body = asked
            if path == "/v1/acquire":
                if self.on_acquire:
                    self.on_acquire()
                with self.lock:
                    self.held, self.granted = self.held + 1, self.granted + 1
                peer.send(self.last(LEASED))
                self.answered.set()
            else:
                if self.on_settle:
                    self.on_settle()
                if self.drops and select.select([peer.sock], [], [], 0.02)[0]:
                    return
                with self.lock:
                    self.held -= 1
                    self.ends.append(body["end"])
                peer.send(self.last(ROLLED_BACK))
            if self.closes:
                return

    def last(self, data):
        return data.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1) if self.closes else data


def in_turns(turns, work):
    """Runs work after some turns of the loop."""
    if turns:
        asyncio.get_running_loop().call_soon(in_turns, turns - 1, work)
    else:
        work()


class EveryStep(unittest.TestCase):
    """A cancellation in each turn of the loop, until the calls end before it."""

    TURNS = 60

    def check(self, main, **options):
        """Runs `main(client, turn)` on a loop of its own, for each turn, and finds no slot held afterwards."""
        for turn in range(self.TURNS):
            with self.subTest(turn=turn), Leasing(**options) as server:
                self.server = server

                async def run():
                    client = weirgate.AsyncClient(server.url)
                    try:
                        await main(client, turn)
                    finally:
                        client.close()

                # Ends the loop at once, and with it all tasks.
                asyncio.run(run())
                self.assertEqual((server.held, server.granted - len(server.ends)), (0, 0), server.ends)

    def scope_cancelled(self, cancel):
        async def main(client, turn):
            entered = asyncio.get_running_loop().create_future()

            async def work():
                async with client.acquire("a", "api", {"slots": 1}):
                    entered.set_result(None)
                entered_no_more.append(True)

            entered_no_more = []
            task = asyncio.ensure_future(work())
            await entered
            in_turns(turn, lambda: cancel(task))
            await asyncio.wait({task})
            # The cancellation is not lost either.
            self.assertTrue(task.cancelled() or entered_no_more)

        return main

    def test_a_release_of_a_scope(self):
        self.check(self.scope_cancelled(lambda task: task.cancel()))
        self.check(self.scope_cancelled(lambda task: task.cancel()), drops=True)

    def test_a_release_on_a_new_connection(self):
        self.check(self.scope_cancelled(lambda task: task.cancel()), closes=True)

    def test_a_release_that_is_cancelled_in_each_later_turn_again(self):
        def cancel(task):
            if not task.done():
                task.cancel()
                asyncio.get_running_loop().call_soon(cancel, task)

        self.check(self.scope_cancelled(cancel))

    def test_a_release_while_all_tasks_are_cancelled(self):
        def cancel(task):
            for one in asyncio.all_tasks() if not task.done() else ():
                if one.get_coro().__name__ != "run":
                    one.cancel()

        self.check(self.scope_cancelled(cancel))

    def test_a_release_at_the_end_of_the_loop(self):
        async def main(client, turn):
            entered = asyncio.get_running_loop().create_future()

            async def work():
                async with client.acquire("a", "api", {"slots": 1}):
                    entered.set_result(None)

            self.task = asyncio.ensure_future(work())
            await entered
            for _ in range(turn):
                await asyncio.sleep(0)

        self.check(main)

    def test_a_release_that_the_caller_awaits(self):
        async def main(client, turn):
            grant = await client.acquire("a", "api", {"slots": 1})
            release = asyncio.ensure_future(grant.release())
            # One turn more, because a task that has not begun is only dropped.
            in_turns(turn + 1, release.cancel)
            await asyncio.wait({release})
            self.assertTrue(grant.is_ended or release.cancelled())

        self.check(main, drops=True)

    def test_an_acquire(self):
        async def main(client, turn):
            acquire = asyncio.ensure_future(client.acquire("a", "api", {"slots": 1}))
            in_turns(turn, acquire.cancel)
            await asyncio.wait({acquire})
            if not acquire.cancelled():
                await acquire.result().release()

        self.check(main)
        self.check(main, closes=True)

    def test_an_acquire_at_the_end_of_the_loop(self):
        async def main(client, turn):
            async def work():
                async with client.acquire("a", "api", {"slots": 1}):
                    pass

            self.task = asyncio.ensure_future(work())
            for _ in range(turn):
                await asyncio.sleep(0)

        self.check(main)

    def test_many_acquires_at_the_end_of_the_loop(self):
        # Connections pass from a task to the rollback of another one, while all tasks are cancelled.
        async def main(client, turn):
            async def work():
                async with client.acquire("a", "api", {"slots": 1}, lease=600):
                    await asyncio.Event().wait()

            self.tasks = [asyncio.ensure_future(work()) for _ in range(10)]
            for _ in range(turn):
                await asyncio.sleep(0)

        self.check(main)

    def test_an_acquire_whose_connection_another_call_has_already(self):
        async def main(client, turn):
            async def other():
                await (await client.acquire("a", "api", {"slots": 1})).release()

            def cancel():
                # Begins first, so it takes the connection before the cancelled task runs.
                others.append(asyncio.ensure_future(other()))
                acquire.cancel()

            others = []
            for event in (asked, go, self.server.answered):
                event.clear()
            acquire = asyncio.ensure_future(client.acquire("a", "api", {"slots": 1}))
            await until_set(asked)
            # Blocks the loop, so that each turn afterwards is the same in every run.
            go.set()
            self.assertTrue(self.server.answered.wait(10))
            in_turns(turn, cancel)
            await asyncio.wait({acquire})
            if not acquire.cancelled():
                await acquire.result().release()
            while not others:
                await asyncio.sleep(0)
            await asyncio.gather(*others)

        def on_acquire():
            asked.set()
            go.wait(10)

        asked, go = threading.Event(), threading.Event()
        self.check(main, on_acquire=on_acquire)

    def test_timeouts(self):
        for seconds in [0, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 2e-3]:
            with Leasing() as server:

                async def run():
                    async with weirgate.AsyncClient(server.url) as client:

                        async def work():
                            async with client.acquire("a", "api", {"slots": 1}):
                                pass

                        for _ in range(20):
                            try:
                                await asyncio.wait_for(work(), seconds)
                            except asyncio.TimeoutError:
                                pass

                asyncio.run(run())
                self.assertEqual(server.granted, len(server.ends))

    @unittest.skipUnless(hasattr(asyncio, "TaskGroup"), "there are no task groups")
    def test_a_task_group_and_a_timeout_see_their_own_cancellations(self):
        async def main(client, turn):
            async def hold():
                async with client.acquire("a", "api", {"slots": 1}):
                    await asyncio.Event().wait()

            async def fail():
                for _ in range(turn):
                    await asyncio.sleep(0)
                raise KeyError

            with self.assertRaises(BaseExceptionGroup) as caught:
                async with asyncio.TaskGroup() as group:
                    group.create_task(hold())
                    group.create_task(fail())
            self.assertEqual([type(one) for one in caught.exception.exceptions], [KeyError])
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(0.001):
                    async with client.acquire("a", "api", {"slots": 1}):
                        await asyncio.Event().wait()

        self.check(main)

    def test_closed_coroutines_and_generators(self):
        async def main(client, turn):
            async def generate():
                async with client.acquire("a", "api", {"slots": 1}) as grant:
                    yield grant

            generator = generate()
            async for _ in generator:
                break
            await generator.aclose()
            call = client._call(client.acquire("a", "api", {"slots": 1})._asked, weirgate.aio.Waits(endures=False))
            acquire = call.__await__()
            waited = next(acquire)
            for _ in range(turn):
                await asyncio.sleep(0)
            waited.cancel()
            acquire.close()

        self.check(main)

    def test_close_waits_for_what_returns(self):
        with Leasing() as server:

            async def run():
                client = weirgate.AsyncClient(server.url)
                acquire = asyncio.ensure_future(client.acquire("a", "api", {"slots": 1}))
                while not client._connections._given_up:
                    await asyncio.sleep(0)
                    if server.granted:
                        acquire.cancel()
                    if acquire.done() and not acquire.cancelled():
                        await acquire.result().roll_back()
                        break
                await client.close()
                self.assertEqual(server.granted, len(server.ends))

            asyncio.run(run())


class Interruptions(unittest.TestCase):
    """Ctrl-C, as Python raises it in the main thread."""

    def setUp(self):
        # A shell starts jobs in the background with Ctrl-C ignored.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

    def interrupt(self):
        os.kill(os.getpid(), signal.SIGINT)

    def scope(self, server, body=lambda: None):
        with weirgate.Client(server.url, answer_timeout=10) as client, self.assertRaises(KeyboardInterrupt):
            with client.acquire("a", "api", {"slots": 1}):
                body()
        return [(path, body.get("end")) for path, _, body in server.requests]

    def test_an_interrupted_release_is_sent_again(self):
        go, times = threading.Event(), []

        def on_settle():
            times.append(1)
            if len(times) == 1:
                self.interrupt()
                # The first answer never comes.
                go.wait(10)

        with Leasing(on_settle=on_settle) as server:
            asked = self.scope(server)
            go.set()
        self.assertEqual(asked, [("/v1/acquire", None), ("/v1/settle", "release"), ("/v1/settle", "release")])

    def test_a_grant_that_comes_after_an_interruption_is_rolled_back(self):
        with Leasing(on_acquire=self.interrupt) as server:
            asked = self.scope(server, lambda: self.fail("the block ran"))
        self.assertEqual(asked, [("/v1/acquire", None), ("/v1/settle", "roll_back")])

    def test_an_interruption_in_each_line_of_a_release(self):
        import weirgate.client
        import weirgate.connection
        import weirgate.grant
        import weirgate.wire

        files = {module.__file__ for module in (weirgate.client, weirgate.connection, weirgate.grant, weirgate.wire)}
        count = 0
        is_done = False
        while not is_done:
            left = [count]

            def line(frame, event, _, left=left):
                # Nothing of the release has begun in the others.
                has_begun = frame.f_code.co_name not in ("__exit__", "end_of_scope", "_finish_quietly")
                if event == "line" and frame.f_code.co_filename in files and has_begun:
                    left[0] -= 1
                    if left[0] < 0:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return line

            with Leasing() as server, weirgate.Client(server.url) as client:
                grant = client.acquire("a", "api", {"slots": 1})
                try:
                    sys.settrace(line)
                    try:
                        grant.__exit__(None, None, None)
                    finally:
                        sys.settrace(None)
                    is_done = True
                except KeyboardInterrupt:
                    pass
                self.assertIn("release", server.ends, f"line {count}")
            count += 1
        self.assertGreater(count, 50)

    def test_a_generator_that_is_closed_releases(self):
        with Leasing() as server, weirgate.Client(server.url) as client:

            def generate():
                with client.acquire("a", "api", {"slots": 1}):
                    yield 1

            for _ in generate():
                break
            self.assertEqual(server.ends, ["release"])


if __name__ == "__main__":
    unittest.main()
