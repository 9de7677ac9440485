import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.*;

/**
 * What the official client for Java sees of a server: one line of JSON for each step, which run side by side.
 *
 * <p>java -cp 'lib/*:classes' Conformance ENDPOINT
 */
final class Conformance {
    private static final Duration LEASE = Duration.ofSeconds(30);
    private static final long PATIENCE_MS = 40_000;
    private static final long PERIOD_MS = 20;
    private static final ClientServiceProvider CLIENTS = ClientServiceProvider.loadService();

    private final ClientConfiguration server;

    private Conformance(String endpoint) {
        server = ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false).build();
    }

    private record Arrival(String body, long atMs, MessageView message) {}

    private interface Step {
        void run(String topic) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Conformance it = new Conformance(arguments[0]);
        Map<String, Step> steps = Map.of("normal", it::normal, "delay", it::delay, "fifo", it::fifo,
            "transaction", it::transaction, "retry", it::retry, "filter", it::filter, "dead", it::dead);
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<?>> running = new ArrayList<>();
        for (Map.Entry<String, Step> step : steps.entrySet()) {
            running.add(threads.submit(() -> {
                step.getValue().run(step.getKey() + "-java");
                return null;
            }));
        }
        try {
            for (Future<?> one : running) {
                one.get();
            }
            System.exit(0);
        } catch (ExecutionException error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private void normal(String topic) throws Exception {
        try (Producer producer = producing(topic, null); SimpleConsumer consumer = simple(topic, topic, "*")) {
            SendReceipt receipt = producer.send(message(topic, "10 €").setTag("red").setKeys("one", "two")
                .addProperty("colour", "rot").addProperty("Größe", "süß \uD83D\uDE80").build());
            MessageView got = receive(consumer, found -> !found.isEmpty()).get(0).message();
            Map<String, Object> properties = new TreeMap<>();
            for (String name : List.of("colour", "Größe")) {
                properties.put(name, got.getProperties().get(name));
            }
            note("normal", Map.of("body", body(got), "tag", got.getTag().orElse(""), "keys", got.getKeys(),
                "properties", properties, "attempt", got.getDeliveryAttempt(),
                "sameId", got.getMessageId().equals(receipt.getMessageId())));
            note("acked", Map.of("left", consumer.receive(1, LEASE).size()));
        }
    }

    private void delay(String topic) throws Exception {
        try (Producer producer = producing(topic, null); SimpleConsumer consumer = simple(topic, topic, "*")) {
            long dueMs = System.currentTimeMillis() + 3_000;
            producer.send(message(topic, "on time").setDeliveryTimestamp(dueMs).build());
            SendReceipt wrong = producer.send(message(topic, "recalled").setDeliveryTimestamp(dueMs + 500).build());
            producer.send(message(topic, "last").setDeliveryTimestamp(dueMs + 1_000).build());
            var recalled = producer.recallMessage(topic, wrong.getRecallHandle());
            List<Arrival> found = receive(consumer, all -> bodies(all).contains("last"));
            note("delay", Map.of("bodies", bodies(found), "early", found.stream().anyMatch(one -> one.atMs() < dueMs),
                "sameId", recalled.getMessageId().equals(wrong.getMessageId())));
        }
    }

    private void fifo(String topic) throws Exception {
        try (Producer producer = producing(topic, null)) {
            for (int number = 0; number < 12; number++) {
                producer.send(message(topic, "" + number).setMessageGroup("group " + number % 3).build());
            }
            Map<String, Object> groups = pushed(topic, topic, one -> true, 12).stream().collect(Collectors.groupingBy(
                one -> one.getMessageGroup().orElse(""), TreeMap::new,
                Collectors.collectingAndThen(Collectors.mapping(one -> Integer.valueOf(body(one)), Collectors.toList()),
                    numbers -> (Object) numbers)));
            note("fifo", Map.of("groups", groups));
        }
    }

    private void transaction(String topic) throws Exception {
        Set<String> checked = new ConcurrentSkipListSet<>();
        TransactionChecker checker = half -> {
            checked.add(body(half));
            return body(half).equals("checked") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        };
        try (Producer producer = producing(topic, checker); SimpleConsumer consumer = simple(topic, topic, "*")) {
            for (String body : List.of("committed", "rolled back", "checked", "checked in vain")) {
                Transaction decision = producer.beginTransaction();
                producer.send(message(topic, body).build(), decision);
                if (body.equals("committed")) {
                    decision.commit();
                } else if (body.equals("rolled back")) {
                    decision.rollback();
                }
            }
            List<Arrival> found = receive(consumer, all -> all.size() > 1 && checked.size() > 1);
            note("transaction", Map.of("bodies", bodies(found), "checked", checked));
        }
    }

    private void retry(String topic) throws Exception {
        try (Producer producer = producing(topic, null)) {
            producer.send(message(topic, "fails").build());
            producer.send(message(topic, "works").build());
            List<MessageView> seen = pushed(topic, topic,
                one -> body(one).equals("works") || one.getDeliveryAttempt() > 1, 3);
            note("retry", Map.of("fails", attempts(seen, "fails"), "works", attempts(seen, "works")));
        }
    }

    private void filter(String topic) throws Exception {
        FilterExpression sql = new FilterExpression("number > 1 AND TAGS <> 'blue'", FilterExpressionType.SQL92);
        try (Producer producer = producing(topic, null);
                SimpleConsumer byTag = simple(topic + "-tag", topic, "red || blue");
                SimpleConsumer bySql = simple(topic + "-sql", topic, sql)) {
            int number = 0;
            for (String tag : List.of("red", "green", "blue", "red")) {
                producer.send(message(topic, "" + number).setTag(tag).addProperty("number", "" + number++).build());
            }
            note("filter", Map.of("tag", bodies(receive(byTag, found -> found.size() > 2)),
                "sql", bodies(receive(bySql, found -> !found.isEmpty()))));
        }
    }

    private void dead(String topic) throws Exception {
        try (Producer producer = producing(topic, null)) {
            producer.send(message(topic, "fails").build());
            List<MessageView> seen = pushed(topic, topic, one -> false, 2);
            try (SimpleConsumer letters = simple(topic + "-letters", "%DLQ%" + topic, "*")) {
                List<Arrival> found = receive(letters, all -> !all.isEmpty());
                note("dead", Map.of("attempts", attempts(seen, "fails"), "bodies", bodies(found)));
            }
        }
    }

    private Producer producing(String topic, TransactionChecker checker) throws Exception {
        var builder = CLIENTS.newProducerBuilder().setClientConfiguration(server).setTopics(topic);
        return (checker == null ? builder : builder.setTransactionChecker(checker)).build();
    }

    private SimpleConsumer simple(String group, String topic, String tags) throws Exception {
        return simple(group, topic, new FilterExpression(tags, FilterExpressionType.TAG));
    }

    private SimpleConsumer simple(String group, String topic, FilterExpression filter) throws Exception {
        return CLIENTS.newSimpleConsumerBuilder().setClientConfiguration(server).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(3)).setSubscriptionExpressions(Map.of(topic, filter)).build();
    }

    /** What a push consumer sees, until it has seen so many messages. */
    private List<MessageView> pushed(String group, String topic, Predicate<MessageView> works, int count)
            throws Exception {
        List<MessageView> seen = new CopyOnWriteArrayList<>();
        PushConsumer consumer = CLIENTS.newPushConsumerBuilder().setClientConfiguration(server).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                seen.add(message);
                return works.test(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
            }).build();
        try (consumer) {
            for (long endMs = System.currentTimeMillis() + PATIENCE_MS;
                    seen.size() < count && System.currentTimeMillis() < endMs;) {
                Thread.sleep(PERIOD_MS);
            }
        }
        return seen;
    }

    /** Receives until that is done, and acks all. */
    private static List<Arrival> receive(SimpleConsumer consumer, Predicate<List<Arrival>> isDone) throws Exception {
        List<Arrival> found = new ArrayList<>();
        long endMs = System.currentTimeMillis() + PATIENCE_MS;
        while (!isDone.test(found) && System.currentTimeMillis() < endMs) {
            for (MessageView message : consumer.receive(32, LEASE)) {
                found.add(new Arrival(body(message), System.currentTimeMillis(), message));
                consumer.ack(message);
            }
        }
        return found;
    }

    private static MessageBuilder message(String topic, String body) {
        return CLIENTS.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static List<String> bodies(List<Arrival> found) {
        return found.stream().map(Arrival::body).sorted().toList();
    }

    private static List<Integer> attempts(List<MessageView> seen, String body) {
        return seen.stream().filter(one -> body(one).equals(body)).map(MessageView::getDeliveryAttempt).toList();
    }

    private static synchronized void note(String what, Map<String, Object> values) {
        Map<String, Object> all = new TreeMap<>(values);
        all.put("what", what);
        byte[] line = (json(all) + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(line, 0, line.length);
        System.out.flush();
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(one -> json(one.getKey()) + ": " + json(one.getValue()))
                .collect(Collectors.joining(", ", "{", "}"));
        }
        if (value instanceof Iterable<?> all) {
            List<String> parts = new ArrayList<>();
            all.forEach(one -> parts.add(json(one)));
            return "[" + String.join(", ", parts) + "]";
        }
        return value instanceof String ? "\"" + value + "\"" : String.valueOf(value);
    }
}
