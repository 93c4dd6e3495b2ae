"""Asks zae-limiter and Weirgate side by side, as long as zae-limiter decides, and counts how often they differ.

Weirgate's limits are in shadow mode, so its client grants everything and says what it would have denied.

Usage: zae_side_by_side.py STACK USER [--endpoint-url URL] [--calls 20]; an agent must run (docs/guide/agent.md)
"""

import argparse
import asyncio

import weirgate
from zae_limiter import RateLimiter, RateLimitExceeded, Repository


async def ask_the_model():
    """Stands for the vendor's API. Returns the tokens that were used."""
    return 1_213


async def both(zae, client, user, estimate):
    """One call: whether zae-limiter grants it, and whether Weirgate would."""
    try:
        async with zae.acquire(user, "gpt-4", {"rpm": 1, "tpm": estimate}) as lease:
            async with client.acquire(user, "gpt-4", {"rpm": 1, "tpm": estimate}) as grant:
                used = await ask_the_model()
                await lease.adjust(tpm=used - estimate)
                await grant.adjust({"tpm": used})
                return True, not grant.would_deny
    except RateLimitExceeded:
        # Weirgate would have been asked too.
        grant = await client.acquire(user, "gpt-4", {"rpm": 1, "tpm": estimate})
        denies = bool(grant.would_deny)
        await grant.roll_back()
        return False, not denies


async def main(options):
    repository = await Repository.connect(options.namespace, stack=options.stack, endpoint_url=options.endpoint_url)
    client = weirgate.AsyncClient()
    counts = {}
    async with RateLimiter(repository=repository) as zae:
        for _ in range(options.calls):
            decisions = await both(zae, client, options.user, 1_500)
            counts[decisions] = counts.get(decisions, 0) + 1
    for (one, other), count in sorted(counts.items(), reverse=True):
        words = ["granted" if granted else "denied" for granted in (one, other)]
        print(f"zae-limiter: {words[0]}, Weirgate: {words[1]}: {count}")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stack")
    parser.add_argument("user")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--endpoint-url")
    parser.add_argument("--calls", type=int, default=20)
    return parser.parse_args()


asyncio.run(main(parsed()))
