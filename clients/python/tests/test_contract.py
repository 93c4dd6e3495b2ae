"""The contract of the agent (`clients/contract`), through the clients of threads and of asyncio."""

import asyncio
import dataclasses
import json
import re
import time
import unittest

import weirgate
from stack import CONTRACT, Agent, Backend, without_database


CALLS = ("acquire", "report", "peek", "usage", "limits", "set_limits", "delete_limits")


class Subject:
    """A client, by the requests of the contract. `run` waits for what a call returns."""

    def __init__(self, client, run):
        self.client = client
        self.run = run

    def acquire(self, request):
        options = {
            "wait": seconds(request, "wait_ms"),
            "queue": seconds(request, "queue_ms"),
            "now": request.get("answer") == "now",
            "lease": seconds(request, "lease_ms"),
            "timeout": seconds(request, "timeout_ms"),
            "on_unavailable": request.get("on_unavailable"),
            "bypass": request.get("bypass", False),
        }
        if "buckets" in request:
            buckets = [
                weirgate.Bucket(b["entity"], b["resource"], take(b), limits(b), caller_class=b.get("class"))
                for b in request["buckets"]
            ]
            return held("granted", self.run(self.client.acquire_all(buckets, **options)))
        call = self.client.acquire(
            request["entity"], request["resource"], take(request), limits=limits(request),
            caller_class=request.get("class"), **options
        )
        return held("granted", self.run(call))

    def settle(self, request):
        grant = self.client.restore(request["grant"])
        bucket = request.get("bucket")
        outcome = weirgate.Settlement.SETTLED
        if "take_more" in request:
            self.run(grant.take_more(request["take_more"], bucket=bucket))
        elif request.get("end") == "release":
            outcome = self.run(grant.release(request.get("adjust")))
        elif request.get("end") == "roll_back":
            outcome = self.run(grant.roll_back())
        elif "renew_ms" in request:
            outcome = self.run(grant.renew(request["renew_ms"] / 1000))
        elif "adjust" in request:
            outcome = self.run(grant.adjust(request["adjust"], bucket=bucket))
        else:
            outcome = self.run(grant.give_back(request["give_back"], bucket=bucket))
        return held(outcome.value, grant)

    def report(self, request):
        vendor = request["vendor"]
        if "grant" in request:
            call = self.client.restore(request["grant"]).vendor_said(**vendor)
        else:
            call = self.client.report_vendor(request["entity"], request["resource"], **vendor)
        until = self.run(call)
        return {"outcome": "reported", "paused_ms": None if until is None else (until - time.time()) * 1000}

    def peek(self, request):
        call = self.client.peek(
            request["entity"], request["resource"], need=request.get("need"), limits=limits(request)
        )
        balances = self.run(call)
        return {
            "outcome": "balances",
            "status": balances.status,
            "remaining": {status.limit: status.available for status in balances.limits},
            "retry_after_ms": None if balances.retry_after is None else balances.retry_after * 1000,
        }

    def usage(self, request):
        """Asks for usage from yesterday to the end of today."""
        day = 86_400
        today = time.time() // day * day
        asked = {**request["scope"], "by": request["by"], "start": today - day, "end": today + day}
        if request.get("total"):
            outcome, found = "usage", self.run(self.client.usage(**asked))
        else:
            rows = self.run(self.client.usage_rows(**asked, page=request.get("page"))).rows
            outcome, found = "rows", rows[-1] if rows else None
        return {
            "outcome": outcome,
            "used": found and found.tokens,
            "acquires": found.acquires if found else 0,
            "state": found and found.state,
        }

    def limits(self, request):
        bucket = self.run(self.client.limits(request["entity"], request["resource"])).buckets[0]
        level = bucket.level and bucket.level.kind
        return {"outcome": "limits", "level": level, "status": bucket.status, "limits": plain(bucket.limits)}

    def set_limits(self, request):
        options = {name: request[name] for name in ("status", "is_shadow", "replace", "author") if name in request}
        call = self.client.set_limits(limits(request), caller_class=request.get("class"), **level(request), **options)
        return changed(self.run(call))

    def delete_limits(self, request):
        return changed(self.run(self.client.delete_limits(**level(request))))

    def answer(self, call, request):
        try:
            return call(request)
        except weirgate.Denied as denied:
            after = denied.retry_after
            return {
                "outcome": "denied",
                "short": list(denied.limits),
                "paused": denied.is_paused,
                "retry_after_ms": None if after is None else after * 1000,
                "starts_ms": None if denied.starts_in is None else denied.starts_in * 1000,
                "missing_plan": denied.missing_plan,
                "text": str(denied),
            }
        except weirgate.NeverFits as never:
            short = list(never.limits)
            return {"outcome": "never_fits", "short": short, "missing_plan": never.missing_plan, "text": str(never)}
        except weirgate.Disabled as disabled:
            return {"outcome": "disabled", "text": str(disabled)}
        except weirgate.InvalidRequest as invalid:
            return {"outcome": "invalid", "applied": "no", "text": str(invalid)}
        except weirgate.NotAllowed as refused:
            return {"outcome": "not_allowed", "applied": "no", "text": str(refused)}
        except weirgate.Unavailable as unavailable:
            outcome = {weirgate.NotConfigured: "not_configured", weirgate.Misconfigured: "misconfigured"}
            return {
                "outcome": outcome.get(type(unavailable), "unavailable"),
                "applied": unavailable.applied,
                "text": str(unavailable),
            }


