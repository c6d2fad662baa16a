import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/**
 * Avro Java's verdict on reader/writer pairs, for differential tests.
 *
 * <p>Each line of standard input is {@code {"reader": text, "writer": text}}. Each line of standard output is
 * {@code {"problems": [[type, location, message], …]}}, {@code {"raised": message}} when the check itself failed, or
 * {@code {"invalid": message}} when a text is not a schema.
 */
public final class CompatOracle {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
      out.flush();
    }
  }

  private static ObjectNode answer(JsonNode pair) {
    ObjectNode answer = JSON.createObjectNode();
    Schema reader;
    Schema writer;
    try {
      reader = new Schema.Parser().parse(pair.get("reader").asText());
      writer = new Schema.Parser().parse(pair.get("writer").asText());
    } catch (RuntimeException error) {
      return answer.put("invalid", error.getClass().getSimpleName() + ": " + error.getMessage());
    }
    try {
      ArrayNode problems = JSON.createArrayNode();
      for (SchemaCompatibility.Incompatibility found : SchemaCompatibility
          .checkReaderWriterCompatibility(reader, writer).getResult().getIncompatibilities()) {
        problems.addArray().add(found.getType().name()).add(found.getLocation()).add(found.getMessage());
      }
      answer.set("problems", problems);
      return answer;
    } catch (AvroRuntimeException error) {
      return answer.put("raised", error.getMessage());
    }
  }
}
