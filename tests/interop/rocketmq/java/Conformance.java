import static java.util.Map.entry;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * What the official client for Java sees of a server: one line of JSON for each observation.
 *
 * <p>java -cp 'lib/*:classes' Conformance ENDPOINT RUN [--tls] [--access KEY SECRET] [STEP ...]
 *
 * <p>Steps and observations are those of python_conformance.py, and more that this client can do. Each step has topics
 * and groups of its own, named by step and RUN; steps run side by side. Compiled with the newest client, it runs with
 * older ones, too, and says what they do not have.
 */
final class Conformance {
    public static void main(String[] arguments) throws Exception {
        boolean isTls = false;
        String accessKey = null;
        String secret = null;
        List<Integer> chosen = new ArrayList<>();
        for (int at = 2; at < arguments.length; at++) {
            switch (arguments[at]) {
                case "--tls" -> isTls = true;
                case "--access" -> {
                    accessKey = arguments[++at];
                    secret = arguments[++at];
                }
                default -> chosen.add(Integer.valueOf(arguments[at]));
            }
        }
        Clients clients = new Clients(arguments[0], arguments[1], isTls, accessKey, secret);
        System.exit(run(clients, chosen) ? 0 : 1);
    }

    private static boolean run(Clients clients, List<Integer> chosen) throws Exception {
        SendingSteps sending = new SendingSteps(clients);
        ReceivingSteps receiving = new ReceivingSteps(clients);
        Map<Integer, Clients.Work> steps = Map.ofEntries(entry(1, sending::topics), entry(2, receiving::views),
            entry(3, sending::sizes), entry(4, sending::properties), entry(5, sending::words),
            entry(6, sending::delays), entry(7, receiving::order), entry(8, sending::transactions),
            entry(9, receiving::leases), entry(10, receiving::retries), entry(11, receiving::groups),
            entry(12, receiving::filters), entry(13, receiving::stops), entry(15, sending::compressed),
            entry(16, sending::priority));
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<Boolean>> running = new ArrayList<>();
        for (int step : chosen.isEmpty() ? steps.keySet() : chosen) {
            Callable<Boolean> work = () -> isDone(step, steps.get(step));
            running.add(threads.submit(work));
        }
        boolean areDone = true;
        for (Future<Boolean> one : running) {
            areDone &= one.get();
        }
        return areDone;
    }

    private static boolean isDone(int step, Clients.Work work) {
        try {
            work.run();
        } catch (Exception | LinkageError error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            Printed.note(step, "failed", "trace", trace.toString());
            return false;
        }
        Printed.note(step, "done");
        return true;
    }
}
