import static java.util.Map.entry;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.*;

/** Those about what is sent, and about what may be. */
final class SendingSteps {
    private static final int MIB = 1 << 20;
    private static final int HOUR_MS = 3_600_000;

    private final Clients clients;

    SendingSteps(Clients clients) {
        this.clients = clients;
    }

    /** 1: a topic that is there, and one that is not. */
    void topics() throws Exception {
        String topic = clients.topic(1);
        try (Producer producer = clients.producing(topic)) {
            SendReceipt receipt = producer.send(Clients.message(topic, "there").build());
            Printed.note(1, "sent", "has_id", !receipt.getMessageId().toString().isEmpty());
            Message wrong = Clients.message(clients.unknownTopic(""), "not there").build();
            Printed.note(1, "unknown topic", "outcome", Clients.outcome(() -> producer.send(wrong)));
        }
        String unknown = clients.unknownTopic("at_start_");
        Printed.note(1, "start with an unknown topic", "outcome",
            Clients.outcome(() -> clients.producing(unknown).close()));
    }

    /** 3: sizes of bodies. */
    void sizes() throws Exception {
        String topic = clients.topic(3);
        try (Producer producer = clients.producing(topic);
                SimpleConsumer consumer = clients.simple(clients.group(3, ""), topic)) {
            for (int size : new int[] {0, 1, 100_000, 4 * MIB, 4 * MIB + 1}) {
                byte[] body = "b".repeat(size).getBytes(StandardCharsets.US_ASCII);
                Printed.note(3, "send", "size", size, "outcome",
                    Clients.outcome(() -> producer.send(Clients.message(topic, body).build())));
            }
            List<MessageView> got = Clients.receive(consumer, 3);
            Printed.note(3, "received", "sizes", got.stream().map(one -> one.getBody().remaining()).sorted().toList());
            Printed.note(3, "ack", "outcome", Clients.outcome(() -> {
                for (MessageView one : got) {
                    consumer.ack(one);
                }
            }));
        }
    }

    /** 4: what may not be in properties. */
    void properties() throws Exception {
        String topic = clients.topic(4);
        Map<String, Map<String, String>> tries = new LinkedHashMap<>();
        tries.put("128", numbered(128));
        tries.put("129", numbered(129));
        tries.put("16 KiB", Map.of("p", "v".repeat(16 * 1_024 - 1)));
        tries.put("more than 16 KiB", Map.of("p", "v".repeat(16 * 1_024)));
        tries.put("reserved name", Map.of("TRACE_ON", "v"));
        tries.put("control character in a name", Map.of("a\u0001b", "v"));
        tries.put("control character in a value", Map.of("a", "v\u0085w"));
        tries.put("no name", Map.of("", "v"));
        try (Producer producer = clients.producing(topic)) {
            tries.forEach((name, properties) -> Printed.note(4, name, "outcome", Clients.outcome(() -> {
                MessageBuilder builder = Clients.message(topic, name);
                properties.forEach(builder::addProperty);
                producer.send(builder.build());
            })));
        }
    }

    private static Map<String, String> numbered(int count) {
        Map<String, String> found = new TreeMap<>();
        for (int number = 0; number < count; number++) {
            found.put("p" + number, "v");
        }
        return found;
    }

    /** 5: tags, keys and groups that may not be. */
    void words() throws Exception {
        String topic = clients.topic(5);
        String fifo = clients.topic(5, "fifo");
        try (Producer producer = clients.producing(topic, fifo)) {
            attempt(producer, "control character in the tag", () -> Clients.message(topic, "t").setTag("a\u0007b"));
            attempt(producer, "control character in a key", () -> Clients.message(topic, "k").setKeys("a\u0007b"));
            attempt(producer, "group of 63", () -> Clients.message(fifo, "g").setMessageGroup("g".repeat(63)));
            attempt(producer, "group of 64", () -> Clients.message(fifo, "g").setMessageGroup("g".repeat(64)));
            attempt(producer, "blank tag", () -> Clients.message(topic, "t").setTag(" "));
            attempt(producer, "bar in the tag", () -> Clients.message(topic, "t").setTag("a|b"));
            attempt(producer, "no value", () -> Clients.message(topic, "p").addProperty("empty", ""));
            attempt(producer, "blank key", () -> Clients.message(topic, "k").setKeys(" "));
            attempt(producer, "blank group", () -> Clients.message(fifo, "g").setMessageGroup(" "));
            attempt(producer, "group on a normal topic", () -> Clients.message(topic, "g").setMessageGroup("g"));
            attempt(producer, "no group on a fifo topic", () -> Clients.message(fifo, "g"));
        }
    }

