// The steps that are about consumers.

"use strict";

const { LEASE_MS, WAIT_MS, note, outcome, topicOf, groupOf, using, producerOf, simpleOf } = require("./clients.cjs");
const { Listening, sql, sleep, until, receiveOnce, receive, ack, messageOf, bodyOf } = require("./clients.cjs");
const { bodiesOf, attemptsOf, byGroup, seconds, secondsBetween } = require("./clients.cjs");

/** Of its message groups, a step sends so many messages in turn; one is nacked the first time. */
const ORDERED = 20;
const NACKED = "07";
/** So many filters are tried side by side. */
const ASIDE = 8;

async function sendOrdered(topic) {
  const producer = producerOf(topic);
  await using([producer], async () => {
    for (let number = 0; number < ORDERED; number++) {
      const body = `${number}`.padStart(2, "0");
      await producer.send(messageOf(topic, body, { messageGroup: `g${number % 3}` }));
    }
  });
}

function isNacked(message) {
  return bodyOf({ message }) === NACKED && message.deliveryAttempt === 1;
}

/** Order in groups of messages. This client tries no message of an orderly group again: it is a dead letter then. */
async function step7() {
  await Promise.all([orderOfPush(), orderOfSimple()]);
}

async function orderOfPush() {
  const topic = topicOf(7, "fifo");
  await sendOrdered(topic);
  const listener = new Listening(groupOf(7), topic, (message) => !isNacked(message));
  await using([listener], async () => {
    note(7, "order", { groups: byGroup(await listener.waitFor(ORDERED, 40_000)) });
  });
  const letters = await buried(`%DLQ%${groupOf(7)}`, groupOf(7, "letters"));
  note(7, "dead letter", { bodies: bodiesOf(letters) });
}

async function orderOfSimple() {
  const topic = topicOf(7, "simple");
  await sendOrdered(topic);
  const consumer = simpleOf(groupOf(7, "simple"), topic);
  await using([consumer], async () => {
    const all = [];
    const endMs = Date.now() + 60_000;
    while (all.length <= ORDERED && Date.now() < endMs) {
      for (const one of await receiveOnce(consumer, 1)) {
        all.push(one);
        if (isNacked(one.message)) {
          await consumer.changeInvisibleDuration(one.message, 1_000);
        } else {
          await consumer.ack(one.message);
        }
      }
    }
    const again = all.filter((one) => bodyOf(one) === NACKED);
    note(7, "order of a simple consumer", { groups: byGroup(all), attempts: attemptsOf(again) });
  });
}

/** A simple consumer: polls, leases, receipts. The client itself refuses a batch of 0. */
async function step9() {
  const topic = topicOf(9);
  const [producer, consumer] = [producerOf(topic), simpleOf(groupOf(9), topic)];
  const acked = (message) => outcome(() => consumer.ack(message));
  const changed = (message, durationMs) => outcome(() => consumer.changeInvisibleDuration(message, durationMs));
  await using([producer, consumer], async () => {
    let beganMs = Date.now();
    const nothing = await receiveOnce(consumer, 1);
    note(9, "nothing", { count: nothing.length, waited_s: seconds(Date.now() - beganMs) });
    for (const leaseS of [9, 10, 12 * 3_600, 12 * 3_600 + 1]) {
      const how = await outcome(() => consumer.receive(1, leaseS * 1_000));
      note(9, `lease of ${leaseS} s`, { outcome: how });
    }
    for (const count of [32, 33]) {
      note(9, `batch of ${count}`, { outcome: await outcome(() => consumer.receive(count, LEASE_MS)) });
    }
    for (let number = 0; number < 3; number++) await producer.send(messageOf(topic, `${number}`));
    const got = await receive(consumer, 3, 2);
    note(9, "received", { bodies: bodiesOf(got) });
    const inOrder = got.sort((one, other) => Number(bodyOf(one)) - Number(bodyOf(other)));
    const [kept, dropped, altered] = inOrder.map(({ message }) => message);
    const before = altered.receiptHandle;
    note(9, "change", { outcome: await changed(altered, 30_000) });
    note(9, "new handle", { differs: altered.receiptHandle !== before });
    note(9, "ack changed", { outcome: await acked(altered) });
    note(9, "ack", { outcome: await acked(kept) });
    note(9, "ack twice", { outcome: await acked(kept) });
    note(9, "change after ack", { outcome: await changed(kept, 30_000) });
    let again = await receive(consumer, 1, 32, 20_000);
    note(9, "again", { bodies: bodiesOf(again), attempts: attemptsOf(again) });
    note(9, "ack with the old handle", { outcome: await acked(dropped) });
    note(9, "change with the old handle", { outcome: await changed(dropped, 30_000) });
    note(9, "change to 0", { outcome: await changed(again[0].message, 0) });
    beganMs = Date.now();
    again = await receive(consumer, 1, 1);
    note(9, "again after 0", { attempts: attemptsOf(again), waited_s: seconds(Date.now() - beganMs) });
    note(9, "change to more than 12 h", { outcome: await changed(again[0].message, 13 * 3_600_000) });
    note(9, "ack with the new handle", { outcome: await acked(again[0].message) });
    note(9, "acked", { left: (await receiveOnce(consumer)).length });

    // An ack with the handle from before a change counts until its own time is over.
    await producer.send(messageOf(topic, "before"));
    const [{ message }] = await receive(consumer, 1, 1);
    const handle = message.receiptHandle;
    await consumer.changeInvisibleDuration(message, LEASE_MS);
    message.receiptHandle = handle;
    const how = await acked(message);
    const left = await receive(consumer, 1, 1, LEASE_MS + WAIT_MS);
    note(9, "ack with the handle before", { outcome: how, left: left.length });
  });
}

