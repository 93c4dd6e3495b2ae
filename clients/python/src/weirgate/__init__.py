"""Rate limits and concurrency limits by weirgate-agent.

    import weirgate

    client = weirgate.Client()
    with client.acquire("openai", "gpt-4", {"tpm": 1500, "slots": 1}, wait=2.0) as grant:
        answer = ask_the_model()
        grant.adjust({"tpm": answer.tokens})

- `Client`, `AsyncClient`: acquire, peek, decorate, read usage, read and set limits
- `Grant`, `AsyncGrant`: adjust, take more, give back, renew, release, roll back
- `Denied`, `NeverFits`, `Disabled`: decisions that grant nothing
- `Unavailable`, its subclasses `Misconfigured` and `NotConfigured`, `InvalidRequest`, `Unauthorized`, `NotAllowed`: no
  decision
- `Limit`, `Bucket`, `UpTo`, `Settlement`, `Balances`, `LimitStatus`: values of acquires
- `UsageTotal`, `UsagePage`, `UsageRow`, `EffectiveLimits`, `Level`, `Config`, `LimitsChange`: values of reports
"""

from .aio import Acquiring, AsyncClient, AsyncGrant, Closing
from .client import Client
from .errors import (
    Blocking,
    Denied,
    Disabled,
    InvalidRequest,
    Misconfigured,
    NeverFits,
    NotAllowed,
    NotConfigured,
    Refused,
    Unauthorized,
    Unavailable,
    WeirgateError,
)
from .grant import Grant
from .values import (
    Amount,
    Balances,
    Bucket,
    Config,
    ConfiguredLevel,
    EffectiveBucket,
    EffectiveLimits,
    Interval,
    Kind,
    Level,
    LevelKind,
    Limit,
    LimitsChange,
    LimitStatus,
    Mode,
    OnAgentUnavailable,
    OnUnavailable,
    Settlement,
    Status,
    Take,
    UpTo,
    UsagePage,
    UsageRow,
    UsageState,
    UsageTotal,
)

__version__ = "0.10.0"

__all__ = [
    "Acquiring",
    "Amount",
    "AsyncClient",
    "AsyncGrant",
    "Balances",
    "Blocking",
    "Bucket",
    "Client",
    "Closing",
    "Config",
    "ConfiguredLevel",
    "Denied",
    "Disabled",
    "EffectiveBucket",
    "EffectiveLimits",
    "Grant",
    "Interval",
    "InvalidRequest",
    "Kind",
    "Level",
    "LevelKind",
    "Limit",
    "LimitStatus",
    "LimitsChange",
    "Misconfigured",
    "Mode",
    "NeverFits",
    "NotAllowed",
    "NotConfigured",
    "OnAgentUnavailable",
    "OnUnavailable",
    "Refused",
    "Settlement",
    "Status",
    "Take",
    "Unauthorized",
    "Unavailable",
    "UpTo",
    "UsagePage",
    "UsageRow",
    "UsageState",
    "UsageTotal",
    "WeirgateError",
]
