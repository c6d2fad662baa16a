// kafkajs against the broker: everything once, and with AFTER_RESTART what goes on when the broker was killed and is
// back. Of codecs it has gzip itself and snappy by kafkajs-snappy; packages of the others are compiled at their set-up.
"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require("kafkajs");

CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");

const address = process.env.BROKER_ADDRESS;
assert.ok(address, "BROKER_ADDRESS names the broker");
const kafka = new Kafka({ clientId: "kafkajs", brokers: [address], logLevel: logLevel.NOTHING, retry: { retries: 5 } });
const first = { skip: Boolean(process.env.AFTER_RESTART) };
const later = { skip: !process.env.AFTER_RESTART };
const T0_MS = 1_700_000_000_000;

const messages = (from, to, partition = 0) =>
  Array.from({ length: to - from }, (_, index) => ({
    partition,
    key: `key ${from + index}`,
    value: `value ${from + index}`,
    headers: { n: `${from + index}` },
    timestamp: `${T0_MS + from + index}`,
  }));

/** A connected client for the time of a call. */
async function using(client, use) {
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.disconnect();
  }
}

const create = (topic, numPartitions = 1) =>
  using(kafka.admin(), (admin) => admin.createTopics({ topics: [{ topic, numPartitions }] }));

const plain = () => kafka.producer({ createPartitioner: () => ({ message }) => message.partition });

/** So many messages of a group, from where it stands or the start; what it has read is committed when it ends. */
async function read(topic, groupId, count, more = {}) {
  const found = [];
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 200, ...more });
  await using(consumer, async () => {
    await consumer.subscribe({ topics: [topic], fromBeginning: true });
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
      consumer
        .run({
          autoCommit: false,
          eachMessage: async ({ partition, message }) => {
            if (found.length === count) return;
            found.push({ partition, ...message });
            const offset = `${BigInt(message.offset) + 1n}`;
            await consumer.commitOffsets([{ topic, partition, offset }]);
            if (found.length === count) resolve();
          },
        })
        .catch(reject);
    });
    await consumer.stop();
  });
  return found;
}

const values = (found) => found.map(({ partition, value }) => `${partition} ${value}`).sort();

test("topics, offsets and groups are administered", first, async () => {
  await using(kafka.admin(), async (admin) => {
    const topic = "kj-topic";
    const wanted = { topic, numPartitions: 2, configEntries: [{ name: "retention.ms", value: "600000" }] };
    assert.equal(await admin.createTopics({ topics: [wanted] }), true);
    assert.equal(await admin.createTopics({ topics: [wanted] }), false);
    await assert.rejects(admin.createTopics({ topics: [{ topic: "no/name" }] }), ({ errors: [{ type }] }) => {
      assert.equal(type, "INVALID_TOPIC_EXCEPTION");
      return true;
    });
    const { brokers, controller } = await admin.describeCluster();
    assert.deepEqual(brokers.map(({ nodeId, host, port }) => [nodeId, `${host}:${port}`]), [[controller, address]]);
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
    const metadata = await admin.fetchTopicMetadata({ topics: [topic] });
    assert.deepEqual(metadata.topics[0].partitions.map(({ partitionId }) => partitionId).sort(), [0, 1, 2]);
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
    const retention = async () =>
      (await admin.describeConfigs({ resources: [{ ...resource, configNames: ["retention.ms"] }] })).resources[0]
        .configEntries[0].configValue;
    assert.equal(await retention(), "600000");
    const configEntries = [{ name: "retention.ms", value: "700000" }];
    await admin.alterConfigs({ resources: [{ ...resource, configEntries }] });
    assert.equal(await retention(), "700000");
    await using(plain(), (producer) => producer.send({ topic, messages: messages(0, 10) }));
    const offsets = (await admin.fetchTopicOffsets(topic)).sort((a, b) => a.partition - b.partition);
    assert.deepEqual(offsets.map(({ low, high }) => [low, high]), [["0", "10"], ["0", "0"], ["0", "0"]]);
    const at = await admin.fetchTopicOffsetsByTimestamp(topic, T0_MS + 4);
    assert.equal(at.find(({ partition }) => partition === 0).offset, "4");
    await admin.setOffsets({ groupId: "kj-set", topic, partitions: [{ partition: 0, offset: "7" }] });
    const [set] = await admin.fetchOffsets({ groupId: "kj-set", topics: [topic] });
    assert.equal(set.partitions.find(({ partition }) => partition === 0).offset, "7");
    assert.ok((await admin.listGroups()).groups.some(({ groupId }) => groupId === "kj-set"));
    await admin.deleteGroups(["kj-set"]);
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "6" }] });
    assert.equal((await admin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0).low, "6");
    await admin.deleteTopics({ topics: [topic] });
    assert.ok(!(await admin.listTopics()).includes(topic));
  });
});

