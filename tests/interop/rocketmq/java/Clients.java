import java.io.Closeable;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.*;

/** Clients of one server, of one run. What a version of the client does not have is "absent". */
final class Clients {
    static final Duration LEASE = Duration.ofSeconds(10);
    static final long PATIENCE_MS = 15_000;
    static final String ABSENT = "absent";
    private static final Duration WAIT = Duration.ofSeconds(5);
    private static final Duration IN_TIME = Duration.ofSeconds(20); // machines are busy
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private final ClientConfiguration server;
    private final String run;

    /** Without an access key it has no credentials. */
    Clients(String endpoint, String run, boolean isTls, String accessKey, String secret) {
        var builder = ClientConfiguration.newBuilder().setEndpoints(endpoint).setRequestTimeout(IN_TIME);
        if (!isTls) {
            builder.enableSsl(false);
        }
        if (accessKey != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, secret));
        }
        server = builder.build();
        this.run = run;
    }

    /** What may go wrong. */
    interface Work {
        void run() throws Exception;
    }

    String topic(int step) {
        return topic(step, "normal");
    }

    String topic(int step, String kind) {
        return "diff_" + step + "_" + kind + "_" + run;
    }

    String group(int step, String name) {
        return "diff_" + step + "_group" + name + "_" + run;
    }

    String unknownTopic(String name) {
        return "no_such_topic_" + name + run;
    }

    Producer producing(String... topics) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(server).setTopics(topics).build();
    }

    Producer producing(TransactionChecker checker, String topic) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(server).setTopics(topic)
            .setTransactionChecker(checker).build();
    }

    SimpleConsumer simple(String group, String topic) throws ClientException {
        return simple(group, topic, FilterExpression.SUB_ALL);
    }

    SimpleConsumer simple(String group, String topic, FilterExpression filter) throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(server).setConsumerGroup(group)
            .setAwaitDuration(WAIT).setSubscriptionExpressions(Map.of(topic, filter)).build();
    }

    Pushing pushing(String group, String topic, Function<MessageView, ConsumeResult> answer) throws ClientException {
        return new Pushing(group, topic, answer);
    }

    /** A push consumer, and when it was called with what. */
    final class Pushing implements Closeable {
        private final List<Arrival> seen = new ArrayList<>();
        private final PushConsumer consumer;

        private Pushing(String group, String topic, Function<MessageView, ConsumeResult> answer)
                throws ClientException {
            consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(server).setConsumerGroup(group)
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    synchronized (seen) {
                        seen.add(new Arrival(message, System.currentTimeMillis(), message.getDeliveryAttempt()));
                        seen.notifyAll();
                    }
                    return answer.apply(message);
                }).build();
        }

        List<Arrival> waitFor(int count) throws InterruptedException {
            return waitFor(count, PATIENCE_MS);
        }

        List<Arrival> waitFor(int count, long patienceMs) throws InterruptedException {
            long endMs = System.currentTimeMillis() + patienceMs;
            synchronized (seen) {
                for (long leftMs = patienceMs; seen.size() < count && leftMs > 0;
                        leftMs = endMs - System.currentTimeMillis()) {
                    seen.wait(leftMs);
                }
                return List.copyOf(seen);
            }
        }

        int count() {
            synchronized (seen) {
                return seen.size();
            }
        }

        @Override
        public void close() throws IOException {
            consumer.close();
        }
    }

    /** The attempt is that of then: a message that is tried again may be the same object. */
    record Arrival(MessageView message, long atMs, int attempt) {
        String body() {
            return Clients.body(message);
        }
    }

    static MessageBuilder message(String topic, String body) {
        return message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static MessageBuilder message(String topic, byte[] body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body);
    }

    static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    static List<String> bodies(List<MessageView> messages) {
        return messages.stream().map(Clients::body).sorted().toList();
    }

    /** So many messages, if they come in time. */
    static List<MessageView> receive(SimpleConsumer consumer, int count) throws ClientException {
        return receive(consumer, count, 32, LEASE, PATIENCE_MS);
    }

    static List<MessageView> receive(SimpleConsumer consumer, int count, int atOnce, Duration lease, long patienceMs)
            throws ClientException {
        List<MessageView> found = new ArrayList<>();
        long endMs = System.currentTimeMillis() + patienceMs;
        while (found.size() < count && System.currentTimeMillis() < endMs) {
            found.addAll(consumer.receive(atOnce, lease));
        }
        return found;
    }

    /** What has become of a call: "ok", or the class and the code of its error. */
    static Object outcome(Work work) {
        try {
            work.run();
            return "ok";
        } catch (LinkageError missing) {
            return ABSENT;
        } catch (Exception error) {
            Map<String, Object> found = new HashMap<>();
            found.put("error", error.getClass().getSimpleName());
            found.put("code", codeOf(error));
            return found;
        }
    }

    private static Integer codeOf(Exception error) {
        Matcher code = CODE.matcher(String.valueOf(error.getMessage()));
        return code.find() ? Integer.valueOf(code.group(1)) : null;
    }
}
