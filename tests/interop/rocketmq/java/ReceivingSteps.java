import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/** Those about what is received, when, and how often. */
final class ReceivingSteps {
    private static final int NUMBERS = 20;
    private static final int FILTERS_AT_ONCE = 6;

    private final Clients clients;

    ReceivingSteps(Clients clients) {
        this.clients = clients;
    }

    /** 2: what is received is what was sent. */
    void views() throws Exception {
        String topic = clients.topic(2);
        Map<String, String> properties = Map.of("name", "Wert", "ümlaut", "süß", "emoji", "\uD83D\uDE80",
            "long", "x".repeat(100), "dots", "a.b");
        try (Producer producer = clients.producing(topic);
                SimpleConsumer consumer = clients.simple(clients.group(2, ""), topic)) {
            var builder = Clients.message(topic, "body").setTag("tag").setKeys("one", "two", "three");
            properties.forEach(builder::addProperty);
            SendReceipt receipt = producer.send(builder.build());
            MessageView got = Clients.receive(consumer, 1).get(0);
            Map<String, String> found = new TreeMap<>(got.getProperties());
            found.keySet().retainAll(properties.keySet());
            Printed.note(2, "received", "topic", got.getTopic().equals(topic),
                "id", got.getMessageId().equals(receipt.getMessageId()), "tag", got.getTag().orElse(null),
                "keys", got.getKeys().stream().sorted().toList(), "properties", found,
                "attempt", got.getDeliveryAttempt(), "group", got.getMessageGroup().orElse(null),
                "delivery", got.getDeliveryTimestamp().orElse(null), "has_host", !got.getBornHost().isEmpty(),
                "born_s", Math.abs(System.currentTimeMillis() - got.getBornTimestamp()) / 60_000 * 60);
            Printed.note(2, "ack", "outcome", Clients.outcome(() -> consumer.ack(got)));
            Printed.note(2, "ack twice", "outcome", Clients.outcome(() -> consumer.ack(got)));

            producer.send(Clients.message(topic, "spaced").setKeys("two words").build());
            MessageView spaced = Clients.receive(consumer, 1).get(0);
            Printed.note(2, "key with a space", "keys", spaced.getKeys().stream().sorted().toList());
            consumer.ack(spaced);
        }
    }

    /** 7: order in groups of messages. */
    void order() throws Exception {
        String topic = clients.topic(7, "fifo");
        sendInGroups(topic);
        try (Clients.Pushing listener =
                clients.pushing(clients.group(7, ""), topic, message -> ConsumeResult.SUCCESS)) {
            Printed.note(7, "order", "groups", byGroup(listener.waitFor(NUMBERS)));
        }
        String failing = clients.topic(7, "nack");
        sendInGroups(failing);
        try (Clients.Pushing listener = clients.pushing(clients.group(7, "nack"), failing,
                message -> isFirstSeven(message) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS)) {
            Printed.note(7, "order after a failure", "groups", byGroup(listener.waitFor(NUMBERS + 1, 60_000)));
        }
        String simple = clients.topic(7, "simple");
        sendInGroups(simple);
        List<Clients.Arrival> seen = new ArrayList<>();
        try (SimpleConsumer consumer = clients.simple(clients.group(7, "simple"), simple)) {
            for (long endMs = System.currentTimeMillis() + 60_000;
                    seen.size() <= NUMBERS && System.currentTimeMillis() < endMs;) {
                for (MessageView one : consumer.receive(1, Clients.LEASE)) {
                    seen.add(new Clients.Arrival(one, System.currentTimeMillis(), one.getDeliveryAttempt()));
                    if (!isFirstSeven(one)) {
                        consumer.ack(one);
                    }
                }
            }
        }
        Printed.note(7, "order of a simple consumer", "groups", byGroup(seen));
    }

    private void sendInGroups(String topic) throws Exception {
        try (Producer producer = clients.producing(topic)) {
            for (int number = 0; number < NUMBERS; number++) {
                producer.send(Clients.message(topic, "%02d".formatted(number)).setMessageGroup("g" + number % 3)
                    .build());
            }
        }
    }

    private static boolean isFirstSeven(MessageView message) {
        return Clients.body(message).equals("07") && message.getDeliveryAttempt() == 1;
    }

    private static Map<String, List<String>> byGroup(List<Clients.Arrival> seen) {
        return seen.stream().collect(Collectors.groupingBy(one -> one.message().getMessageGroup().orElse(""),
            TreeMap::new, Collectors.mapping(Clients.Arrival::body, Collectors.toList())));
    }

