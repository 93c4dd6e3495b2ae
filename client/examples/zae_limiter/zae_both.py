"""Runs the loop of client/examples/zae_limiter/ask_both.py, and counts the decisions.

Usage: zae_both.py LOOP USER CALLS [--fail]; LOOP is that file, and an agent listens, or none. With
--fail the model fails.
"""

import asyncio
import sys
from pathlib import Path

from zae_limiter import RateLimiter, Repository


class ModelError(Exception):
    pass


async def ask_the_model():
    """Stands for the vendor's API. Returns the tokens that were used."""
    if "--fail" in sys.argv:
        raise ModelError
    return 1_213


async def main(block, user, calls):
    page = {"ask_the_model": ask_the_model}
    exec(compile(block, "ask_both.py", "exec"), page)
    repository = await Repository.connect("prod", stack="my-stack")
    counts = {}
    async with RateLimiter(repository=repository) as zae:
        for _ in range(calls):
            try:
                decisions = await page["both"](zae, user, 1_500)
            except ModelError:
                decisions = ("failed", "rolled back")
            counts[decisions] = counts.get(decisions, 0) + 1
        if "--fail" in sys.argv:
            left = await page["client"].remaining(user, "gpt-4", "rpm")
            print(f"left: {left}")
    for (one, other), count in sorted(counts.items(), reverse=True):
        print(f"zae-limiter: {one}, Weirgate: {other}: {count}")


asyncio.run(main(Path(sys.argv[1]).read_text(), sys.argv[2], int(sys.argv[3])))
