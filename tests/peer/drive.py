"""Drives zae-limiter through one scenario on the DynamoDB at a URL, and prints what it measured as a line of JSON.

Settings are the defaults. Limits are stored, since its cache of rejections leaves out those given with a call.
"""

import asyncio
import json
import random
import sys
import time

from aiobotocore.session import get_session
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.schema import get_table_definition

FAR = [Limit.per_second("rpm", 1_000_000_000), Limit.per_second("tpm", 1_000_000_000)]
NEAR = [Limit.per_day("rpm", 1)]
WARM_UP = 1.0
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


async def take(limiter, entity, used=500):
    async with limiter.acquire(entity, "far", {"rpm": 1, "tpm": 500}) as lease:
        if used != 500:
            await lease.adjust(tpm=used - 500)


async def is_granted(limiter):
    try:
        async with limiter.acquire("denied", "near", {"rpm": 1}):
            return True
    except RateLimitExceeded:
        return False


async def be_denied(limiter):
    assert not await is_granted(limiter), "more was granted than there is"


# How many callers, and what each of them does again and again.
SCENARIOS = {
    "sequential": (1, lambda limiter: take(limiter, "sequential")),
    "one-bucket": (32, lambda limiter: take(limiter, "one")),
    "many-buckets": (32, lambda limiter: take(limiter, f"many-{random.randrange(50)}")),
    "denied": (1, be_denied),
    "adjusted": (1, lambda limiter: take(limiter, "adjusted", used=300)),
    "cascade": (1, lambda limiter: take(limiter, "child")),
}


async def call_for(seconds, callers, call):
    """How long each call took, in microseconds, sorted."""
    times = []
    until = time.perf_counter() + seconds

    async def again_and_again():
        while (started := time.perf_counter()) < until:
            await call()
            times.append((time.perf_counter() - started) * 1e6)

    await asyncio.gather(*(again_and_again() for _ in range(callers)))
    return sorted(times)


async def main(endpoint, scenario, seconds):
    callers, call = SCENARIOS[scenario]
    table, region = f"peer-{scenario}", "us-east-1"
    async with get_session().create_client("dynamodb", endpoint_url=endpoint, region_name=region) as client:
        await client.create_table(**get_table_definition(table))
    repository = await Repository.open(stack=table, region=region, endpoint_url=endpoint)
    meter = Meter((await repository._get_client()).meta.events)
    async with RateLimiter(repository=repository) as limiter:
        await limiter.set_resource_defaults("far", FAR)
        await limiter.set_resource_defaults("near", NEAR)
        await limiter.create_entity("parent")
        await limiter.create_entity("child", parent_id="parent", cascade=True)
        assert await is_granted(limiter), "the first is denied"
        await call_for(WARM_UP, callers, lambda: call(limiter))
        meter.requests, meter.units = 0, 0.0
        times = await call_for(seconds, callers, lambda: call(limiter))
    done = len(times)
    measured = {"per_second": done / seconds, "p50_us": times[done // 2], "p99_us": times[done * 99 // 100]}
    print(json.dumps({**measured, "units": meter.units / done, "requests": meter.requests / done}))


asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
