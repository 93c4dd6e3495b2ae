"""Limits for every request of an ASGI application, such as FastAPI or Starlette, by weirgate-asgi."""

import weirgate
from weirgate_asgi import RateLimit

LIMITS = [weirgate.Limit.per_minute("requests", 100), weirgate.Limit.slots("slots", 10)]


def limited(app, client, tenants):
    """Returns `app` behind the limits of the tenant of a request's API key.

    `tenants` has the tenant of each key. A client chooses neither its tenant nor what a request costs. Requests pass
    while the agent restarts.
    """

    def tenant_of(scope):
        """Returns the tenant of the only key; None if there is no key, a wrong one, or several."""
        keys = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"x-api-key"]
        return tenants.get(keys[0]) if len(keys) == 1 else None

    return RateLimit(
        app,
        resource="api",
        key=tenant_of,
        take={"requests": 1, "slots": 1},
        limits=LIMITS,
        # If there is no decision within half a second, the agent grants, and without the agent the client.
        timeout=0.5,
        on_unavailable="allow",
        client=client,
    )