    /** 9: a simple consumer: polls, leases, receipts. */
    void leases() throws Exception {
        String topic = clients.topic(9);
        try (Producer producer = clients.producing(topic);
                SimpleConsumer consumer = clients.simple(clients.group(9, ""), topic)) {
            long beganMs = System.currentTimeMillis();
            int none = consumer.receive(1, Clients.LEASE).size();
            Printed.note(9, "nothing", "count", none, "waited_s",
                Math.round((System.currentTimeMillis() - beganMs) / 1_000.));
            for (int leaseS : new int[] {9, 12 * 3_600, 12 * 3_600 + 1}) {
                Printed.note(9, "lease of " + leaseS + " s", "outcome",
                    Clients.outcome(() -> consumer.receive(1, Duration.ofSeconds(leaseS))));
            }
            for (int count : new int[] {0, 33}) {
                Printed.note(9, "batch of " + count, "outcome",
                    Clients.outcome(() -> consumer.receive(count, Clients.LEASE)));
            }
            for (int number = 0; number < 4; number++) {
                producer.send(Clients.message(topic, "" + number).build());
            }
            List<MessageView> got = new ArrayList<>(Clients.receive(consumer, 4, 2, Clients.LEASE, 15_000));
            Printed.note(9, "received", "bodies", Clients.bodies(got));
            got.sort(Comparator.comparing(Clients::body));
            MessageView kept = got.get(0);
            MessageView dropped = got.get(1);
            MessageView changed = got.get(2);
            MessageView late = got.get(3);
            Printed.note(9, "change", "outcome",
                Clients.outcome(() -> consumer.changeInvisibleDuration(changed, Duration.ofSeconds(30))));
            Printed.note(9, "change to 0", "outcome",
                Clients.outcome(() -> consumer.changeInvisibleDuration(late, Duration.ZERO)));
            Printed.note(9, "change to 15 s", "outcome",
                Clients.outcome(() -> consumer.changeInvisibleDuration(late, Duration.ofSeconds(15))));
            Printed.note(9, "ack changed", "outcome", Clients.outcome(() -> consumer.ack(changed)));
            Printed.note(9, "change after ack", "outcome",
                Clients.outcome(() -> consumer.changeInvisibleDuration(changed, Duration.ofSeconds(30))));
            Printed.note(9, "ack", "outcome", Clients.outcome(() -> consumer.ack(kept)));
            List<MessageView> again = Clients.receive(consumer, 2, 32, Duration.ofSeconds(60), 25_000);
            Printed.note(9, "again", "bodies", Clients.bodies(again), "attempts",
                again.stream().map(MessageView::getDeliveryAttempt).toList());
            Printed.note(9, "ack with the old handle", "outcome", Clients.outcome(() -> consumer.ack(dropped)));
            for (MessageView one : again) {
                Printed.note(9, "ack with the new handle", "outcome", Clients.outcome(() -> consumer.ack(one)));
            }
        }
    }

    /** 10: a push consumer, which fails. */
    void retries() throws Exception {
        String topic = clients.topic(10);
        Set<String> raised = ConcurrentHashMap.newKeySet();
        List<Clients.Arrival> seen;
        try (Producer producer = clients.producing(topic);
                Clients.Pushing listener = clients.pushing(clients.group(10, ""), topic, message -> {
                    String body = Clients.body(message);
                    if (body.equals("raises") && raised.add(body)) {
                        throw new IllegalStateException("the listener has failed");
                    }
                    return body.equals("fails") && message.getDeliveryAttempt() < 3
                        ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                })) {
            for (String body : List.of("succeeds", "fails", "raises")) {
                producer.send(Clients.message(topic, body).build());
            }
            seen = listener.waitFor(6, 60_000);
        }
        Map<String, List<Clients.Arrival>> byBody =
            seen.stream().collect(Collectors.groupingBy(Clients.Arrival::body, TreeMap::new, Collectors.toList()));
        byBody.forEach((body, all) -> {
            Printed.note(10, body, "attempts", all.stream().map(Clients.Arrival::attempt).toList());
            List<Long> waitsS = new ArrayList<>();
            for (int at = 1; at < all.size(); at++) {
                waitsS.add(Math.round((all.get(at).atMs() - all.get(at - 1).atMs()) / 1_000.));
            }
            Printed.note(10, body + ": waits", "waits_s", waitsS);
        });
        deadLetters();
    }

