"""Checks the files that run agents by the schemas of what reads them: Kubernetes, ECS and Compose. The agent in each is of this
version, asks for its own health, has no rights that it does not need, and time to end; also that of systemd.

Usage: check_deploy.py
"""

import json
import re
import sys
from importlib import resources
from pathlib import Path

import botocore.session
import jsonschema
import kubernetes_validate
import yaml
from botocore.validate import ParamValidator

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
# The first that has sidecars without a switch, and the newest that the schemas have.
KUBERNETES = ["1.29", kubernetes_validate.latest_version()]
COMPOSE = json.loads((resources.files("compose") / "config/compose_spec.json").read_text(encoding="utf-8"))
ECS = botocore.session.get_session().get_service_model("ecs").operation_model("RegisterTaskDefinition").input_shape
CHECK = ["CMD", "/weirgate-agent", "healthcheck"]
# The agent's time to end: twice --grace, --timeout and a second together. What gives less kills requests in flight.
ENDS_IN = 26


def has(found, **needed):
    """Yields what a container must have and has not."""
    yield from (f"{name} must be {value!r}, got {found.get(name)!r}" for name, value in needed.items() if found.get(name) != value)


def end_problems(seconds):
    """Yields a time to end after which the agent may still have requests in flight."""
    if seconds <= ENDS_IN:
        yield f"the agent must have more than {ENDS_IN} s to end, got {seconds}"


def wrong_values(shape, value, path=""):
    """Yields the values that AWS does not list, which botocore leaves to AWS."""
    if shape.type_name == "structure":
        for name, each in value.items():
            yield from wrong_values(shape.members[name], each, f"{path}.{name}")
    elif shape.type_name == "list":
        for at, each in enumerate(value):
            yield from wrong_values(shape.member, each, f"{path}[{at}]")
    elif getattr(shape, "enum", None) and value not in shape.enum:
        yield f"{path} must be one of {shape.enum}, got {value!r}"


def ecs_problems(text):
    task = json.loads(text)
    report = ParamValidator().validate(task, ECS)
    if report.has_errors():
        yield report.generate_report()
        return
    yield from wrong_values(ECS, task)
    for container in task["containerDefinitions"]:
        yield from image_problems(container["image"])
        if "weirgate-agent" in container["image"]:
            yield from has(container, user="65532:65532", readonlyRootFilesystem=True, linuxParameters={"capabilities": {"drop": ["ALL"]}})
            yield from has(container["healthCheck"], command=CHECK)
            yield from end_problems(container.get("stopTimeout", 30))


def kubernetes_problems(text):
    for document in yaml.safe_load_all(text):
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{document['kind']} by {version}: {'/'.join(map(str, error.path))}: {error.message}"
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in [*pod.get("initContainers", []), *pod.get("containers", [])]:
            yield from image_problems(container["image"])
            if "weirgate-agent" in container["image"]:
                confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
                yield from has(container.get("securityContext", {}), runAsNonRoot=True, runAsUser=65532, **confined)
                needed = ["readinessProbe", *(["startupProbe"] if container in pod.get("initContainers", []) else [])]
                yield from (f"the agent must have a {probe}" for probe in needed if probe not in container)
                sleeps = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
                yield from end_problems(pod.get("terminationGracePeriodSeconds", 30) - sleeps)
                # A sidecar ends after the programs that use it.
                if document["kind"] == "DaemonSet" and not sleeps:
                    yield "the agent must sleep before its end, until no request is led to it"
                yield from secret_problems({variable["name"]: variable.get("value") for variable in container["env"]})


def compose_problems(text):
    document = yaml.safe_load(text)
    for error in jsonschema.Draft7Validator(COMPOSE).iter_errors(document):
        yield f"{'/'.join(map(str, error.path))}: {error.message}"
    for name, service in document["services"].items():
        yield from image_problems(service["image"])
        # An image by its digest is a variable.
        if re.search(r"weirgate-agent|\bAGENT_IMAGE\b", service["image"]):
            yield from has(service.get("healthcheck", {}), test=CHECK)
            yield from end_problems(int(service.get("stop_grace_period", "10s").removesuffix("s")))
        elif "healthcheck" not in service and name not in {"app", "service"}:
            yield f"{name} must have a healthcheck"


def unit_problems(text):
    stops = re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)
    yield from end_problems(int(stops[1]) if stops else 90)


def secret_problems(environment):
    """Yields that an agent which listens on other addresses than the pod's own is open to all."""
    listen = environment.get("WEIRGATE_AGENT_LISTEN", "127.0.0.1:2774")
    if not listen.startswith("127.") and "WEIRGATE_AGENT_TOKEN_FILE" not in environment:
        yield f"an agent at {listen} must have WEIRGATE_AGENT_TOKEN_FILE"


def image_problems(image):
    """Yields an image of a release that is of another one. Compose's images are pinned by check_pins.py, too."""
    name, _, version = image.rpartition("/")[2].partition(":")
    if name.startswith("weirgate-") and version != VERSION:
        yield f"{name} must be of {VERSION}, got {version!r}"


CHECKS = {
    "agent/deploy/ecs-*.json": ecs_problems,
    "agent/deploy/kubernetes/*.yaml": kubernetes_problems,
    "agent/deploy/compose*.yaml": compose_problems,
    "clients/*/examples/compose*.yaml": compose_problems,
    "agent/deploy/*.service": unit_problems,
    "clients/*/examples/*.service": unit_problems,
}


def problems(root):
    for pattern, check in CHECKS.items():
        paths = sorted(root.glob(pattern))
        yield from [] if paths else [f"there must be a file {pattern}"]
        for path in paths:
            yield from (f"{path.relative_to(root)}: {problem}" for problem in check(path.read_text(encoding="utf-8")))


def main():
    if found := list(problems(ROOT)):
        sys.exit("\n".join(f"check_deploy: {problem}" for problem in found))
    print("deploy: files for Kubernetes, ECS and Compose are valid")


if __name__ == "__main__":
    main()
