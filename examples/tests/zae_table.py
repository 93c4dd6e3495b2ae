"""Makes a table of zae-limiter with limits on each level, for the test of the move. Usage: zae_table.py URL"""

import asyncio
import sys

from aiobotocore.session import get_session
from zae_limiter import Limit, OnUnavailable, RateLimiter, Repository
from zae_limiter.schema import get_table_definition

STACK = "zae-limits"


async def main(endpoint):
    async with get_session().create_client("dynamodb", endpoint_url=endpoint) as client:
        await client.create_table(**get_table_definition(STACK))
    repository = await Repository.open(stack=STACK, endpoint_url=endpoint)
    async with RateLimiter(repository=repository) as limiter:
        await limiter.set_system_defaults([Limit.per_minute("rpm", 60)], on_unavailable=OnUnavailable.ALLOW)
        quota = Limit.quota("monthly", 5_000_000, cron="0 0 1 * *")
        tokens = Limit.per_minute("tpm", 100_000, burst=150_000)
        await limiter.set_resource_defaults("gpt-4", [Limit.per_hour("rpm", 5), tokens, quota])
        await limiter.create_entity("team-a")
        await limiter.create_entity("user-1", parent_id="team-a", cascade=True)
        await limiter.set_limits("team-a", [Limit.per_day("rpm", 1_000), tokens], resource="gpt-4")


asyncio.run(main(sys.argv[1]))
