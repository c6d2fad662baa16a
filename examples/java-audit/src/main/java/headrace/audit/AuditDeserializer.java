package headrace.audit;

import java.util.IdentityHashMap;
import java.util.Map;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Deserializer;

/**
 * Remembers the bytes of keys and values for {@link AuditConsumerInterceptor}, which gets only deserialized messages, and
 * deserializes them with another class: the setting headrace.audit.key.deserializer or headrace.audit.value.deserializer.
 */
public final class AuditDeserializer<T> implements Deserializer<T> {
    /** The bytes of a message. */
    static final class Bytes {
        byte[] key;
        byte[] value;
    }

    /** The messages of the running poll, by their headers. A consumer deserializes in the thread that polls. */
    static final ThreadLocal<Map<Headers, Bytes>> POLLED = ThreadLocal.withInitial(IdentityHashMap::new);

    private boolean isKey;
    private Deserializer<T> deserializer;

    @Override
    @SuppressWarnings("unchecked")
    public void configure(Map<String, ?> configs, boolean isKey) {
        this.isKey = isKey;
        String name = AuditCounts.PREFIX + (isKey ? "key" : "value") + ".deserializer";
        if (configs.get(name) == null) throw new IllegalArgumentException(name + " is not set; set it to a class");
        deserializer = (Deserializer<T>) AuditProducerInterceptor.instance(configs.get(name));
        deserializer.configure(configs, isKey);
    }

    @Override
    public T deserialize(String topic, byte[] data) {
        return deserializer.deserialize(topic, data);
    }

    @Override
    public T deserialize(String topic, Headers headers, byte[] data) {
        Bytes bytes = POLLED.get().computeIfAbsent(headers, each -> new Bytes());
        if (isKey) bytes.key = data;
        else bytes.value = data;
        return deserializer.deserialize(topic, headers, data);
    }

    @Override
    public void close() {
        deserializer.close();
    }
}
