import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own consumers with group.protocol=consumer, of the broker whose address is the first argument. */
public class ConsumerProtocolRound {
  static final long PATIENCE_NS = 60_000_000_000L;

  interface Condition {
    boolean holds() throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    String address = arguments[0];
    try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", address))) {
      admin.createTopics(List.of(new NewTopic("sales", 4, (short) 1))).all().get();
      produce(address, 0);
      KafkaConsumer<String, String> first = consumer(address, Map.of());
      first.subscribe(List.of("sales"));
      int[] read = new int[1];
      until("the first is assigned everything", () -> poll(read, first) >= 8 && first.assignment().size() == 4);
      first.commitSync();
      KafkaConsumer<String, String> second = consumer(address, Map.of("group.instance.id", "i", "group.remote.assignor", "range"));
      second.subscribe(new SubscriptionPattern("s[a-z]+s"));
      until("they share", () -> {
        poll(read, first, second);
        return first.assignment().size() == 2 && second.assignment().size() == 2;
      });
      System.out.println("read " + read[0]);
      produce(address, 8);
      until("both read", () -> poll(read, first, second) >= 16);
      first.commitSync();
      second.commitSync();
      System.out.println("read " + read[0]);
      var group = admin.describeConsumerGroups(List.of("tills")).all().get().get("tills");
      System.out.println(group.type() + " " + group.groupState() + " " + group.members().size() + " of epoch "
          + new TreeSet<>(group.members().stream().map(member -> member.memberEpoch().get().equals(group.groupEpoch().get())).toList()));
      System.out.println(admin.listGroups().all().get().stream()
          .map(one -> one.groupId() + " " + one.type().get() + " " + one.groupState().get()).toList());
      first.close();
      until("the second is assigned everything", () -> {
        poll(read, second);
        return second.assignment().size() == 4;
      });
      second.close();
      System.out.println("read " + read[0]);
      admin.listConsumerGroupOffsets("tills").partitionsToOffsetAndMetadata().get().values().stream()
          .map(offset -> offset.offset()).forEach(offset -> System.out.print(offset + " "));
      System.out.println();
    }
  }

  static KafkaConsumer<String, String> consumer(String address, Map<String, Object> more) {
    Map<String, Object> settings = new HashMap<>(Map.of(
        "bootstrap.servers", address, "group.id", "tills", "group.protocol", "consumer", "auto.offset.reset", "earliest", "enable.auto.commit", "false"));
    settings.putAll(more);
    return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
  }

  static void produce(String address, int begin) throws Exception {
    try (KafkaProducer<String, String> producer =
        new KafkaProducer<>(Map.<String, Object>of("bootstrap.servers", address), new StringSerializer(), new StringSerializer())) {
      for (int number = begin; number < begin + 8; number++) {
        producer.send(new ProducerRecord<>("sales", number % 4, "key", "value " + number)).get();
      }
    }
  }

  @SafeVarargs
  static int poll(int[] read, KafkaConsumer<String, String>... consumers) {
    for (var consumer : consumers) {
      read[0] += consumer.poll(Duration.ofMillis(50)).count();
    }
    return read[0];
  }

  static void until(String what, Condition condition) throws Exception {
    long deadline = System.nanoTime() + PATIENCE_NS;
    while (!condition.holds()) {
      if (System.nanoTime() > deadline) {
        throw new IllegalStateException("not within a minute: " + what);
      }
    }
  }
}
