import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's own command line tools, one after the other in one process. A line in has the main class, what the tool
 * reads from its standard input and its arguments; a line out its exit code, what it printed and what it complained of.
 * All but the exit code are in base64, with tabs between. A tool that does not end has "never" for its exit code.
 */
public class Tools {
  static final long LIMIT_MS = 60_000;

  /** What a tool throws instead of ending the process. Some catch it, complain and end once more, which is too late. */
  static class Ended extends Error {
    Ended() {
      super(null, null, false, false);
    }
  }

  /** A stream whose end can be another one for each tool: some keep the stream that they saw first. */
  static class Redirected extends OutputStream {
    volatile ByteArrayOutputStream end = new ByteArrayOutputStream();

    @Override
    public void write(int one) {
      end.write(one);
    }

    @Override
    public void write(byte[] some, int start, int length) {
      end.write(some, start, length);
    }
  }

  public static void main(String[] none) throws Exception {
    System.setProperty("org.apache.logging.log4j.level", "OFF"); // what a tool logs beside what it prints
    PrintStream answers = System.out;
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    Redirected printed = new Redirected();
    Redirected complained = new Redirected();
    System.setOut(new PrintStream(printed, true));
    System.setErr(new PrintStream(complained, true));
    AtomicReference<String> answer = new AtomicReference<>();
    Exit.setExitProcedure((code, message) -> {
      answer.compareAndSet(null, code + "\t" + encoded(printed) + "\t" + encoded(complained));
      throw new Ended();
    });
    for (String line = questions.readLine(); line != null; line = questions.readLine()) {
      String[] words = Arrays.stream(line.split("\t")).map(Tools::decoded).toArray(String[]::new);
      answer.set(null);
      printed.end = new ByteArrayOutputStream();
      complained.end = new ByteArrayOutputStream();
      System.setIn(new ByteArrayInputStream(words[1].getBytes(StandardCharsets.UTF_8)));
      String code = run(words[0], Arrays.copyOfRange(words, 2, words.length));
      answer.compareAndSet(null, code + "\t" + encoded(printed) + "\t" + encoded(complained));
      answers.println(answer.get());
    }
    System.exit(0); // a tool that did not end may have left threads
  }

  static String run(String program, String[] arguments) throws Exception {
    AtomicReference<String> code = new AtomicReference<>("never");
    Thread thread = new Thread(() -> code.set(ended(program, arguments)), program);
    thread.setDaemon(true);
    thread.start();
    thread.join(LIMIT_MS);
    if (thread.isAlive()) {
      Arrays.stream(thread.getStackTrace()).forEach(System.err::println);
    }
    return code.get();
  }

  static String ended(String program, String[] arguments) {
    List<Runnable> atTheEnd = new CopyOnWriteArrayList<>(); // the console producer sends what it still has so
    Exit.setShutdownHookAdder((name, hook) -> atTheEnd.add(hook));
    try {
      Class.forName(program).getMethod("main", String[].class).invoke(null, (Object) arguments);
      return "0";
    } catch (InvocationTargetException thrown) {
      thrown.getCause().printStackTrace();
      return "1"; // as Java ends for an exception that nobody catches
    } catch (ReflectiveOperationException other) {
      other.printStackTrace();
      return "no such tool";
    } finally {
      atTheEnd.forEach(Runnable::run);
    }
  }

  static String decoded(String word) {
    return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
  }

  static String encoded(Redirected stream) {
    return Base64.getEncoder().encodeToString(stream.end.toByteArray());
  }
}
