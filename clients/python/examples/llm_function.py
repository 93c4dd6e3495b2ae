"""A Lambda function that asks a model, with the layer of weirgate-agent."""

import json
import os
import urllib.request

import weirgate

client = weirgate.Client()  # outside the handler: an environment keeps its connection


def handler(event, context):
    estimate = len(event["prompt"]) // 3 + event["max_tokens"]
    try:
        # The lease is what returns the slot if the environment dies in between.
        grant = client.acquire("openai", "gpt-4", {"tpm": estimate, "slots": 1}, wait=5, lease=60)
    except weirgate.Denied as denied:
        return {"statusCode": 429, "headers": dict(denied.headers), "body": json.dumps({"error": str(denied)})}
    with grant:  # rolls back if the model fails
        answer = ask_the_model(event["prompt"], event["max_tokens"])
        grant.release({"tpm": answer["usage"]["total_tokens"]})
    return {"statusCode": 200, "body": json.dumps(answer)}


def ask_the_model(prompt, max_tokens):
    body = json.dumps({"model": "gpt-4", "prompt": prompt, "max_tokens": max_tokens}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['MODEL_KEY']}"}
    request = urllib.request.Request(os.environ["MODEL_URL"], body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)
