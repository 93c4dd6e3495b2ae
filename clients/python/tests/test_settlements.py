"""Scopes whose settlement fails, against the real agent behind a relay that loses answers."""

import asyncio
import contextlib
import itertools
import json
import logging
import threading
import unittest
import urllib.error
import urllib.request

import weirgate
from served import Server, answer
from stack import Agent, Backend

LIMITS = [weirgate.Limit.rate("tpm", 1, 365 * 86_400, capacity=1000), weirgate.Limit.slots("slots", 2)]
# Seconds within which a settlement that waits for no other one is answered.
OVERTAKES = 0.3
REFUSED = answer(503, {"status": 503, "detail": "no decision", "applied": "no", "retry": False})


def halfway(status, grant):
    """Returns the answer to a settlement that stopped halfway."""
    return answer(status, {"status": status, "detail": "stopped", "applied": "unknown", "retry": False, "grant": grant})


def setUpModule():
    global backend, agent
    backend = Backend()
    unittest.addModuleCleanup(backend.stop)
    agent = Agent(backend.variables)
    unittest.addModuleCleanup(agent.stop)


def forwarded(path, body):
    """Returns the real agent's answer."""
    asked = urllib.request.Request(agent.url + path, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(asked, timeout=30) as response:
            return answer(response.status, json.load(response))
    except urllib.error.HTTPError as error:
        with error:
            return answer(error.code, json.load(error))


class Relay(Server):
    """Hands requests to the agent. It refuses settlements with `refused` in them, and loses answers to `lost` ones.

    After `halves` ones it answers, with this status, that something failed after the settlement was applied, and after
    `replaced` ones as a proxy does. It answers `late` ones, of which it has `got` one, after one that another connection
    sends is answered, or else after a moment.
    """

    def __init__(self, lost=None, refused=None, halves=None, status=503, late=None, replaced=None):
        self.got = threading.Event()
        self.answered = []
        overtaken = threading.Event()

        def serve(peer, _):
            while request := peer.read():
                path, _, body = request
                if refused in body:
                    peer.send(REFUSED)
                    continue
                reply = forwarded(path, body)
                if lost in body:
                    return
                if replaced in body:
                    reply = answer(status, "of a proxy")
                if halves in body:
                    reply = halfway(status, json.loads(reply.partition(b"\r\n\r\n")[2])["grant"])
                if late in body:
                    self.got.set()
                    overtaken.wait(OVERTAKES)
                self.answered.append(body)
                peer.send(reply)
                if self.got.is_set():
                    overtaken.set()

        super().__init__(serve)


class Settlements:
    """The behaviours. `scope` and `decorated` run work with a grant of 500 tokens of 1000."""

    def setUp(self):
        self.entity = self.id().rpartition(".")[2] + type(self).__name__

    def balance(self):
        client = weirgate.Client(agent.url)
        self.addCleanup(client.close)
        return client.remaining(self.entity, "api", "tpm", limits=LIMITS)

    def acquire(self, client, **take):
        return client.acquire(self.entity, "api", {"tpm": 500, **take}, limits=LIMITS)

    def test_a_scope_does_not_roll_back_after_an_adjustment_whose_answer_was_lost(self):
        with Relay(lost="adjust") as relay, self.assertRaises(weirgate.Unavailable) as caught:
            self.scope(relay.url, "adjust")
        self.assertEqual(caught.exception.applied, "unknown")
        self.assertEqual(self.balance(), 700)
        self.assertNotIn("roll_back", [body.get("end") for _, _, body in relay.requests])

    def test_nothing_that_changes_amounts_follows_an_adjustment_whose_answer_was_lost(self):
        # Its token is outdated, so each would count twice.
        for call in ["adjust", "give_back", "take_more", "release", "roll_back"]:
            with self.subTest(call=call), Relay(lost="adjust") as relay:
                self.entity = f"{self.entity}-{call}"
                with self.assertRaisesRegex(weirgate.InvalidRequest, "count twice"):
                    self.scope(relay.url, "adjust", call, raises=KeyError)
                self.assertEqual(self.balance(), 700)
                self.assertEqual(len(relay.requests), 2)

    def test_an_answer_that_a_proxy_replaced_is_lost(self):
        for status in (400, 401, 403, 404, 408, 413, 425, 429, 502):
            with self.subTest(status=status), Relay(replaced="adjust", status=status) as relay:
                self.entity = f"{self.entity}-{status}"
                with self.assertRaisesRegex(weirgate.InvalidRequest, "count twice"):
                    self.scope(relay.url, "adjust", "give_back", raises=KeyError)
                self.assertEqual(self.balance(), 700)

    def test_of_several_rollbacks_one_counts(self):
        for lost in [None, "end"]:
            with self.subTest(lost=lost), Relay(lost=lost) as relay:
                self.entity = f"{self.entity}-{lost}"
                with self.assertRaises(weirgate.InvalidRequest):
                    self.scope(relay.url, "roll_back", "roll_back", raises=KeyError)
                self.assertEqual(self.balance(), 1000)

    def test_a_rollback_under_a_lease_may_be_repeated(self):
        with Relay() as relay, weirgate.Client(relay.url, retries=0) as client:
            grant = self.acquire(client, slots=1)
            with self.assertRaises(weirgate.Unavailable), Relay(lost="end") as losing:
                grant._client = weirgate.Client(losing.url, retries=0)
                grant.roll_back()
            grant._client = client
            self.assertEqual(grant.roll_back(), weirgate.Settlement.LEASE_GONE)
        self.assertEqual(self.balance(), 1000)

    def test_a_settlement_that_stopped_halfway_goes_on_with_the_new_token(self):
        for status in (400, 500, 503):
            with self.subTest(status=status), Relay(halves="adjust", status=status) as relay:
                self.entity = f"{self.entity}-{status}"
                with self.assertRaises(KeyError):
                    # 300 of 500 are used; by the old token, 100 less would be 400.
                    self.scope(relay.url, "adjust", "give_back", raises=KeyError)
                self.assertEqual(self.balance(), 800)
                tokens = [body["grant"] for path, _, body in relay.requests if path == "/v1/settle"]
                self.assertNotEqual(tokens[0], tokens[1])
                # The work is done, so the scope does not roll back.
                self.assertNotIn("roll_back", [body.get("end") for _, _, body in relay.requests])

    def test_the_error_of_a_settlement_that_stopped_halfway_says_so(self):
        with Relay(halves="adjust") as relay, self.assertRaises(weirgate.Unavailable) as caught:
            self.scope(relay.url, "adjust")
        self.assertEqual((caught.exception.applied, caught.exception.is_transient), ("unknown", True))
        self.assertTrue(caught.exception.grant)

    def test_a_scope_does_not_roll_back_if_only_its_settlement_was_refused(self):
        with Relay(refused="adjust") as relay, self.assertRaises(weirgate.Unavailable) as caught:
            self.scope(relay.url, "release")
        self.assertEqual(caught.exception.applied, "no")
        self.assertEqual(self.balance(), 500)

    def test_a_scope_does_not_roll_back_if_what_the_vendor_answered_could_not_be_told(self):
        with Relay(lost="vendor") as relay, self.assertRaises(weirgate.Unavailable):
            self.scope(relay.url, "vendor_said")
        self.assertEqual(self.balance(), 500)

    def test_a_scope_whose_work_fails_after_a_settlement_rolls_back_by_the_new_token(self):
        with Relay() as relay, self.assertRaises(KeyError):
            self.scope(relay.url, "adjust", raises=KeyError)
        self.assertEqual(self.balance(), 1000)

    def test_a_scope_rolls_back_if_taking_more_was_denied(self):
        with Relay() as relay, self.assertRaises(weirgate.Denied):
            self.scope(relay.url, "take_more")
        self.assertEqual(self.balance(), 1000)

    def test_a_settlement_waits_for_the_one_before_it(self):
        """The answer to the first one has the text of before, which would bring back what the second one returned."""
        for first, second in itertools.product(ORDERED, ORDERED):
            with self.subTest(first=first, second=second), Relay(late=LATE[first]) as relay:
                self.entity = f"overlapping-{type(self).__name__}-{first}-{second}"
                self.overlapping(relay, ORDERED[first], ORDERED[second])
                self.assertEqual(self.balance(), 600)
                ended = [body["end"] for _, _, body in relay.requests if "end" in body]
                self.assertEqual(ended, ["roll_back"])

    def test_a_release_without_amounts_waits_for_no_other_settlement(self):
        with Relay(late="renew_ms") as relay:
            self.overlapping(relay, ORDERED["renew"], lambda grant: grant.release())
        answered = [name for body in relay.answered for name in ("renew_ms", "end") if name in body]
        self.assertEqual(answered, ["end", "renew_ms"])

    def both(self, client):
        """Takes of a bucket with a lease, and of one without, which has room for amounts that would return twice."""
        with weirgate.Client(agent.url) as other:
            other.acquire(self.entity, "api", {"tpm": 400}, limits=LIMITS[:1])
        buckets = [
            weirgate.Bucket(f"{self.entity}-worker", "api", {"slots": 1}, LIMITS[1:]),
            weirgate.Bucket(self.entity, "api", {"tpm": 500}, LIMITS[:1]),
        ]
        return client.acquire_all(buckets)

    def test_a_decorated_function_whose_actual_raises_keeps_its_estimate_used(self):
        with Relay() as relay, self.assertRaises(ZeroDivisionError):
            self.decorated(relay.url, lambda _: {"tpm": 1 / 0})
        self.assertEqual(self.balance(), 500)

    def test_a_decorated_function_whose_settlement_fails_keeps_its_estimate_used(self):
        with Relay(refused="adjust") as relay, self.assertLogs("weirgate", logging.WARNING):
            self.assertEqual(self.decorated(relay.url, lambda _: {"tpm": 100}), "done")
        self.assertEqual(self.balance(), 500)


CALLS = {
    "adjust": lambda grant: grant.adjust({"tpm": 300}),
    "give_back": lambda grant: grant.give_back({"tpm": 100}),
    "release": lambda grant: grant.release({"tpm": 300}),
    "roll_back": lambda grant: grant.roll_back(),
    "take_more": lambda grant: grant.take_more({"tpm": 600}),
    "vendor_said": lambda grant: grant.vendor_said(status=200, headers={}),
}


# What two parts of a process may do with one grant at the same time, such as a heartbeat and its work.
ORDERED = {
    "renew": lambda grant: grant.renew(600),
    "adjust": lambda grant: grant.adjust({"tpm": 300}),
    "give_back": lambda grant: grant.give_back({"tpm": 100}),
    "take_more": lambda grant: grant.take_more({"tpm": 50}),
}
LATE = {"renew": "renew_ms", "adjust": "adjust", "give_back": "give_back", "take_more": "take_more"}


class OfThreads(Settlements, unittest.TestCase):
    def scope(self, url, *calls, raises=None):
        with weirgate.Client(url, retries=0) as client, self.acquire(client) as grant:
            for call in calls:
                try:
                    CALLS[call](grant)
                except weirgate.Unavailable:
                    if raises is None:
                        raise
            if raises:
                raise raises

    def overlapping(self, relay, first, second):
        """Settles while the answer to the first settlement is late, and then fails."""
        with weirgate.Client(relay.url, retries=0) as client, contextlib.suppress(KeyError), self.both(client) as grant:
            thread = threading.Thread(target=first, args=(grant,))
            thread.start()
            self.assertTrue(relay.got.wait(30))
            second(grant)
            thread.join()
            self.assertFalse(grant.is_uncertain)
            raise KeyError

    def test_a_settlement_of_a_signal_handler_does_not_wait_for_the_one_that_it_interrupts(self):
        with weirgate.Client(agent.url) as client:
            grant = self.acquire(client, slots=1)
            call, client._call = client._call, lambda *asked: (interrupt(), call(*asked))[1]

            def interrupt():
                client._call = call
                with self.assertRaisesRegex(weirgate.InvalidRequest, "signal handler"):
                    grant.renew(60)

            grant.adjust({"tpm": 300})
            self.assertEqual(grant.release(), weirgate.Settlement.SETTLED)
        self.assertEqual(self.balance(), 700)

    def decorated(self, url, actual):
        with weirgate.Client(url, retries=0) as client:
            limited = client.limited(self.entity, "api", {"tpm": 500}, actual=actual, limits=LIMITS)
            return limited(lambda: "done")()


class OfAsyncio(Settlements, unittest.TestCase):
    def scope(self, url, *calls, raises=None):
        async def run():
            async with weirgate.AsyncClient(url, retries=0) as client, self.acquire(client) as grant:
                for call in calls:
                    try:
                        await CALLS[call](grant)
                    except weirgate.Unavailable:
                        if raises is None:
                            raise
                if raises:
                    raise raises

        asyncio.run(run())

    def overlapping(self, relay, first, second):
        async def run():
            async with weirgate.AsyncClient(relay.url, retries=0) as client:
                with contextlib.suppress(KeyError):
                    async with self.both(client) as grant:
                        late = asyncio.ensure_future(first(grant))
                        self.assertTrue(await asyncio.get_running_loop().run_in_executor(None, relay.got.wait, 30))
                        await second(grant)
                        await late
                        self.assertFalse(grant.is_uncertain)
                        raise KeyError

        asyncio.run(run())

    def decorated(self, url, actual):
        async def run():
            async with weirgate.AsyncClient(url, retries=0) as client:

                @client.limited(self.entity, "api", {"tpm": 500}, actual=actual, limits=LIMITS)
                async def work():
                    return "done"

                return await work()

        return asyncio.run(run())

    def test_a_scope_that_fails_while_a_settlement_is_in_flight_does_not_roll_back(self):
        async def run():
            async with weirgate.AsyncClient(agent.url) as client:
                with self.assertRaises(KeyError):
                    async with self.acquire(client) as grant:
                        adjusting = asyncio.ensure_future(grant.adjust({"tpm": 300}))
                        await asyncio.sleep(0)
                        self.assertTrue(grant.is_uncertain)
                        raise KeyError
                await adjusting
                self.assertFalse(grant.is_uncertain)

        asyncio.run(run())
        self.assertEqual(self.balance(), 700)


if __name__ == "__main__":
    unittest.main()
