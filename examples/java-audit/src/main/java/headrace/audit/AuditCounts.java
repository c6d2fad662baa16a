package headrace.audit;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.URI;
import java.net.URLEncoder;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import net.jpountz.xxhash.XXHash64;
import net.jpountz.xxhash.XXHashFactory;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The counts of one client by topic, partition and window, and their publication. docs/audit-format.md describes both.
 *
 * <p>Thread-safe. Errors are logged: a failing audit does not stop the application.
 */
final class AuditCounts implements AutoCloseable {
    static final String PREFIX = "headrace.audit.";
    static final long WINDOW_MS = 600_000;
    private static final long OUT_OF_RANGE_MS = -WINDOW_MS;
    private static final long TIME_MS_MAX = 253_402_300_799_999L;
    private static final Logger LOG = LoggerFactory.getLogger(AuditCounts.class);
    private static final XXHash64 XXH64 = XXHashFactory.fastestInstance().hash64();

    /** The place of a count; `partition` is -1 for producers. */
    record Place(String topic, int partition, long windowStartMs) {}

    /** A running count. */
    static final class Count {
        long sent, count, bytes, fingerprint, late, errors, latencies, latencyMs, latencyMsMax, changes;
        long publishedChanges = -1;
        final TreeMap<Integer, Long> buckets = new TreeMap<>();

        void addLatency(long ms) {
            long latency = Math.max(0, ms);
            int shift = Math.max(0, 60 - Long.numberOfLeadingZeros(latency));
            buckets.merge(shift * 8 + (int) (latency >> shift), 1L, Long::sum);
            latencies++;
            latencyMs += latency;
            latencyMsMax = Math.max(latencyMsMax, latency);
        }

        long percentile(int percent) {
            long left = (latencies * percent + 99) / 100;
            for (Map.Entry<Integer, Long> bucket : buckets.entrySet()) {
                left -= bucket.getValue();
                int shift = Math.max(0, (bucket.getKey() >> 3) - 1);
                if (left <= 0) return Math.min(latencyMsMax, (((long) bucket.getKey() - shift * 8 + 1) << shift) - 1);
            }
            return latencyMsMax;
        }
    }

    private record Row(String id, byte[] message) {}

    private final boolean isProducer;
    private final String topic, application, datacenter, host = hostName(), instance = UUID.randomUUID().toString();
    private final URI registry;
    private final long graceMs;
    private final Map<Place, Count> counts = new HashMap<>();
    private final Map<String, long[]> ranges = new HashMap<>(); // of consumers: first offset and end by partition
    private final Map<String, Row> unpublished = new ConcurrentHashMap<>();
    private final KafkaProducer<byte[], byte[]> producer;
    private final ScheduledExecutorService timer;
    private long sequence;
    private int schemaId = -1;