    private interface Building {
        MessageBuilder build();
    }

    private static void attempt(Producer producer, String what, Building building) {
        Printed.note(5, what, "outcome", Clients.outcome(() -> producer.send(building.build().build())));
    }

    /** 6: delay, and recall. */
    void delays() throws Exception {
        String topic = clients.topic(6, "delay");
        try (Producer producer = clients.producing(topic, clients.topic(6));
                SimpleConsumer consumer = clients.simple(clients.group(6, ""), topic)) {
            long wantedMs = System.currentTimeMillis() / 1_000 * 1_000 + 6_000;
            SendReceipt first = producer.send(at(topic, "in time", wantedMs));
            boolean canRecall = handleOf(first) != null; // a client that cannot would be given the message
            SendReceipt second = canRecall ? producer.send(at(topic, "recalled", wantedMs + 1_000)) : first;
            producer.send(at(topic, "past", wantedMs - HOUR_MS));
            Printed.note(6, "handle", "present", handleOf(first) != null);
            Printed.note(6, "recall", "outcome", recall(producer, topic, handleOf(second)));
            Printed.note(6, "recall twice", "outcome", recall(producer, topic, handleOf(second)));
            Map<String, Long> lateMs = new TreeMap<>();
            Map<String, Boolean> haveTime = new TreeMap<>();
            long endMs = System.currentTimeMillis() + 40_000;
            while (System.currentTimeMillis() < (lateMs.containsKey("in time") ? wantedMs + 3_000 : endMs)) {
                for (MessageView one : consumer.receive(32, Clients.LEASE)) {
                    lateMs.put(Clients.body(one), System.currentTimeMillis() - wantedMs);
                    haveTime.put(Clients.body(one), one.getDeliveryTimestamp().isPresent());
                    consumer.ack(one);
                }
            }
            long inTimeMs = lateMs.getOrDefault("in time", (long) HOUR_MS);
            Printed.note(6, "received", "late_s", Map.of("in time", Math.round(inTimeMs / 1_000.)));
            Printed.note(6, "which", "bodies", lateMs.keySet());
            Printed.note(6, "time of delivery", "present", haveTime);
            Printed.note(6, "recall twice, late", "outcome", recall(producer, topic, handleOf(second)));
            Printed.note(6, "recall late", "outcome", recall(producer, topic, handleOf(first)));
            Printed.note(6, "recall garbage", "outcome", recall(producer, topic, "garbage"));
            for (int hours : new int[] {23, 25}) {
                Printed.note(6, hours + " h", "outcome", Clients.outcome(
                    () -> producer.send(at(topic, "later", wantedMs + hours * (long) HOUR_MS))));
            }
            Printed.note(6, "on a normal topic", "outcome",
                Clients.outcome(() -> producer.send(at(clients.topic(6), "delayed", wantedMs))));
        }
    }

    private static Message at(String topic, String body, long ms) {
        return Clients.message(topic, body).setDeliveryTimestamp(ms).build();
    }

    private static String handleOf(SendReceipt receipt) {
        try {
            return receipt.getRecallHandle();
        } catch (LinkageError missing) {
            return null;
        }
    }

    private static Object recall(Producer producer, String topic, String handle) {
        return Clients.outcome(() -> producer.recallMessage(topic, handle));
    }

