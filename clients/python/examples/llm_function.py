"""A Lambda function that asks a model, with the layer of weirgate-agent."""

import json
import logging
import os
import urllib.error
import urllib.request

import weirgate

MAX_PROMPT, MAX_ANSWER = 100_000, 4_000
log = logging.getLogger("weirgate.llm_function")
client = weirgate.Client()  # outside the handler: an environment keeps its connection


def handler(event, context):
    prompt = event.get("prompt")
    if not isinstance(prompt, str) or not 0 < len(prompt) <= MAX_PROMPT:
        return answer(400, {}, f"prompt must be text of 1 to {MAX_PROMPT} characters")
    # The model has the same bound, so a caller that asks for less gets less.
    max_tokens = tokens(event.get("max_tokens"))
    estimate = len(prompt) // 3 + max_tokens
    try:
        # The lease is what returns the slot if the environment dies in between.
        grant = client.acquire("openai", "gpt-4", {"tpm": estimate, "slots": 1}, wait=5, lease=60)
    except weirgate.Refused as refused:
        return answer(refused.status, dict(refused.headers), str(refused))
    except weirgate.WeirgateError:
        return answer(503, {}, "no decision of the rate limiter")
    with grant:  # rolls back if the model refuses
        try:
            reply = ask_the_model(prompt, max_tokens)
            used = {"tpm": reply["usage"]["total_tokens"]}
        except urllib.error.HTTPError:
            raise
        except Exception:
            release(grant)  # the model may have worked
            raise
        release(grant, used)
    return {"statusCode": 200, "body": json.dumps(reply)}


def release(grant, used=None):
    """Releases the grant. The outcome of the work stays if that fails: the scope tries again, and the lease expires."""
    try:
        grant.release(used)
    except weirgate.WeirgateError as error:
        log.warning("the tokens were not settled: %s", error)


def tokens(wanted):
    """Returns how many tokens an answer may have: as many as the caller wants, if that is a number of the range."""
    return wanted if type(wanted) is int and 1 <= wanted <= MAX_ANSWER else MAX_ANSWER


def answer(status, headers, text):
    return {"statusCode": status, "headers": headers, "body": json.dumps({"error": text})}


def ask_the_model(prompt, max_tokens):
    body = json.dumps({"model": "gpt-4", "prompt": prompt, "max_tokens": max_tokens}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['MODEL_KEY']}"}
    request = urllib.request.Request(os.environ["MODEL_URL"], body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)