    AuditCounts(Map<String, ?> configs, boolean isProducer) {
        this.isProducer = isProducer;
        topic = setting(configs, "topic", "headrace.audit");
        application = setting(configs, "application", String.valueOf(configs.get(ProducerConfig.CLIENT_ID_CONFIG)));
        datacenter = setting(configs, "datacenter", "");
        registry = URI.create(setting(configs, "registry.url", "http://127.0.0.1:8081"));
        graceMs = Long.parseLong(setting(configs, "grace.ms", "1800000"));
        Map<String, Object> own = new HashMap<>();
        for (Map.Entry<String, ?> each : configs.entrySet()) { // addresses and security of the client
            boolean isConnection = each.getKey().matches("bootstrap\\.servers|security\\..*|sasl\\..*|ssl\\..*");
            if (isConnection && each.getValue() != null) own.put(each.getKey(), each.getValue());
        }
        own.put(ProducerConfig.CLIENT_ID_CONFIG, application + "-audit");
        own.put(ProducerConfig.ACKS_CONFIG, "all");
        own.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, 10_000);
        producer = new KafkaProducer<>(own, new ByteArraySerializer(), new ByteArraySerializer());
        timer = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "headrace-audit");
            thread.setDaemon(true);
            return thread;
        });
        long everyMs = Long.parseLong(setting(configs, "publish.every.ms", "60000"));
        timer.scheduleWithFixedDelay(() -> publish(false), everyMs, everyMs, TimeUnit.MILLISECONDS);
    }

    static String setting(Map<String, ?> configs, String name, String defaultValue) {
        Object value = configs.get(PREFIX + name);
        return value == null ? defaultValue : value.toString();
    }

    /** Returns whether messages of a topic with this value are counted. */
    boolean isCounted(String messageTopic, byte[] value) {
        return value != null && !messageTopic.equals(topic);
    }

    static Place place(String topic, int partition, long timeMs) {
        boolean isTime = timeMs >= 0 && timeMs <= TIME_MS_MAX;
        return new Place(topic, partition, isTime ? timeMs - timeMs % WINDOW_MS : OUT_OF_RANGE_MS);
    }

    static long hash(byte[] key, byte[] value) {
        return XXH64.hash(value, 0, value.length, key == null ? 0 : XXH64.hash(key, 0, key.length, 1));
    }

    synchronized void addSent(Place place) {
        Count count = counts.computeIfAbsent(place, each -> new Count());
        count.sent++;
        count.changes++;
    }

    synchronized void addError(Place place) {
        Count count = counts.computeIfAbsent(place, each -> new Count());
        count.errors++;
        count.changes++;
    }

    /** Counts a message that was acknowledged or delivered. */
    synchronized void add(Place place, long bytes, long hash, long latencyMs) {
        Count count = counts.computeIfAbsent(place, each -> new Count());
        count.count++;
        count.bytes += bytes;
        count.fingerprint += hash;
        if (latencyMs >= 0) count.addLatency(latencyMs);
        boolean isLate = System.currentTimeMillis() > place.windowStartMs() + WINDOW_MS + graceMs;
        if (place.windowStartMs() >= 0 && isLate) count.late++;
        count.changes++;
    }

    /** Extends the counted offsets of a partition that a consumer reads. */
    synchronized void extendRange(String topic, int partition, long offset) {
        long[] range = ranges.computeIfAbsent(topic + ":" + partition, each -> new long[] {offset, offset + 1});
        range[0] = Math.min(range[0], offset);
        range[1] = Math.max(range[1], offset + 1);
    }

    /** Publishes the counts: all, or those of a producer's ended windows that did not change since the last call. */
    private void publish(boolean all) {
        try {
            if (schemaId < 0) schemaId = registerSchema();
            for (Row row : takeRows(all)) unpublished.put(row.id, row);
            for (Row row : unpublished.values()) {
                byte[] key = row.id.getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(topic, key, row.message), (metadata, error) -> {
                    if (error == null) unpublished.remove(row.id); // else it is sent again, with its id
                });
            }
        } catch (IOException | RuntimeException error) {
            LOG.warn("audit counts not published, they are published later", error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized List<Row> takeRows(boolean all) {
        long nowMs = System.currentTimeMillis();
        List<Row> rows = new ArrayList<>();
        counts.entrySet().removeIf(each -> {
            Count count = each.getValue();
            boolean isUnchanged = count.changes == count.publishedChanges;
            count.publishedChanges = count.changes;
            boolean hasEnded = each.getKey().windowStartMs() + WINDOW_MS <= nowMs;
            if (isProducer && !all && !(isUnchanged && hasEnded)) return false;
            rows.add(row(each.getKey(), count, nowMs));
            return true;
        });
        ranges.clear();
        return rows;
    }

    private Row row(Place place, Count count, long nowMs) {
        long[] range = isProducer ? new long[] {-1, -1} : ranges.get(place.topic() + ":" + place.partition());
        String id = isProducer
                ? instance + "-" + ++sequence
                : UUID.nameUUIDFromBytes(String.join("\n", application, place.topic(), place + "", range[0] + "-" + range[1])
                        .getBytes(StandardCharsets.UTF_8)).toString();
        Avro row = new Avro(schemaId);
        row.text(id).text(isProducer ? "producer" : "consumer").text(isProducer ? "acknowledged" : "consumed");
        row.text(place.topic()).number(place.windowStartMs()).number(WINDOW_MS);
        row.number(count.count).number(count.bytes).number(count.fingerprint).text("xxh64").number(count.sent);
        row.bool(false).number(place.partition()).number(range[0]).number(range[1]);
        row.text(application).text(host).text(instance).number(nowMs).text(datacenter);
        row.number(count.late).number(0).number(count.errors);
        row.number(count.latencies == 0 ? 0 : count.latencyMs / count.latencies);
        row.number(count.latencies == 0 ? 0 : count.percentile(95)).number(count.latencies == 0 ? 0 : count.percentile(99));
        return new Row(id, row.number(count.latencyMsMax).bytes());
    }

    private int registerSchema() throws IOException, InterruptedException {
        String schema;
        try (InputStream file = AuditCounts.class.getResourceAsStream("audit-row.avsc")) {
            schema = new String(file.readAllBytes(), StandardCharsets.UTF_8);
        }
        String quoted = schema.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n");
        String subject = URLEncoder.encode(topic + "-value", StandardCharsets.UTF_8);
        HttpRequest request = HttpRequest.newBuilder(URI.create(registry + "/subjects/" + subject + "/versions"))
                .header("Content-Type", "application/vnd.schemaregistry.v1+json")
                .timeout(Duration.ofSeconds(10))
                .POST(HttpRequest.BodyPublishers.ofString("{\"schema\": \"" + quoted + "\"}"))
                .build();
        HttpResponse<String> response = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        Matcher id = Pattern.compile("\"id\"\\s*:\\s*(\\d+)").matcher(response.body());
        if (response.statusCode() != 200 || !id.find())
            throw new IOException("subject " + subject + ": status " + response.statusCode() + " " + response.body());
        return Integer.parseInt(id.group(1));
    }

    @Override
    public void close() {
        timer.shutdownNow();
        publish(true);
        producer.flush();
        producer.close(Duration.ofSeconds(10));
        if (!counts.isEmpty() || !unpublished.isEmpty())
            LOG.warn("audit counts not published, the audit lacks {} rows", counts.size() + unpublished.size());
    }

    private static String hostName() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException error) {
            return "unknown";
        }
    }

    /** Writes Avro binary after the prefix with the schema id. */
    private static final class Avro {
        private final ByteArrayOutputStream out = new ByteArrayOutputStream();

        Avro(int schemaId) {
            out.write(0);
            out.writeBytes(ByteBuffer.allocate(4).putInt(schemaId).array());
        }

        Avro number(long value) {
            long left = (value << 1) ^ (value >> 63);
            for (; (left & ~0x7FL) != 0; left >>>= 7) out.write((int) (left & 0x7F | 0x80));
            out.write((int) left);
            return this;
        }

        Avro text(String value) {
            byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
            number(bytes.length);
            out.writeBytes(bytes);
            return this;
        }

        Avro bool(boolean value) {
            out.write(value ? 1 : 0);
            return this;
        }

        byte[] bytes() {
            return out.toByteArray();
        }
    }
}
