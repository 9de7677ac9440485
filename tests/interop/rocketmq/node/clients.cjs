// Clients of the official package for Node.js, and what they print.

"use strict";

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require("rocketmq-client-nodejs");
const { FilterType } = require("rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js");

const LEASE_MS = 10_000;
const WAIT_MS = 5_000;
const PATIENCE_MS = 15_000;
const PERIOD_MS = 20;

const [, , endpoint, run, ...chosen] = process.argv;
const quiet = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const { ACCESS_KEY: accessKey, SECRET_KEY: accessSecret, TLS: tls } = process.env;
const server = {
  endpoints: endpoint,
  namespace: "",
  logger: quiet,
  sslEnabled: tls !== undefined,
  sessionCredentials: accessKey && { accessKey, accessSecret },
};

function note(step, what, values) {
  console.log(JSON.stringify({ step, what, ...values }));
}

/** What a call has come to: "ok", or the class and code of its error. That of a recall has its code in its text. */
async function outcome(work) {
  try {
    await work();
  } catch (error) {
    const code = error.code ?? /\(code: (\d+)\)/.exec(error.message)?.[1];
    return { error: error.constructor.name, code: code === undefined ? null : Number(code) };
  }
  return "ok";
}

function topicOf(step, kind = "normal") {
  return `diff_${step}_${kind}_${run}`;
}

function groupOf(step, name = "") {
  return `diff_${step}_group${name}_${run}`;
}

/** Does some work with clients that are started before it and stopped after it, side by side. */
async function using(clients, work) {
  await Promise.all(clients.map((client) => client.startup()));
  const result = await work();
  await Promise.all(clients.map((client) => client.shutdown()));
  return result;
}

function producerOf(topic, checker) {
  return new Producer({ ...server, topics: [topic], maxAttempts: 3, checker });
}

function sql(text) {
  return new FilterExpression(text, FilterType.SQL);
}

function simpleOf(group, topic, filter = "*") {
  const subscriptions = new Map([[topic, filter]]);
  return new SimpleConsumer({ ...server, consumerGroup: group, subscriptions, awaitDuration: WAIT_MS });
}

/** A push consumer that keeps what it has seen, and when. */
class Listening extends PushConsumer {
  seen = [];

  constructor(group, topic, answer, filter = "*") {
    const consume = async (message) => {
      this.seen.push({ message, cameMs: Date.now() });
      return (await answer(message)) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    };
    const subscriptions = new Map([[topic, filter]]);
    super({ ...server, consumerGroup: group, subscriptions, messageListener: { consume } });
  }

  async waitFor(count, patienceMs = PATIENCE_MS) {
    await until(() => this.seen.length >= count, patienceMs);
    return [...this.seen];
  }
}

function sleep(durationMs) {
  return new Promise((resolve) => setTimeout(resolve, durationMs));
}

async function until(isSo, patienceMs) {
  const endMs = Date.now() + patienceMs;
  while (!isSo() && Date.now() < endMs) {
    await sleep(PERIOD_MS);
  }
}

/** One receive: messages, and when they came. */
async function receiveOnce(consumer, count = 32, leaseMs = LEASE_MS) {
  const messages = await consumer.receive(count, leaseMs);
  return messages.map((message) => ({ message, cameMs: Date.now() }));
}

/** So many messages, if they come in time. */
async function receive(consumer, count, atOnce = 32, patienceMs = PATIENCE_MS) {
  const found = [];
  const endMs = Date.now() + patienceMs;
  while (found.length < count && Date.now() < endMs) {
    found.push(...(await receiveOnce(consumer, atOnce)));
  }
  return found;
}

async function ack(consumer, found) {
  for (const { message } of found) {
    await consumer.ack(message);
  }
}

function messageOf(topic, body, { properties = {}, ...fields } = {}) {
  return { topic, body: Buffer.from(body), properties: new Map(Object.entries(properties)), ...fields };
}

function bodyOf({ message }) {
  return message.body.toString();
}

function bodiesOf(found) {
  return found.map(bodyOf).sort();
}

function attemptsOf(found) {
  return found.map(({ message }) => message.deliveryAttempt);
}

/** What has come, by message group, in its order. */
function byGroup(found) {
  const groups = {};
  for (const one of found) {
    (groups[one.message.messageGroup] ??= []).push(bodyOf(one));
  }
  return groups;
}

function seconds(durationMs) {
  return Math.round(durationMs / 1_000);
}

function secondsBetween(found) {
  return found.slice(1).map((one, before) => seconds(one.cameMs - found[before].cameMs));
}

module.exports = {
  ...{ LEASE_MS, WAIT_MS, chosen, run, note, outcome, topicOf, groupOf, using, producerOf, simpleOf, Listening, sql },
  ...{ sleep, until, receiveOnce, receive, ack, messageOf, bodyOf, bodiesOf, attemptsOf, byGroup },
  ...{ seconds, secondsBetween },
};
