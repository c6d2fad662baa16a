import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.CompatibilityLevel;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.ParsedSchemaHolder;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.SimpleParsedSchemaHolder;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;

/**
 * What the Confluent registry's own classes say of a candidate against the versions before it.
 *
 * <p>Each line of standard input is a level and, each in base64 behind a tab, the candidate and the versions from 1 on.
 * Each line of standard output is the messages, each in base64 and with a tab between.
 */
public final class CompatMessagesOracle {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    PrintStream out = new PrintStream(System.out, false, "US-ASCII");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] fields = line.split("\t");
      List<ParsedSchemaHolder> history = new ArrayList<>();
      for (int version = 1; version + 1 < fields.length; version++) {
        history.add(new SimpleParsedSchemaHolder(schema(fields[version + 1], version)));
      }
      List<String> messages = schema(fields[1], null).isCompatible(CompatibilityLevel.forName(fields[0]), history);
      out.println(messages.stream().map(CompatMessagesOracle::encode).collect(Collectors.joining("\t")));
      out.flush();
    }
  }

  private static AvroSchema schema(String field, Integer version) {
    String text = new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8);
    return new AvroSchema(text, Collections.emptyList(), Collections.emptyMap(), version);
  }

  private static String encode(String text) {
    return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
  }
}
