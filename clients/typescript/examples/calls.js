/** The calls of the guide. */

import { Client } from "weirgate";

const client = new Client();

// Takes all amounts, or throws Denied and takes none. Waits up to 2 s for them.
const grant = await client.acquire("openai", "gpt-4", { tpm: 500, slots: 1 }, { waitMs: 2000 });
await grant.adjust({ tpm: 300 }); // what was really used
await grant.release();

// A scope: released afterwards, rolled back if the work throws.
const answer = await client.scope("openai", "gpt-4", { tpm: 100, slots: 1 }, async (held) => {
  const text = "how many?".toUpperCase();
  await held.adjust({ tpm: text.length });
  return text;
});

console.log(answer, await client.remaining("openai", "gpt-4", "tpm"));

client.close();
