"""Checked by mypy, not run: what callers see of the types."""

from typing import Optional

from typing_extensions import assert_type

import weirgate

client = weirgate.Client()
asynchronous = weirgate.AsyncClient(on_agent_unavailable="allow")
weirgate.Client(on_agent_unavailable="alow")  # type: ignore[arg-type]


@client.limited(lambda user, **_: user, "api", {"rpm": 1}, actual=lambda text: {"tpm": len(text)}, wait=1.5)
def ask(user: str, *, question: str) -> str:
    return user + question


assert_type(ask("ann", question="?"), str)
ask(1, question="?")  # type: ignore[arg-type]
ask("ann")  # type: ignore[call-arg]


@asynchronous.limited("ann", "api", {"rpm": weirgate.UpTo(1, 5)})
async def work(amount: int) -> float:
    return amount / 2


async def calls() -> None:
    assert_type(await work(3), float)
    async with asynchronous.acquire("ann", "api", {"rpm": 1}, limits=[weirgate.Limit.slots("slots", 3)]) as grant:
        assert_type(grant, weirgate.AsyncGrant)
    assert_type(await asynchronous.acquire("ann", "api", {"rpm": 1}), weirgate.AsyncGrant)
    await asynchronous.acquire("ann", "api", {"rpm": "1"})  # type: ignore[dict-item]
    await asynchronous.acquire("ann", "api", {"rpm": 1}, on_unavailable="local 25")
    await asynchronous.acquire("ann", "api", {"rpm": 1}, queue=30, now=True)
    await asynchronous.acquire("ann", "api", {"rpm": 1}, queue=30, now="now")  # type: ignore[arg-type]
    await asynchronous.acquire("ann", "api", {"rpm": 1}, on_unavailable="alow")  # type: ignore[arg-type]
    assert_type((await asynchronous.usage(entity="ann", start=0, end=3600)).acquires, int)
    assert_type(client.usage_rows(resource="api", by="hour", start=0, end=3600).rows, tuple[weirgate.UsageRow, ...])
    client.usage(resource="api", by="week", start=0, end=3600)  # type: ignore[arg-type]
    assert_type((await asynchronous.usage_rows(plan="pro", start=0, end=3600)).next, Optional[str])
    assert_type(await asynchronous.report_vendor("ann", "api", object()), Optional[float])
    assert_type(await asynchronous.close(), None)
    assert_type(client.limits("ann", "api").buckets[0].level, Optional[weirgate.Level])
    change = await asynchronous.set_limits([weirgate.Limit.slots("slots", 3), "rpm=5/minute"], system=True)
    assert_type(change.before, Optional[weirgate.Config])
    assert_type(client.delete_limits(plan="pro", resource="api").is_changed, bool)
    assert_type(client.limits("ann", "api").missing_plan, Optional[str])
    client.set_limits(["rpm=5/minute"], entity="ann", status="of")  # type: ignore[arg-type]
    client.set_limits(entity="ann", caller_class="batch")
    assert_type(change.before.caller_class if change.before else None, Optional[str])
    await asynchronous.acquire("ann", "api", {"rpm": 1}, caller_class=5)  # type: ignore[arg-type]
    client.set_limits([5], entity="ann")  # type: ignore[list-item]
    assert_type(weirgate.Limit.slots("slots", 3).kind, weirgate.Kind)
    assert_type(weirgate.Level("ann").kind, weirgate.LevelKind)


def denied() -> Optional[float]:
    try:
        with client.acquire("ann", "api", {"rpm": 1}, wait=0.5) as grant:
            assert_type(grant.adjust({"rpm": 0.5}), weirgate.Settlement)
            assert_type(grant.starts_at, Optional[float])
            assert_type(grant.missing_plan, Optional[str])
            assert_type(grant.vendor_said(status=429, headers={"retry-after": "20"}), Optional[float])
            grant.vendor_said(status="429")  # type: ignore[arg-type]
    except weirgate.Denied as refused:
        assert_type(refused.is_paused, bool)
        assert_type(refused.missing_plan, Optional[str])
        assert_type(refused.starts_in, Optional[float])
        return refused.retry_after
    except weirgate.NotConfigured as missing:
        assert_type(missing.is_transient, bool)
    except weirgate.Unavailable as unavailable:
        return None if unavailable.applied == "unknown" else 0
    return None
