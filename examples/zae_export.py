"""Prints the limits of a table of zae-limiter 0.17 as a manifest, and the parents of entities as commands of weirgate.

Usage: zae_export.py STACK [--namespace NAME] [--endpoint-url URL] [--parent ENTITY ...] > manifest.yaml

It only reads. zae-limiter has no list of all entities, so name the parents whose children are wanted.
"""

import argparse
import asyncio
import sys

import yaml
from zae_limiter import RateLimiter, Repository


def limits(found):
    """The limits of a level, as a manifest has them."""
    described = {}
    for limit in found:
        described[limit.name] = {"capacity": limit.capacity, "refill_amount": limit.refill_amount}
        described[limit.name]["refill_period"] = limit.refill_period_seconds
        if limit.soft:
            described[limit.name]["soft"] = True
        if limit.reset_schedule:
            described[limit.name]["reset_schedule"] = [{"cron": entry.cron, "tz": entry.tz} for entry in limit.reset_schedule]
        if limit.reset_after:
            described[limit.name]["reset_after_seconds"] = int(limit.reset_after.total_seconds())
        if limit.schedule:
            described[limit.name]["schedule"] = [{"cron": entry.cron, "tz": entry.tz} for entry in limit.schedule]
    return {"limits": described}


async def export(options):
    repository = await Repository.connect(options.namespace, stack=options.stack, endpoint_url=options.endpoint_url)
    async with RateLimiter(repository=repository) as limiter:
        system, on_unavailable = await limiter.get_system_defaults()
        manifest = {"namespace": options.namespace}
        if system:
            manifest["system"] = limits(system)
        if on_unavailable:
            manifest.setdefault("system", {})["on_unavailable"] = on_unavailable.value
        resources, entities = {}, {}
        for name in await limiter.list_resources_with_defaults():
            resources[name] = limits(await limiter.get_resource_defaults(name))
        for resource in await limiter.list_resources_with_entity_configs():
            named, _ = await limiter.list_entities_with_custom_limits(resource)
            for entity in named:
                of = entities.setdefault(entity, {"resources": {}})
                of["resources"][resource] = limits(await limiter.get_limits(entity, resource))
        manifest |= {"resources": resources, "entities": entities}
        yaml.safe_dump(manifest, sys.stdout, sort_keys=False)
        for parent in options.parent:
            for child in await limiter.get_children(parent):
                cascades = " --cascades" if child.cascade else ""
                print(f"weirgate entities set {child.id} --parent {parent}{cascades}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--endpoint-url")
    parser.add_argument("--parent", action="append", default=[])
    asyncio.run(export(parser.parse_args()))


main()
