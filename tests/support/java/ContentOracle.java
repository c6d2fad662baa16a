import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.Schema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaEntity;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaTags;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.requests.RegisterSchemaRequest;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.requests.TagSchemaRequest;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.utils.JacksonMapper;

/**
 * What the Confluent registry's own classes make of a registration.
 *
 * <p>Each line of standard input is the base64 of a request to register, and behind a tab that of a request that changes
 * tags. Each line of standard output is {@code ok} and, each in base64 behind a tab: the text that is stored, the
 * normalized text, the digests that identify the two in hex, the text with its tags changed, and what is wrong with the
 * rules; or {@code error TAB message} (base64).
 */
public final class ContentOracle {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    PrintStream out = new PrintStream(System.out, false, "US-ASCII");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(answer(line.split("\t")));
      out.flush();
    }
  }

  private static String answer(String[] fields) {
    try {
      RegisterSchemaRequest request = RegisterSchemaRequest.fromJson(decode(fields[0]));
      AvroSchema schema = new AvroSchema(request.getSchema());
      String canonical = schema.canonicalString();
      String normalized = schema.normalize().canonicalString();
      String tagged = "";
      if (fields.length > 1) {
        TagSchemaRequest change = JacksonMapper.INSTANCE.readValue(decode(fields[1]), TagSchemaRequest.class);
        tagged = schema.copy(tags(change.getTagsToAdd()), tags(change.getTagsToRemove())).canonicalString();
      }
      String wrong = "";
      try {
        if (request.getRuleSet() != null) {
          request.getRuleSet().validate();
        }
      } catch (Exception error) {
        wrong = error.getMessage();
      }
      return String.join("\t", "ok", encode(canonical), encode(normalized), encode(digest(request, canonical)),
          encode(digest(request, normalized)), encode(tagged), encode(wrong));
    } catch (Exception | StackOverflowError error) {
      return "error\t" + encode(error.getClass().getSimpleName() + ": " + error.getMessage());
    }
  }

  private static Map<SchemaEntity, Set<String>> tags(Iterable<SchemaTags> changes) {
    Map<SchemaEntity, Set<String>> tags = new LinkedHashMap<>();
    if (changes != null) {
      changes.forEach(change -> tags.put(change.getSchemaEntity(), new LinkedHashSet<>(change.getTags())));
    }
    return tags;
  }

  private static String digest(RegisterSchemaRequest request, String text) throws Exception {
    Schema schema = new Schema("s", request);
    schema.setSchema(text);
    MessageDigest md = MessageDigest.getInstance("MD5");
    schema.updateHash(md);
    StringBuilder hex = new StringBuilder();
    for (byte part : md.digest()) {
      hex.append(String.format("%02x", part));
    }
    return hex.toString();
  }

  private static String decode(String text) {
    return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
  }

  private static String encode(String text) {
    return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
  }
}
