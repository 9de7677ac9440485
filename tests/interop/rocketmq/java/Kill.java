import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/**
 * The official client for Java under a server that is killed: a producer that sends until it is answered, and a
 * consumer that receives and acks. What they were told is one line of JSON each, until standard input ends.
 *
 * <p>java -cp 'lib/*:classes' Kill ENDPOINT TOPIC GROUP
 */
final class Kill {
    private static final Duration LEASE = Duration.ofSeconds(2);
    private static final Duration AWAIT = Duration.ofSeconds(2);
    /** Receives with nothing, after the last message was sent. */
    private static final int QUIET = 3;
    private static final int TRIES = 200;
    private static final long PAUSE_MS = 200;
    private static final ClientServiceProvider CLIENTS = ClientServiceProvider.loadService();

    private static volatile boolean isOver;
    private static volatile boolean isAllSent;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        ClientConfiguration server =
            ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        ExecutorService threads = Executors.newFixedThreadPool(2);
        try (Producer producer =
                CLIENTS.newProducerBuilder().setClientConfiguration(server).setTopics(topic).build();
            SimpleConsumer consumer = CLIENTS.newSimpleConsumerBuilder().setClientConfiguration(server)
                .setConsumerGroup(arguments[2]).setAwaitDuration(AWAIT)
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build()) {
            List<Future<Object>> both =
                List.of(threads.submit(() -> orExit(() -> produce(producer, topic))),
                    threads.submit(() -> orExit(() -> consume(consumer))));
            note("started", Map.of());
            System.in.readAllBytes();
            isOver = true;
            for (Future<Object> one : both) {
                one.get();
            }
        } catch (ExecutionException error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static Object orExit(Callable<Object> work) throws Exception {
        try {
            return work.call();
        } catch (Exception error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            throw error;
        }
    }

    private static Object produce(Producer producer, String topic) throws Exception {
        for (int number = 1; !isOver; number++) {
            Message message = CLIENTS.newMessageBuilder().setTopic(topic)
                .setBody(("" + number).getBytes(StandardCharsets.UTF_8)).build();
            SendReceipt receipt = untilAnswered(() -> producer.send(message));
            note("sent", Map.of("number", number, "id", receipt.getMessageId().toString()));
        }
        isAllSent = true;
        return null;
    }

    private static Object consume(SimpleConsumer consumer) throws Exception {
        int quiet = 0;
        while (quiet < QUIET) {
            boolean isAfterAll = isAllSent;
            List<MessageView> found = untilAnswered(() -> consumer.receive(16, LEASE));
            quiet = isAfterAll && found.isEmpty() ? quiet + 1 : 0;
            for (MessageView message : found) {
                Map<String, Object> seen = Map.of("number",
                    Integer.valueOf(StandardCharsets.UTF_8.decode(message.getBody()).toString()), "id",
                    message.getMessageId().toString(), "attempt", message.getDeliveryAttempt());
                note("received", seen);
                Boolean isAcked = untilAnswered(() -> {
                    consumer.ack(message);
                    return true;
                });
                if (isAcked != null) {
                    note("acked", seen);
                }
            }
        }
        return null;
    }

    /** Null: it was refused for good. */
    private static <T> T untilAnswered(Callable<T> ask) throws Exception {
        for (int tried = 0; tried < TRIES; tried++) {
            try {
                return ask.call();
            } catch (ClientException | RuntimeException error) { // the status of gRPC comes as one of these
                if (error.toString().contains("response-code=40013")) {
                    return null;
                }
                note("again", Map.of("why", error.toString()));
                Thread.sleep(PAUSE_MS);
            }
        }
        throw new TimeoutException("it was never answered");
    }

    private static synchronized void note(String what, Map<String, Object> seen) {
        String fields =
            seen.entrySet().stream().map(one -> ", \"" + one.getKey() + "\": " + json(one.getValue()))
                .collect(Collectors.joining());
        System.out.println("{\"what\": \"" + what + "\"" + fields + "}");
        System.out.flush();
    }

    private static String json(Object value) {
        if (value instanceof Integer) {
            return value.toString();
        }
        return "\"" + value.toString().replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ") + "\"";
    }
}
