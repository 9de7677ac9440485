import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Makes topics and groups of a RocketMQ, all of them in one JVM, and returns when clients find them.
 *
 * <p>java -cp 'lib/*' Admin.java NAME_SERVER BROKER, with a line for each on its input: "topic NAME TYPE QUEUES" or
 * "group NAME ORDERLY RETRIES".
 */
final class Admin {
    private static final long PATIENCE_MS = 120_000;
    private static final long PERIOD_MS = 50;

    public static void main(String[] arguments) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(arguments[0]);
        admin.setInstanceName("admin-" + ProcessHandle.current().pid());
        admin.start();
        try {
            make(admin, arguments[1], lines());
        } finally {
            admin.shutdown();
        }
        System.exit(0); // some of its threads would go on
    }

    private static List<String[]> lines() throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        return input.lines().map(line -> line.split(" ")).toList();
    }

    private static void make(DefaultMQAdminExt admin, String broker, List<String[]> lines) throws Exception {
        List<String> topics = new ArrayList<>();
        for (String[] words : lines) {
            if (words[0].equals("topic")) {
                int queues = Integer.parseInt(words[3]);
                TopicConfig topic = new TopicConfig(words[1], queues, queues);
                topic.setAttributes(Map.of("+message.type", words[2]));
                admin.createAndUpdateTopicConfig(broker, topic);
                topics.add(words[1]);
            } else {
                SubscriptionGroupConfig group = new SubscriptionGroupConfig();
                group.setGroupName(words[1]);
                group.setConsumeMessageOrderly(Boolean.parseBoolean(words[2]));
                group.setRetryMaxTimes(Integer.parseInt(words[3]));
                admin.createAndUpdateSubscriptionGroupConfig(broker, group);
            }
        }
        long endMs = System.currentTimeMillis() + PATIENCE_MS;
        for (String topic : topics) {
            while (!isFound(admin, topic)) {
                if (System.currentTimeMillis() > endMs) {
                    throw new IllegalStateException("the name server does not know the topic " + topic);
                }
                Thread.sleep(PERIOD_MS);
            }
        }
    }

    private static boolean isFound(DefaultMQAdminExt admin, String topic) throws Exception {
        try {
            return !admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty();
        } catch (org.apache.rocketmq.client.exception.MQClientException notYet) {
            return false;
        }
    }
}
