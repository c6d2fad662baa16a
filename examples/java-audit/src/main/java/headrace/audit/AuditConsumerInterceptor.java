package headrace.audit;

import java.util.Map;
import java.util.function.ToLongFunction;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;

/** Counts the messages that a KafkaConsumer returns, for the audit. Key and value need an {@link AuditDeserializer}. */
public final class AuditConsumerInterceptor<K, V> implements ConsumerInterceptor<K, V> {
    private AuditCounts counts;
    private ToLongFunction<Object> timeOf;

    @Override
    @SuppressWarnings("unchecked")
    public void configure(Map<String, ?> configs) {
        Object time = configs.get(AuditCounts.PREFIX + "time.class");
        timeOf = time == null ? value -> -1 : (ToLongFunction<Object>) AuditProducerInterceptor.instance(time);
        counts = new AuditCounts(configs, false);
    }

    @Override
    public ConsumerRecords<K, V> onConsume(ConsumerRecords<K, V> records) {
        Map<Headers, AuditDeserializer.Bytes> polled = AuditDeserializer.POLLED.get();
        long nowMs = System.currentTimeMillis();
        for (ConsumerRecord<K, V> record : records) {
            AuditDeserializer.Bytes bytes = polled.remove(record.headers());
            if (bytes == null || !counts.isCounted(record.topic(), bytes.value)) continue;
            long eventMs = timeOf.applyAsLong(record.value());
            long timeMs = eventMs < 0 ? record.timestamp() : eventMs;
            counts.extendRange(record.topic(), record.partition(), record.offset());
            AuditCounts.Place place = AuditCounts.place(record.topic(), record.partition(), timeMs);
            counts.add(
                    place,
                    bytes.value.length + (bytes.key == null ? 0L : bytes.key.length),
                    AuditCounts.hash(bytes.key, bytes.value),
                    place.windowStartMs() < 0 ? -1 : Math.max(0, nowMs - timeMs)); // -1: no usable time
        }
        polled.clear(); // messages that could not be deserialized
        return records;
    }

    @Override
    public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {}

    @Override
    public void close() {
        counts.close();
    }
}
