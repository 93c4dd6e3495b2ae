"""Drives zae-limiter on the DynamoDB at a URL: a scenario, the refill edge, or its aggregator.

When it is ready it prints a line. Then it answers each line of its input with one of JSON: what a round measured.
Settings are the defaults. Limits are stored, since its cache of rejections leaves out those given with a call.

Usage: drive.py URL SCENARIO|edge|aggregator
"""

import asyncio
import contextlib
import io
import json
import os
import random
import sys
import time

import boto3
from aiobotocore.session import get_session
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.schema import get_table_definition

REGION = "us-east-1"
FAR = [Limit.per_second("rpm", 1_000_000_000), Limit.per_second("tpm", 1_000_000_000)]
NEAR = [Limit.per_day("rpm", 1)]
MINUTE = [Limit.per_minute("rpm", 1_000_000), Limit.per_minute("tpm", 1_000_000)]
EDGE = [Limit.per_second("fast", 200), Limit.per_minute("slow", 6)]
WARM_UP = 0.5
WRITES = ("UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems", "BatchWriteItem")


class Meter:
    """Adds up requests, and the write units that DynamoDB reports."""

    def __init__(self, events):
        self.requests, self.units = 0, 0.0
        events.register("provide-client-params.dynamodb", self.ask)
        events.register("after-call.dynamodb", self.count)

    def ask(self, params, model, **_):
        return {**params, "ReturnConsumedCapacity": "TOTAL"} if model.name in WRITES else None

    def count(self, parsed, model, **_):
        self.requests += 1
        # These are billed and not reported: an item of up to 1 KB is 1 unit, 2 in a transaction.
        match parsed.get("Error", {}).get("Code"):
            case "ConditionalCheckFailedException":
                self.units += 1
            case "TransactionCanceledException":
                self.units += 2 * len(parsed["CancellationReasons"])
            case None if model.name in WRITES:
                consumed = parsed["ConsumedCapacity"]
                parts = consumed if isinstance(consumed, list) else [consumed]
                self.units += sum(part["CapacityUnits"] for part in parts)

    def take(self):
        taken = self.requests, self.units
        self.requests, self.units = 0, 0.0
        return taken


async def take(limiter, entity, used=500):
    async with limiter.acquire(entity, "far", {"rpm": 1, "tpm": 500}) as lease:
        if used != 500:
            await lease.adjust(tpm=used - 500)


async def is_granted(limiter, resource="near", limit="rpm"):
    try:
        async with limiter.acquire("denied", resource, {limit: 1}):
            return True
    except RateLimitExceeded:
        return False


async def be_denied(limiter):
    assert not await is_granted(limiter), "more was granted than there is"


# What a caller does again and again.
SCENARIOS = {
    "sequential": (1, lambda limiter: take(limiter, "sequential")),
    "one-bucket": (32, lambda limiter: take(limiter, "one")),
    "many-buckets": (32, lambda limiter: take(limiter, f"many-{random.randrange(50)}")),
    "denied": (1, be_denied),
    "adjusted": (1, lambda limiter: take(limiter, "adjusted", used=300)),
    "cascade": (1, lambda limiter: take(limiter, "child")),
}


async def call_for(seconds, callers, call):
    """How long each call took, in seconds, sorted; and how long all of them took."""
    times = []
    began = time.perf_counter()
    until = began + seconds

    async def again_and_again():
        while (started := time.perf_counter()) < until:
            await call()
            times.append(time.perf_counter() - started)

    await asyncio.gather(*(again_and_again() for _ in range(callers)))
    return sorted(times), time.perf_counter() - began


@contextlib.asynccontextmanager
async def limiter_on(endpoint, table):
    """A limiter on a table of its own, with what it asks of DynamoDB."""
    async with get_session().create_client("dynamodb", endpoint_url=endpoint, region_name=REGION) as client:
        await client.create_table(**get_table_definition(table))
    repository = await Repository.open(stack=table, region=REGION, endpoint_url=endpoint)
    meter = Meter((await repository._get_client()).meta.events)
    async with RateLimiter(repository=repository) as limiter:
        for resource, limits in {"far": FAR, "near": NEAR, "minute": MINUTE, "edge": EDGE}.items():
            await limiter.set_resource_defaults(resource, limits)
        yield limiter, meter