def held(outcome, grant):
    return {
        "outcome": outcome,
        "grant": None if grant.is_ended else grant.token,
        "ended": grant.is_ended,
        "amounts": list(grant.amounts),
        "remaining": {status.limit: status.available for status in grant.limits},
        "lease": grant.expires_at is not None,
        "starts_ms": None if grant.starts_at is None else (grant.starts_at - time.time()) * 1000,
        "would_deny": list(grant.would_deny),
        "degraded": grant.degraded is not None,
        "missing_plan": grant.missing_plan,
    }


def level(request):
    of = {name: request["level"][name] for name in ("entity", "plan", "resource") if name in request["level"]}
    return of or {"system": True}


def changed(change):
    configs = {"before": change.before, "after": change.after}
    outcome = "changed" if change.is_changed else "unchanged"
    classes = {"class": change.after and change.after.caller_class}
    return {"outcome": outcome, **classes, **{when: config and plain(config.limits) for when, config in configs.items()}}


def plain(limits):
    """Returns limits in the order of their names, as the agent reads them."""
    return [limit.json() for limit in sorted(limits, key=lambda limit: limit.name)]


def take(bucket):
    return {
        limit: weirgate.UpTo(**amount) if isinstance(amount, dict) else amount
        for limit, amount in bucket["take"].items()
    }


def limits(bucket):
    return [limit(json) for json in bucket["limits"]] if "limits" in bucket else None


def limit(json):
    if isinstance(json, str):
        return json
    mode = json.get("mode", "enforced")
    if "slots" in json:
        return weirgate.Limit.slots(json["name"], json["slots"], mode=mode)
    period, capacity = json["refill_period_ms"] / 1000, json["capacity_tokens"]
    rate = weirgate.Limit.rate(json["name"], json["refill_tokens"], period, capacity=capacity, mode=mode)
    percents = {name: (of["at_least_percent"], of["leaves_percent"]) for name, of in json.get("classes", {}).items()}
    classes = ",".join(f"{name}:{at_least}%:{leaves}%" for name, (at_least, leaves) in percents.items())
    return dataclasses.replace(rate, classes=classes)


def seconds(request, field):
    return request[field] / 1000 if field in request else None


def prepared(request, named, prefix):
    """Returns the request with its named limits, and with entities of this scenario alone."""
    request = dict(request)
    if request.get("entity") and request["entity"] != "orphan":
        request["entity"] = prefix + request["entity"]
    for of in ("scope", "level"):
        if isinstance(request.get(of), dict):
            request[of] = prepared(request[of], named, prefix)
    if "limits" in request:
        request["limits"] = [named[name] for name in request["limits"]]
    if "buckets" in request:
        request["buckets"] = [prepared(bucket, named, prefix) for bucket in request["buckets"]]
    return request


def expectation(key, expected, named):
    """Returns an expectation with limits in place of their names."""
    if key not in ("limits", "before", "after") or expected is None:
        return expected
    return plain(limit(named[name]) for name in expected)


