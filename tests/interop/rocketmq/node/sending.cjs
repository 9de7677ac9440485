// The steps that are about producers.

"use strict";

const { TransactionResolution } = require("rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js");
const { run, note, outcome, topicOf, groupOf, using, producerOf, simpleOf, messageOf } = require("./clients.cjs");
const { until, receiveOnce, receive, ack, bodyOf, bodiesOf, seconds } = require("./clients.cjs");

/** Topics that are there, and that are not. */
async function step1() {
  const producer = producerOf(topicOf(1));
  await using([producer], async () => {
    const receipt = await producer.send(messageOf(topicOf(1), "there"));
    note(1, "sent", { has_id: receipt.messageId !== "", recall: receipt.recallHandle });
    const wrong = messageOf(`no_such_topic_${run}`, "not there");
    note(1, "unknown topic", { outcome: await outcome(() => producer.send(wrong)) });
  });
  const other = producerOf(`no_topic_to_start_with_${run}`);
  const how = await outcome(() => other.startup());
  note(1, "start with an unknown topic", { outcome: how });
  if (how === "ok") await other.shutdown();
}

/** What is received is what was sent. The view does not say of which type it is. */
async function step2() {
  const topic = topicOf(2);
  const [producer, consumer] = [producerOf(topic), simpleOf(groupOf(2), topic)];
  const properties = { name: "Wert", ümlaut: "süß", emoji: "\u{1f680}", dots: "a.b", empty: "" };
  await using([producer, consumer], async () => {
    const sent = messageOf(topic, "body €", { tag: "tag", keys: ["one", "two", "three"], properties });
    const receipt = await producer.send(sent);
    const [{ message: got, cameMs }] = await receive(consumer, 1, 1);
    note(2, "received", {
      topic: got.topic === topic,
      id: got.messageId === receipt.messageId,
      body: got.getBody().toString(),
      tag: got.tag,
      keys: [...got.keys].sort(),
      properties: Object.fromEntries([...got.properties].filter(([name]) => name in properties).sort()),
      attempt: got.deliveryAttempt,
      group: got.messageGroup || null,
      delivery: got.deliveryTimestamp ?? null,
      lite: got.liteTopic || null,
      priority: got.priority || null,
      corrupted: got.corrupted ?? false,
      has_host: got.bornHost !== "",
      has_handle: got.receiptHandle !== "",
      born_s: seconds(Math.round((cameMs - got.bornTimestamp) / 10_000) * 10_000),
    });
    note(2, "ack", { outcome: await outcome(() => consumer.ack(got)) });
    note(2, "ack twice", { outcome: await outcome(() => consumer.ack(got)) });
    note(2, "acked", { left: (await receiveOnce(consumer)).length });
    await producer.send(messageOf(topic, "spaced", { keys: ["one key"] }));
    const spaced = await receive(consumer, 1, 1);
    note(2, "key with a space", { keys: spaced[0].message.keys });
    await ack(consumer, spaced);
  });
}

/** Sizes of bodies. This client receives less than 4 MiB, so a message of 4 MiB that was sent is in its way. */
async function step3() {
  const topic = topicOf(3);
  const [producer, consumer] = [producerOf(topic), simpleOf(groupOf(3), topic)];
  const send = async (size) => {
    const sent = messageOf(topic, "b".repeat(size));
    note(3, "send", { size, outcome: await outcome(() => producer.send(sent)) });
  };
  await using([producer, consumer], async () => {
    for (const size of [0, 1, 100_000]) await send(size);
    const got = await receive(consumer, 2);
    note(3, "received", { sizes: got.map(({ message }) => message.body.length).sort((one, other) => one - other) });
    await ack(consumer, got);
    for (const size of [4 << 20, (4 << 20) + 1]) await send(size);
    note(3, "receive 4 MiB", { outcome: await outcome(() => receive(consumer, 1, 1)) });
  });
}

/** What may not be in properties. */
async function step4() {
  const topic = topicOf(4);
  const producer = producerOf(topic);
  const many = (count) => Object.fromEntries([...Array(count).keys()].map((number) => [`p${number}`, "v"]));
  const tries = {
    128: many(128),
    129: many(129),
    "16 KiB": { p: "v".repeat((16 << 10) - 1) },
    "more than 16 KiB": { p: "v".repeat(16 << 10) },
    "reserved name": { TRACE_ON: "v" },
    "control character in a name": { "a\u0001b": "v" },
    "control character in a value": { a: "v\u0085w" },
  };
  await using([producer], async () => {
    for (const [name, properties] of Object.entries(tries)) {
      const sent = messageOf(topic, name, { properties });
      note(4, name, { outcome: await outcome(() => producer.send(sent)) });
    }
  });
}

/** Tags, keys and groups that may not be. This client does not send an empty tag or group. */
async function step5() {
  const [topic, ordered] = [topicOf(5), topicOf(5, "fifo")];
  const producer = producerOf(topic);
  const tries = {
    "blank tag": messageOf(topic, "t", { tag: " " }),
    "bar in the tag": messageOf(topic, "t", { tag: "a|b" }),
    "control character in the tag": messageOf(topic, "t", { tag: "a\u0007b" }),
    "empty key": messageOf(topic, "k", { keys: [""] }),
    "blank key": messageOf(topic, "k", { keys: [" "] }),
    "control character in a key": messageOf(topic, "k", { keys: ["a\u0007b"] }),
    "blank group": messageOf(ordered, "g", { messageGroup: " " }),
    "control character in the group": messageOf(ordered, "g", { messageGroup: "a\u0007b" }),
    "group of 63": messageOf(ordered, "g", { messageGroup: "g".repeat(63) }),
    "group of 64": messageOf(ordered, "g", { messageGroup: "g".repeat(64) }),
  };
  await using([producer], async () => {
    for (const [name, sent] of Object.entries(tries)) {
      note(5, name, { outcome: await outcome(() => producer.send(sent)) });
    }
  });
}

