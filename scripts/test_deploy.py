"""Sees scripts/check_deploy.py find what is wrong in each file of agent/deploy and in the example of a client, after one change to it.

Usage: test_deploy.py
"""

import shutil
import sys
import tempfile
from pathlib import Path

import check_deploy

DEPLOY, EXAMPLES = "agent/deploy", "clients/typescript/examples"
SIDECAR, DAEMONSET = f"{DEPLOY}/kubernetes/sidecar.yaml", f"{DEPLOY}/kubernetes/daemonset.yaml"
ECS, COMPOSE, LOCAL = (f"{DEPLOY}/{name}" for name in ("ecs-task.json", "compose.yaml", "compose.local.yaml"))
EXAMPLE, UNIT = f"{EXAMPLES}/compose.yaml", f"{DEPLOY}/weirgate-agent.service"
IMAGE, OTHER = f"weirgate-agent:{check_deploy.VERSION}", "weirgate-agent:0.1.0"
# A file, what is replaced in it and by what, and what the check says.
BROKEN = [
    (SIDECAR, "restartPolicy: Always", "restartPolicies: Always", "restartPolicies"),
    (SIDECAR, "replicas: 2", 'replicas: "2"', "replicas"),
    (SIDECAR, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "readOnlyRootFilesystem must be True"),
    (SIDECAR, "readinessProbe:", "livenessProbe:", "must have a readinessProbe"),
    (SIDECAR, "startupProbe:", "livenessProbe:", "must have a startupProbe"),
    (DAEMONSET, "WEIRGATE_AGENT_TOKEN_FILE", "WEIRGATE_AGENT_TOKEN_PLACE", "must have WEIRGATE_AGENT_TOKEN_FILE"),
    (SIDECAR, "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 26", "must have more than 26 s to end, got 26"),
    (DAEMONSET, "terminationGracePeriodSeconds: 45", "terminationGracePeriodSeconds: 30", "must have more than 26 s to end, got 20"),
    (DAEMONSET, "preStop:", "postStart:", "must sleep before its end"),
    (SIDECAR, IMAGE, OTHER, "weirgate-agent must be of"),
    (DAEMONSET, "internalTrafficPolicy", "internalTraffic", "internalTraffic"),
    (DAEMONSET, "runAsUser: 65532", "runAsUser: 0", "runAsUser must be 65532"),
    (ECS, '"networkMode": "awsvpc"', '"networkMode": "vpc"', ".networkMode must be one of"),
    (ECS, '"essential": true', '"essentially": true', "essentially"),
    (ECS, '"CMD", "/weirgate-agent"', '"CMD-SHELL", "/weirgate-agent"', "command must be"),
    (ECS, '"user": "65532:65532"', '"user": "0"', "user must be"),
    (ECS, '"stopTimeout": 30', '"stopTimeout": 10', "must have more than 26 s to end, got 10"),
    (COMPOSE, "stop_grace_period: 30s", "stop_signal: SIGTERM", "must have more than 26 s to end, got 10"),
    (LOCAL, "stop_grace_period: 30s", "stop_grace_period: 5s", "must have more than 26 s to end, got 5"),
    (EXAMPLE, "stop_grace_period: 30s", "stop_grace_period: 26s", "must have more than 26 s to end, got 26"),
    (UNIT, "TimeoutStopSec=30", "TimeoutStopSec=20", "must have more than 26 s to end, got 20"),
    (COMPOSE, "pids_limit: 64", "pid_limit: 64", "pid_limit"),
    (COMPOSE, "healthcheck:\n      test", "labels:\n      test", "test must be"),
    (LOCAL, "condition: service_healthy", "condition: healthy", "healthy"),
    (LOCAL, IMAGE, OTHER, "weirgate-agent must be of"),
    (EXAMPLE, "pids_limit: 64", "pid_limit: 64", "pid_limit"),
    (EXAMPLE, "[CMD, /weirgate-agent, healthcheck]", "[CMD, /weirgate-agent, --version]", "test must be"),
]


def main():
    for file, old, new, says in BROKEN:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder)
            for each in (DEPLOY, EXAMPLES):
                shutil.copytree(check_deploy.ROOT / each, copy / each)
            text = (copy / file).read_text(encoding="utf-8")
            if old not in text:
                sys.exit(f"test_deploy: {file} must have {old!r}")
            (copy / file).write_text(text.replace(old, new), encoding="utf-8")
            found = list(check_deploy.problems(copy))
            if not any(problem.startswith(file) and says in problem for problem in found):
                sys.exit(f"test_deploy: {file} with {new!r} must be refused with {says!r}, got {found}")
    print(f"deploy: {len(BROKEN)} broken files are refused")


if __name__ == "__main__":
    main()
