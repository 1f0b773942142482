import assert from "node:assert/strict"
import { test } from "node:test"
import { AclSubscribeError, InvalidTopicError, Topics, type Message, type TopicsOptions } from "../src/topics/index.js"
import { Server, token, until } from "./server.js"

const KEY = "a-signing-key-of-the-tests"
const open = await Server.start()
const guarded = await Server.start({ dev: false, config: `[auth]\nprojects = [{ id = "shop", keys = ["${KEY}"] }]\n` })

function client(t: { after(f: () => void): void }, options: Partial<TopicsOptions> = {}): Topics {
  const topics = new Topics({ server: open.url, project: "shop", ...options })
  t.after(() => topics.close())
  return topics
}

test("clients hear each other, and with excludeSelf not themselves", async t => {
  const [ann, bob] = [client(t), client(t)]
  const heard: unknown[] = []
  await Promise.all([ann.listen("chat:1", message => heard.push(["ann", message.payload])).ready, bob.listen("chat:1", message => heard.push(["bob", message.payload])).ready])
  assert.deepEqual(await ann.publish("chat:1", { type: "SAID", payload: "hi" }), { ok: true, capability: "exact", matched: 2 })
  assert.deepEqual(await ann.publish("chat:1", { type: "SAID", payload: "others" }, { excludeSelf: true }), { ok: true, capability: "exact", matched: 1 })
  await until(() => heard.length === 3)
  assert.deepEqual(heard.filter(([who]: any) => who === "ann"), [["ann", "hi"]])
  assert.deepEqual(heard.filter(([who]: any) => who === "bob"), [["bob", "hi"], ["bob", "others"]])
})

test("sets, updates and lists are those of the server", async t => {
  const topics = client(t)
  assert.deepEqual(await topics.set(["a", "b", "c"]), { added: 3, removed: 0, total: 3 })
  assert.deepEqual(await topics.update(draft => draft.delete("a") && draft.add("d")), { added: 1, removed: 1, total: 3 })
  assert.deepEqual(await topics.subscribeMany(["d", "e"]), { added: 1, removed: 0, total: 4 })
  assert.deepEqual(await topics.unsubscribeMany(["b", "zz"]), { added: 0, removed: 1, total: 3 })
  assert.deepEqual(await topics.list(), { topics: ["c", "d", "e"], total: 3 })
  assert.deepEqual([...topics], ["c", "d", "e"])
  assert.deepEqual(await topics.verify("c"), { kind: "subscribed" })
  assert.deepEqual(await topics.verify("b"), { kind: "unsubscribed" })
  await topics.unsubscribe("c")
  await topics.settle()
  assert.deepEqual(await topics.clear(), { added: 0, removed: 2, total: 0 })
  assert.deepEqual((await topics.list()).topics, [])
})

test("what the server refuses is an error of its own class and changes nothing", async t => {
  const topics = client(t)
  await topics.subscribe("fine")
  const refused = await topics.subscribe("no spaces").catch((error: unknown) => error)
  assert.ok(refused instanceof InvalidTopicError)
  assert.deepEqual([refused.code, refused.retryable, refused.details], ["INVALID_TOPIC", false, { reason: "pattern", topic: "no spaces" }])
  await assert.rejects(topics.set(["other", "no spaces"]), InvalidTopicError)
  assert.deepEqual(await topics.list(), { topics: ["fine"], total: 1 })
  const outcomes = await Promise.allSettled(["x".repeat(200), "good:1", "good:2"].map(each => topics.subscribe(each)))
  assert.deepEqual(outcomes.map(({ status }) => status), ["rejected", "fulfilled", "fulfilled"])
  const published = await topics.publish("no spaces", { type: "X" })
  assert.deepEqual([published.ok, !published.ok && published.error], [false, "VALIDATION"])
})

test("bytes and integers arrive as they were sent", async t => {
  const topics = client(t)
  const heard: Message[] = []
  await topics.listen("media", message => heard.push(message)).ready
  const bytes = Uint8Array.from({ length: 70_000 }, (_, index) => index % 256)
  await topics.publish("media", { type: "IMAGE", meta: { name: "x" }, payload: bytes })
  await topics.publish("media", { type: "NOTHING" })
  await topics.publish("media", { type: "NULL", payload: null })
  await until(() => heard.length === 3)
  assert.deepEqual(heard[0]?.payload, bytes)
  assert.deepEqual([heard[0]?.type, heard[0]?.meta.name, heard[0]?.binary], ["IMAGE", "x", true])
  assert.deepEqual([heard[1]?.payload, heard[2]?.payload], [undefined, null])
})

