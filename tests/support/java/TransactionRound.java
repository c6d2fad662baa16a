import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own client: transactions with the broker whose address is the first argument. Prints what it finds. */
public class TransactionRound {
  static final TopicPartition PLACE = new TopicPartition("java", 0);

  public static void main(String[] arguments) throws Exception {
    String address = arguments[0];
    Map<String, Object> settings = Map.of("bootstrap.servers", address, "transactional.id", "java-1");
    try (KafkaProducer<String, String> producer =
        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      producer.initTransactions();
      for (int number = 0; number < 6; number++) {
        producer.beginTransaction();
        for (int part = 0; part < 10; part++) {
          producer.send(new ProducerRecord<>("java", 0, "key", "value " + number));
        }
        producer.sendOffsetsToTransaction(
            Map.of(PLACE, new OffsetAndMetadata(number)), new ConsumerGroupMetadata("group", -1, "", java.util.Optional.empty()));
        if (number % 3 == 1) {
          producer.flush(); // what has not been sent is dropped by an abort, and there would be nothing to skip
          producer.abortTransaction();
        } else {
          producer.commitTransaction();
        }
      }
      producer.beginTransaction();
      producer.send(new ProducerRecord<>("java", 0, "key", "open"));
      producer.flush();
      read(address);
      administrate(address);
      try {
        producer.commitTransaction();
        System.out.println("not fenced");
      } catch (ProducerFencedException fenced) {
        System.out.println("fenced");
      } catch (KafkaException other) {
        System.out.println(other);
      }
    }
  }

  static void read(String address) {
    Map<String, Object> settings =
        Map.of("bootstrap.servers", address, "group.id", "group", "isolation.level", "read_committed", "enable.auto.commit", "false");
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      System.out.println("committed " + consumer.committed(Set.of(PLACE)).get(PLACE).offset());
      consumer.assign(List.of(PLACE));
      consumer.seekToBeginning(List.of(PLACE));
      long end = consumer.endOffsets(List.of(PLACE)).get(PLACE);
      int count = 0;
      Set<String> values = new TreeSet<>();
      while (consumer.position(PLACE) < end) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
          count++;
          values.add(record.value());
        }
      }
      System.out.println("read " + count + " " + values);
    }
  }

  static void administrate(String address) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
      admin.listTransactions().all().get().forEach(one -> System.out.println(one.transactionalId() + " " + one.state()));
      var described = admin.describeTransactions(List.of("java-1")).all().get().get("java-1");
      System.out.println(described.state() + " " + described.topicPartitions());
      var producers = admin.describeProducers(List.of(PLACE)).all().get().get(PLACE).activeProducers();
      System.out.println("open from " + producers.get(0).currentTransactionStartOffset().getAsLong());
      admin.fenceProducers(List.of("java-1")).all().get();
    }
  }
}