for (const compression of ["None", "GZIP", "Snappy"]) {
  test(`idempotent batches of ${compression}`, first, async () => {
    const topic = `kj-${compression.toLowerCase()}`;
    await create(topic);
    const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
    await using(producer, async () => {
      for (let from = 0; from < 300; from += 100) {
        const sent = { topic, compression: CompressionTypes[compression], messages: messages(from, from + 100) };
        const [told] = await producer.send(sent);
        assert.deepEqual([told.partition, told.baseOffset], [0, `${from}`]);
      }
    });
    const found = await read(topic, `${topic}-group`, 300);
    assert.deepEqual(
      found.map(({ key, value, offset, headers, timestamp }) => [
        ...[key, value, headers.n].map(String),
        offset,
        timestamp,
      ]),
      messages(0, 300).map(({ key, value, headers, timestamp }, number) => [
        ...[key, value, headers.n],
        `${number}`,
        timestamp,
      ]),
    );
  });
}

test("a group goes on where it stopped", first, async () => {
  const topic = "kj-group-topic";
  await create(topic, 2);
  await using(plain(), async (producer) => {
    await producer.send({ topic, messages: [...messages(0, 5, 0), ...messages(0, 5, 1)] });
    const some = await read(topic, "kj-group", 7);
    const rest = await read(topic, "kj-group", 3);
    assert.deepEqual(
      values([...some, ...rest]),
      [0, 1].flatMap((partition) => [0, 1, 2, 3, 4].map((number) => `${partition} value ${number}`)),
    );
    await using(kafka.admin(), async (admin) => {
      const [{ partitions }] = await admin.fetchOffsets({ groupId: "kj-group", topics: [topic] });
      assert.deepEqual(partitions.map(({ offset }) => offset), ["5", "5"]);
      const described = await admin.describeGroups(["kj-group"]);
      assert.deepEqual(described.groups.map(({ state, members }) => [state, members]), [["Empty", []]]);
    });
    await producer.send({ topic, messages: messages(5, 6, 1) });
    assert.deepEqual(values(await read(topic, "kj-group", 1)), ["1 value 5"]);
  });
});

test("transactions with the offsets of a group", first, async () => {
  await create("kj-in");
  await create("kj-out");
  const producer = kafka.producer({ transactionalId: "kj-id", maxInFlightRequests: 1, idempotent: true });
  await using(producer, async () => {
    for (let number = 0; number < 4; number += 1) {
      const transaction = await producer.transaction();
      await transaction.send({ topic: "kj-out", messages: [{ value: `value ${number}` }] });
      const topics = [{ topic: "kj-in", partitions: [{ partition: 0, offset: `${number + 1}` }] }];
      await transaction.sendOffsets({ consumerGroupId: "kj-copier", topics });
      await (number % 2 === 1 ? transaction.abort() : transaction.commit());
    }
  });
  const [{ partitions }] = await using(kafka.admin(), (admin) =>
    admin.fetchOffsets({ groupId: "kj-copier", topics: ["kj-in"] }),
  );
  assert.deepEqual(partitions.map(({ offset }) => offset), ["3"]);
  assert.deepEqual(values(await read("kj-out", "kj-committed", 2)), ["0 value 0", "0 value 2"]);
  const all = await read("kj-out", "kj-all", 4, { readUncommitted: true });
  assert.deepEqual(values(all), [0, 1, 2, 3].map((number) => `0 value ${number}`));
});

test("the group, the offsets and the transactional id go on", later, async () => {
  const topic = "kj-group-topic";
  await using(plain(), (producer) => producer.send({ topic, messages: messages(6, 7, 0) }));
  assert.deepEqual(values(await read(topic, "kj-group", 1)), ["0 value 6"]);
  const producer = kafka.producer({ transactionalId: "kj-id", maxInFlightRequests: 1, idempotent: true });
  await using(producer, async () => {
    const transaction = await producer.transaction();
    await transaction.send({ topic: "kj-out", messages: [{ value: "value 4" }] });
    await transaction.commit();
  });
  assert.deepEqual(values(await read("kj-out", "kj-committed", 1)), ["0 value 4"]);
});