/** Delay, and recall. */
async function step6() {
  const topic = topicOf(6, "delay");
  const [producer, consumer] = [producerOf(topic), simpleOf(groupOf(6), topic)];
  await using([producer, consumer], async () => {
    const dueMs = Date.now() + 4_000;
    const times = { "in time": dueMs, recalled: dueMs + 1_000, past: dueMs - 3_600_000 };
    const later = (body, atMs) => producer.send(messageOf(topic, body, { deliveryTimestamp: new Date(atMs) }));
    const receipts = {};
    for (const [body, atMs] of Object.entries(times)) receipts[body] = await later(body, atMs);
    const wrong = receipts.recalled;
    const recall = (handle) => producer.recallMessage(topic, handle);
    note(6, "handle", { present: receipts["in time"].recallHandle !== "" });
    let recalled;
    const how = await outcome(async () => {
      recalled = await recall(wrong.recallHandle);
    });
    note(6, "recall", { outcome: how, same_id: recalled?.messageId === wrong.messageId });
    note(6, "recall twice", { outcome: await outcome(() => recall(wrong.recallHandle)) });
    note(6, "recall garbage", { outcome: await outcome(() => recall("garbage")) });
    for (const hours of [23, 25]) {
      note(6, `${hours} h`, { outcome: await outcome(() => later(`${hours} h`, dueMs + hours * 3_600_000)) });
    }
    const all = [];
    while (Date.now() < dueMs + 5_000) {
      const some = await receiveOnce(consumer);
      await ack(consumer, some);
      all.push(...some);
    }
    const onTime = all.filter((one) => bodyOf(one) === "in time");
    note(6, "received", {
      late_s: Object.fromEntries(onTime.map((one) => [bodyOf(one), seconds(one.cameMs - dueMs)])),
      early: onTime.some(({ cameMs }) => cameMs < dueMs),
    });
    note(6, "which", { bodies: bodiesOf(all) });
    for (const one of all) {
      const body = bodyOf(one);
      note(6, "time", { body, same: one.message.deliveryTimestamp?.getTime() === times[body] });
    }
    note(6, "recall late", { outcome: await outcome(() => recall(receipts["in time"].recallHandle)) });
  });
}

/** Transactions. */
async function step8() {
  const topic = topicOf(8, "transaction");
  const asked = {};
  const check = async (message) => {
    const body = bodyOf({ message });
    asked[body] = (asked[body] ?? 0) + 1;
    if (asked[body] === 1) {
      note(8, "checked", { body, tag: message.tag, topic: message.topic === topic });
    }
    if (body === "checker rolls back") return TransactionResolution.ROLLBACK;
    if (body === "checker does not know" && asked[body] === 1) {
      return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
    }
    return TransactionResolution.COMMIT;
  };
  const [producer, consumer] = [producerOf(topic, { check }), simpleOf(groupOf(8), topic)];
  await using([producer, consumer], async () => {
    for (const body of ["commit", "rollback", "checker commits", "checker rolls back", "checker does not know"]) {
      const decision = producer.beginTransaction();
      const receipt = await producer.send(messageOf(topic, body, { tag: "half" }), decision);
      note(8, `sent: ${body}`, { has_transaction: receipt.transactionId !== "" });
      if (body === "commit") {
        note(8, body, { outcome: await outcome(() => decision.commit()) });
        note(8, "commit twice", { outcome: await outcome(() => decision.commit()) });
        note(8, "rollback after commit", { outcome: await outcome(() => decision.rollback()) });
      }
      if (body === "rollback") note(8, body, { outcome: await outcome(() => decision.rollback()) });
    }
    const isAskedAgain = () => asked["checker does not know"] > 1;
    await until(() => asked["checker commits"] && asked["checker rolls back"] && isAskedAgain(), 60_000);
    note(8, "asked again", { again: isAskedAgain() });
    const got = await receive(consumer, 3, 32, 25_000);
    await ack(consumer, got);
    note(8, "received", { bodies: bodiesOf(got) });
    note(8, "acked", { left: (await receiveOnce(consumer)).length });
  });
}

/** Priorities, where the route offers them; RocketMQ does from 5.4 on, and the client refuses by itself before. */
async function step16() {
  const topic = topicOf(16, "priority");
  const [producer, consumer] = [producerOf(topic), simpleOf(groupOf(16), topic)];
  await using([producer, consumer], async () => {
    let how = "ok";
    for (const [body, priority] of [["low", 1], ["high", 9], ["middle", 5]]) {
      how = await outcome(() => producer.send(messageOf(topic, body, { priority })));
    }
    note(16, "sent", { outcome: how });
    const found = [];
    while (how === "ok" && found.length < 3) {
      const [one] = await receive(consumer, 1, 1);
      if (!one) break;
      found.push(one);
      await ack(consumer, [one]);
    }
    note(16, "received", { order: found.map(bodyOf), priorities: found.map(({ message }) => message.priority) });
  });
}

module.exports = { 1: step1, 2: step2, 3: step3, 4: step4, 5: step5, 6: step6, 8: step8, 16: step16 };
