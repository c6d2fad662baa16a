// @kafkajs/confluent-schema-registry against the registry.
// It has no words for deleting, listing and modes; those are asked for directly where a test needs them.
"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { SchemaRegistry, SchemaType, COMPATIBILITY } = require("@kafkajs/confluent-schema-registry");
const { USER_1, USER_2, USER_INCOMPATIBLE, ID, WITH_ID, url, ask } = require("./calls.cjs");

const open = () => new SchemaRegistry({ host: url, retry: { retries: 0 } });
const avro = (schema, references) => ({ type: SchemaType.AVRO, schema: JSON.stringify(schema), references });

test("register, evolve, encode and decode", async () => {
  const subject = "kafkajs/round-value";
  const registry = open();
  const first = await registry.register(avro(USER_1), { subject });
  // The first registration sets the level that the client was told.
  assert.deepEqual(await ask("GET", `/config/${encodeURIComponent(subject)}`), { compatibilityLevel: "BACKWARD" });
  assert.equal((await open().register(avro(USER_1), { subject })).id, first.id);
  const second = await registry.register(avro(USER_2), { subject });
  assert.notEqual(second.id, first.id);
  await assert.rejects(registry.register(avro(USER_INCOMPATIBLE), { subject }), (error) => {
    assert.equal(error.status, 409);
    assert.match(error.message, /Schema being registered is incompatible .*'age' at path '\/fields\/1'/);
    return true;
  });
  const message = await registry.encode(second.id, { id: 7, mail: "a@b.c" });
  assert.deepEqual({ ...(await open().decode(message)) }, { id: 7, mail: "a@b.c" });
  const older = await registry.encode(first.id, { id: 7 });
  const read = await open().decode(older, { [SchemaType.AVRO]: { readerSchema: USER_2 } });
  assert.deepEqual({ ...read }, { id: 7, mail: "" });
});

test("find by version, by schema and latest", async () => {
  const subject = "kafkajs-find";
  const registry = open();
  const first = await registry.register(avro(USER_1), { subject });
  const second = await registry.register(avro(USER_2), { subject });
  assert.equal(await registry.getRegistryId(subject, 1), first.id);
  assert.equal(await registry.getRegistryId(subject, "latest"), second.id);
  assert.equal(await registry.getLatestSchemaId(subject), second.id);
  assert.equal(await registry.getRegistryIdBySchema(subject, avro(USER_1)), first.id);
  await assert.rejects(registry.getRegistryIdBySchema(subject, avro(ID)), /Schema not found/);
  await assert.rejects(registry.getRegistryId("kafkajs-nothing", 1), /Subject 'kafkajs-nothing' not found\./);
  await assert.rejects(registry.getRegistryId(subject, 9), /Version 9 not found\./);
  await assert.rejects(open().decode(Buffer.from([0, 0, 15, 66, 63, 0])), /Schema 999999 not found/);
});

test("the level is the registry's", async () => {
  const subject = "kafkajs-level";
  const registry = open();
  await registry.register(avro(USER_1), { subject, compatibility: COMPATIBILITY.FULL });
  assert.deepEqual(await ask("GET", `/config/${subject}`), { compatibilityLevel: "FULL" });
  await assert.rejects(registry.register(avro(USER_2), { subject }), /Compatibility does not match the configuration/);
  await ask("PUT", `/config/${subject}`, { compatibility: "NONE" });
  const changed = await registry.register(avro(USER_INCOMPATIBLE), { subject, compatibility: COMPATIBILITY.NONE });
  assert.equal(await registry.getRegistryId(subject, 2), changed.id);
});

test("references", async () => {
  const registry = open();
  await registry.register(avro(ID), { subject: "kafkajs-id" });
  const references = [{ name: "n.Id", subject: "kafkajs-id", version: 1 }];
  const { id } = await registry.register(avro(WITH_ID, references), { subject: "kafkajs-with-id" });
  const message = await registry.encode(id, { id: Buffer.from("abcd") });
  const read = await open().decode(message);
  assert.equal(Buffer.from(read.id).toString(), "abcd");
  assert.equal((await ask("DELETE", "/subjects/kafkajs-id")).error_code, 42206);
  assert.deepEqual(await ask("DELETE", "/subjects/kafkajs-with-id"), [1]);
  assert.deepEqual(await ask("DELETE", "/subjects/kafkajs-id"), [1]);
});

test("deleted softly an id is still decoded, for good it is not", async () => {
  const subject = "kafkajs-deleted";
  const schema = { ...ID, name: "OnlyHere" };
  const { id } = await open().register(avro(schema), { subject });
  const message = await open().encode(id, Buffer.from("abcd"));
  assert.deepEqual(await ask("DELETE", `/subjects/${subject}`), [1]);
  await assert.rejects(open().getLatestSchemaId(subject), /not found/);
  assert.equal(Buffer.from(await open().decode(message)).toString(), "abcd");
  assert.deepEqual(await ask("DELETE", `/subjects/${subject}?permanent=true`), [1]);
  await assert.rejects(open().decode(message), /not found/);
});
