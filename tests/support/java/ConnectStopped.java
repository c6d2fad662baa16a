import java.util.Arrays;
import org.eclipse.jetty.util.thread.ShutdownThread;
import sun.misc.Signal;

/**
 * Runs Connect: `main` of the class that is named first, with the other words.
 *
 * Connect and Jetty each have a shutdown hook that stops the same HTTP server. Where they do so at once, Connect's may
 * wait for the server's threads forever, and its connectors are never told to end. So Jetty's is taken out before they run.
 */
public final class ConnectStopped {
    public static void main(String[] words) throws Exception {
        Signal.handle(new Signal("TERM"), signal -> {
            Runtime.getRuntime().removeShutdownHook(ShutdownThread.getInstance());
            System.exit(128 + signal.getNumber());
        });
        Object arguments = Arrays.copyOfRange(words, 1, words.length);
        Class.forName(words[0]).getMethod("main", String[].class).invoke(null, arguments);
    }
}