test("a request that the server of today does not have is its error", async t => {
  const topics = client(t)
  await assert.rejects(topics.history("a"), { code: "FAILED_PRECONDITION" })
})

test("a frame above the limit is refused here, and the connection stays", async t => {
  const topics = client(t)
  const result = await topics.publish("a", { type: "X", payload: "x".repeat(1_200_000) })
  assert.equal(!result.ok && result.error, "PAYLOAD_TOO_LARGE")
  const between = await topics.publish("a", { type: "X", payload: "x".repeat(1_060_000) })
  assert.equal(!between.ok && between.error, "PAYLOAD_TOO_LARGE")
  assert.equal((await topics.publish("a", { type: "X" })).ok, true)
})

test("a server that restarts gets one $set, and the listeners are told", async t => {
  const server = await Server.start()
  const topics = client(t, { server: server.url, backoff: { firstMs: 100 } })
  const restored: string[] = []
  const heard: unknown[] = []
  const names = Array.from({ length: 1000 }, (_, index) => `t:${index}`)
  await Promise.all(names.map(name => topics.listen(name, { message: message => heard.push(message.payload), restored: ({ topic }) => restored.push(topic) }).ready))
  const why: string[] = []
  topics.onState(state => state.status === "waiting" && why.push(state.why.reason))
  await server.stop("SIGTERM")
  await until(() => why.includes("going-away"))
  const published = topics.publish("t:999", { type: "X", payload: "after" })
  await server.run()
  await until(() => restored.length === 1000)
  assert.equal((await published).ok, true)
  await until(() => heard.length === 1)
  assert.equal((await topics.list()).total, 1000)
})

test("a token is refused, explained, and replaced by a good one", async t => {
  let asked = 0
  const good = await token(KEY, { project: "shop", sub: "ann", scope: "write", exp: Math.floor(Date.now() / 1000) + 600 })
  const topics = client(t, { server: guarded.url, token: () => (asked++ === 0 ? "stale" : good) })
  const why: unknown[] = []
  topics.onState(state => state.status === "waiting" && why.push(state.why.code))
  await topics.subscribe("a")
  assert.deepEqual([asked, why], [2, [401]])
  const fixed = client(t, { server: guarded.url, token: "stale" })
  await assert.rejects(fixed.subscribe("a"), { code: "CONNECTION_CLOSED", retryable: false })
  assert.equal(fixed.state.status === "closed" && fixed.state.why.code, 401)
})

test("a token that expires is renewed on the open connection", async t => {
  let asked = 0
  const soon = (seconds: number) => token(KEY, { project: "shop", sub: "ann", scope: "write", exp: Math.floor(Date.now() / 1000) + seconds })
  const topics = client(t, { server: guarded.url, token: () => (asked++ === 0 ? soon(3) : soon(600)) })
  const states: string[] = []
  topics.onState(({ status }) => states.push(status))
  await topics.subscribe("a")
  await until(() => asked === 2)
  // An answer to anything shows that the server has taken the frames before it.
  await topics.list()
  assert.deepEqual([states, topics.has("a")], [["connecting", "connected"], true])
})

test("what a token does not grant is refused, and what it does not any more is ended", async t => {
  const claims = { project: "shop", sub: "ann", scope: "write", exp: Math.floor(Date.now() / 1000) + 600, topics: ["room:*"] }
  const topics = client(t, { server: guarded.url, token: await token(KEY, claims) })
  const errors: any[] = []
  topics.listen("room:1", { error: error => errors.push(error) })
  topics.listen("room:2", {})
  const refused = await topics.subscribe("other").catch((error: unknown) => error)
  assert.ok(refused instanceof AclSubscribeError && refused.topic === "other")
  await topics.settle()
  const manage = await token(KEY, { project: "shop", scope: "manage", exp: claims.exp })
  await guarded.post("/v1/shop/revocations", { user: "ann", topics: ["room:1"] }, { authorization: `Bearer ${manage}` })
  await until(() => errors.length === 1)
  assert.deepEqual([errors[0].code, errors[0].reason, topics.wanted], ["UNSUBSCRIBED", "revoked", ["room:2"]])
  await guarded.post("/v1/shop/revocations", { user: "ann" }, { authorization: `Bearer ${manage}` })
  await until(() => topics.state.status === "closed")
  assert.equal(topics.state.status === "closed" && topics.state.why.reason, "revoked")
})
