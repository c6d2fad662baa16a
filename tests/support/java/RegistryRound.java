import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.ParsedSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.RestService;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.Config;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.Metadata;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.Rule;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.RuleKind;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.RuleMode;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.RuleSet;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaEntity;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaTags;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.requests.RegisterSchemaRequest;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.requests.TagSchemaRequest;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;

/**
 * Confluent's Java client against the registry whose URL is the first argument, and whose error code for an
 * incompatible schema is the second. Prints a line per round.
 */
public class RegistryRound {
  static final String USER_1 =
      "{\"type\":\"record\",\"name\":\"User\",\"namespace\":\"shop\",\"fields\":[{\"name\":\"id\",\"type\":\"long\"}]}";
  static final String USER_2 =
      USER_1.replace("]}", ",{\"name\":\"mail\",\"type\":\"string\",\"default\":\"\"}]}");
  static final String USER_INCOMPATIBLE = USER_1.replace("]}", ",{\"name\":\"age\",\"type\":\"int\"}]}");
  static final String ID = "{\"type\":\"fixed\",\"name\":\"Id\",\"namespace\":\"n\",\"size\":4}";
  static final String WITH_ID =
      "{\"type\":\"record\",\"name\":\"R\",\"fields\":[{\"name\":\"id\",\"type\":\"n.Id\"}]}";

  static String url;
  static int incompatible;

  interface Call {
    Object make() throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    url = arguments[0];
    incompatible = Integer.parseInt(arguments[1]);
    registerEvolveFind();
    references();
    metadata();
    compatibilityAndConfiguration();
    modes();
    deletes();
    contexts();
    tagsAndRules();
    server();
  }

  static void registerEvolveFind() throws Exception {
    String subject = "java/round-value";
    CachedSchemaRegistryClient client = open();
    int first = client.register(subject, new AvroSchema(USER_1));
    same(first, open().register(subject, new AvroSchema(USER_1), true));
    int second = client.register(subject, new AvroSchema(USER_2));
    same(second, client.registerWithResponse(subject, new AvroSchema(USER_2), false).getId());
    refused(409, incompatible, () -> client.register(subject, new AvroSchema(USER_INCOMPATIBLE)));
    same(new AvroSchema(USER_1), open().getSchemaById(first));
    same(new AvroSchema(USER_1), open().getSchemaBySubjectAndId(subject, first));
    same(List.of(1, 2), client.getAllVersions(subject));
    same(second, open().getLatestSchemaMetadata(subject).getId());
    same(USER_1, open().getSchemaMetadata(subject, 1).getSchema());
    same(first, open().getByVersion(subject, 1, false).getId());
    same(first, open().getId(subject, new AvroSchema(USER_1)));
    same(2, open().getVersion(subject, new AvroSchema(USER_2), true));
    same(true, client.getAllSubjects().contains(subject));
    same(List.of(subject), new ArrayList<>(client.getAllSubjectsByPrefix("java/round")));
    same(true, client.getAllSubjectsById(second).contains(subject));
    same(true, client.getAllVersionsById(second).toString().contains(subject));
    List<ParsedSchema> all = client.getSchemas("java/", false, false);
    same(List.of(new AvroSchema(USER_1), new AvroSchema(USER_2)), all);
    same(1, client.getSchemas("java/", false, true).size());
    refused(404, 40401, () -> client.getLatestSchemaMetadata("java/nothing"));
    refused(404, 40402, () -> client.getSchemaMetadata(subject, 9));
    refused(404, 40403, () -> client.getSchemaById(999_999));
    refused(404, 40403, () -> client.getId(subject, new AvroSchema(ID)));
    refused(422, 42201, () -> rest().registerSchema("{", subject));
    done("register, evolve, find");
  }

  static void references() throws Exception {
    CachedSchemaRegistryClient client = open();
    client.register("java-id", new AvroSchema(ID));
    List<SchemaReference> references = List.of(new SchemaReference("n.Id", "java-id", 1));
    AvroSchema schema = new AvroSchema(WITH_ID, references, Map.of("n.Id", ID), null);
    int id = client.register("java-with-id", schema);
    ParsedSchema found = open().getSchemaById(id);
    same(references, found.references());
    same(schema, found);
    same(List.of(id), rest().getReferencedBy("java-id", 1));
    refused(422, 42206, () -> client.deleteSchemaVersion("java-id", "1", false));
    same(List.of(1), client.deleteSubject("java-with-id", false));
    same(1, client.deleteSchemaVersion("java-id", "1", false));
    done("references");
  }

  static void metadata() throws Exception {
    CachedSchemaRegistryClient client = open();
    Metadata metadata = new Metadata(null, Map.of("owner", "shop"), null);
    AvroSchema schema = new AvroSchema(USER_1, List.of(), Map.of(), metadata, null, null, false);
    int id = client.register("java-metadata", schema);
    same(id, open().getLatestWithMetadata("java-metadata", Map.of("owner", "shop"), false).getId());
    same(metadata, open().getSchemaById(id).metadata());
    refused(404, 40403, () -> client.getLatestWithMetadata("java-metadata", Map.of("owner", "me"), false));
    done("metadata");
  }

  static void compatibilityAndConfiguration() throws Exception {
    String subject = "java-level";
    CachedSchemaRegistryClient client = open();
    client.register(subject, new AvroSchema(USER_1));
    same(true, client.testCompatibility(subject, new AvroSchema(USER_2)));
    same(false, client.testCompatibility(subject, new AvroSchema(USER_INCOMPATIBLE)));
    String messages = client.testCompatibilityVerbose(subject, new AvroSchema(USER_INCOMPATIBLE)).toString();
    same(true, messages.contains("READER_FIELD_MISSING_DEFAULT_VALUE"));
    same("BACKWARD", client.getConfig(null).getCompatibilityLevel());
    refused(404, 40408, () -> client.getConfig(subject));
    client.updateConfig(subject, new Config("FULL"));
    same("FULL", client.getConfig(subject).getCompatibilityLevel());
    same("NONE", client.updateCompatibility(subject, "NONE"));
    same("NONE", client.getCompatibility(subject));
    client.register(subject, new AvroSchema(USER_INCOMPATIBLE));
    client.deleteConfig(subject);
    refused(404, 40408, () -> client.getConfig(subject));
    done("compatibility and configuration");
  }

