// Schemas and helpers that the tests of both clients use.
"use strict";

const assert = require("node:assert/strict");

const USER_1 = { type: "record", name: "User", namespace: "shop", fields: [{ name: "id", type: "long" }] };
const USER_2 = { ...USER_1, fields: [...USER_1.fields, { name: "mail", type: "string", default: "" }] };
const USER_INCOMPATIBLE = { ...USER_1, fields: [...USER_1.fields, { name: "age", type: "int" }] };
const ID = { type: "fixed", name: "Id", namespace: "n", size: 4 };
const WITH_ID = { type: "record", name: "R", fields: [{ name: "id", type: "n.Id" }] };

const url = process.env.REGISTRY_URL;
assert.ok(url, "REGISTRY_URL names the registry");

/** What the registry answers to a call that the client has no word for. */
async function ask(method, path, body) {
  const response = await fetch(url + path, {
    method,
    headers: { "Content-Type": "application/vnd.schemaregistry.v1+json" },
    body: body && JSON.stringify(body),
  });
  return response.json();
}

module.exports = { USER_1, USER_2, USER_INCOMPATIBLE, ID, WITH_ID, url, ask };
