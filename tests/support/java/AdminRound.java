import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What web consoles (AKHQ, kafka-ui) ask with Kafka's Admin of the broker whose address is the first argument. Prints a
 * line for each call: what was answered, or by what error it was refused.
 */
@SuppressWarnings({"deprecation", "removal"}) // consoles ask so
public class AdminRound {
  static final TopicPartition FIRST = new TopicPartition("sales", 0);
  static final ConfigResource TOPIC = new ConfigResource(ConfigResource.Type.TOPIC, "sales");
  static final ConfigResource BROKER = new ConfigResource(ConfigResource.Type.BROKER, "1");

  public static void main(String[] arguments) throws Exception {
    String address = arguments[0];
    Properties settings = new Properties();
    settings.put("bootstrap.servers", address);
    settings.put("request.timeout.ms", "20000");
    settings.put("default.api.timeout.ms", "20000"); // what is asked over and over ends so, which is no answer
    try (Admin admin = Admin.create(settings)) {
      topics(admin, address);
      groups(admin, address);
      configs(admin);
      transactions(admin, address);
      records(admin);
      whatIsNotThere(admin);
    }
  }

  static void topics(Admin admin, String address) throws Exception {
    say("describeCluster", () -> {
      var cluster = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
      var node = cluster.controller().get();
      return cluster.nodes().get().size() + " node " + node.id() + " " + node.host() + ", id " + cluster.clusterId().get().length()
          + " characters, may " + new TreeSet<>(cluster.authorizedOperations().get());
    });
    say("createTopics", () -> {
      var made = admin.createTopics(List.of(new NewTopic("sales", Optional.of(2), Optional.empty()).configs(Map.of("retention.ms", "-1", "segment.ms", "999999"))));
      return made.numPartitions("sales").get() + " " + made.replicationFactor("sales").get() + " "
          + made.config("sales").get().get("retention.ms").value();
    });
    produce(address);
    say("listTopics", () -> new TreeMap<>(admin.listTopics(new ListTopicsOptions().listInternal(true)).namesToListings().get())
        .values().stream().map(topic -> topic.name() + (topic.isInternal() ? " internal" : "")).toList());
    say("describeTopics", () -> {
      var topic = admin.describeTopics(List.of("sales"), new DescribeTopicsOptions().includeAuthorizedOperations(true))
          .allTopicNames().get().get("sales");
      return topic.partitions().stream().map(one -> one.partition() + " on " + one.leader().id()).toList() + " may "
          + new TreeSet<>(topic.authorizedOperations());
    });
    say("describeTopics by id", () -> {
      Uuid id = admin.describeTopics(List.of("sales")).allTopicNames().get().get("sales").topicId();
      return admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).name();
    });
    say("describeTopics by an id of none", () ->
        admin.describeTopics(TopicCollection.ofTopicIds(List.of(new Uuid(7, 7)))).allTopicIds().get());
    say("describeTopics of none", () -> admin.describeTopics(List.of("none")).allTopicNames().get());
    say("createPartitions", () -> admin.createPartitions(Map.of("sales", NewPartitions.increaseTo(3))).all().get());
    say("createPartitions to fewer", () -> admin.createPartitions(Map.of("sales", NewPartitions.increaseTo(2))).all().get());
    say("listOffsets earliest", () -> offset(admin, OffsetSpec.earliest()));
    say("listOffsets latest", () -> offset(admin, OffsetSpec.latest()));
    say("listOffsets max timestamp", () -> offset(admin, OffsetSpec.maxTimestamp()));
    say("listOffsets at 2000", () -> offset(admin, OffsetSpec.forTimestamp(2000)));
    say("listOffsets at 4000", () -> offset(admin, OffsetSpec.forTimestamp(4000)));
    say("describeLogDirs", () -> {
      LogDirDescription folder = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values().iterator().next();
      boolean isSpaceTold = folder.totalBytes().getAsLong() > folder.usableBytes().getAsLong();
      return folder.replicaInfos().entrySet().stream().filter(one -> one.getKey().topic().equals("sales"))
          .map(one -> one.getKey().partition() + (one.getValue().size() > 0 ? " has bytes" : " is empty")).sorted().toList()
          + (isSpaceTold ? " of a disk" : "");
    });
  }

  static String offset(Admin admin, OffsetSpec spec) throws Exception {
    ListOffsetsResultInfo found = admin.listOffsets(Map.of(FIRST, spec)).all().get().get(FIRST);
    return found.offset() + " of " + found.timestamp();
  }

  static void produce(String address) throws Exception {
    try (KafkaProducer<String, String> producer =
        new KafkaProducer<>(Map.of("bootstrap.servers", address), new StringSerializer(), new StringSerializer())) {
      for (long timestamp : new long[] {1000, 3000, 2000}) {
        producer.send(new ProducerRecord<>("sales", 0, timestamp, "key", "at " + timestamp)).get();
      }
    }
  }

  static void groups(Admin admin, String address) throws Exception {
    Map<String, Object> settings = Map.of(
        "bootstrap.servers", address, "group.id", "tills", "client.id", "till", "auto.offset.reset", "earliest", "enable.auto.commit", "false");
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(List.of("sales"));
      for (int count = 0; count < 3; ) {
        count += consumer.poll(java.time.Duration.ofMillis(200)).count();
      }
      consumer.commitSync();
      say("listGroups", () -> admin.listGroups().all().get().stream()
          .map(group -> group.groupId() + " " + group.type().get() + " " + group.groupState().get()).toList());
      say("listConsumerGroups", () -> admin.listConsumerGroups().all().get().stream()
          .map(group -> group.groupId() + " " + group.state().get()).toList());
      say("describeConsumerGroups", () -> {
        var group = admin.describeConsumerGroups(List.of("tills")).all().get().get("tills");
        var member = group.members().iterator().next();
        return group.groupState() + " " + group.partitionAssignor() + " " + group.members().size() + " " + member.clientId() + " "
            + member.host() + " " + new TreeSet<>(member.assignment().topicPartitions().stream().map(TopicPartition::partition).toList());
      });
      say("alterConsumerGroupOffsets of a member's", () ->
          admin.alterConsumerGroupOffsets("tills", Map.of(FIRST, new OffsetAndMetadata(0))).all().get());
      say("deleteConsumerGroups of members", () -> admin.deleteConsumerGroups(List.of("tills")).all().get());
    }
    say("listConsumerGroupOffsets", () -> offsets(admin));
    say("describeConsumerGroups without members", () ->
        admin.describeConsumerGroups(List.of("tills")).all().get().get("tills").groupState());
    say("describeConsumerGroups of none", () ->
        admin.describeConsumerGroups(List.of("none")).all().get().get("none").groupState());
    say("alterConsumerGroupOffsets", () -> {
      admin.alterConsumerGroupOffsets("tills", Map.of(FIRST, new OffsetAndMetadata(1, Optional.empty(), "again"))).all().get();
      return offsets(admin);
    });
    say("deleteConsumerGroupOffsets", () -> {
      admin.deleteConsumerGroupOffsets("tills", java.util.Set.of(FIRST)).all().get();
      return offsets(admin);
    });
    say("deleteConsumerGroups", () -> admin.deleteConsumerGroups(List.of("tills")).all().get());
  }

  static String offsets(Admin admin) throws Exception {
    Map<Integer, Long> found = new TreeMap<>();
    admin.listConsumerGroupOffsets("tills").partitionsToOffsetAndMetadata().get()
        .forEach((place, offset) -> found.put(place.partition(), offset.offset()));
    return found.toString();
  }

  static void configs(Admin admin) throws Exception {
    say("describeConfigs of the topic", () -> changed(admin.describeConfigs(List.of(TOPIC)).all().get().get(TOPIC)));
    say("describeConfigs of the broker", () -> {
      var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
      Config config = admin.describeConfigs(List.of(BROKER), options).all().get().get(BROKER);
      return config.get("num.partitions").value() + " " + config.get("auto.create.topics.enable").value() + " "
          + config.get("node.id").source() + " " + config.get("node.id").isReadOnly();
    });
    say("incrementalAlterConfigs", () -> {
      alter(admin, TOPIC, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
      alter(admin, TOPIC, "max.message.bytes", "2000", AlterConfigOp.OpType.SET);
      alter(admin, TOPIC, "segment.ms", "", AlterConfigOp.OpType.DELETE);
      return changed(admin.describeConfigs(List.of(TOPIC)).all().get().get(TOPIC));
    });
    say("incrementalAlterConfigs to what is not done", () -> alter(admin, TOPIC, "remote.storage.enable", "true", AlterConfigOp.OpType.SET));
    say("incrementalAlterConfigs of the broker", () -> alter(admin, BROKER, "log.retention.ms", "1", AlterConfigOp.OpType.SET));
  }

  static Object alter(Admin admin, ConfigResource resource, String name, String value, AlterConfigOp.OpType type) throws Exception {
    return admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry(name, value), type)))).all().get();
  }

  static Map<String, String> changed(Config config) {
    Map<String, String> found = new TreeMap<>();
    config.entries().stream().filter(entry -> !entry.isDefault()).forEach(entry -> found.put(entry.name(), entry.value()));
    return found;
  }

  static void transactions(Admin admin, String address) throws Exception {
    Map<String, Object> settings = Map.of("bootstrap.servers", address, "transactional.id", "till-1");
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      producer.initTransactions();
      producer.beginTransaction();
      producer.send(new ProducerRecord<>("sales", 1, "key", "open")).get();
      say("listTransactions", () -> admin.listTransactions().all().get().stream()
          .map(one -> one.transactionalId() + " " + one.state()).toList());
      say("describeTransactions", () -> {
        var one = admin.describeTransactions(List.of("till-1")).all().get().get("till-1");
        return one.state() + " " + one.topicPartitions() + " " + one.transactionTimeoutMs();
      });
      say("describeTransactions of none", () -> admin.describeTransactions(List.of("none")).all().get());
      say("describeProducers", () -> {
        var place = new TopicPartition("sales", 1);
        return admin.describeProducers(List.of(place)).all().get().get(place).activeProducers().stream()
            .map(one -> "open from " + one.currentTransactionStartOffset().getAsLong()).toList();
      });
      say("forceTerminateTransaction", () -> {
        admin.forceTerminateTransaction("till-1").result().get();
        return admin.describeTransactions(List.of("till-1")).all().get().get("till-1").state();
      });
    }
  }

  static void records(Admin admin) throws Exception {
    say("deleteRecords", () -> admin.deleteRecords(Map.of(FIRST, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(FIRST).get()
        .lowWatermark() + ", earliest " + admin.listOffsets(Map.of(FIRST, OffsetSpec.earliest())).all().get().get(FIRST).offset());
    say("deleteRecords beyond the end", () -> admin.deleteRecords(Map.of(FIRST, RecordsToDelete.beforeOffset(9))).all().get());
    say("deleteTopics by id", () -> {
      Uuid id = admin.describeTopics(List.of("sales")).allTopicNames().get().get("sales").topicId();
      admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
      return admin.listTopics().names().get();
    });
  }

  static void whatIsNotThere(Admin admin) throws Exception {
    say("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
    say("describeFeatures", () -> {
      var features = admin.describeFeatures().featureMetadata().get();
      return features.finalizedFeatures() + " " + features.supportedFeatures();
    });
    say("updateFeatures", () -> admin.updateFeatures(
        Map.of("transaction.version", new FeatureUpdate((short) 2, FeatureUpdate.UpgradeType.UPGRADE)), new UpdateFeaturesOptions()).all().get());
    say("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo().get());
    say("describeUserScramCredentials", () -> admin.describeUserScramCredentials().all().get());
    say("describeClientQuotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
    say("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments().get());
    say("listConfigResources", () -> admin.listConfigResources().all().get());
    say("describeDelegationToken", () -> admin.describeDelegationToken().delegationTokens().get());
    say("describeShareGroups", () -> admin.describeShareGroups(List.of("none")).all().get());
  }

  static void say(String call, Callable<Object> asked) throws Exception {
    String said;
    try {
      Object answer = asked.call();
      said = answer == null ? "done" : answer.toString();
    } catch (ExecutionException refused) {
      said = refused.getCause().getClass().getSimpleName() + ": " + refused.getCause().getMessage();
    }
    System.out.println(call + ": " + said);
  }
}
