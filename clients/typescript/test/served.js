/** A server of single connections, for what the real agent does not do on demand: stalls, broken connections. */

import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

export function answer(status, body, fields = "") {
  const text = JSON.stringify(body);
  return `HTTP/1.1 ${status} X\r\ncontent-length: ${Buffer.byteLength(text)}\r\n${fields}\r\n${text}`;
}

export const GRANTED = answer(200, {
  grant: "g1",
  lease: null,
  amounts: [{ rpm: 1 }],
  limits: [],
  would_deny: null,
  degraded: null,
});

/** Calls `serve(socket, request, number)` for each request of each connection; `number` counts connections from 1. */
export async function serving(t, serve, { isUnix = false } = {}) {
  const served = { requests: [], connections: 0, sockets: new Set() };
  const server = net.createServer({ noDelay: true }, (socket) => {
    const number = ++served.connections;
    served.sockets.add(socket);
    socket.on("error", () => {});
    socket.on("close", () => served.sockets.delete(socket));
    let data = "";
    socket.setEncoding("latin1");
    socket.on("data", (chunk) => {
      data += chunk;
      const [head, ...rest] = data.split("\r\n\r\n");
      const body = rest.join("\r\n\r\n");
      const length = Number(/content-length: (\d+)/i.exec(head)?.[1]);
      if (rest.length === 0 || body.length < length) return;
      data = "";
      const lines = head.split("\r\n");
      const fields = Object.fromEntries(lines.slice(1).map((line) => line.toLowerCase().split(": ")));
      const request = { path: lines[0].split(" ")[1], fields, body: JSON.parse(body) };
      served.requests.push(request);
      serve(socket, request, number);
    });
  });
  server.listen(isUnix ? join(mkdtempSync(join(tmpdir(), "weirgate-")), "agent.sock") : { port: 0, host: "127.0.0.1" });
  await once(server, "listening");
  const address = server.address();
  served.url = isUnix ? `unix:${address}` : `http://127.0.0.1:${address.port}`;
  t.after(() => {
    server.close();
    served.sockets.forEach((socket) => socket.destroy());
  });
  return served;
}
