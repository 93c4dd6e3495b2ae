"""Asks zae-limiter, which decides, and Weirgate in shadow mode: docs/guide/from-zae-limiter.md."""

import contextlib
import logging

import weirgate
from zae_limiter import RateLimitExceeded

client = weirgate.AsyncClient(answer_timeout=0.5)


async def ask_weirgate(user, take):
    """Returns the grant, if there is one, and the decision. Raises no error of Weirgate."""
    try:
        grant = await client.acquire(user, "gpt-4", take, timeout=0.5)
        return grant, "denied" if grant.would_deny else "granted"
    except weirgate.Refused:  # such as Disabled, which shadow mode does not change
        return None, "denied"
    except weirgate.WeirgateError as error:  # such as Unavailable
        logging.warning("Weirgate: %s", error)
        return None, "no decision"


async def both(zae, user, estimate):
    """One call. Returns the decisions of zae-limiter and Weirgate."""
    take = {"rpm": 1, "tpm": estimate}
    try:
        async with zae.acquire(user, "gpt-4", take) as lease:
            grant, decision = await ask_weirgate(user, take)
            async with grant or contextlib.nullcontext():  # logs its own errors
                used = await ask_the_model()
                await lease.adjust(tpm=used - estimate)
                if grant:
                    with contextlib.suppress(weirgate.WeirgateError):
                        await grant.adjust({"tpm": used})
            return "granted", decision
    except RateLimitExceeded:
        grant, decision = await ask_weirgate(user, take)
        if grant:
            with contextlib.suppress(weirgate.WeirgateError):
                await grant.roll_back()
        return "denied", decision
