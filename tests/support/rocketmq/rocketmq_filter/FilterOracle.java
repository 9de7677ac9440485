import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

import static java.nio.charset.StandardCharsets.UTF_8;

/** Reads lines of base64 fields with tabs between: an expression, then names and values by turns. Prints T, F or E. */
public class FilterOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        PrintStream output = new PrintStream(System.out, false, UTF_8);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split("\t", -1);
            for (int i = 0; i < fields.length; i++) {
                fields[i] = new String(Base64.getDecoder().decode(fields[i]), UTF_8);
            }
            output.println(answer(fields));
        }
        output.flush();
    }

    private static char answer(String[] fields) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(fields[0]);
        } catch (Throwable refused) {
            return 'E';
        }
        Map<String, Object> properties = new HashMap<>();
        for (int i = 1; i + 1 < fields.length; i += 2) {
            properties.put(fields[i], fields[i + 1]);
        }
        try {
            // As its ExpressionMessageFilter does: what fails, is NULL or is no truth does not match.
            return Boolean.TRUE.equals(expression.evaluate(new Properties(properties))) ? 'T' : 'F';
        } catch (Throwable failed) {
            return 'F';
        }
    }

    private record Properties(Map<String, Object> values) implements EvaluationContext {
        @Override
        public Object get(String name) {
            return values.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return values;
        }
    }
}
