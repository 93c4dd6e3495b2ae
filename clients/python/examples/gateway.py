"""Limits for every request of an ASGI application, such as FastAPI or Starlette."""

import json

import weirgate

LIMITS = [weirgate.Limit.per_minute("requests", 100), weirgate.Limit.slots("slots", 10)]


class RateLimit:
    """Middleware: acquires for the API key of a request, and answers a denial itself."""

    def __init__(self, app, client):
        self.app = app
        self.client = client

    async def __call__(self, scope, receive, send):
        key = dict(scope.get("headers", ())).get(b"x-api-key")
        if scope["type"] != "http" or key is None:
            await self.app(scope, receive, send)
            return
        # A request passes if there is no decision within half a second, or no agent.
        take = {"requests": 1, "slots": 1}
        acquire = self.client.acquire(
            key.decode("latin-1"), "api", take, limits=LIMITS, timeout=0.5, on_unavailable="allow"
        )
        try:
            grant = await acquire
        except weirgate.Refused as refused:
            await respond(send, refused.status, refused.headers, refused.problem)
            return
        except weirgate.Unavailable:  # such as an agent that restarts
            await self.app(scope, receive, send)
            return
        except weirgate.InvalidRequest as invalid:  # such as a key that is no name of an entity
            await respond(send, 400, {}, {"status": 400, "detail": str(invalid)})
            return
        async with grant:

            async def send_with_fields(message):
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", ()), *fields(grant.headers)]
                await send(message)

            await self.app(scope, receive, send_with_fields)


async def respond(send, status, headers, problem):
    """Sends a refusal as the agent does: `Retry-After`, `RateLimit` fields, a problem body."""
    start = [(b"content-type", b"application/problem+json"), *fields(headers)]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": json.dumps(dict(problem)).encode()})


def fields(headers):
    return [(name.encode(), value.encode()) for name, value in headers.items()]
