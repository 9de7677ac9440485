// What the official client for Node.js sees of a server: one line of JSON for each step, which run side by side.
//
// node conformance.cjs ENDPOINT

"use strict";

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require("rocketmq-client-nodejs");
const { FilterType, TransactionResolution } = require("rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js");

const LEASE_MS = 30_000;
const PATIENCE_MS = 40_000;
const PERIOD_MS = 20;

const quiet = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const server = { endpoints: process.argv[2], namespace: "", logger: quiet };

function note(what, values) {
  console.log(JSON.stringify({ what, ...values }));
}

function name(step) {
  return `${step}-node`;
}

async function started(client) {
  await client.startup();
  return client;
}

function producing(topic, checker) {
  return started(new Producer({ ...server, topics: [topic], maxAttempts: 3, checker }));
}

function simple(group, topic, filter = "*") {
  const subscriptions = new Map([[topic, filter]]);
  return started(new SimpleConsumer({ ...server, consumerGroup: group, subscriptions, awaitDuration: 3_000 }));
}

/** A push consumer, and what it has seen. */
async function pushing(group, topic, answer) {
  const seen = [];
  const consume = async (message) => {
    seen.push(message);
    return answer(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
  };
  const subscriptions = new Map([[topic, "*"]]);
  const options = { ...server, consumerGroup: group, subscriptions, messageListener: { consume } };
  return { consumer: await started(new PushConsumer(options)), seen };
}

async function until(isSo) {
  const end = Date.now() + PATIENCE_MS;
  while (!isSo() && Date.now() < end) {
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

function bodyOf(message) {
  return message.body.toString();
}

/** Receives until `isDone`, and acks all. Each message with the time at which it came. */
async function receive(consumer, isDone) {
  const found = [];
  const end = Date.now() + PATIENCE_MS;
  while (!isDone(found) && Date.now() < end) {
    for (const message of await consumer.receive(32, LEASE_MS)) {
      found.push({ message, came: Date.now() });
      await consumer.ack(message);
    }
  }
  return found;
}

function closed(...clients) {
  return Promise.all(clients.map((client) => client.shutdown()));
}

async function normal() {
  const topic = name("normal");
  const [producer, consumer] = [await producing(topic), await simple(topic, topic)];
  const receipt = await producer.send({
    topic,
    body: Buffer.from("10 €"),
    tag: "red",
    keys: ["one", "two"],
    properties: new Map([["colour", "rot"], ["Größe", "süß \u{1f680}"]]),
  });
  const [{ message }] = await receive(consumer, (found) => found.length > 0);
  note("normal", {
    body: bodyOf(message),
    tag: message.tag,
    keys: message.keys,
    properties: { colour: message.properties.get("colour"), Größe: message.properties.get("Größe") },
    attempt: message.deliveryAttempt,
    sameId: message.messageId === receipt.messageId,
  });
  const left = await consumer.receive(1, LEASE_MS);
  note("acked", { left: left.length });
  await closed(producer, consumer);
}

async function delay() {
  const topic = name("delay");
  const [producer, consumer] = [await producing(topic), await simple(topic, topic)];
  const due = Date.now() + 3_000;
  const send = (body, dueAt) =>
    producer.send({ topic, body: Buffer.from(body), deliveryTimestamp: new Date(dueAt) });
  await send("on time", due);
  const wrong = await send("recalled", due + 500);
  await send("last", due + 1_000);
  const recalled = await producer.recallMessage(topic, wrong.recallHandle);
  const found = await receive(consumer, (all) => all.some(({ message }) => bodyOf(message) === "last"));
  note("delay", {
    bodies: found.map(({ message }) => bodyOf(message)).sort(),
    early: found.some(({ came }) => came < due),
    sameId: recalled.messageId === wrong.messageId,
  });
  await closed(producer, consumer);
}

async function fifo() {
  const topic = name("fifo");
  const producer = await producing(topic);
  for (let number = 0; number < 12; number++) {
    await producer.send({ topic, body: Buffer.from(`${number}`), messageGroup: `group ${number % 3}` });
  }
  const { consumer, seen } = await pushing(topic, topic, () => true);
  await until(() => seen.length >= 12);
  const groups = {};
  for (const message of seen) {
    (groups[message.messageGroup] ??= []).push(Number(bodyOf(message)));
  }
  note("fifo", { groups });
  await closed(producer, consumer);
}

async function transaction() {
  const topic = name("transaction");
  const checked = new Set();
  const check = async (message) => {
    checked.add(bodyOf(message));
    return bodyOf(message) === "checked" ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
  };
  const [producer, consumer] = [await producing(topic, { check }), await simple(topic, topic)];
  for (const body of ["committed", "rolled back", "checked", "checked in vain"]) {
    const decision = producer.beginTransaction();
    await producer.send({ topic, body: Buffer.from(body) }, decision);
    if (body === "committed") await decision.commit();
    if (body === "rolled back") await decision.rollback();
  }
  const found = await receive(consumer, (all) => all.length > 1 && checked.size > 1);
  note("transaction", { bodies: found.map(({ message }) => bodyOf(message)).sort(), checked: [...checked].sort() });
  await closed(producer, consumer);
}

async function retry() {
  const topic = name("retry");
  const fails = (message) => bodyOf(message) === "fails" && message.deliveryAttempt === 1;
  const { consumer, seen } = await pushing(topic, topic, (message) => !fails(message));
  const producer = await producing(topic);
  for (const body of ["fails", "works"]) {
    await producer.send({ topic, body: Buffer.from(body) });
  }
  await until(() => seen.length >= 3);
  const attempts = (body) => seen.filter((one) => bodyOf(one) === body).map((one) => one.deliveryAttempt);
  note("retry", { fails: attempts("fails"), works: attempts("works") });
  await closed(producer, consumer);
}

async function filter() {
  const topic = name("filter");
  const producer = await producing(topic);
  const sql = new FilterExpression("number > 1 AND TAGS <> 'blue'", FilterType.SQL);
  const byTag = await simple(`${topic}-tag`, topic, "red || blue");
  const bySql = await simple(`${topic}-sql`, topic, sql);
  for (const [number, tag] of ["red", "green", "blue", "red"].entries()) {
    const properties = new Map([["number", `${number}`]]);
    await producer.send({ topic, body: Buffer.from(`${number}`), tag, properties });
  }
  const bodies = (found) => found.map(({ message }) => bodyOf(message)).sort();
  note("filter", {
    tag: bodies(await receive(byTag, (found) => found.length > 2)),
    sql: bodies(await receive(bySql, (found) => found.length > 0)),
  });
  await closed(producer, byTag, bySql);
}

async function dead() {
  const topic = name("dead");
  const { consumer, seen } = await pushing(topic, topic, () => false);
  const producer = await producing(topic);
  await producer.send({ topic, body: Buffer.from("fails") });
  const undertaker = await simple(`${topic}-letters`, `%DLQ%${topic}`);
  const found = await receive(undertaker, (all) => all.length > 0);
  note("dead", { attempts: seen.map((one) => one.deliveryAttempt), bodies: found.map(({ message }) => bodyOf(message)) });
  await closed(producer, consumer, undertaker);
}

Promise.all([normal, delay, fifo, transaction, retry, filter, dead].map((step) => step())).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
