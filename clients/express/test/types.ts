/** Compiled, not run: what callers see of the types, with those of Express. */

import express from "express";

import { Client } from "weirgate";
import type { rateLimit as declared } from "../index.js";
import { rateLimit } from "../src/index.js";

const client = new Client();
const app = express();
const typed: typeof declared = rateLimit;
app.use(rateLimit<express.Request>({ client, resource: "api", key: (request) => request.get("a"), onUnavailable: "deny" }));
app.use(typed({ client, resource: "api", key: async () => null, onUnavailable: "allow", take: () => null, limits: ["rpm=5"] }));
// @ts-expect-error: a policy is chosen
app.use(rateLimit({ client, resource: "api", key: () => "a" }));
// @ts-expect-error: a key is required
app.use(rateLimit({ client, resource: "api", onUnavailable: "deny" }));
