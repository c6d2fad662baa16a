import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.concurrent.FutureTask;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/**
 * What Avro Java reads from projected rows, for differential tests.
 *
 * <p>Each line of standard input is {@code writer SPACE load SPACE body SPACE row}, all in base64 ("-" when empty).
 * Each line of standard output is {@code same} when the row says what Avro's own resolution of the body yields, {@code
 * other TAB row TAB resolved} (base64) when it says something else, {@code row TAB row TAB reason} when the body does
 * not resolve, or {@code unreadable TAB reason} when the row itself cannot be read.
 */
public final class ProjectionOracle {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    PrintStream out = new PrintStream(System.out, false, "US-ASCII");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      // Avro keeps what it made of each pair of schemas for as long as the thread lives that asked for it, and the
      // GenericData.
      FutureTask<String> answer = new FutureTask<>(() -> answer(words));
      new Thread(answer).start();
      out.println(answer.get());
      out.flush();
    }
  }

  private static String answer(String[] words) {
    Schema load = new Schema.Parser().parse(text(words[1]));
    Object row;
    try {
      row = read(load, load, bytes(words[3]));
    } catch (Exception error) {
      return "unreadable\t" + encode(error.toString());
    }
    Object resolved;
    try {
      resolved = read(new Schema.Parser().parse(text(words[0])), load, bytes(words[2]));
    } catch (Exception error) {
      return "row\t" + encode(row) + "\t" + encode(error.toString());
    }
    // Not equals(): it cannot compare maps, and two NaN are one value here.
    return row.toString().equals(resolved.toString()) ? "same" : "other\t" + encode(row) + "\t" + encode(resolved);
  }

  private static Object read(Schema writer, Schema reader, byte[] data) throws Exception {
    BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(data, null);
    Object value = new GenericDatumReader<Object>(writer, reader, new GenericData()).read(null, decoder);
    if (!decoder.isEnd()) {
      throw new IllegalStateException("bytes follow the value");
    }
    return value;
  }

  private static byte[] bytes(String word) {
    return word.equals("-") ? new byte[0] : Base64.getDecoder().decode(word);
  }

  private static String text(String word) {
    return new String(bytes(word), StandardCharsets.UTF_8);
  }

  private static String encode(Object value) {
    return Base64.getEncoder().encodeToString(String.valueOf(value).getBytes(StandardCharsets.UTF_8));
  }
}
