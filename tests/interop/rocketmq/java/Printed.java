import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;

/** Observations, a line of JSON each. */
final class Printed {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private Printed() {}

    /** With names and values of its fields in turn. */
    static void note(int step, String what, Object... fields) {
        Map<String, Object> all = new TreeMap<>();
        for (int at = 0; at < fields.length; at += 2) {
            all.put((String) fields[at], fields[at + 1]);
        }
        all.put("step", step);
        all.put("what", what);
        synchronized (OUT) {
            OUT.println(json(all));
            OUT.flush();
        }
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(one -> json(one.getKey()) + ": " + json(one.getValue()))
                .collect(Collectors.joining(", ", "{", "}"));
        }
        if (value instanceof Iterable<?> all) {
            return StreamSupport.stream(all.spliterator(), false).map(Printed::json)
                .collect(Collectors.joining(", ", "[", "]"));
        }
        return value instanceof String text ? quoted(text) : String.valueOf(value);
    }

    private static String quoted(String text) {
        StringBuilder found = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one < ' ' || one > '~' || one == '"' || one == '\\') {
                found.append(String.format("\\u%04x", (int) one));
            } else {
                found.append(one);
            }
        }
        return found.append('"').toString();
    }
}
