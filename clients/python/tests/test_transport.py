"""What leaves the client, how often, and what follows from each way in which a connection can fail.

Every behaviour is checked for the client of threads and for the one of asyncio.
"""

import asyncio
import contextlib
import errno
import json
import os
import random
import shutil
import socket
import threading
import time
import unittest
from unittest import mock

import weirgate
from served import GRANTED, Server, answer
from stack import CONTRACT
from variables import environment
from weirgate import aio_connection, wire

REFUSED_NOW = {"type": "about:blank", "status": 503, "detail": "too many requests", "applied": "no", "retry": True}
TAKE = ("a", "api", {"rpm": 1})
CHUNKS = json.loads((CONTRACT / "client/chunks.json").read_text(encoding="utf-8"))
BODY = GRANTED.partition(b"\r\n\r\n")[2]


def in_chunks(chunks, fields=""):
    """Returns an answer with these chunks, in which SIZE and BODY stand for those of a grant."""
    data = chunks.encode() if isinstance(chunks, str) else chunks
    data = data.replace(b"SIZE", b"%x" % len(BODY)).replace(b"BODY", BODY)
    return f"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n{fields}\r\n".encode() + data


def drawn_chunks(draw, body):
    """Returns a body in chunks of drawn sizes, some with extensions, and with drawn trailers."""
    cuts = sorted(draw.randrange(1, len(body)) for _ in range(draw.randrange(12)))
    parts = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)]) if start < end]
    size = draw.choice(["%x", "%X", "%04x", "%x;a=b", '%X ;name="\u00fc"'])
    chunks = b"".join((size % len(part)).encode() + b"\r\n" + part + b"\r\n" for part in parts)
    return chunks + draw.choice([b"0", b"000", b"0;a=b"]) + b"\r\n" + b"a: b\r\n" * draw.randrange(3) + b"\r\n"


def drawn_pieces(draw, data):
    """Returns an answer as it may arrive: whole, byte for byte, or in pieces of drawn sizes."""
    most = draw.choice([1, 7, 1_000, len(data)])
    while data:
        length = draw.randrange(1, most + 1) if most < len(data) else most
        yield data[:length]
        data = data[length:]


class Threads:
    """The client of threads, by the calls of these tests."""

    def __init__(self, url, **options):
        self.client = weirgate.Client(url, **options)

    def acquire(self, take=TAKE):
        return self.client.acquire(*take)

    def peek(self):
        return self.client.peek("a", "api")

    def close(self):
        self.client.close()


class Asyncio:
    """The client of asyncio, by the same calls, on one loop."""

    def __init__(self, url, **options):
        self.client = weirgate.AsyncClient(url, **options)
        self.loop = asyncio.new_event_loop()

    def acquire(self, take=TAKE):
        async def acquire():
            return await self.client.acquire(*take)

        return self.loop.run_until_complete(acquire())

    def peek(self):
        return self.loop.run_until_complete(self.client.peek("a", "api"))

    def close(self):
        self.client.close()
        self.loop.close()


