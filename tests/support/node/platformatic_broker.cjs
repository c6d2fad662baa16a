// @platformatic/kafka against the broker, the newest release that this Node runs: everything once, and with
// AFTER_RESTART what goes on when the broker was killed and is back.
"use strict";

const assert = require("node:assert/strict");
const { test, before } = require("node:test");

const address = process.env.BROKER_ADDRESS;
assert.ok(address, "BROKER_ADDRESS names the broker");
const [major, minor] = process.versions.node.split(".").map(Number);
const isNewest = major > 24 || (major === 24 && minor >= 6) || (major === 22 && minor >= 22);

const first = { skip: Boolean(process.env.AFTER_RESTART) };
const later = { skip: !process.env.AFTER_RESTART };
let kafka, options;
before(async () => {
  kafka = await import(require.resolve(isNewest ? "@platformatic/kafka" : "platformatic-kafka-1"));
  options = { clientId: "platformatic", bootstrapBrokers: [address], retries: 3 };
});

const messages = (topic, from, to, partition = 0) =>
  Array.from({ length: to - from }, (_, index) => ({
    topic,
    partition,
    key: `key ${from + index}`,
    value: `value ${from + index}`,
    headers: { n: `${from + index}` },
    timestamp: 1_700_000_000_000n + BigInt(from + index),
  }));

async function withAdmin(use) {
  const admin = new kafka.Admin(options);
  try {
    return await use(admin);
  } finally {
    await admin.close();
  }
}

const create = (topic, partitions = 1) =>
  withAdmin((admin) => admin.createTopics({ topics: [topic], partitions, replicas: 1 }));

function producerOf(more = {}) {
  return new kafka.Producer({ ...options, serializers: kafka.stringSerializers, ...more });
}

/** So many messages of a group that begins at the start, committed one by one. */
async function read(topic, groupId, count, more = {}) {
  const consumer = new kafka.Consumer({ ...options, groupId, deserializers: kafka.stringDeserializers, ...more });
  const stream = await consumer.consume({
    topics: [topic],
    mode: kafka.MessagesStreamModes.COMMITTED,
    fallbackMode: kafka.MessagesStreamFallbackModes.EARLIEST,
    autocommit: false,
    maxWaitTime: 200,
  });
  const found = [];
  if (count > 0) {
    for await (const message of stream) {
      found.push(message);
      await message.commit();
      if (found.length === count) break;
    }
  }
  await stream.close();
  await consumer.close(true);
  return found;
}

const values = (found) => found.map(({ partition, value }) => `${partition} ${value}`).sort();

test("topics and offsets are administered", first, async () => {
  await withAdmin(async (admin) => {
    const [created] = await admin.createTopics({
      topics: ["pl-topic"],
      partitions: 2,
      replicas: 1,
      configs: [{ name: "retention.ms", value: "600000" }],
    });
    assert.deepEqual([created.name, created.partitions, created.replicas], ["pl-topic", 2, 1]);
    await assert.rejects(admin.createTopics({ topics: ["pl-topic"], partitions: 2, replicas: 1 }));
    assert.ok((await admin.listTopics()).includes("pl-topic"));
    const metadata = await admin.metadata({ topics: ["pl-topic"] });
    assert.deepEqual([...metadata.brokers.values()].map(({ host, port }) => `${host}:${port}`), [address]);
    assert.equal(metadata.topics.get("pl-topic").partitionsCount, 2);
    await admin.createPartitions({ topics: [{ name: "pl-topic", count: 3, assignments: null }] });
    const again = await admin.metadata({ topics: ["pl-topic"], forceUpdate: true });
    assert.equal(again.topics.get("pl-topic").partitionsCount, 3);
    const [described] = await admin.describeConfigs({
      resources: [
        {
          resourceType: kafka.ConfigResourceTypes.TOPIC,
          resourceName: "pl-topic",
          configurationKeys: ["retention.ms"],
        },
      ],
    });
    assert.deepEqual(described.configs.map(({ name, value }) => [name, value]), [["retention.ms", "600000"]]);
    const producer = producerOf();
    await producer.send({ messages: messages("pl-topic", 0, 10) });
    await producer.close();
    const listed = async (timestamp) => {
      const [topic] = await admin.listOffsets({
        topics: [{ name: "pl-topic", partitions: [{ partitionIndex: 0, timestamp }] }],
      });
      return Number(topic.partitions[0].offset);
    };
    assert.deepEqual(
      [await listed(-2n), await listed(-1n), await listed(1_700_000_000_004n), await listed(1_700_000_000_010n)],
      [0, 10, 4, -1],
    );
    const [deleted] = await admin.deleteRecords({
      topics: [{ name: "pl-topic", partitions: [{ partition: 0, offset: 6n }] }],
    });
    assert.deepEqual(deleted.partitions, [{ partition: 0, lowWatermark: 6n }]);
    await admin.deleteTopics({ topics: ["pl-topic"] });
    assert.ok(!(await admin.listTopics()).includes("pl-topic"));
  });
});