/** A push consumer, which fails twice; one that fails always; and where those messages are then. The view of a dead
 * letter does not show its fields about where it was. */
async function step10() {
  const topic = topicOf(10);
  let hasRaised = false;
  const answer = (message) => {
    const body = bodyOf({ message });
    if (body === "raises" && !hasRaised) {
      hasRaised = true;
      throw new Error("the listener has failed");
    }
    return body !== "fails" || message.deliveryAttempt >= 3;
  };
  const producer = producerOf(topic);
  const listener = new Listening(groupOf(10), topic, answer, "retried");
  const failing = new Listening(groupOf(10, "dead"), topic, () => false, "dead");
  await using([producer, listener, failing], async () => {
    const bodies = ["succeeds", "fails", "raises"];
    for (const body of bodies) await producer.send(messageOf(topic, body, { tag: "retried" }));
    const receipt = await producer.send(messageOf(topic, "always", { tag: "dead" }));
    const all = await listener.waitFor(6, 60_000);
    for (const body of bodies) {
      const seen = all.filter((one) => bodyOf(one) === body);
      note(10, body, { attempts: attemptsOf(seen) });
      note(10, `${body}: waits`, { waits_s: secondsBetween(seen) });
    }
    const letters = await buried(`%DLQ%${groupOf(10, "dead")}`, groupOf(10, "letters"));
    note(10, "always", { attempts: attemptsOf(failing.seen) });
    note(10, "dead letter", { bodies: bodiesOf(letters), same_id: letters[0]?.message.messageId === receipt.messageId });
  });
}

/** What is in a topic of dead letters, which is not there before the first. */
async function buried(topic, group) {
  const endMs = Date.now() + 100_000;
  let found = [];
  while (found.length === 0 && Date.now() < endMs) {
    const consumer = simpleOf(group, topic);
    await outcome(() =>
      using([consumer], async () => {
        found = await receive(consumer, 1, 1, WAIT_MS);
        await ack(consumer, found);
      }),
    );
  }
  return found;
}

/** Two groups have all messages each; two consumers of a group share them. */
async function step11() {
  const topic = topicOf(11);
  const [alone, one, other] = ["a", "b", "b"].map((name) => new Listening(groupOf(11, name), topic, () => true));
  const producer = producerOf(topic);
  await using([producer, alone, one, other], async () => {
    for (let number = 0; number < 20; number++) await producer.send(messageOf(topic, `${number}`));
    const whole = await alone.waitFor(20, 30_000);
    await until(() => one.seen.length + other.seen.length >= 20, 30_000);
    const shared = [...one.seen, ...other.seen];
    note(11, "alone", { count: whole.length, distinct: new Set(bodiesOf(whole)).size });
    note(11, "shared", { count: shared.length, distinct: new Set(bodiesOf(shared)).size });
  });
}