    /** 8: transactions. */
    void transactions() throws Exception {
        String topic = clients.topic(8, "transaction");
        Map<String, CountDownLatch> asked = new ConcurrentHashMap<>(Map.ofEntries(
            entry("checker commits", new CountDownLatch(1)), entry("checker rolls back", new CountDownLatch(1))));
        TransactionChecker checker = half -> {
            String body = Clients.body(half);
            synchronized (asked) {
                if (asked.get(body).getCount() > 0) {
                    Printed.note(8, "checked", "body", body, "tag", half.getTag().orElse(null));
                }
                asked.get(body).countDown();
            }
            return body.equals("checker rolls back") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
        };
        try (Producer producer = clients.producing(checker, topic);
                SimpleConsumer consumer = clients.simple(clients.group(8, ""), topic)) {
            for (String body : List.of("commit", "rollback", "checker commits", "checker rolls back")) {
                Transaction transaction = producer.beginTransaction();
                SendReceipt receipt = producer.send(Clients.message(topic, body).setTag("half").build(), transaction);
                Printed.note(8, "sent: " + body, "has_id", !receipt.getMessageId().toString().isEmpty());
                if (body.equals("commit")) {
                    Printed.note(8, body, "outcome", Clients.outcome(transaction::commit));
                    Printed.note(8, "commit twice", "outcome", Clients.outcome(transaction::commit));
                    Printed.note(8, "rollback after commit", "outcome", Clients.outcome(transaction::rollback));
                }
                if (body.equals("rollback")) {
                    Printed.note(8, body, "outcome", Clients.outcome(transaction::rollback));
                    Printed.note(8, "rollback twice", "outcome", Clients.outcome(transaction::rollback));
                }
            }
            for (CountDownLatch one : asked.values()) {
                one.await(40, TimeUnit.SECONDS);
            }
            List<MessageView> got = Clients.receive(consumer, 2, 32, Clients.LEASE, 25_000);
            for (MessageView one : got) {
                consumer.ack(one);
            }
            Printed.note(8, "received", "bodies", Clients.bodies(got));
        }
    }

    /** 15: bodies that the client compresses, and one that does not become smaller. */
    void compressed() throws Exception {
        String topic = clients.topic(15);
        byte[] noise = new byte[20_000];
        new Random(15).nextBytes(noise);
        Map<String, byte[]> sent = Map.of("text", "all the same ".repeat(2_000).getBytes(StandardCharsets.UTF_8),
            "noise", noise, "just not", "b".repeat(4_096).getBytes(StandardCharsets.UTF_8));
        try (Producer producer = clients.producing(topic);
                SimpleConsumer consumer = clients.simple(clients.group(15, ""), topic)) {
            for (Map.Entry<String, byte[]> one : sent.entrySet()) {
                producer.send(Clients.message(topic, one.getValue()).setTag(one.getKey()).build());
            }
            TreeSet<String> same = new TreeSet<>();
            for (MessageView one : Clients.receive(consumer, sent.size())) {
                String tag = one.getTag().orElse("");
                byte[] body = new byte[one.getBody().remaining()];
                one.getBody().get(body);
                same.add(tag + (java.util.Arrays.equals(body, sent.get(tag)) ? "" : ": differs"));
                consumer.ack(one);
            }
            Printed.note(15, "received", "bodies", same);
        }
    }

    /** 16: priority, which RocketMQ has from 5.4 on. */
    void priority() throws Exception {
        String topic = clients.topic(16, "priority");
        Message urgent;
        try {
            urgent = Clients.message(topic, "urgent").setPriority(5).build();
        } catch (LinkageError missing) {
            Printed.note(16, "sent", "outcome", Clients.ABSENT); // and such a client does not start with such a topic
            return;
        }
        try (Producer producer = clients.producing(topic);
                SimpleConsumer consumer = clients.simple(clients.group(16, ""), topic)) {
            Printed.note(16, "sent", "outcome", Clients.outcome(() -> producer.send(urgent)));
            List<MessageView> got = Clients.receive(consumer, 1, 32, Clients.LEASE, 6_000);
            for (MessageView one : got) {
                consumer.ack(one);
            }
            Printed.note(16, "received", "order", Clients.bodies(got), "priorities",
                got.stream().map(one -> one.getPriority().orElse(null)).toList());
        }
    }
}
