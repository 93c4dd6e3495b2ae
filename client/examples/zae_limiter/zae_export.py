"""Prints the limits of a table of zae-limiter 0.17 as a manifest, and the parents of entities as commands of weirgate.

Usage: zae_export.py STACK [--namespace NAME] [--endpoint-url URL] [--parent ENTITY ...] > manifest.yaml

It only reads. zae-limiter has no list of all entities: the commands are for entities that have limits, and for the
children of the parents that are named.

Weirgate takes the limits and the status of the first level that has a configuration, and zae-limiter finds `disabled`
separately from the limits. So each level of the manifest has the `disabled` that applies to it.
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass, field

import yaml
from zae_limiter import RateLimiter, Repository, schema

ALL_RESOURCES = schema.DEFAULT_RESOURCE


@dataclass
class Level:
    """A level of the table. `disabled` is True, False, "bypass", or None if a wider level decides."""

    limits: list = field(default_factory=list)
    disabled: object = None
    cascade: object = None

    def manifest(self):
        """The level, as a manifest has it."""
        found = {"disabled": self.disabled, "cascade": self.cascade}
        found = {key: value for key, value in found.items() if value is not None}
        if self.limits:
            found["limits"] = {limit.name: fields(limit) for limit in self.limits}
        return found


def fields(limit):
    """The fields of a limit, as a manifest has them."""
    described = limit.to_dict()
    del described["name"]
    return described | {"refill_period": described.pop("refill_period_seconds")}


def on_resource(own, default, resource, system):
    """The level of an entity on a resource, beside its level for all resources and the level of the resource."""
    levels = (own, default, resource)
    disabled = next((level.disabled for level in levels if level.disabled is not None), None)
    if own.limits or own.disabled is True:
        return Level(own.limits, disabled, own.cascade)
    # Weirgate takes the status of the next level that has a configuration.
    wider = default if default.limits or default.disabled is True else resource
    if (wider.disabled is True) == (disabled is True):
        return own
    limits = [] if disabled is True else default.limits or resource.limits or system
    return Level(limits, disabled, own.cascade)


async def resource_levels(limiter, repository):
    levels = {}
    for name in await limiter.list_resources_with_defaults():
        levels[name] = Level(
            await limiter.get_resource_defaults(name),
            await repository.get_resource_disabled(name),
            await repository.get_resource_cascade(name),
        )
    return levels


async def entity_levels(limiter, repository):
    """The levels of each entity by their resources, as they are stored."""
    levels = {}
    for resource in await limiter.list_resources_with_entity_configs():
        async for entity in configured_entities(limiter, resource):
            levels.setdefault(entity, {})[resource] = Level(
                await limiter.get_limits(entity, resource),
                await repository.get_entity_disabled(entity, resource),
                await repository.get_entity_cascade(entity, resource),
            )
    return levels


async def configured_entities(limiter, resource):
    """The entities with a level on a resource. Each call of zae-limiter returns one page."""
    cursor = None
    while True:
        page, cursor = await limiter.list_entities_with_custom_limits(resource, cursor=cursor)
        for entity in page:
            yield entity
        if cursor is None:
            return


async def manifest(limiter, repository, stored):
    limits, on_unavailable = await limiter.get_system_defaults()
    system = Level(limits).manifest()
    if on_unavailable:
        system["on_unavailable"] = on_unavailable.value
    resources = await resource_levels(limiter, repository)
    entities = {}
    for entity, own in stored.items():
        default = own.get(ALL_RESOURCES, Level())
        found = {ALL_RESOURCES: default}
        for name in (set(own) | set(resources)) - {ALL_RESOURCES}:
            resource = resources.get(name, Level())
            found[name] = on_resource(own.get(name, Level()), default, resource, limits)
        described = {name: level.manifest() for name, level in sorted(found.items())}
        entities[entity] = {"resources": {name: level for name, level in described.items() if level}}
    resources = {name: level.manifest() for name, level in resources.items()}
    return {"namespace": repository.namespace_name, "system": system, "resources": resources, "entities": entities}


async def parents(repository, entities, named):
    """The entities with a parent, as (entity, parent, cascade)."""
    found = set()
    for name in entities:
        entity = await repository.get_entity(name)
        if entity and entity.parent_id:
            found.add((entity.id, entity.parent_id, entity.cascade))
    for parent in named:
        # get_children() of zae-limiter 0.17 returns one page, and no cursor.
        key = schema.gsi1_pk_parent(repository.namespace_id, parent)
        query = {"TableName": repository.table_name, "IndexName": schema.GSI1_NAME}
        query["KeyConditionExpression"] = "GSI1PK = :parent"
        query["ExpressionAttributeValues"] = {":parent": {"S": key}}
        for item in await repository._query_all(query):
            found.add((item["entity_id"]["S"], parent, item["cascade"]["BOOL"]))
    return sorted(found)


async def export(options):
    repository = await Repository.connect(options.namespace, stack=options.stack, endpoint_url=options.endpoint_url)
    async with RateLimiter(repository=repository) as limiter:
        stored = await entity_levels(limiter, repository)
        yaml.safe_dump(await manifest(limiter, repository, stored), sys.stdout, sort_keys=False)
        for entity, parent, cascade in await parents(repository, stored, options.parent):
            cascades = " --cascades" if cascade else ""
            print(f"weirgate entities set {entity} --parent {parent}{cascades}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--endpoint-url")
    parser.add_argument("--parent", action="append", default=[])
    asyncio.run(export(parser.parse_args()))


main()