for (const compression of ["none", "gzip", "snappy", "lz4", "zstd"]) {
  test(`idempotent batches of ${compression}`, first, async (context) => {
    if (compression === "zstd" && !require("node:zlib").zstdCompressSync) {
      context.skip("this Node has no zstd");
      return;
    }
    const topic = `pl-${compression}`;
    await create(topic);
    const producer = producerOf({ idempotent: true, compression });
    for (let from = 0; from < 300; from += 100) {
      const { offsets } = await producer.send({ messages: messages(topic, from, from + 100) });
      assert.deepEqual(offsets, [{ topic, partition: 0, offset: BigInt(from) }]);
    }
    await producer.close();
    const found = await read(topic, `${topic}-group`, 300);
    assert.deepEqual(
      found.map(({ key, value, offset, headers, timestamp }) => [key, value, offset, headers.get("n"), timestamp]),
      messages(topic, 0, 300).map(({ key, value, headers, timestamp }, number) => [
        key, value, BigInt(number), headers.n, timestamp,
      ]),
    );
  });
}

test("a group goes on where it stopped", first, async () => {
  await create("pl-group-topic", 2);
  const send = async (from, to, partition) => {
    const producer = producerOf();
    await producer.send({ messages: messages("pl-group-topic", from, to, partition) });
    await producer.close();
  };
  await send(0, 5, 0);
  await send(0, 5, 1);
  const some = await read("pl-group-topic", "pl-group", 7);
  const rest = await read("pl-group-topic", "pl-group", 3);
  assert.deepEqual(
    values([...some, ...rest]),
    [0, 1].flatMap((partition) => [0, 1, 2, 3, 4].map((number) => `${partition} value ${number}`)),
  );
  await withAdmin(async (admin) => {
    const [group] = await admin.listConsumerGroupOffsets({ groups: ["pl-group"] });
    assert.deepEqual(
      group.topics[0].partitions.map(({ partitionIndex, committedOffset }) => [partitionIndex, committedOffset]).sort(),
      [[0, 5n], [1, 5n]],
    );
    // Older releases of it write states in capitals.
    assert.equal((await admin.listGroups()).get("pl-group").state.toUpperCase(), "EMPTY");
  });
  await send(5, 6, 1);
  assert.deepEqual(values(await read("pl-group-topic", "pl-group", 1)), ["1 value 5"]);
});

test("transactions with the offsets of a group", first, async () => {
  await create("pl-in");
  await create("pl-out");
  const source = producerOf();
  await source.send({ messages: messages("pl-in", 0, 3) });
  await source.close();
  const producer = producerOf({ idempotent: true, transactionalId: "pl-id" });
  const consumer = new kafka.Consumer({ ...options, groupId: "pl-copier", deserializers: kafka.stringDeserializers });
  const stream = await consumer.consume({
    topics: ["pl-in"],
    mode: kafka.MessagesStreamModes.EARLIEST,
    autocommit: false,
    maxWaitTime: 200,
  });
  let number = 0;
  for await (const message of stream) {
    const transaction = await producer.beginTransaction();
    await transaction.addConsumer(consumer);
    await transaction.send({ messages: [{ topic: "pl-out", partition: 0, value: `copy of ${message.value}` }] });
    await transaction.addOffset(message);
    if (number === 1) await transaction.abort();
    else await transaction.commit();
    number += 1;
    if (number === 3) break;
  }
  await stream.close();
  const committed = await consumer.listCommittedOffsets({ topics: [{ topic: "pl-in", partitions: [0] }] });
  await consumer.close(true);
  await producer.close();
  assert.deepEqual([...committed.get("pl-in")].map(Number), [3]);
  const readCommitted = { isolationLevel: kafka.FetchIsolationLevels.READ_COMMITTED };
  assert.deepEqual(
    (await read("pl-out", "pl-committed", 2, readCommitted)).map(({ value }) => value),
    ["copy of value 0", "copy of value 2"],
  );
  const readUncommitted = { isolationLevel: kafka.FetchIsolationLevels.READ_UNCOMMITTED };
  assert.deepEqual(
    (await read("pl-out", "pl-all", 3, readUncommitted)).map(({ value }) => value),
    ["copy of value 0", "copy of value 1", "copy of value 2"],
  );
});

test("the group, the offsets and the transactional id go on", later, async () => {
  const producer = producerOf();
  await producer.send({ messages: messages("pl-group-topic", 6, 7, 0) });
  await producer.close();
  assert.deepEqual(values(await read("pl-group-topic", "pl-group", 1)), ["0 value 6"]);
  // Without these it claims the producer id 0, and is fenced by this broker as by Apache Kafka.
  const unclaimed = { producerId: -1n, producerEpoch: -1 };
  const again = producerOf({ idempotent: true, transactionalId: "pl-id", ...unclaimed });
  const transaction = await again.beginTransaction();
  await transaction.send({ messages: [{ topic: "pl-out", partition: 0, value: "after" }] });
  await transaction.commit();
  await again.close();
  const isolation = { isolationLevel: kafka.FetchIsolationLevels.READ_COMMITTED };
  assert.deepEqual((await read("pl-out", "pl-committed", 1, isolation)).map(({ value }) => value), ["after"]);
  await withAdmin(async (admin) => {
    await admin.deleteGroups({ groups: ["pl-group"] });
    assert.ok(!(await admin.listGroups()).has("pl-group"));
  });
});