class Transport:
    """The behaviours; `kind` is the client."""

    kind = None

    def client(self, server, **options):
        client = self.kind(getattr(server, "url", server), **options)
        self.addCleanup(client.close)
        return client

    def test_requests_of_one_caller_share_a_connection(self):
        with Server(lambda peer, _: peer.answer_all()) as server:
            client = self.client(server)
            for _ in range(3):
                self.assertEqual(client.acquire().token, "g1")
            self.assertEqual((server.connections, len(server.requests)), (1, 3))
            path, fields, body = server.requests[0]
            self.assertEqual(path, "/v1/acquire")
            self.assertEqual(body, {"entity": "a", "resource": "api", "take": {"rpm": 1}})
            self.assertEqual(fields["content-type"], "application/json")
            self.assertNotIn("x-weirgate-token", fields)

    def test_a_unix_socket_is_an_address(self):
        with Server(lambda peer, _: peer.answer_all(), is_unix=True) as server:
            self.addCleanup(shutil.rmtree, server.folder)
            self.assertEqual(self.client(server).acquire().token, "g1")
            self.assertEqual(server.requests[0][1]["host"], "localhost")

    def test_a_connection_that_the_agent_closed_is_not_written_to(self):
        closed = threading.Event()

        def serve(peer, number):
            peer.read()
            peer.send(GRANTED)
            if number == 1:
                peer.sock.shutdown(socket.SHUT_RDWR)
                closed.set()
            else:
                peer.answer_all()

        with Server(serve) as server:
            client = self.client(server, retries=0)
            client.acquire()
            self.assertTrue(closed.wait(10))
            self.assertEqual(client.acquire().token, "g1")
            self.assertEqual((server.connections, len(server.requests)), (2, 2))

    def test_a_request_without_an_answer_is_not_repeated_and_its_outcome_is_unknown(self):
        with Server(lambda peer, _: peer.read()) as server:
            with self.assertRaises(weirgate.Unavailable) as caught:
                self.client(server).acquire()
            self.assertEqual((caught.exception.applied, len(server.requests)), ("unknown", 1))

    def test_a_read_without_an_answer_has_changed_nothing(self):
        with Server(lambda peer, _: peer.read()) as server:
            with self.assertRaises(weirgate.Unavailable) as caught:
                self.client(server).peek()
            self.assertEqual((caught.exception.applied, len(server.requests)), ("no", 1))

    def test_half_an_answer_is_none(self):
        def serve(peer, _):
            peer.read()
            peer.send(GRANTED[:-5])

        with Server(serve) as server:
            with self.assertRaises(weirgate.Unavailable) as caught:
                self.client(server).acquire()
            self.assertEqual((caught.exception.applied, len(server.requests)), ("unknown", 1))

    def test_an_answer_in_many_pieces_is_put_together(self):
        def serve(peer, _):
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.read()
            peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            for byte in GRANTED:
                peer.send(bytes([byte]))
            peer.answer_all()

        with Server(serve) as server:
            client = self.client(server)
            self.assertEqual([client.acquire().token, client.acquire().token], ["g1", "g1"])
            self.assertEqual(server.connections, 1)

    def test_an_answer_in_chunks_is_read_and_its_connection_carries_the_next_request(self):
        draw = random.Random(20_261_129)
        answers = [in_chunks(chunks) for chunks in CHUNKS["read"]]
        answers += [in_chunks(drawn_chunks(draw, BODY)) for _ in range(100)]
        current = []

        def serve(peer, _):
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while peer.read():
                # A copy, because the test goes on as soon as the last piece has come.
                for piece in tuple(current):
                    peer.send(piece)

        with Server(serve) as server:
            client = self.client(server)
            for data in [*answers, GRANTED]:
                current[:] = drawn_pieces(draw, data)
                with self.subTest(data=data, pieces=len(current)):
                    self.assertEqual(client.acquire().token, "g1")
            self.assertEqual(server.connections, 1)

    def test_an_answer_in_wrong_chunks_is_refused(self):
        for chunks in CHUNKS["refused"]:
            with self.subTest(chunks=chunks), Server(lambda peer, _: peer.read() and peer.send(in_chunks(chunks))) as server:
                with self.assertRaises(weirgate.Unavailable) as caught:
                    self.client(server).acquire()
                self.assertEqual((caught.exception.applied, len(server.requests)), ("unknown", 1))

    def test_an_answer_in_chunks_that_stops_or_does_not_end_is_given_up_at_the_deadline(self):
        for again in (b"", b"1\r\n \r\n" * 10_000):

            def serve(peer, _, again=again):
                peer.read()
                peer.send(in_chunks("1\r\n \r\n"))
                while again:
                    peer.send(again)
                peer.wait_for_end()

            with self.subTest(again=again[:6]), Server(serve) as server:
                begun = time.monotonic()
                with self.assertRaises(weirgate.Unavailable) as caught:
                    self.client(server, answer_timeout=0.1).acquire()
                self.assertEqual(caught.exception.applied, "unknown")
                self.assertIn("no answer of the agent", str(caught.exception))
                self.assertLess(time.monotonic() - begun, 5)

    def test_a_long_body_and_a_long_answer_arrive_whole(self):
        long = "x" * 3_000_000

        def serve(peer, _):
            peer.read()
            peer.send(answer(429, {"detail": long, "applied": "no", "retry": False, "retry_after_ms": 5}))

        with Server(serve) as server:
            client = self.client(server)
            with self.assertRaises(weirgate.Denied) as caught:
                client.acquire(("a", "api", {long: 1}))
            self.assertEqual(len(str(caught.exception)), len(long))
            self.assertEqual(server.requests[0][2]["take"], {long: 1})

    def test_an_answer_that_is_late_closes_the_connection(self):
        ended = threading.Event()

        def serve(peer, number):
            peer.read()
            if number > 1:
                peer.send(GRANTED)
            peer.wait_for_end()
            ended.set()

        with Server(serve) as server:
            client = self.client(server, answer_timeout=0.05)
            with self.assertRaises(weirgate.Unavailable) as caught:
                client.acquire()
            self.assertEqual(caught.exception.applied, "unknown")
            self.assertTrue(ended.wait(10), "the agent can see that nothing waits for the answer")
            client.client._answer_timeout = 60
            self.assertEqual(client.acquire().token, "g1")

    def test_a_refused_connection_is_tried_again(self):
        found = socket.create_server(("127.0.0.1", 0))
        url = "http://127.0.0.1:{}".format(found.getsockname()[1])
        found.close()
        with self.assertRaises(weirgate.Unavailable) as caught:
            self.client(url, retries=1).acquire()
        self.assertEqual((caught.exception.applied, caught.exception.is_transient), ("no", True))
        self.assertIn("start weirgate-agent", str(caught.exception))

    def test_each_address_of_a_name_has_a_part_of_the_time(self):
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(Server(lambda peer, _: peer.answer_all()))
            # A host that is gone without a reset: its queue of connections is full.
            gone = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(gone.getsockname())
            alive = ("127.0.0.1", int(server.url.rpartition(":")[2]))
            for addresses in ([gone.getsockname(), alive], [gone.getsockname(), gone.getsockname(), alive]):
                found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]
                with self.subTest(addresses=addresses), mock.patch("socket.getaddrinfo", return_value=found):
                    self.assertEqual(self.client("http://agents:2774", answer_timeout=3).acquire().token, "g1")
            found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", gone.getsockname())] * 2
            with mock.patch("socket.getaddrinfo", return_value=found), self.assertRaises(weirgate.Unavailable) as caught:
                self.client("http://agents:2774", answer_timeout=0.2).acquire()
            self.assertEqual(caught.exception.applied, "no")
            self.assertIn("no connection to the agent at http://agents:2774: timed out; start", str(caught.exception))

    def test_an_answer_that_allows_a_repetition_is_repeated(self):
        answers = [answer(503, REFUSED_NOW, "retry-after: 0\r\n"), GRANTED]

        def serve(peer, _):
            while peer.read():
                peer.send(answers[min(len(server.requests), 2) - 1])

        with Server(serve) as server:
            self.assertEqual(self.client(server).acquire().token, "g1")
            self.assertEqual((server.connections, len(server.requests)), (1, 2))

    def test_repetitions_end(self):
        with Server(lambda peer, _: peer.answer_all(answer(503, REFUSED_NOW, "retry-after: 0\r\n"))) as server:
            with self.assertRaises(weirgate.Unavailable) as caught:
                self.client(server, retries=3).acquire()
            self.assertEqual((caught.exception.applied, len(server.requests)), ("no", 4))

    def test_no_other_answer_is_repeated(self):
        for body in [
            {**REFUSED_NOW, "applied": "unknown"},
            {**REFUSED_NOW, "retry": False},
            {"detail": "a proxy that is no agent"},
        ]:
            with Server(lambda peer, _: peer.answer_all(answer(503, body, "retry-after: 0\r\n"))) as server:
                with self.assertRaises(weirgate.Unavailable) as caught:
                    self.client(server).acquire()
                self.assertEqual(caught.exception.applied, body.get("applied", "unknown"))
                self.assertEqual(len(server.requests), 1, body)

    def test_a_pause_beyond_the_time_of_the_call_does_not_begin(self):
        with Server(lambda peer, _: peer.answer_all(answer(503, REFUSED_NOW, "retry-after: 3600\r\n"))) as server:
            with self.assertRaises(weirgate.Unavailable):
                self.client(server).acquire()
            self.assertEqual(len(server.requests), 1)

    def test_a_time_to_retry_that_cannot_be_read_is_not_undercut(self):
        date = "Wed, 21 Oct 2065 07:28:00 GMT"
        for text in [date, "-1", "1.5", "1e3", "9" * 10, "9" * 5_000, "\u0663", "1, 2", "x", ""]:
            with self.subTest(text=text):
                data = answer(503, REFUSED_NOW, f"retry-after: {text}\r\n")
                with Server(lambda peer, _: peer.answer_all(data)) as server:
                    with self.assertRaises(weirgate.Unavailable):
                        self.client(server).acquire()
                    self.assertEqual(len(server.requests), 1)

    def test_a_call_without_time_is_not_sent(self):
        with Server(lambda peer, _: peer.answer_all()) as server:
            with self.assertRaises(weirgate.Unavailable) as caught:
                self.client(server, answer_timeout=0).acquire()
            self.assertEqual((caught.exception.applied, len(server.requests)), ("no", 0))

    def test_what_is_no_agent_is_named(self):
        with Server(lambda peer, _: (peer.read(), peer.send(b"SSH-2.0-server\r\n\r\n"))) as server:
            with self.assertRaisesRegex(weirgate.Unavailable, "is the agent's URL right"):
                self.client(server).acquire()

    def test_a_connection_that_is_to_close_is_not_used_again(self):
        last = GRANTED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)

        def serve(peer, _):
            peer.read()
            peer.send(last)
            peer.wait_for_end()

        with Server(serve) as server:
            client = self.client(server)
            client.acquire(), client.acquire()
            self.assertEqual(server.connections, 2)

    def test_the_token_is_read_again_after_it_was_refused(self):
        wrong = answer(401, {"detail": "wrong token", "applied": "no", "retry": False})

        def serve(peer, _):
            request = peer.read()
            while request:
                peer.send(GRANTED if request[1].get("x-weirgate-token") == "new" else wrong)
                request = peer.read()

        with Server(serve) as server, environment(WEIRGATE_AGENT_TOKEN="old"):
            client = self.client(server)
            with self.assertRaises(weirgate.Unauthorized):
                client.acquire()
            os.environ["WEIRGATE_AGENT_TOKEN"] = "new"
            self.assertEqual(client.acquire().token, "g1")


