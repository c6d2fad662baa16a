// @confluentinc/schemaregistry and its Avro serializer against the registry.
// It has no words for modes and contexts; those are asked for directly where a test needs them.
"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { SchemaRegistryClient, AvroSerializer, AvroDeserializer, SerdeType } = require("@confluentinc/schemaregistry");
const { USER_1, USER_2, USER_INCOMPATIBLE, ID, WITH_ID, url, ask } = require("./calls.cjs");

const open = () => new SchemaRegistryClient({ baseURLs: [url], maxRetries: 0 });
const avro = (schema, more) => ({ schemaType: "AVRO", schema: JSON.stringify(schema), ...more });
const refused = (status, errorCode) => (error) => {
  assert.deepEqual([error.status, error.errorCode], [status, errorCode]);
  return true;
};

test("register, evolve, find", async () => {
  const subject = "confluent/round";
  const client = open();
  const full = await client.registerFullResponse(subject, avro(USER_1));
  assert.equal(full.version, 1);
  assert.deepEqual(JSON.parse(full.schema), USER_1);
  assert.equal(await open().register(subject, avro(USER_1), true), full.id);
  const second = await client.register(subject, avro(USER_2));
  assert.notEqual(second, full.id);
  await assert.rejects(client.register(subject, avro(USER_INCOMPATIBLE)), refused(409, 40901));
  await assert.rejects(client.register(subject, { schemaType: "AVRO", schema: "{" }), refused(422, 42201));
  assert.deepEqual(JSON.parse((await open().getBySubjectAndId(subject, full.id)).schema), USER_1);
  assert.deepEqual(JSON.parse((await open().getByGuid(full.guid)).schema), USER_1);
  assert.equal(await open().getId(subject, avro(USER_2)), second);
  assert.equal((await open().getIdFullResponse(subject, avro(USER_1))).guid, full.guid);
  assert.equal(await open().getVersion(subject, avro(USER_1), false, false), 1);
  // The one call that does not encode the subject itself.
  assert.deepEqual(await client.getAllVersions(encodeURIComponent(subject)), [1, 2]);
  assert.ok((await client.getAllSubjects()).includes(subject));
  const latest = await open().getLatestSchemaMetadata(subject);
  assert.deepEqual([latest.id, latest.version, latest.subject], [second, 2, subject]);
  assert.equal((await open().getSchemaMetadata(subject, 1)).id, full.id);
  await assert.rejects(open().getLatestSchemaMetadata("confluent/nothing"), refused(404, 40401));
  await assert.rejects(open().getSchemaMetadata(subject, 9), refused(404, 40402));
  await assert.rejects(open().getId(subject, avro(ID)), refused(404, 40403));
  await assert.rejects(open().getBySubjectAndId(subject, 999999), refused(404, 40403));
});

test("metadata", async () => {
  const subject = "confluent-metadata";
  const metadata = { properties: { owner: "shop" }, tags: { "shop.User.id": ["PII"] }, sensitive: ["owner"] };
  const id = await open().register(subject, avro(USER_1, { metadata }));
  const found = await open().getLatestWithMetadata(subject, { owner: "shop" });
  assert.equal(found.id, id);
  assert.deepEqual(found.metadata, metadata);
  await assert.rejects(open().getLatestWithMetadata(subject, { owner: "me" }), refused(404, 40403));
});

test("references", async () => {
  const client = open();
  await client.register("confluent-id", avro(ID));
  const references = [{ name: "n.Id", subject: "confluent-id", version: 1 }];
  const schema = avro(WITH_ID, { references });
  await client.register("confluent-with-id-value", schema);
  assert.deepEqual((await open().getLatestSchemaMetadata("confluent-with-id-value")).references, references);
  const writing = new AvroSerializer(client, SerdeType.VALUE, { useLatestVersion: true });
  const message = await writing.serialize("confluent-with-id", { id: Buffer.from("abcd") });
  const read = await new AvroDeserializer(open(), SerdeType.VALUE, {}).deserialize("confluent-with-id", message);
  assert.equal(Buffer.from(read.id).toString(), "abcd");
  await assert.rejects(client.deleteSubjectVersion("confluent-id", 1), refused(422, 42206));
  await client.deleteSubject("confluent-with-id-value");
  assert.deepEqual(await client.deleteSubject("confluent-id"), [1]);
});

