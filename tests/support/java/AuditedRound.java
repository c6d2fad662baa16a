import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own client with the interceptors of examples/java-audit: sends messages to a topic and reads them.
 *
 * <p>Arguments: addresses of broker and registry, topic, number of messages, time of the first one.
 */
public class AuditedRound {
  public static void main(String[] arguments) {
    String topic = arguments[2];
    int messages = Integer.parseInt(arguments[3]);
    long startMs = Long.parseLong(arguments[4]);
    Map<String, Object> settings = new HashMap<>(Map.of(
        "bootstrap.servers", arguments[0],
        "headrace.audit.registry.url", arguments[1],
        "headrace.audit.publish.every.ms", "200",
        "headrace.audit.datacenter", "fra"));
    settings.put("interceptor.classes", "headrace.audit.AuditProducerInterceptor");
    settings.put("headrace.audit.application", "shop");
    settings.put("max.request.size", 100_000);
    try (KafkaProducer<String, String> producer =
        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      for (int n = 0; n < messages; n++) {
        String key = n % 3 == 0 ? null : "key-" + n;
        producer.send(new ProducerRecord<>(topic, null, startMs + n * 1000L, key, "value " + n + " äöü"));
      }
      producer.send(new ProducerRecord<>(topic, null, startMs, "deleted", (String) null));
      producer.send(new ProducerRecord<>(topic, null, startMs, "large", "x".repeat(200_000)));
    }
    settings.remove("max.request.size");
    settings.put("interceptor.classes", "headrace.audit.AuditConsumerInterceptor");
    settings.put("headrace.audit.application", "billing");
    settings.put("group.id", "billing");
    settings.put("auto.offset.reset", "earliest");
    for (String part : List.of("key", "value")) {
      settings.put(part + ".deserializer", "headrace.audit.AuditDeserializer");
      settings.put(
          "headrace.audit." + part + ".deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
    }
    int read = 0;
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
      consumer.subscribe(List.of(topic));
      while (read < messages + 1) read += consumer.poll(Duration.ofMillis(200)).count();
    }
    System.out.println("read " + read);
  }
}
