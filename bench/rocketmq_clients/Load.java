import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * What the official client for Java does to a server, and what it sees meanwhile: a line of JSON for each part of it.
 *
 * <p>java -cp 'lib/*:classes' Load ENDPOINT MODE topic=TOPIC [NAME=NUMBER ...]
 *
 * <p>A body begins with the time at which it was sent or is due (microseconds of the epoch) and a number.
 */
final class Load {
    private static final ClientServiceProvider CLIENTS = ClientServiceProvider.loadService();
    private static final int HEAD = 2 * Long.BYTES;
    private static final long NOT_COUNTED = -1;
    private static final Duration PRIME_PERIOD = Duration.ofMillis(200);

    private final ClientConfiguration server;
    private final Map<String, String> options;
    private final String topic;
    private final byte[] filling;

    private Load(String endpoint, Map<String, String> options) {
        server = ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false).build();
        this.options = options;
        topic = options.get("topic");
        filling = new byte[number("size", 1_024)];
        new Random(1).nextBytes(filling);
    }

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new TreeMap<>();
        for (String word : Arrays.asList(words).subList(2, words.length)) {
            String[] parts = word.split("=", 2);
            options.put(parts[0], parts[1]);
        }
        Load it = new Load(words[0], options);
        switch (words[1]) {
            case "produce" -> it.produce();
            case "prime" -> it.prime();
            case "consume" -> it.consume();
            case "both" -> it.both();
            case "delayed" -> it.delayed();
            case "retry" -> it.retry();
            case "single" -> it.single();
            default -> throw new IllegalArgumentException(words[1]);
        }
        Runtime.getRuntime().halt(0); // to close a push consumer takes as long as its polls
    }

    // -- what it does ------------------------------------------------------------------------------------------------

    /** As fast as so many sends at a time are answered. */
    private void produce() throws Exception {
        int rounds = number("rounds", 4);
        int count = number("count", 60_000);
        try (Producer producer = producing()) {
            for (int round = 0; round < rounds; round++) {
                Times times = new Times(count);
                long beganNs = System.nanoTime();
                int failed = sendAll(producer, (long) round * count, count, times);
                note("round", round, "messages", count, "seconds", seconds(beganNs), "failed", failed,
                    "answered_ms", times);
            }
        }
    }

    private int sendAll(Producer producer, long first, int count, Times times) throws Exception {
        int window = number("window", 256);
        Semaphore free = new Semaphore(window);
        AtomicInteger failed = new AtomicInteger();
        for (int sent = 0; sent < count; sent++) {
            free.acquire();
            sendOne(producer, first + sent, nowUs(), null, free, times, failed);
        }
        free.acquire(window);
        return failed.get();
    }

    private void sendOne(Producer producer, long sequence, long timeUs, Long dueMs, Semaphore free, Times times,
            AtomicInteger failed) {
        MessageBuilder builder = message(timeUs, sequence);
        if (dueMs != null) {
            builder.setDeliveryTimestamp(dueMs);
        }
        long beganNs = System.nanoTime();
        producer.sendAsync(builder.build()).whenComplete((receipt, error) -> {
            if (error == null) {
                times.add(System.nanoTime() - beganNs);
            } else if (failed.getAndIncrement() == 0) {
                System.err.println(error);
            }
            free.release();
        });
    }

    /** Makes a group, so that it misses nothing that is sent from now on. */
    private void prime() throws Exception {
        CountDownLatch came = new CountDownLatch(1);
        PushConsumer consumer = consuming(message -> {
            came.countDown();
            return ConsumeResult.SUCCESS;
        });
        Producer producer = producing();
        int sent = 0;
        do {
            producer.send(message(nowUs(), NOT_COUNTED).build());
            sent++;
        } while (!came.await(PRIME_PERIOD.toMillis(), TimeUnit.MILLISECONDS));
        Thread.sleep(PRIME_PERIOD.toMillis()); // its ack, too
        note("primed", consumer.getConsumerGroup(), "sent", sent);
    }

    /** What waits in the topic. */
    private void consume() throws Exception {
        int rounds = number("rounds", 4);
        int count = number("count", 60_000);
        Seen seen = new Seen();
        CountDownLatch[] ends = new CountDownLatch[rounds];
        Arrays.setAll(ends, round -> new CountDownLatch(count));
        PushConsumer consumer = consuming(message -> {
            int before = seen.add(message);
            if (before >= 0 && before < rounds * count) {
                ends[before / count].countDown();
            }
            return ConsumeResult.SUCCESS;
        });
        for (int round = 0; round < rounds; round++) {
            long beganNs = System.nanoTime();
            ends[round].await();
            note("round", round, "messages", count, "seconds", seconds(beganNs), "twice", seen.twice(),
                "group", consumer.getConsumerGroup());
        }
    }

    /** A producer with so many messages each second, and a consumer: from sending to the listener. */
    private void both() throws Exception {
        int rate = number("rate", 1_000);
        Times[] current = {new Times(0)};
        Seen seen = new Seen();
        PushConsumer consumer = consuming(message -> {
            long late = nowUs() - head(message).getLong();
            if (seen.add(message) >= 0) {
                synchronized (current) {
                    current[0].add(late * 1_000);
                }
            }
            return ConsumeResult.SUCCESS;
        });
        Producer producer = producing();
        long sequence = 0;
        for (String part : new String[] {"warm", "seconds"}) {
            int count = rate * number(part, 10);
            Times answered = new Times(count);
            synchronized (current) {
                current[0] = new Times(count * 2);
            }
            AtomicInteger failed = new AtomicInteger();
            long beganNs = System.nanoTime();
            paced(producer, sequence, count, rate, answered, failed);
            sequence += count;
            while (seen.count() < sequence - failed.get()) {
                Thread.sleep(1);
            }
            synchronized (current) {
                note("part", part, "messages", count, "seconds", seconds(beganNs), "failed", failed.get(),
                    "twice", seen.twice(), "answered_ms", answered, "late_ms", current[0],
                    "group", consumer.getConsumerGroup());
            }
        }
    }

    private void paced(Producer producer, long first, int count, int rate, Times times, AtomicInteger failed)
            throws Exception {
        Semaphore free = new Semaphore(number("window", 256));
        long beganNs = System.nanoTime();
        for (int sent = 0; sent < count; sent++) {
            long waitNs = beganNs + sent * 1_000_000_000L / rate - System.nanoTime();
            if (waitNs > 0) {
                LockSupport.parkNanos(waitNs);
            }
            free.acquire();
            sendOne(producer, first + sent, nowUs(), null, free, times, failed);
        }
        free.acquire(number("window", 256));
    }

    /** Messages that are due evenly, all sent before the first is; first those that make the client warm. */
    private void delayed() throws Exception {
        int warm = number("warm", 50_000);
        int count = number("count", 100_000);
        Seen seen = new Seen();
        AtomicInteger early = new AtomicInteger();
        Times[] late = {new Times(warm), new Times(count)};
        PushConsumer consumer = consuming(message -> {
            long lateUs = nowUs() - head(message).getLong();
            if (lateUs < 0) {
                early.incrementAndGet();
            }
            if (seen.add(message) >= 0) {
                late[head(message).getLong(Long.BYTES) < warm ? 0 : 1].add(lateUs * 1_000);
            }
            return ConsumeResult.SUCCESS;
        });
        Producer producer = producing();
        delayedPart(producer, consumer, "warm", 0, warm, late[0], seen, early);
        delayedPart(producer, consumer, "count", warm, count, late[1], seen, early);
    }

    private void delayedPart(Producer producer, PushConsumer consumer, String part, int first, int count, Times late,
            Seen seen, AtomicInteger early) throws Exception {
        long overMs = (long) count * number("over_ms", 60_000) / number("count", 100_000);
        Times answered = new Times(count);
        AtomicInteger failed = new AtomicInteger();
        long firstMs = System.currentTimeMillis() + number("lead_ms", 40_000);
        sendAhead(producer, first, count, firstMs, overMs, answered, failed);
        long aheadMs = firstMs - System.currentTimeMillis();
        note("part", part, "messages", count, "failed", failed.get(), "ahead_ms", aheadMs);
        long endMs = firstMs + overMs + number("patience_ms", 30_000);
        while (late.count() < count - failed.get() && System.currentTimeMillis() < endMs) {
            Thread.sleep(10);
        }
        int lost = count - failed.get() - late.count();
        note("part", part, "messages", late.count(), "lost", lost, "twice", seen.twice(), "early", early.get(),
            "ahead_ms", aheadMs, "late_ms", late, "group", consumer.getConsumerGroup());
        if (lost > 0 && part.equals("warm")) {
            throw new IllegalStateException(lost + " messages of the part that makes the client warm did not come");
        }
    }

    private void sendAhead(Producer producer, int first, int count, long firstMs, long overMs, Times times,
            AtomicInteger failed) throws Exception {
        int window = number("window", 256);
        Semaphore free = new Semaphore(window);
        for (int sent = 0; sent < count; sent++) {
            long dueMs = firstMs + sent * overMs / count;
            free.acquire();
            sendOne(producer, first + sent, dueMs * 1_000, dueMs, free, times, failed);
        }
        free.acquire(window);
    }

    /** How long after it should each message comes again that its listener has refused once. */
    private void retry() throws Exception {
        long waitUs = number("wait_ms", 1_000) * 1_000L;
        Map<String, Long> refusedUs = new ConcurrentHashMap<>();
        BlockingQueue<Long> lateNs = new LinkedBlockingQueue<>();
        PushConsumer consumer = consuming(message -> {
            long now = nowUs();
            String id = message.getMessageId().toString();
            if (message.getDeliveryAttempt() == 1) {
                refusedUs.put(id, now);
                return ConsumeResult.FAILURE;
            }
            Long before = refusedUs.remove(id);
            if (before != null) {
                lateNs.add((now - before - waitUs) * 1_000);
            }
            return ConsumeResult.SUCCESS;
        });
        Producer producer = producing();
        for (String part : new String[] {"warm", "count"}) {
            int count = number(part, 20);
            for (int sent = 0; sent < count; sent++) {
                producer.send(message(nowUs(), sent).build());
            }
            Times late = new Times(count);
            int came = 0;
            for (Long one; came < count && (one = lateNs.poll(number("patience_s", 60), TimeUnit.SECONDS)) != null; came++) {
                late.add(one);
            }
            note("part", part, "messages", count, "not_again", count - came, "late_ms", late,
                "group", consumer.getConsumerGroup());
        }
    }

    /** One at a time. */
    private void single() throws Exception {
        try (Producer producer = producing()) {
            for (String part : new String[] {"warm", "count"}) {
                int count = number(part, 2_000);
                Times times = new Times(count);
                long beganNs = System.nanoTime();
                for (int sent = 0; sent < count; sent++) {
                    long sentNs = System.nanoTime();
                    producer.send(message(nowUs(), sent).build());
                    times.add(System.nanoTime() - sentNs);
                }
                note("part", part, "messages", count, "seconds", seconds(beganNs), "answered_ms", times);
            }
        }
    }

    // -- what it needs -----------------------------------------------------------------------------------------------

    private Producer producing() throws ClientException {
        return CLIENTS.newProducerBuilder().setClientConfiguration(server).setTopics(topic).build();
    }

    private PushConsumer consuming(MessageListener listener) throws ClientException {
        return CLIENTS.newPushConsumerBuilder().setClientConfiguration(server).setConsumerGroup(options.get("group"))
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).setMessageListener(listener).build();
    }

    private MessageBuilder message(long timeUs, long sequence) {
        byte[] body = filling.clone();
        ByteBuffer.wrap(body).putLong(timeUs).putLong(sequence);
        return CLIENTS.newMessageBuilder().setTopic(topic).setBody(body);
    }

    private static ByteBuffer head(MessageView message) {
        ByteBuffer head = ByteBuffer.allocate(HEAD);
        message.getBody().get(head.array());
        return head;
    }

    private int number(String name, int otherwise) {
        return Integer.parseInt(options.getOrDefault(name, "" + otherwise));
    }

    private static long nowUs() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    private static double seconds(long beganNs) {
        return (System.nanoTime() - beganNs) / 1e9;
    }

    /** Names and values in turns. */
    private static void note(Object... all) {
        StringBuilder line = new StringBuilder("{");
        for (int at = 0; at < all.length; at += 2) {
            Object value = all[at + 1];
            line.append(at == 0 ? "\"" : ", \"").append(all[at]).append("\": ");
            line.append(value instanceof String ? "\"" + value + "\"" : value.toString());
        }
        System.out.println(line.append("}"));
        System.out.flush();
    }

    /** The messages that came, by the numbers in their bodies. */
    private static final class Seen {
        private final BitSet numbers = new BitSet();
        private int count;
        private int twice;

        /** How many came before; negative: it is none to count, or came before itself. */
        synchronized int add(MessageView message) {
            long sequence = head(message).getLong(Long.BYTES);
            if (sequence == NOT_COUNTED) {
                return -1;
            }
            if (numbers.get((int) sequence)) {
                twice++;
                return -1;
            }
            numbers.set((int) sequence);
            return count++;
        }

        synchronized int count() {
            return count;
        }

        synchronized int twice() {
            return twice;
        }
    }

    /** How long things took. */
    private static final class Times {
        private final long[] valuesNs;
        private int count;

        Times(int most) {
            valuesNs = new long[most];
        }

        synchronized void add(long valueNs) {
            if (count < valuesNs.length) {
                valuesNs[count++] = valueNs;
            }
        }

        synchronized int count() {
            return count;
        }

        @Override
        public synchronized String toString() {
            long[] sorted = Arrays.copyOf(valuesNs, count);
            Arrays.sort(sorted);
            return String.format(Locale.ROOT, "{\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}", of(sorted, 0.5),
                of(sorted, 0.99), of(sorted, 1));
        }

        private static double of(long[] sorted, double share) {
            return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1, sorted.length * share)] / 1e6;
        }
    }
}