    /** Also 10: the group has three attempts. */
    private void deadLetters() throws Exception {
        String topic = clients.topic(10, "dead");
        String group = clients.group(10, "dead");
        SendReceipt receipt;
        try (Producer producer = clients.producing(topic)) {
            receipt = producer.send(Clients.message(topic, "always").setTag("tag").setKeys("key")
                .addProperty("name", "Wert").build());
        }
        try (Clients.Pushing listener = clients.pushing(group, topic, message -> ConsumeResult.FAILURE)) {
            List<Integer> attempts = listener.waitFor(3, 90_000).stream().map(Clients.Arrival::attempt).toList();
            Printed.note(10, "always", "attempts", attempts);
            String letters = "%DLQ%" + group;
            MessageView letter = null;
            for (long endMs = System.currentTimeMillis() + 60_000;
                    letter == null && System.currentTimeMillis() < endMs;) {
                Thread.sleep(5_000); // there the topic of dead letters is made with the first of them
                try (SimpleConsumer consumer = clients.simple(clients.group(10, "letters"), letters)) {
                    List<MessageView> found = Clients.receive(consumer, 1, 32, Clients.LEASE, 10_000);
                    if (!found.isEmpty()) {
                        letter = found.get(0);
                        consumer.ack(letter);
                    }
                } catch (ClientException | IllegalStateException notYet) { // the second is a client that could not start
                    continue;
                }
            }
            if (letter != null) {
                Printed.note(10, "dead letter", "bodies", List.of(Clients.body(letter)),
                    "same_id", letter.getMessageId().equals(receipt.getMessageId()), "tag", letter.getTag().orElse(null),
                    "keys", letter.getKeys(), "name", letter.getProperties().get("name"),
                    "topic", letter.getTopic().equals(letters), "attempt", letter.getDeliveryAttempt());
            }
        }
    }

    /** 11: two groups have all messages each; two consumers of a group share them. */
    void groups() throws Exception {
        String topic = clients.topic(11);
        List<String> whole;
        List<String> shared = new ArrayList<>();
        try (Clients.Pushing alone = succeeding("a", topic);
                Clients.Pushing one = succeeding("b", topic);
                Clients.Pushing other = succeeding("b", topic);
                Producer producer = clients.producing(topic)) {
            for (int number = 0; number < NUMBERS; number++) {
                producer.send(Clients.message(topic, "%02d".formatted(number)).build());
            }
            whole = alone.waitFor(NUMBERS).stream().map(Clients.Arrival::body).toList();
            long endMs = System.currentTimeMillis() + Clients.PATIENCE_MS;
            while (one.count() + other.count() < NUMBERS && System.currentTimeMillis() < endMs) {
                Thread.sleep(100);
            }
            for (Clients.Pushing listener : List.of(one, other)) {
                listener.waitFor(0).forEach(arrival -> shared.add(arrival.body()));
            }
        }
        Printed.note(11, "alone", "count", whole.size(), "distinct", new HashSet<>(whole).size());
        Printed.note(11, "shared", "count", shared.size(), "distinct", new HashSet<>(shared).size());
    }

    private Clients.Pushing succeeding(String name, String topic) throws Exception {
        return clients.pushing(clients.group(11, name), topic, message -> ConsumeResult.SUCCESS);
    }

