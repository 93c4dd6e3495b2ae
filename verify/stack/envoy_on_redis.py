"""Measures Envoy's rate limit service of the agent on Redis: calls at a fixed rate, and their times.

The agent, redis-server and what calls share this machine. Tenants are called side by side, each by a process of its own.
Needs h2load, of the package nghttp2-client. Usage: envoy_on_redis.py AGENT [CALLS_A_SECOND [TENANTS]]
"""

import pathlib
import subprocess
import sys
import tempfile

from processes import free_port, listens, until

RULES = """weirgate: 1
domains:
  edge:
    - match: [tenant]
      entity: "{tenant}"
      resource: api
      take: {rps: hits}
      limits: {rps: 1000000/s}
"""
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
CONNECTIONS, SECONDS, WARM_UP = 4, 10, 3


def request(tenant):
    """Returns a request of the domain `edge` for a tenant, in a frame of gRPC."""

    def part(field, content):
        return bytes([field << 3 | 2, len(content)]) + content

    entry = part(1, b"tenant") + part(2, tenant.encode())
    message = part(1, b"edge") + part(2, part(1, entry))
    return b"\0" + len(message).to_bytes(4, "big") + message


def main(agent, rate=10_000, tenants=1):
    redis, grpc, http = free_port(), free_port(), free_port()
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "rules.yaml").write_text(RULES)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    options = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", str(redis)]
    running = [subprocess.Popen(["redis-server", *options], **quiet)]
    try:
        until(lambda: listens(redis), "redis-server listens", 10)
        options = ["--store", f"redis://127.0.0.1:{redis}/0", "--listen", f"127.0.0.1:{http}"]
        options += ["--grpc", f"127.0.0.1:{grpc}", "--rules", str(folder / "rules.yaml"), "--without-secret"]
        running.append(subprocess.Popen([agent, *options], **quiet))
        until(lambda: listens(grpc), "the agent listens", 10)
        callers = []
        for tenant in range(tenants):
            (folder / f"{tenant}").write_bytes(request(f"tenant-{tenant}"))
            command = ["h2load", "-c", str(CONNECTIONS), "-m", "100", "--duration", str(SECONDS)]
            command += ["--warm-up-time", str(WARM_UP), "--rps", str(rate / tenants / CONNECTIONS)]
            command += ["-d", str(folder / f"{tenant}"), "--log-file", str(folder / f"{tenant}.log")]
            command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
            callers.append(subprocess.Popen([*command, f"http://127.0.0.1:{grpc}{METHOD}"], **quiet))
        for caller in callers:
            caller.wait()
        lines = [line.split() for tenant in range(tenants) for line in (folder / f"{tenant}.log").open()]
        if not lines or any(status != "200" for _, status, _ in lines):
            sys.exit("calls failed")
        times = sorted(int(microseconds) for _, _, microseconds in lines)
        p50, p99 = (times[len(times) * part // 100] for part in (50, 99))
        key = "weirgate:{weirgate}:default/BUCKET#tenant-0#api#0 #STATE"
        command = ["redis-cli", "-p", str(redis), "HGET", key, "takes"]
        takes = subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
        print(f"{len(times) / SECONDS:,.0f} calls/s, {tenants} tenants: p50 {p50} µs, p99 {p99} µs; {takes} takes of the first")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