test("serializers", async () => {
  const client = open();
  const id = await client.register("confluent-serialized-value", avro(USER_2));
  const value = { id: 7, mail: "a@b.c" };
  for (const options of [{ useLatestVersion: true }, { useSchemaId: id, autoRegisterSchemas: false }]) {
    const message = await new AvroSerializer(client, SerdeType.VALUE, options).serialize("confluent-serialized", value);
    assert.equal(message.readInt32BE(1), id);
    const reading = new AvroDeserializer(open(), SerdeType.VALUE, {});
    assert.deepEqual({ ...(await reading.deserialize("confluent-serialized", message)) }, value);
  }
  const inferred = new AvroSerializer(client, SerdeType.VALUE, { autoRegisterSchemas: true });
  const message = await inferred.serialize("confluent-inferred", { city: "Basel" });
  const reading = new AvroDeserializer(open(), SerdeType.VALUE, {});
  assert.deepEqual({ ...(await reading.deserialize("confluent-inferred", message)) }, { city: "Basel" });
});

test("compatibility and configuration", async () => {
  const subject = "confluent-level";
  const client = open();
  await client.register(subject, avro(USER_1));
  assert.equal(await client.testSubjectCompatibility(subject, avro(USER_2)), true);
  assert.equal(await client.testSubjectCompatibility(subject, avro(USER_INCOMPATIBLE)), false);
  assert.equal(await client.testCompatibility(subject, 1, avro(USER_INCOMPATIBLE)), false);
  assert.equal(await client.getDefaultCompatibility(), "BACKWARD");
  await assert.rejects(client.getCompatibility(subject), refused(404, 40408));
  assert.equal(await client.updateCompatibility(subject, "FULL"), "FULL");
  assert.equal(await client.getCompatibility(subject), "FULL");
  const update = { compatibility: "NONE", normalize: true, compatibilityGroup: "major" };
  assert.deepEqual(await client.updateConfig(subject, update), update);
  const { compatibility, ...others } = update;
  assert.deepEqual(await client.getConfig(subject), { ...others, compatibilityLevel: compatibility });
  assert.ok(await client.register(subject, avro(USER_INCOMPATIBLE)));
  assert.equal((await client.getDefaultConfig()).compatibilityLevel, "BACKWARD");
  assert.equal(await client.updateDefaultCompatibility("FORWARD"), "FORWARD");
  assert.equal((await client.updateDefaultConfig({ compatibility: "BACKWARD" })).compatibility, "BACKWARD");
});

test("delete softly and for good", async () => {
  const subject = "confluent-deleted";
  const client = open();
  await assert.rejects(client.deleteSubject(subject), refused(404, 40401));
  await client.register(subject, avro(USER_1));
  await client.register(subject, avro(USER_2));
  await assert.rejects(client.deleteSubjectVersion(subject, 1, true), refused(404, 40407));
  assert.equal(await client.deleteSubjectVersion(subject, 1), 1);
  await assert.rejects(open().getSchemaMetadata(subject, 1), refused(404, 40402));
  assert.equal((await open().getSchemaMetadata(subject, 1, true)).version, 1);
  assert.equal(await client.deleteSubjectVersion(subject, 1, true), 1);
  await assert.rejects(client.deleteSubject(subject, true), refused(404, 40405));
  assert.deepEqual(await client.deleteSubject(subject), [2]);
  await assert.rejects(client.deleteSubject(subject), refused(404, 40404));
  assert.deepEqual(await client.deleteSubject(subject, true), [2]);
  assert.ok(!(await ask("GET", "/subjects?deleted=true")).includes(subject));
});
