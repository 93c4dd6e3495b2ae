"""Makes a table of zae-limiter, for the tests of the move. Usage: zae_table.py URL [--entities COUNT]

It has limits on each level, and levels that are disabled. With a count, it has so many entities of the longest id
instead, and children of two pages.
"""

import argparse
import asyncio

from aiobotocore.session import get_session
from zae_limiter import Limit, OnUnavailable, RateLimiter, Repository, __version__
from zae_limiter.schema import get_table_definition
from zae_limiter.version import CURRENT_SCHEMA_VERSION

STACK = "my-stack"
NAMESPACE = "prod"


async def every_level(limiter, repository):
    await limiter.set_system_defaults([Limit.per_minute("rpm", 60)], on_unavailable=OnUnavailable.ALLOW)
    quota = Limit.quota("monthly", 5_000_000, cron="0 0 1 * *")
    tokens = Limit.per_minute("tpm", 100_000, burst=150_000)
    await limiter.set_resource_defaults("gpt-4", [Limit.per_hour("rpm", 5), tokens, quota])
    await limiter.create_entity("team-a")
    await limiter.create_entity("user-1", parent_id="team-a", cascade=True)
    await limiter.set_limits("team-a", [Limit.per_day("rpm", 1_000), tokens], resource="gpt-4")
    # A parent that the export is not asked for.
    await limiter.create_entity("team-b")
    await limiter.create_entity("user-5", parent_id="team-b")
    await limiter.set_limits("user-5", [Limit.per_minute("rpm", 7)])
    await repository.set_resource_cascade("gpt-4", True)
    await disabled_levels(limiter, repository)


async def disabled_levels(limiter, repository):
    # A resource without limits of its own, and one with them.
    await repository.disable_resource("legacy")
    await limiter.set_resource_defaults("old", [Limit.per_minute("rpm", 30)])
    await repository.disable_resource("old")
    await repository.bypass_resource("internal")
    # The resource disables this entity, although it has limits of its own.
    await limiter.set_limits("user-6", [Limit.per_minute("rpm", 8)], resource="old")
    # This one goes on, with the limits of the resource.
    await repository.enable_entity("user-7", resource="old")
    # This one is disabled, on all resources and on one.
    await repository.disable_entity("user-8")
    await limiter.set_limits("user-8", [Limit.per_minute("rpm", 9)], resource="gpt-4")
    await repository.disable_entity("user-9", resource="gpt-4")


async def many(limiter, count):
    await limiter.create_entity("team-a")
    for number in range(5):
        await limiter.create_entity(f"child-{number}", parent_id="team-a", metadata={"note": "x" * 300_000})
    limits = [Limit.per_minute("rpm", 7)]
    names = [f"entity-{number:0>249}" for number in range(count)]
    for begin in range(0, count, 50):
        some = names[begin : begin + 50]
        await asyncio.gather(*(limiter.set_limits(name, limits, resource="gpt-4") for name in some))
    _, cursor = await limiter.list_entities_with_custom_limits("gpt-4")
    assert cursor, "the entities must fill more than a page"
    assert len(await limiter.get_children("team-a")) < 5, "the children must fill more than a page"


async def main(options):
    async with get_session().create_client("dynamodb", endpoint_url=options.url) as client:
        await client.create_table(**get_table_definition(STACK))
    repository = await Repository.open(NAMESPACE, stack=STACK, endpoint_url=options.url)
    # As its functions were deployed, which it asks for before it writes some levels.
    await repository.set_version_record(CURRENT_SCHEMA_VERSION, lambda_version=__version__)
    async with RateLimiter(repository=repository) as limiter:
        if options.entities:
            await many(limiter, options.entities)
        else:
            await every_level(limiter, repository)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--entities", type=int, default=0)
    return parser.parse_args()


asyncio.run(main(parsed()))