async def lines():
    """The lines of the input, until it ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.strip()


def say(answer):
    print(json.dumps(answer), flush=True)


async def drive(endpoint, scenario):
    """Rounds of a scenario, each of as many seconds as its line says."""
    callers, call = SCENARIOS[scenario]
    async with limiter_on(endpoint, f"peer-{scenario}") as (limiter, meter):
        await limiter.create_entity("parent")
        await limiter.create_entity("child", parent_id="parent", cascade=True)
        assert await is_granted(limiter), "the first is denied"
        await call_for(WARM_UP, callers, lambda: call(limiter))
        say("ready")
        async for seconds in lines():
            meter.take()
            times, lasted = await call_for(float(seconds), callers, lambda: call(limiter))
            requests, units = meter.take()
            done = len(times)
            say(
                {
                    "per_second": done / lasted,
                    "p50": times[done // 2],
                    "p99": times[done * 99 // 100],
                    "units": units / done,
                    "requests": requests / done,
                }
            )


async def edge(endpoint):
    """Rounds of eight callers that want more of both limits than there is, each round on a bucket of its own."""
    async with limiter_on(endpoint, "peer-edge") as (limiter, meter):
        say("ready")
        entity = 0
        async for seconds in lines():
            entity += 1
            admitted = {"fast": 0, "slow": 0}
            began = time.perf_counter()
            until = began + float(seconds)

            async def want(limit, wait):
                while True:
                    try:
                        async with limiter.acquire(f"edge-{entity}", "edge", {limit: 1}):
                            admitted[limit] += 1
                            return
                    except RateLimitExceeded as refused:
                        left = until - time.perf_counter()
                        if not wait or left <= 0:
                            return
                        await asyncio.sleep(min(refused.retry_after_seconds, left))

            async def call():
                while time.perf_counter() < until:
                    await want("slow", wait=False)
                    await want("fast", wait=True)

            meter.take()
            await asyncio.gather(*(call() for _ in range(8)))
            lasted = time.perf_counter() - began
            requests, units = meter.take()
            say({"seconds": lasted, "admitted": admitted, "requests": requests, "units": units})


class Invoked:
    """What Lambda gives a handler beside its event."""

    aws_request_id = "8f5f1c1e-4c2b-4d0e-9a43-0f6a5a3c7b21"
    function_name = "aggregator"


async def aggregator(endpoint):
    """The acquires of a batch; then, for a line with their stream records, rounds of its handler on them."""
    table, buckets, acquires = "peer-aggregator", 14, 100
    async with limiter_on(endpoint, table) as (limiter, _):

        async def acquire(count, tokens):
            for at in range(count):
                async with limiter.acquire(f"user-{at % buckets:04}", "minute", {"rpm": 1, "tpm": tokens}):
                    pass

        await acquire(buckets, 1)
        say("ready")
        answers = aiter(lines())
        await anext(answers)
        await acquire(acquires, 420_000 * buckets // acquires)
        say("acquired")
        records = json.loads(await anext(answers))
    minute_ago(records)
    os.environ.update(TABLE_NAME=table, AWS_ENDPOINT_URL=endpoint)
    boto3.setup_default_session(region_name=REGION)
    meter = Meter(boto3.DEFAULT_SESSION.events)
    from zae_limiter_aggregator.handler import handler

    client = boto3.Session(region_name=REGION).client("dynamodb")
    items = {json.dumps(record["dynamodb"]["Keys"]): record["dynamodb"]["NewImage"] for record in records}
    say("read")
    async for _ in answers:
        # As they were when the batch arrived, so that each round finds the same to refill.
        for item in items.values():
            client.put_item(TableName=table, Item=item)
        meter.take()
        with contextlib.redirect_stdout(io.StringIO()) as log:
            started = time.perf_counter()
            answer = handler({"Records": records}, Invoked)
            seconds = time.perf_counter() - started
        assert not answer["body"]["errors"], log.getvalue()
        requests, units = meter.take()
        say({"seconds": seconds, "requests": requests, "units": units, "refills": answer["body"]["refills_written"]})


def minute_ago(records):
    """The records as if they had been written a minute ago, so that there is something to refill."""
    for record in records:
        for image in ("OldImage", "NewImage"):
            if refilled := record["dynamodb"].get(image, {}).get("rf"):
                refilled["N"] = str(int(refilled["N"]) - 60_000)


def main(endpoint, what):
    asyncio.run({"edge": edge, "aggregator": aggregator}[what](endpoint) if what not in SCENARIOS else drive(endpoint, what))


main(*sys.argv[1:])
