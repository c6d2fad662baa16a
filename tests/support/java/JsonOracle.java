import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.avro.io.JsonEncoder;

/**
 * Avro's JSON encoding by Avro Java, in both directions.
 *
 * <p>Each line of standard input is {@code {"schema": text, "bodies": [base64, …], "texts": [text, …]}}. Each line of
 * standard output is {@code {"texts": [text or null, …], "bodies": [base64 or null, …]}}: the JSON of each body, and the
 * body of each JSON text, null if Avro Java rejects it. Its encoder overflows the stack for some recursive schemas.
 */
public final class JsonOracle {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    GenericData.get().setFastReaderEnabled(false); // it would not call newMap
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonNode request = JSON.readTree(line);
      Schema schema = new Schema.Parser().parse(request.get("schema").asText());
      ObjectNode answer = JSON.createObjectNode();
      ArrayNode texts = answer.putArray("texts");
      for (JsonNode body : request.get("bodies")) {
        texts.add(text(schema, Base64.getDecoder().decode(body.asText())));
      }
      ArrayNode bodies = answer.putArray("bodies");
      for (JsonNode text : request.get("texts")) {
        bodies.add(body(schema, text.asText()));
      }
      out.println(JSON.writeValueAsString(answer));
    }
    out.flush();
  }

  /** Returns a reader that keeps the order of the entries of maps. */
  private static GenericDatumReader<Object> reader(Schema schema) {
    return new GenericDatumReader<Object>(schema) {
      @Override
      protected Object newMap(Object old, int size) {
        return new LinkedHashMap<Object, Object>();
      }
    };
  }

  private static String text(Schema schema, byte[] body) {
    try {
      Object value =
          reader(schema).read(null, DecoderFactory.get().binaryDecoder(body, null));
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      JsonEncoder encoder = EncoderFactory.get().jsonEncoder(schema, bytes);
      new GenericDatumWriter<Object>(schema).write(value, encoder);
      encoder.flush();
      return new String(bytes.toByteArray(), StandardCharsets.UTF_8);
    } catch (Exception | StackOverflowError error) {
      return null;
    }
  }

  private static String body(Schema schema, String text) {
    try {
      Object value =
          reader(schema).read(null, DecoderFactory.get().jsonDecoder(schema, text));
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
      new GenericDatumWriter<Object>(schema).write(value, encoder);
      encoder.flush();
      return Base64.getEncoder().encodeToString(bytes.toByteArray());
    } catch (Exception | StackOverflowError error) {
      return null;
    }
  }
}
