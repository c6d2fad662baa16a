import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.avro.Schema;
import org.apache.avro.SchemaNormalization;

/**
 * Avro Java's own view of schema texts, for differential tests.
 *
 * <p>Each line of standard input is the base64 of a schema text. Each line of standard output is either
 * {@code ok TAB text TAB parsing-canonical-form TAB crc64} (texts in base64, the fingerprint in hex) or
 * {@code error TAB message} (base64).
 */
public final class SchemaOracle {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    PrintStream out = new PrintStream(System.out, false, "US-ASCII");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(answer(new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8)));
      out.flush();
    }
  }

  private static String answer(String text) {
    try {
      Schema schema = new Schema.Parser().parse(text);
      return "ok\t" + encode(schema.toString()) + "\t" + encode(SchemaNormalization.toParsingForm(schema)) + "\t"
          + String.format("%016x", SchemaNormalization.parsingFingerprint64(schema));
    } catch (RuntimeException | StackOverflowError error) {
      return "error\t" + encode(error.getClass().getSimpleName() + ": " + error.getMessage());
    }
  }

  private static String encode(String text) {
    return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
  }
}
