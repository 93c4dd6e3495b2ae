"""The template as it is deployed: once with every condition met, once with none."""

from cfnlint.decode import cfn_yaml


def variants(path):
    """Both forms of the template, in which each Fn::If has been decided and Conditions says how."""
    template = cfn_yaml.load(path)
    for is_met in (True, False):
        decided = decide(template, is_met)
        decided["Conditions"] = dict.fromkeys(template["Conditions"], is_met)
        yield decided


def decide(node, is_met):
    if isinstance(node, list):
        return [decide(child, is_met) for child in node if not is_nothing(child, is_met)]
    if not isinstance(node, dict):
        return node
    if "Fn::If" in node:
        return decide(node["Fn::If"][1 if is_met else 2], is_met)
    return {str(key): decide(child, is_met) for key, child in node.items() if not is_nothing(child, is_met)}


def is_nothing(node, is_met):
    """Whether the node stands for AWS::NoValue, which leaves out what it is the value of."""
    if isinstance(node, dict) and "Fn::If" in node:
        return is_nothing(node["Fn::If"][1 if is_met else 2], is_met)
    return node == {"Ref": "AWS::NoValue"}
