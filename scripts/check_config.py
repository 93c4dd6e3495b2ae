"""Holds samconfig.toml against the template: every environment sets parameters that there are, to values they take.

Without an environment it is the file as the project ships it: its environments, their capabilities, tags, protection and topics
too. With one, only that one is checked, and whether it can be deployed: the rest is the deployer's choice. With a setting's name
too: prints that setting of its deployment, an empty line if it has none.

Usage: check_config.py samconfig.toml template.yaml [environment [setting]]
"""

import re
import shlex
import sys
import tomllib

ENVIRONMENTS = ["default", "pre", "prod", "local"]
# What each says of the table's protection and of the topic as shipped; the template's default where it says nothing.
PROTECTED = {"default": "true", "pre": "false", "prod": "true", "local": "false"}
HAS_TOPIC = {"prod"}
# Only the emulator's has none.
HAS_ALARMS = {"default", "pre", "prod"}
# Either allows roles and policies without names of their own, as the template has them:
# https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html
CAPABILITIES = {"CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"}
PLACEHOLDER = "arn:aws:sns:REGION:ACCOUNT:TOPIC"


def parameters(template):
    """Each parameter's default, pattern, allowed values and range, read line by line: short forms of YAML are not needed for it."""
    section = re.search(r"^Parameters:\n(.*?)^\S", template, re.MULTILINE | re.DOTALL)[1]
    found = {}
    for name, body in re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", section, re.MULTILINE):
        field = lambda key: (re.search(rf"^    {key}: (.*)$", body, re.MULTILINE) or [None, None])[1]
        allowed = field("AllowedValues")
        found[name] = {
            "default": (field("Default") or "").strip('"'),
            "allowed": [value.strip(' "') for value in allowed.strip("[]").split(",")] if allowed else None,
            "pattern": field("AllowedPattern"),
            "range": (field("MinValue"), field("MaxValue")),
        }
    return found


def listed(value):
    """A setting's values: SAM takes a list, or a text with spaces between them."""
    return shlex.split(value) if isinstance(value, str) else value


def settings(config, command):
    """A command's settings, as SAM reads them: its own above those of all."""
    return {key: value for name in ("global", command) for key, value in config.get(name, {}).get("parameters", {}).items()}


def overrides(section):
    """A map, or texts: Key=Value, or ParameterKey=Key,ParameterValue=Value. Another text is a key without a value."""
    given = section.get("parameter_overrides", [])
    if isinstance(given, dict):
        return {key: str(value) for key, value in given.items()}
    pairs = ((each, re.fullmatch(r"(?:ParameterKey=)?(\w+)(?:,ParameterValue)?=(.*)", each, re.DOTALL)) for each in listed(given))
    return dict((pair[1], pair[2]) if pair else (text, None) for text, pair in pairs)


def is_within(value, least, most):
    return bool(re.fullmatch(r"-?[0-9]+", value)) and int(least) <= int(value) <= int(most or value)


def problems(config, known):
    build, deploy = settings(config, "build"), settings(config, "deploy")
    if not deploy.get("stack_name"):
        yield "it has no stack_name"
    if not CAPABILITIES & set(listed(deploy.get("capabilities", []))):
        yield f"capabilities must have CAPABILITY_IAM, got {deploy.get('capabilities')}; write it there"
    if not deploy.get("resolve_s3") and not deploy.get("s3_bucket"):
        yield "it has neither resolve_s3 nor s3_bucket; write resolve_s3 = true"
    for command, section in (("build", build), ("deploy", deploy)):
        for key, value in overrides(section).items():
            if value is None:
                yield f"{command}: parameter_overrides must be Key=Value, got {key}; write it so"
            elif key not in known:
                yield f"{command}: the template has no parameter {key}"
            elif known[key]["allowed"] and value not in known[key]["allowed"]:
                yield f"{command}: {key} must be one of {known[key]['allowed']}, got {value}"
            elif known[key]["pattern"] and value != PLACEHOLDER and not re.search(known[key]["pattern"], value):
                yield f"{command}: {key} must match {known[key]['pattern']}, got {value}"
            elif (takes := known[key]["range"]) != (None, None) and not is_within(value, *takes):
                yield f"{command}: {key} must be {f'from {takes[0]} to {takes[1]}' if takes[1] else f'{takes[0]} or more'}, got {value}"
    if overrides(build).get("Architecture") != overrides(deploy).get("Architecture"):
        yield "Architecture must be the same for build and deploy"


def differences(name, config, known):
    """What an environment says otherwise than the project ships it."""
    deploy = settings(config, "deploy")
    said = {"DeletionProtection": known["DeletionProtection"]["default"], **overrides(deploy)}
    if said["DeletionProtection"] != PROTECTED[name]:
        yield f"DeletionProtection must be {PROTECTED[name]}, got {said['DeletionProtection']}"
    if deploy.get("capabilities") != "CAPABILITY_IAM":
        yield f"capabilities must be CAPABILITY_IAM, got {deploy.get('capabilities')}"
    if name != "local" and deploy.get("on_failure") != "DELETE":
        yield f"on_failure must be DELETE, got {deploy.get('on_failure')}"
    if f"environment={name}" not in deploy.get("tags", []):
        yield f"its tags must say environment={name}"
    if (said.get("Alarms", known["Alarms"]["default"]) == "true") != (name in HAS_ALARMS):
        yield f"Alarms must {'' if name in HAS_ALARMS else 'not '}be on"
    if ("AlarmTopicArn" in said) != (name in HAS_TOPIC):
        yield f"AlarmTopicArn must {'' if name in HAS_TOPIC else 'not '}be there"


def main(path, template, environment=None, setting=None):
    with open(path, "rb") as file:
        config = tomllib.load(file)
    with open(template) as file:
        known = parameters(file.read())
    named = [name for name in config if name != "version"]
    errors = []
    if environment is None:
        if named != ENVIRONMENTS:
            errors.append(f"{path}: environments must be {ENVIRONMENTS}, got {named}")
        for name in set(named) & set(ENVIRONMENTS):
            found = [*problems(config[name], known), *differences(name, config[name], known)]
            errors += [f"{path}: {name}: {problem}" for problem in found]
    elif environment not in named or environment == "local":
        errors.append(f"{path}: ENV must be one of {[name for name in named if name != 'local']}, got {environment}")
    else:
        errors += [f"{path}: {environment}: {problem}" for problem in problems(config[environment], known)]
        said = overrides(settings(config[environment], "deploy"))
        if environment == "prod" and not said.get("AlarmTopicArn") and not said.get("AlarmEmail"):
            errors.append(f"{path}: prod: it has neither AlarmTopicArn nor AlarmEmail; write one of them into parameter_overrides")
        if said.get("AlarmTopicArn") == PLACEHOLDER:
            errors.append(f"{path}: {environment}: AlarmTopicArn must be a topic of yours; write its ARN there")
    for error in errors:
        print(error, file=sys.stderr)
    if errors:
        return 1
    if setting is not None:
        sections = (config[environment].get(command, {}).get("parameters", {}) for command in ("deploy", "global"))
        print(next((section[setting] for section in sections if setting in section), ""))
    elif environment is None:
        print(f"{path}: {len(named)} environments, {len(known)} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
