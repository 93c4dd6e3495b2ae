"""Measures what the clients add to the agent's own time: `make clients-measure`.

The agent answers from prefetched tokens. Its own time is that of the same bytes on a bare socket, so it includes the
kernel; the clients' is the whole call. Blocks of calls alternate, so that all see the same machine.
"""

import asyncio
import socket
import time

import weirgate
from stack import Agent, Backend
from weirgate import request
from weirgate.endpoint import endpoint
from weirgate.wire import Reader
from weirgate.wire import request as bytes_of

ROUNDS, CALLS = 20, 500
TAKE = ("measured", "bench", {"rpm": 1})
LIMITS = [weirgate.Limit.per_second("rpm", 1_000_000, burst=100_000_000)]


def main():
    backend = Backend()
    agent = None
    try:
        agent = Agent({**backend.variables, "WEIRGATE_AGENT_PREFETCH": "bench=10"})
        measure(agent.url)
    finally:
        if agent:
            agent.stop()
        backend.stop()


def measure(url):
    client, asynchronous = weirgate.Client(url), weirgate.AsyncClient(url)
    loop = asyncio.new_event_loop()
    sock = socket.create_connection(endpoint(url, None).address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asked = request.acquire([weirgate.Bucket(*TAKE, LIMITS)], request.Options())
    data = bytes_of(asked.path, endpoint(url, None).head()[0], asked.body)
    times = {"agent": [], "threads": [], "asyncio": []}
    for round in range(ROUNDS + 1):
        if round == 1:  # the first one warms up
            times = {name: [] for name in times}
        timed(times["agent"], lambda: bare(sock, data))
        timed(times["threads"], lambda: client.acquire(*TAKE, limits=LIMITS))
        loop.run_until_complete(timed_by(times["asyncio"], asynchronous))
    sock.close(), client.close(), asynchronous.close(), loop.close()
    own = quantile(times["agent"], 0.5)
    print("| | p50 us | p99 us | added at p50 us |\n|---|---|---|---|")
    for name, of_name in times.items():
        p50 = quantile(of_name, 0.5)
        print(f"| {name} | {p50:.0f} | {quantile(of_name, 0.99):.0f} | {p50 - own:.0f} |")


def timed(times, call):
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)


async def timed_by(times, client):
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        await client.acquire(*TAKE, limits=LIMITS)
        times.append(time.perf_counter_ns() - start)


def bare(sock, data):
    sock.send(data)
    reader = Reader()
    while reader.feed(sock.recv(65536)) is None:
        pass


def quantile(times, part):
    return sorted(times)[int(len(times) * part)] / 1000


if __name__ == "__main__":
    main()
