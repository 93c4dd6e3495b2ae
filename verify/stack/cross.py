"""What `sam build` makes for Lambda: for its processor, for its libc, small, and alive. Run by `make cross`, which builds it."""

import gzip
import json
import pathlib
import re
import subprocess
import time
import unittest

from processes import LOCAL, ROOT, end_with_signals, running, started, until
from served import Service, served

BUILT = {name: ROOT / f".aws-sam/build/{name.title()}/bootstrap" for name in ("aggregator", "reconciler")}
# 64 bits, little endian, and behind it the processor: AArch64.
ELF, AARCH64 = b"\x7fELF\x02\x01", b"\xb7\0"
# The minor version of the glibc that Amazon Linux 2023 has: 2.34.
# https://docs.aws.amazon.com/linux/al2023/ug/compare-with-al2.html
GLIBC = 34
# A start loads it, so it is small: 2.5 MB as a zip has it.
GZIPPED = 2_500_000
# Memory in KiB of the smallest function. Under emulation it has the emulator too.
MEMORY = 128 * 1024
# Seconds in which a function answers, on a slow and busy machine.
PATIENCE = 60
EMULATOR = ["/usr/bin/qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
REQUEST_ID = "8f5f1c1e-4c2b-4d0e-9a43-0f6a5a3c7b21"


class Runtime(Service):
    """Lambda's side of a function: its runtime API, for the event of the server."""

    def do_GET(self):
        if not self.server.events:
            return self.never_answer()
        print(f"it asks for an event after {time.monotonic() - self.server.begun:.2f} s")
        self.answer(200, {
            "Content-Type": "application/json",
            "Lambda-Runtime-Aws-Request-Id": REQUEST_ID,
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + PATIENCE) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": "arn",
        }, self.server.events.pop())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(202, {})
        self.server.answers.append((self.path, body.decode()))


class Cross(unittest.TestCase):
    maxDiff = None

    def test_the_default_build_is_of_lambdas_processor_and_libc_and_small(self):
        for name, path in BUILT.items():
            with self.subTest(name):
                binary = path.read_bytes()
                self.assertEqual((binary[:6], binary[18:20]), (ELF, AARCH64))
                newest = max(map(int, re.findall(rb"GLIBC_2\.(\d+)", binary)))
                self.assertLessEqual(newest, GLIBC)
                gzipped = len(gzip.compress(binary, 9))
                print(f"{name}: glibc 2.{newest}, {len(binary)} bytes, {gzipped} gzipped")
                self.assertLessEqual(gzipped, GZIPPED)

    def test_the_aggregator_starts_and_answers_a_batch(self):
        answer, log = self.invoked("aggregator", "aggregator-modify")
        self.assertEqual(answer, '{"batchItemFailures":[]}')
        self.assertIn('"message":"batch done","records":2', log)

    def test_the_reconciler_starts_and_answers_its_schedule(self):
        answer, log = self.invoked("reconciler", "reconciler-schedule")
        answer = json.loads(answer)
        self.assertEqual((answer["buckets_seen"], answer["errors"]), (0, []))
        line = json.loads(log.splitlines()[-1])
        self.assertEqual(line["schedule_id"], "7d8c1f6e-2f4a-4c55-9a63-0b8e5f1d2c3a")
        self.assertGreater(line["late_ms"], 0)

    def invoked(self, name, event):
        """Runs a function under emulation for an event, on an empty table. Returns its answer and what it logged."""
        event = (ROOT / f"events/{event}.json").read_bytes()
        with started(LOCAL) as backend, served(Runtime) as runtime:
            runtime.begun, runtime.events, runtime.answers = time.monotonic(), [event], []
            environment = {
                "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{runtime.server_port}", "AWS_ENDPOINT_URL": backend["endpoint_url"],
                "TABLE_NAME": backend["table"], "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_LAMBDA_FUNCTION_NAME": name, "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
                "AWS_LAMBDA_LOG_STREAM_NAME": "-", "AWS_LAMBDA_LOG_GROUP_NAME": "-",
            }
            with running([*EMULATOR, BUILT[name]], env=environment, stdout=subprocess.PIPE, text=True) as function:
                [(path, answer)] = until(lambda: runtime.answers, "the function answers", PATIENCE)
                status = pathlib.Path(f"/proc/{function.pid}/status").read_text()
                function.kill()
                log = function.stdout.read()
        self.assertTrue(path.endswith("/response"), f"the function failed: {path} {answer}")
        peak = int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])
        print(f"{name}: peak {peak // 1024} MiB")
        self.assertLessEqual(peak, MEMORY, log)
        self.assertEqual(json.loads(log.splitlines()[-1])["span"]["requestId"], REQUEST_ID, log)
        return answer, log


if __name__ == "__main__":
    end_with_signals()
    unittest.main(verbosity=2)
