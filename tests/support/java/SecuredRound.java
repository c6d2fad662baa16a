import java.util.List;
import java.util.Map;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;

/**
 * Confluent's Java client against a registry that asks who it is. The arguments are its URL, the URL of a registry that
 * is not there, and the password of the user shop, who may write subjects that begin with shop-, and read all.
 */
public class SecuredRound {
  static final AvroSchema SCHEMA = new AvroSchema("{\"type\":\"fixed\",\"name\":\"F\",\"size\":3}");

  public static void main(String[] arguments) throws Exception {
    List<String> urls = List.of(arguments[1], arguments[0]);
    CachedSchemaRegistryClient client = open(urls, arguments[2]);
    int id = client.register("shop-java", SCHEMA);
    if (!open(urls, arguments[2]).getSchemaById(id).equals(SCHEMA)) {
      throw new AssertionError("another schema");
    }
    System.out.println(code(() -> client.register("other", SCHEMA)));
    System.out.println(code(() -> open(urls, "guess").getAllSubjects()));
  }

  interface Call {
    Object make() throws Exception;
  }

  static CachedSchemaRegistryClient open(List<String> urls, String password) {
    return new CachedSchemaRegistryClient(
        urls,
        100,
        Map.of(
            "schema.registry.basic.auth.credentials.source", "USER_INFO",
            "schema.registry.basic.auth.user.info", "shop:" + password));
  }

  static String code(Call call) throws Exception {
    try {
      return "not refused: " + call.make();
    } catch (RestClientException error) {
      return error.getStatus() + " " + error.getErrorCode();
    }
  }
}
