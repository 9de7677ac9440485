// A message's way, with types that openapi-typescript makes of docs/openapi.json: `node out/main.js http://127.0.0.1:7413`.
import assert from "node:assert/strict";
import process from "node:process";

import createClient from "openapi-fetch";

import type { paths } from "./api.js";

const topic = "interop-typescript";
const group = "workers";
const key = "order 17/a";
const client = createClient<paths>({ baseUrl: process.argv[2] });

const sent = await client.POST("/v1/topics/{topic}/messages", {
  params: { path: { topic } },
  body: { body: { order: 17 }, key, delay: "1h" },
});
assert.equal(sent.response.status, 201, JSON.stringify(sent.error));
assert(sent.data);
assert.equal(sent.data.duplicate, false);
const id: string = sent.data.id;

const found = await client.GET("/v1/topics/{topic}/keys/{key}", { params: { path: { topic, key } } });
assert(found.data, JSON.stringify(found.error));
assert.deepEqual([found.data.id, found.data.state], [id, "scheduled"]);

const schedule = await client.PUT("/v1/schedules/{schedule}", {
  params: { path: { schedule: "interop-typescript" } },
  body: { topic, cron: "0 9 * * *", tz: "Europe/Paris", text: "tea" },
});
assert(schedule.data, JSON.stringify(schedule.error));
assert(new Date(schedule.data.next[0] ?? 0) > new Date());

const soon = new Date(Date.now() + 200).toISOString();
const moved = await client.POST("/v1/transactions", {
  body: { reschedules: [{ topic, key, deliver_at: soon }] },
});
assert(moved.data, JSON.stringify(moved.error));
assert.equal(moved.data.repeated, false);

const received = await client.POST("/v1/topics/{topic}/groups/{group}/receive", {
  params: { path: { topic, group } },
  body: { wait: "30s" },
});
assert(received.data, JSON.stringify(received.error));
const delivery = received.data.items[0];
assert(delivery, "nothing was received");
assert.deepEqual([delivery.id, delivery.key, delivery.body], [id, key, { order: 17 }]);

const settled = await client.POST("/v1/topics/{topic}/groups/{group}/settle", {
  params: { path: { topic, group } },
  body: { ack: [delivery.receipt] },
});
assert(settled.data, JSON.stringify(settled.error));
assert.deepEqual(settled.data.ack, ["acked"]);

const missing = await client.GET("/v1/messages/{id}", { params: { path: { id: "9000000000000000000" } } });
assert(missing.error);
assert.deepEqual([missing.error.status, missing.error.code], [404, "not_found"]);

console.log("acked", id);
