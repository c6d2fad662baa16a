import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams counts the words of the topic "lines" into the topic "counts", exactly once, over the broker whose
 * address is the first argument; the second one is a folder for what it keeps. Each word makes one record, since nothing
 * is cached. A second count, by windows, is there for its changelog. Runs until it is told to end.
 */
public class WordCount {
  public static void main(String[] arguments) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 500);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    settings.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 1000);
    // So long does what was killed keep the group and the readers of its open transaction waiting.
    settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
    settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 1000);
    settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 6000);

    StreamsBuilder builder = new StreamsBuilder();
    KGroupedStream<String, String> words =
        builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()));
    Materialized<String, Long, KeyValueStore<Bytes, byte[]>> store = Materialized.as(Stores.inMemoryKeyValueStore("counts"));
    words.count(store.withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
        .toStream()
        .mapValues(String::valueOf)
        .to("counts", Produced.with(Serdes.String(), Serdes.String()));
    Duration day = Duration.ofDays(1);
    words.windowedBy(TimeWindows.ofSizeWithNoGrace(day))
        .count(
            Materialized.<String, Long>as(Stores.inMemoryWindowStore("daily", day, day, false))
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long()));

    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setStateListener((now, before) -> System.out.println(now));
    streams.setUncaughtExceptionHandler(
        failure -> {
          failure.printStackTrace(System.out);
          return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }
}