    /** 12: filters. */
    void filters() throws Exception {
        String topic = clients.topic(12);
        String[][] sent = {{"a", "red"}, {"b", "green"}, {"c", "blue"}, {null, "red"}};
        try (Producer producer = clients.producing(topic)) {
            for (int number = 0; number < sent.length; number++) {
                var builder = Clients.message(topic, "" + number).addProperty("n", "" + number)
                    .addProperty("color", sent[number][1]);
                if (sent[number][0] != null) {
                    builder.setTag(sent[number][0]);
                }
                producer.send(builder.build());
            }
        }
        Map<String, FilterExpression> wanted = new LinkedHashMap<>();
        Map.of("all", "*", "a or b", "a||b", "a", "a", "spaces", " a || c ")
            .forEach((name, text) -> wanted.put(name, new FilterExpression(text, FilterExpressionType.TAG)));
        Map.ofEntries(Map.entry("number", "n > 1 AND TAGS IS NOT NULL"),
            Map.entry("in", "color IN ('red', 'blue')"), Map.entry("not in", "color NOT IN ('red', 'blue')"),
            Map.entry("between", "n BETWEEN 1 AND 2"), Map.entry("not between", "n NOT BETWEEN 1 AND 2"),
            Map.entry("not", "NOT (n = 3) OR color IS NULL"), Map.entry("unequal", "color <> 'red'"),
            Map.entry("at most", "n <= 1"), Map.entry("at least", "n >= 2.0"), Map.entry("true", "TRUE"),
            Map.entry("parentheses", "(n = 0 OR n = 1) AND (TAGS = 'a' OR color = 'x''y')"),
            Map.entry("contains", "color CONTAINS 'ee'"), Map.entry("not contains", "color NOT CONTAINS 'e'"),
            Map.entry("starts", "color STARTSWITH 'gr'"), Map.entry("ends", "color ENDSWITH 'e'"),
            Map.entry("no SQL", "n >"), Map.entry("open parenthesis", "(n = 1"), Map.entry("no value", "color ="),
            Map.entry("half between", "n BETWEEN 1"), Map.entry("empty list", "color IN ()"),
            Map.entry("sign", "n @ 1"))
            .forEach((name, text) -> wanted.put(name, new FilterExpression(text, FilterExpressionType.SQL92)));
        ExecutorService threads = Executors.newFixedThreadPool(FILTERS_AT_ONCE);
        Map<String, Future<Object>> found = new LinkedHashMap<>();
        wanted.forEach((name, filter) -> {
            Callable<Object> work = () -> filtered(clients.group(12, name.replace(' ', '_')), topic, filter);
            found.put(name, threads.submit(work));
        });
        for (Map.Entry<String, Future<Object>> one : found.entrySet()) {
            Object seen = one.getValue().get();
            Printed.note(12, one.getKey(), seen instanceof List ? "bodies" : "outcome", seen);
        }
        threads.shutdown();
    }

    /** What such a filter lets through, or how it is refused. */
    private Object filtered(String group, String topic, FilterExpression filter) throws Exception {
        List<MessageView> found = new ArrayList<>();
        Object how = "ok";
        try (SimpleConsumer consumer = clients.simple(group, topic, filter)) {
            for (int at = 0; at < 3; at++) { // a filter that RocketMQ has not heard of yet is an internal error there
                how = Clients.outcome(() -> {
                    for (int poll = 0; poll < 2; poll++) {
                        for (MessageView one : consumer.receive(32, Clients.LEASE)) {
                            consumer.ack(one);
                            found.add(one);
                        }
                    }
                });
                if (!(how instanceof Map<?, ?> error) || !Integer.valueOf(50_001).equals(error.get("code"))) {
                    break;
                }
            }
        }
        return how.equals("ok") ? Clients.bodies(found) : how;
    }

    /** 13: consumers stop with messages that are not acked. */
    void stops() throws Exception {
        String topic = clients.topic(13);
        CountDownLatch stuck = new CountDownLatch(1);
        try (Producer producer = clients.producing(topic)) {
            try (Clients.Pushing listener = clients.pushing(clients.group(13, ""), topic, message -> {
                await(stuck);
                return ConsumeResult.FAILURE;
            })) {
                producer.send(Clients.message(topic, "unfinished").build());
                listener.waitFor(1);
                new java.util.Timer(true).schedule(new java.util.TimerTask() {
                    @Override
                    public void run() {
                        stuck.countDown();
                    }
                }, 500);
            }
            try (Clients.Pushing listener =
                    clients.pushing(clients.group(13, ""), topic, message -> ConsumeResult.SUCCESS)) {
                Printed.note(13, "again", "bodies", listener.waitFor(1, 75_000).stream().map(Clients.Arrival::body).toList());
            }
        }
        String simple = clients.topic(13, "kept");
        String group = clients.group(13, "kept");
        try (Producer producer = clients.producing(simple)) {
            producer.send(Clients.message(simple, "kept").build());
        }
        try (SimpleConsumer consumer = clients.simple(group, simple)) {
            Clients.receive(consumer, 1, 1, Duration.ofSeconds(20), Clients.PATIENCE_MS);
        }
        long stoppedMs = System.currentTimeMillis();
        try (SimpleConsumer consumer = clients.simple(group, simple)) {
            List<MessageView> got = Clients.receive(consumer, 1, 1, Clients.LEASE, 40_000);
            Printed.note(13, "again at a simple consumer", "bodies", Clients.bodies(got),
                "attempts", got.stream().map(MessageView::getDeliveryAttempt).toList(),
                "waits_s", List.of(Math.round((System.currentTimeMillis() - stoppedMs) / 1_000.)));
            for (MessageView one : got) {
                consumer.ack(one);
            }
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await(20, TimeUnit.SECONDS);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