  static void modes() throws Exception {
    String subject = "java-mode";
    CachedSchemaRegistryClient client = open();
    same("READWRITE", client.getMode());
    refused(404, 40409, () -> client.getMode(subject));
    client.register(subject, new AvroSchema(USER_1));
    same("READONLY", client.setMode("READONLY", subject));
    same("READONLY", client.getMode(subject));
    refused(422, 42205, () -> client.register(subject, new AvroSchema(USER_2)));
    client.deleteMode(subject);
    client.register(subject, new AvroSchema(USER_2));
    same("IMPORT", client.setMode("IMPORT", "java-import"));
    same(9_001, client.register("java-import", new AvroSchema(ID.replace("Id", "Imported")), 7, 9_001));
    same(List.of(7), client.getAllVersions("java-import"));
    done("modes");
  }

  static void deletes() throws Exception {
    String subject = "java-deleted";
    CachedSchemaRegistryClient client = open();
    refused(404, 40401, () -> client.deleteSubject(subject, false));
    client.register(subject, new AvroSchema(USER_1));
    client.register(subject, new AvroSchema(USER_2));
    refused(404, 40407, () -> client.deleteSchemaVersion(subject, "1", true));
    same(1, client.deleteSchemaVersion(subject, "1", false));
    refused(404, 40406, () -> client.deleteSchemaVersion(subject, "1", false));
    same(List.of(2), open().getAllVersions(subject));
    same(List.of(1, 2), open().getAllVersions(subject, true));
    same(USER_1, open().getSchemaMetadata(subject, 1, true).getSchema());
    same(1, client.deleteSchemaVersion(subject, "1", true));
    refused(404, 40405, () -> client.deleteSubject(subject, true));
    same(List.of(2), client.deleteSubject(subject, false));
    refused(404, 40404, () -> client.deleteSubject(subject, false));
    same(true, client.getAllSubjects(true).contains(subject));
    same(List.of(2), client.deleteSubject(subject, true));
    same(false, client.getAllSubjects(true).contains(subject));
    done("deletes");
  }

  static void contexts() throws Exception {
    CachedSchemaRegistryClient client = open();
    int id = client.register(":.java:orders", new AvroSchema(USER_2));
    same(1, id);
    same(new AvroSchema(USER_2), open().getSchemaBySubjectAndId(":.java:orders", id));
    same(true, rest().getAllContexts().contains(".java"));
    same(List.of(":.java:orders"), new ArrayList<>(client.getAllSubjectsByPrefix(":.java:")));
    done("contexts");
  }

  static void tagsAndRules() throws Exception {
    CachedSchemaRegistryClient client = open();
    client.register("java-tags", new AvroSchema(USER_1));
    SchemaEntity field = new SchemaEntity("shop.User.id", SchemaEntity.EntityType.SR_FIELD);
    TagSchemaRequest request = new TagSchemaRequest();
    request.setTagsToAdd(List.of(new SchemaTags(field, List.of("PII"))));
    Rule rule =
        new Rule("mail", null, RuleKind.CONDITION, RuleMode.WRITE, "CEL", null, null, "size(x) > 0", null, null, false);
    request.setRulesToMerge(new RuleSet(null, List.of(rule)));
    int id = rest().modifySchemaTags(RestService.DEFAULT_REQUEST_PROPERTIES, request, "java-tags", "latest").getId();
    same(id, open().getLatestSchemaMetadata("java-tags").getId());
    same(2, open().getLatestSchemaMetadata("java-tags").getVersion());
    ParsedSchema found = open().getSchemaById(id);
    same(Set.of("PII"), found.inlineTags());
    same("mail", found.ruleSet().getDomainRules().get(0).getName());
    Rule wrong =
        new Rule("mail", null, RuleKind.CONDITION, RuleMode.UPGRADE, "CEL", null, null, "x", null, null, false);
    RegisterSchemaRequest bad = new RegisterSchemaRequest();
    bad.setSchema(USER_1);
    bad.setRuleSet(new RuleSet(null, List.of(wrong)));
    refused(422, 42210, () -> rest().registerSchema(bad, "java-tags", false));
    done("tags and rules");
  }

  static void server() throws Exception {
    same(List.of("AVRO"), rest().getSchemaTypes());
    same(false, rest().getSchemaRegistryServerVersion().getVersion().isEmpty());
    same(false, rest().getClusterId().getScope().isEmpty());
    same(true, rest().testCompatibility(USER_1, "java-nothing", true).isEmpty());
    done("server");
  }

  static CachedSchemaRegistryClient open() {
    return new CachedSchemaRegistryClient(url, 100);
  }

  static RestService rest() {
    return new RestService(url);
  }

  static void same(Object expected, Object found) {
    if (!Objects.equals(expected, found)) {
      throw new AssertionError("expected " + expected + ", found " + found);
    }
  }

  static void refused(int status, int errorCode, Call call) throws Exception {
    try {
      throw new AssertionError("expected " + errorCode + ", found " + call.make());
    } catch (RestClientException error) {
      same(List.of(status, errorCode), List.of(error.getStatus(), error.getErrorCode()));
    }
  }

  static void done(String round) {
    System.out.println("done: " + round);
  }
}