class Chunks(unittest.TestCase):
    """The reader of both clients."""

    def read(self, pieces):
        reader, answers = wire.Reader(), []
        for piece in pieces:
            answers.append(reader.feed(piece))
        self.assertEqual(answers[:-1], [None] * (len(answers) - 1))
        return answers[-1]

    def test_a_body_in_chunks_is_read_whole_whatever_the_pieces_are(self):
        draw = random.Random(20_261_130)
        for _ in range(300):
            body = draw.randbytes(draw.randrange(2, 300))
            data = in_chunks(drawn_chunks(draw, body))
            for cut in range(1, len(data)):
                self.assertEqual(self.read([data[:cut], data[cut:]]).body, body)
            self.assertEqual(self.read(data[at : at + 1] for at in range(len(data))).body, body)

    def test_a_part_of_an_answer_is_no_answer_and_more_is_refused(self):
        data = in_chunks("3\r\nabc\r\n0\r\na: b\r\n\r\n")
        for length in range(len(data)):
            self.assertIsNone(wire.Reader().feed(data[:length]))
        for more in (b"\r", b"0", data):
            with self.assertRaises(wire.Malformed):
                wire.Reader().feed(data + more)

    def test_no_more_is_kept_than_a_body_may_have(self):
        most = wire.MAX_BODY
        half = b"%x\r\n" % (most // 2) + b"a" * (most // 2) + b"\r\n"
        self.assertEqual(len(wire.Reader().feed(in_chunks(half * 2 + b"0\r\n\r\n")).body), most)
        beyond = [
            f"{most + 1:x}\r\n", half * 2 + b"1\r\n", half * 2 + b"000000001\r\n", "f" * 16 + "\r\n", "0" * 20 + "1\r\n",
            "0" * 5_000, "1;" + "a" * 5_000, "1;" + "a" * 5_000 + "\r\n", "0\r\n" + "a: b\r\n" * 1_000, "0\r\na: " + "b" * 5_000,
            "0\r\n" + "a: b\r\n" * 1_000 + "\r\n",
        ]
        for chunks in beyond:
            with self.subTest(chunks=chunks[:20]), self.assertRaises(wire.Malformed):
                wire.Reader().feed(in_chunks(chunks))

    def test_wrong_framing_is_refused(self):
        wrong = [*CHUNKS["refused"], "SIZE\r\nBODY\n\r0\r\n\r\n", "SIZE\nBODY\n0\n\n", "SIZE\r\nBODY\r\n0\r\na b: c\r\n\r\n"]
        wrong += ["\u0663\r\n123\r\n0\r\n\r\n", "3 3\r\n123\r\n0\r\n\r\n", "3;\0\r\n123\r\n0\r\n\r\n", "3;\r\r\n123\r\n0\r\n\r\n"]
        for chunks in wrong:
            for data in ([in_chunks(chunks)], [bytes([byte]) for byte in in_chunks(chunks)]):
                with self.subTest(chunks=chunks, pieces=len(data)):
                    reader = wire.Reader()
                    with contextlib.suppress(wire.Malformed):
                        self.assertEqual([reader.feed(piece) for piece in data], [None] * len(data))
                    self.assertIsNone(reader.answer)
        whole = "SIZE\r\nBODY\r\n0\r\n\r\n"
        for fields in ("content-length: 5\r\n", "transfer-encoding: gzip\r\n", "transfer-encoding: \r\n"):
            before = in_chunks(whole).replace(b" X\r\n", b" X\r\n" + fields.encode(), 1)
            for data in (before, in_chunks(whole, fields)):
                with self.subTest(data=data), self.assertRaises(wire.Malformed):
                    wire.Reader().feed(data)
        for coding in (b"gzip", b"gzip, chunked", b"chunked, chunked", b"identity", b""):
            with self.subTest(coding=coding), self.assertRaises(wire.Malformed):
                wire.Reader().feed(in_chunks(whole).replace(b"chunked", coding))
        self.assertIsNotNone(wire.Reader().feed(in_chunks(whole).replace(b"chunked", b"Chunked")))


class Pauses(unittest.TestCase):
    def test_a_pause_is_random_and_never_shorter_than_asked_nor_longer_than_the_time_left(self):
        from weirgate.answer import Attempts

        failure = weirgate.Unavailable("busy", "no")
        for after in [0.0, 1.0, 3.0, 9.0, None]:
            pauses = [Attempts(2, time.monotonic() + 10).pause(failure, True, after) for _ in range(200)]
            self.assertGreaterEqual(min(pauses), after or 0)
            self.assertLess(max(pauses), 10)
            self.assertGreater(len(set(pauses)), 190)
            # Half of what is left, or as long again.
            spread = min(after or 0.05, (10 - (after or 0)) / 2)
            self.assertGreater(max(pauses) - min(pauses), spread / 2)
        for after in [10.0, 10.5, 1e9]:
            with self.assertRaises(weirgate.Unavailable):
                Attempts(2, time.monotonic() + 10).pause(failure, True, after)


class OfThreads(Transport, unittest.TestCase):
    kind = Threads

    def test_threads_have_connections_of_their_own(self):
        barrier = threading.Barrier(3)

        def serve(peer, _):
            peer.read()
            barrier.wait(10)
            peer.send(GRANTED)
            peer.wait_for_end()

        with Server(serve) as server:
            client = self.client(server)
            threads = [threading.Thread(target=client.acquire) for _ in range(3)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            self.assertEqual(server.connections, 3)

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_forked_process_does_not_use_its_parents_connection(self):
        with Server(lambda peer, _: peer.answer_all()) as server:
            client = self.client(server)
            client.acquire()
            child = os.fork()
            if child == 0:
                try:
                    client.acquire()
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            client.acquire()
            self.assertEqual((server.connections, len(server.requests)), (2, 3))


class OfAsyncio(Transport, unittest.TestCase):
    kind = Asyncio

    def test_a_connection_is_made_on_windows_too(self):
        # Winsock's code of a connection that is being made, which `errno` has there under another name.
        winsock = 10035
        connect = socket.socket.connect_ex

        def of_winsock(made, address):
            code = connect(made, address)
            return winsock if code == errno.EINPROGRESS else code

        with Server(lambda peer, _: peer.answer_all()) as server, mock.patch.object(aio_connection, "CONNECTING", winsock):
            with mock.patch("socket.socket.connect_ex", of_winsock):
                self.assertEqual(self.client(server).acquire().token, "g1")

    def test_requests_that_wait_do_not_keep_others_back(self):
        released = threading.Event()

        def serve(peer, _):
            path = peer.read()[0]
            if path == "/v1/acquire":
                released.wait(10)
            else:
                released.set()
            peer.send(GRANTED if path == "/v1/acquire" else answer(200, {
                "grant": None, "settlement": "settled", "lease": None, "amounts": [],
            }))
            peer.wait_for_end()

        async def run(client):
            waiting = [asyncio.ensure_future(client.acquire(*TAKE)) for _ in range(30)]
            await client.restore("held").release()
            await asyncio.gather(*waiting)

        with Server(serve) as server:
            client = self.client(server)
            client.loop.run_until_complete(run(client.client))
            self.assertEqual(server.connections, 31)
            self.assertEqual(len(client.client._connections._idle), 10)

    def test_a_client_outlives_its_event_loop(self):
        with Server(lambda peer, _: peer.answer_all()) as server:
            client = weirgate.AsyncClient(server.url)

            async def acquire():
                return (await client.acquire(*TAKE)).token

            self.assertEqual([asyncio.run(acquire()), asyncio.run(acquire())], ["g1", "g1"])
            self.assertEqual(server.connections, 2, "connections belong to a loop")
            client.close()


if __name__ == "__main__":
    unittest.main()