def holds(key, expected, answer):
    """Returns whether an answer keeps an expectation, as `clients/contract/README.md` says."""
    actual = answer.get(key)
    if key in ("outcome", "lease", "ended", "degraded", "applied", "status", "short", "would_deny", "amounts"):
        return actual == expected
    if key in ("paused", "used", "acquires", "state", "level", "limits", "before", "after", "class", "missing_plan"):
        return actual == expected
    if key == "remaining":
        # A limit that refills may have gained while the scenario ran.
        return actual is not None and all(
            limit in actual and 0 <= actual[limit] - tokens < 0.01 for limit, tokens in expected.items()
        )
    if key in ("starts_ms", "paused_ms") and expected is None:
        return actual is None
    if key in ("retry_after_ms", "starts_ms", "paused_ms"):
        return actual is not None and expected[0] <= actual <= expected[1]
    if key == "mentions":
        return all(word in answer.get("text", "") for word in expected)
    raise AssertionError(f"there is no expectation {key!r}: correct the scenario")


class Contract:
    """One test for each scenario; `subject` makes what is tested."""

    run_name = None

    @classmethod
    def setUpClass(cls):
        cls.backend = Backend()
        cls.addClassCleanup(cls.backend.stop)
        cls.agents = {}

    def agent(self, file):
        database, allows = file.get("database", "available"), file.get("allows_limit_changes", True)
        kind = database, allows, file.get("has_file", False)
        if kind not in self.agents:
            variables = {
                "available": self.backend.variables,
                "unavailable": without_database(),
                "without_table": {**self.backend.variables, "WEIRGATE_TABLE": "missing"},
            }[database]
            limits_file = {"WEIRGATE_AGENT_LIMITS_FILE": str(CONTRACT / "agent.yaml")} if kind[2] else {}
            agent = Agent({**variables, **limits_file, "WEIRGATE_AGENT_ALLOW_LIMIT_CHANGES": str(allows).lower()})
            type(self).addClassCleanup(agent.stop)
            self.agents[kind] = agent
        return self.agents[kind]

    def check(self, file, scenario):
        agent = self.agent(file)
        subject = self.subject(agent.url)
        name = re.sub(r"[^A-Za-z0-9]", "-", scenario["name"])
        prefix = f"{self.run_name}:{name}:"
        grants = {}
        for place, step in enumerate(scenario["steps"]):
            if "restart" in step:
                agent.restart()
                continue
            if "settle" in step:
                request = dict(step["settle"])
                name = step.get("as", request.get("grant"))
                request["grant"] = request.pop("token") if "token" in request else grants[request["grant"]]
                answer = subject.answer(subject.settle, request)
            else:
                call = next(call for call in CALLS if call in step)
                name = step.get("as")
                request = prepared(step[call], file["limits"], prefix)
                if "grant" in request:
                    request["grant"] = grants[request["grant"]]
                answer = subject.answer(getattr(subject, call), request)
            if name and answer.get("grant"):
                grants[name] = answer["grant"]
            for key, named in step["expect"].items():
                expected = expectation(key, named, file["limits"])
                self.assertTrue(
                    holds(key, expected, answer), f"step {place}: {key} must be {expected}, got {json.dumps(answer)}"
                )


class OfThreads(Contract, unittest.TestCase):
    run_name = "threads"

    def subject(self, url):
        client = weirgate.Client(url)
        self.addCleanup(client.close)
        return Subject(client, lambda value: value)


class OfAsyncio(Contract, unittest.TestCase):
    run_name = "asyncio"

    def subject(self, url):
        client = weirgate.AsyncClient(url)
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        self.addCleanup(client.close)

        async def value_of(awaitable):
            return await awaitable

        return Subject(client, lambda value: loop.run_until_complete(value_of(value)))


def add_tests(kind):
    for path in sorted(CONTRACT.glob("*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        for scenario in file["scenarios"]:
            name = "test_" + re.sub(r"[^A-Za-z0-9]", "_", scenario["name"])
            assert not hasattr(kind, name), f"two scenarios are named {scenario['name']}"
            setattr(kind, name, lambda self, file=file, scenario=scenario: self.check(file, scenario))


add_tests(OfThreads)
add_tests(OfAsyncio)

if __name__ == "__main__":
    unittest.main()
