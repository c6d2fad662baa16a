// Both clients against a registry that asks who they are, over TLS by an authority that NODE_EXTRA_CA_CERTS names.
// The user `shop` may write subjects that begin with `shop-`, and read all.
"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry");
const { SchemaRegistryClient } = require("@confluentinc/schemaregistry");
const { USER_1, url } = require("./calls.cjs");

const password = process.env.PASSWORD;

test("@kafkajs/confluent-schema-registry", async () => {
  const open = (secret) =>
    new SchemaRegistry({ host: url, auth: { username: "shop", password: secret }, retry: { retries: 0 } });
  const schema = { type: SchemaType.AVRO, schema: JSON.stringify(USER_1) };
  const options = (subject) => ({ subject, updateConfig: false });
  const { id } = await open(password).register(schema, options("shop-kafkajs"));
  const message = await open(password).encode(id, { id: 7 });
  assert.deepEqual({ ...(await open(password).decode(message)) }, { id: 7 });
  await assert.rejects(open(password).register(schema, options("other")), { status: 403 });
  await assert.rejects(open("guess").getSchema(id), { status: 401, unauthorized: true });
});

test("@confluentinc/schemaregistry", async () => {
  const open = (secret) =>
    new SchemaRegistryClient({
      baseURLs: [url],
      maxRetries: 0,
      basicAuthCredentials: { credentialsSource: "USER_INFO", userInfo: `shop:${secret}` },
    });
  const schema = { schemaType: "AVRO", schema: JSON.stringify(USER_1) };
  const id = await open(password).register("shop-confluent", schema);
  assert.deepEqual(JSON.parse((await open(password).getBySubjectAndId("shop-confluent", id)).schema), USER_1);
  await assert.rejects(open(password).register("other", schema), { status: 403, errorCode: 40301 });
  await assert.rejects(open("guess").getAllSubjects(), { status: 401, errorCode: 40101 });
});
