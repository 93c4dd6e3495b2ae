"""The calls of the guide."""

import weirgate

client = weirgate.Client()

# Takes all amounts, or raises Denied and takes none. Waits up to 2 s for them.
grant = client.acquire("openai", "gpt-4", {"tpm": 500, "slots": 1}, wait=2)
grant.adjust({"tpm": 300})  # what was really used
grant.release()

# A scope: released afterwards, rolled back if the block raises.
with client.acquire("openai", "gpt-4", {"tpm": 100}) as grant:
    print(grant.remaining("tpm"))

# The same for every call of a function. `actual` returns what was used from its result.
@client.limited("openai", "gpt-4", {"tpm": 100, "slots": 1}, actual=lambda text: {"tpm": len(text)})
def ask(question):
    return question.upper()

print(ask("how many?"))
print(client.remaining("openai", "gpt-4", "tpm"))