const FILTERS = {
  all: "*",
  "a or b": "a||b",
  "a or b, spaced": " a || b ",
  a: "a",
  number: sql("n > 1 AND TAGS IS NOT NULL"),
  "at least": sql("n >= 2"),
  less: sql("n < 1.5"),
  "at most": sql("n <= 1"),
  negative: sql("n > -1 AND n < +1"),
  in: sql("color IN ('red', 'blue')"),
  "not in": sql("color NOT IN ('red')"),
  between: sql("n BETWEEN 1 AND 2"),
  "not between": sql("n NOT BETWEEN 1 AND 2"),
  not: sql("NOT (n = 3) OR color IS NULL"),
  "not equal": sql("TAGS <> 'a'"),
  null: sql("TAGS IS NULL"),
  contains: sql("color CONTAINS 'e'"),
  "not contains": sql("color NOT CONTAINS 'ee'"),
  starts: sql("color STARTSWITH 'b'"),
  ends: sql("color NOT ENDSWITH 'd'"),
  boolean: sql("even = TRUE"),
  "names compared": sql("n = twin"),
  quoted: sql("quoted = 'it''s'"),
  "comment and case": sql("n > 1 /* of them */ and Color is null"),
  "not converted": sql("color > 1 OR n = 1"),
};
const REFUSED = {
  "no SQL": "n >",
  "equal to NULL": "n = NULL",
  "more than text": "n > 'a'",
  "wrong way round": "n BETWEEN 3 AND 1",
  "IN of a literal": "1 IN ('a')",
  "bare literal": "1",
};

/** Filters. The last message has no tag. */
async function step12() {
  const topic = topicOf(12);
  const producer = producerOf(topic);
  await using([producer], async () => {
    for (const [number, color] of ["red", "green", "blue", "red"].entries()) {
      const quoted = number % 2 ? "its" : "it's";
      const twin = `${number - (number % 2)}`;
      const properties = { n: `${number}`, color, twin, even: `${number % 2 === 0}`, quoted };
      await producer.send(messageOf(topic, `${number}`, { tag: ["a", "b", "c"][number], properties }));
    }
  });
  const groups = [...Object.keys(FILTERS), ...Object.keys(REFUSED)];
  const consumerOf = (name, filter) => simpleOf(groupOf(12, `${groups.indexOf(name)}`), topic, filter);
  const works = [
    ...Object.entries(FILTERS).map(([name, filter]) => async () => {
      const consumer = consumerOf(name, filter);
      await using([consumer], async () => note(12, name, { bodies: await filtered(consumer) }));
    }),
    ...Object.entries(REFUSED).map(([name, text]) => async () => {
      const consumer = consumerOf(name, sql(text));
      await using([consumer], async () => note(12, name, { outcome: await outcome(() => receiveOnce(consumer, 1)) }));
    }),
  ];
  const worker = async () => {
    for (let work = works.pop(); work; work = works.pop()) await work();
  };
  await Promise.all(Array.from({ length: ASIDE }, worker));
}

/** What two receives with a filter have. One that RocketMQ has not heard of yet is an internal error there, for a while,
 * and the client tries three times by itself. */
async function filtered(consumer) {
  const found = [];
  for (let number = 0; number < 2; number++) {
    const some = await receiveOnce(consumer);
    await ack(consumer, some);
    found.push(...some);
  }
  return bodiesOf(found);
}

/** A consumer stops while it works on a message. */
async function step13() {
  const topic = topicOf(13);
  const producer = producerOf(topic);
  await using([producer], async () => {
    for (const tag of ["pushed", "received"]) await producer.send(messageOf(topic, "unfinished", { tag }));
  });
  await Promise.all([stopPush(topic), stopSimple(topic)]);
}

async function stopPush(topic) {
  let free;
  const stuck = new Promise((resolve) => (free = resolve));
  const first = new Listening(groupOf(13), topic, () => stuck, "pushed");
  await using([first], async () => {
    await first.waitFor(1);
    setTimeout(() => free(false), 500);
  });
  const second = new Listening(groupOf(13), topic, () => true, "pushed");
  await using([second], async () => note(13, "again", { bodies: bodiesOf(await second.waitFor(1, 75_000)) }));
}

async function stopSimple(topic) {
  const first = simpleOf(groupOf(13, "simple"), topic, "received");
  const [taken] = await using([first], () => receive(first, 1, 1));
  const second = simpleOf(groupOf(13, "simple"), topic, "received");
  await using([second], async () => {
    const again = await receive(second, 1, 1, 40_000);
    const waits_s = secondsBetween([taken, ...again]);
    note(13, "again at a simple consumer", { bodies: bodiesOf(again), attempts: attemptsOf(again), waits_s });
    await ack(second, again);
  });
}

module.exports = { 7: step7, 9: step9, 10: step10, 11: step11, 12: step12, 13: step13 };
