package headrace.audit;

import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.function.ToLongFunction;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Utils;

/**
 * Counts the messages of a KafkaProducer for the audit: those handed to it, and those that the brokers acknowledged.
 *
 * <p>An interceptor gets values before they are serialized. It therefore serializes each message once more, with its own
 * serializers of the configured classes. The serializers must be configured by class name.
 */
public final class AuditProducerInterceptor<K, V> implements ProducerInterceptor<K, V> {
    private record Sent(AuditCounts.Place place, long bytes, long hash, long sentAtNs) {}

    private final Map<Headers, Sent> inFlight = Collections.synchronizedMap(new IdentityHashMap<>());
    private AuditCounts counts;
    private Serializer<K> keySerializer;
    private Serializer<V> valueSerializer;
    private ToLongFunction<Object> timeOf;

    @Override
    @SuppressWarnings("unchecked")
    public void configure(Map<String, ?> configs) {
        keySerializer = (Serializer<K>) instance(configs.get("key.serializer"));
        keySerializer.configure(configs, true);
        valueSerializer = (Serializer<V>) instance(configs.get("value.serializer"));
        valueSerializer.configure(configs, false);
        Object time = configs.get(AuditCounts.PREFIX + "time.class");
        timeOf = time == null ? value -> -1 : (ToLongFunction<Object>) instance(time);
        counts = new AuditCounts(configs, true);
    }

    /** Returns an instance of a class, or of the class with a name. */
    static Object instance(Object classOrName) {
        try {
            Class<?> type = classOrName instanceof Class<?> found
                    ? found
                    : Class.forName(classOrName.toString(), true, Utils.getContextOrKafkaClassLoader());
            return type.getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException("the audit cannot create " + classOrName, error);
        }
    }

    /** Counts the message. If it has no timestamp, it gets the current time, so that all tiers use the same one. */
    @Override
    public ProducerRecord<K, V> onSend(ProducerRecord<K, V> record) {
        if (record.value() == null) return record;
        long timestamp = record.timestamp() == null ? System.currentTimeMillis() : record.timestamp();
        ProducerRecord<K, V> timed = new ProducerRecord<>(
                record.topic(), record.partition(), timestamp, record.key(), record.value(), record.headers());
        byte[] key = keySerializer.serialize(record.topic(), timed.headers(), record.key());
        byte[] value = valueSerializer.serialize(record.topic(), timed.headers(), record.value());
        if (!counts.isCounted(record.topic(), value)) return timed;
        long eventMs = timeOf.applyAsLong(record.value());
        AuditCounts.Place place = AuditCounts.place(record.topic(), -1, eventMs < 0 ? timestamp : eventMs);
        long bytes = value.length + (key == null ? 0L : key.length);
        inFlight.put(timed.headers(), new Sent(place, bytes, AuditCounts.hash(key, value), System.nanoTime()));
        counts.addSent(place);
        return timed;
    }

    /** Counts an acknowledged or failed message. The client passes the headers object of its record. */
    @Override
    public void onAcknowledgement(RecordMetadata metadata, Exception error, Headers headers) {
        Sent sent = inFlight.remove(headers);
        if (sent == null) return;
        if (error != null) counts.addError(sent.place);
        else counts.add(sent.place, sent.bytes, sent.hash, (System.nanoTime() - sent.sentAtNs) / 1_000_000);
    }

    @Override
    public void close() {
        counts.close();
        keySerializer.close();
        valueSerializer.close();
    }
}
