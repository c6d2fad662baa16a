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
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

/**
 * Whether Avro Java reads with one schema what was written with another.
 *
 * <p>Each line of standard input is {@code {"reader": text, "writer": text, "data": [base64, …]}}. Each line of standard
 * output is {@code {"read": ["", …], "written": [base64, …]}} with, for each datum, what went wrong, or nothing where it
 * was read to its end, and what was read, written again with the reader's schema.
 */
public final class ReadingOracle {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonNode request = JSON.readTree(line);
      Schema reader = new Schema.Parser().parse(request.get("reader").asText());
      Schema writer = new Schema.Parser().parse(request.get("writer").asText());
      ObjectNode answer = JSON.createObjectNode();
      ArrayNode read = answer.putArray("read");
      ArrayNode written = answer.putArray("written");
      for (JsonNode datum : request.get("data")) {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        read.add(problem(reader, writer, Base64.getDecoder().decode(datum.asText()), body));
        written.add(Base64.getEncoder().encodeToString(body.toByteArray()));
      }
      out.println(JSON.writeValueAsString(answer));
    }
    out.flush();
  }

  private static String problem(Schema reader, Schema writer, byte[] datum, ByteArrayOutputStream body) {
    try {
      BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(datum, null);
      Object value = new GenericDatumReader<Object>(writer, reader).read(null, decoder);
      write(reader, value, body);
      return decoder.isEnd() ? "" : "bytes are left over";
    } catch (Exception | StackOverflowError error) {
      return error.getClass().getSimpleName() + ": " + error.getMessage();
    }
  }

  /** Writes what was read. Nothing is written of a value with an invalid default, which is read all the same. */
  private static void write(Schema reader, Object value, ByteArrayOutputStream body) {
    try {
      BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(body, null);
      new GenericDatumWriter<Object>(reader).write(value, encoder);
      encoder.flush();
    } catch (Exception | StackOverflowError error) {
      body.reset();
    }
  }
}
