"""Limits for every request of an ASGI application, such as FastAPI or Starlette."""

import json

import weirgate

LIMITS = [weirgate.Limit.per_minute("requests", 100), weirgate.Limit.slots("slots", 10)]


class RateLimit:
    """Middleware: acquires for the tenant of a request's API key, and answers a denial itself.

    `tenants` has the tenant of each key. A client chooses neither its tenant nor what a request costs. Requests pass
    while the agent restarts if `client` is an `AsyncClient(on_agent_unavailable="allow")`.
    """

    def __init__(self, app, client, tenants):
        self.app = app
        self.client = client
        self.tenants = tenants

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        tenant = self.tenant(scope)
        if tenant is None:
            await respond(scope, send, 401, {}, {"status": 401, "detail": "send your key in x-api-key, once"})
            return
        # If there is no decision within half a second, the agent grants.
        take = {"requests": 1, "slots": 1}
        acquire = self.client.acquire(tenant, "api", take, limits=LIMITS, timeout=0.5, on_unavailable="allow")
        try:
            grant = await acquire
        except weirgate.Refused as refused:
            await respond(scope, send, refused.status, refused.headers, refused.problem)
            return
        except weirgate.WeirgateError:
            # What only a repair ends, such as a wrong token, passes nothing.
            await respond(scope, send, 503, {}, {"status": 503, "detail": "no decision of the rate limiter"})
            return
        async with grant:

            async def send_with_fields(message):
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", ()), *fields(grant.headers)]
                await send(message)

            try:
                await self.app(scope, receive, send_with_fields)
            except Exception:
                # A request that fails counts too: a client may make as many as it likes of them.
                await grant.release()
                raise

    def tenant(self, scope):
        """Returns the tenant of the only key; None if there is no key, a wrong one, or several."""
        keys = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"x-api-key"]
        return self.tenants.get(keys[0]) if len(keys) == 1 else None


async def respond(scope, send, status, headers, problem):
    """Sends a refusal as the agent does: `Retry-After`, `RateLimit` fields, a problem body."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    start = [(b"content-type", b"application/problem+json"), *fields(headers)]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": json.dumps(dict(problem)).encode()})


def fields(headers):
    return [(name.encode(), value.encode()) for name, value in headers.items()]
