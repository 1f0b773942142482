import assert from "node:assert/strict"
import { test } from "node:test"
import * as v from "valibot"
import { z } from "zod"
import { message, topic, UnsubscribedError, ValidationError, type Message } from "../src/topics/index.js"
import { hello, reply, turn } from "./fakes.js"
import { broadcast, connected } from "./topics-scene.js"

test("an iterator gives messages in order, ends with its signal, and tells when the server ends it", async () => {
  const { network, topics } = await connected()
  const controller = new AbortController()
  const messages = topics.messages("a", { signal: controller.signal })
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]), broadcast("a", 1), broadcast("a", 2))
  const heard = []
  for await (const each of messages) {
    heard.push(each.payload)
    if (each.payload === 2) controller.abort()
  }
  assert.deepEqual(heard, [1, 2])
  await turn()
  network.socket.frames()
  const ended = topics.messages("b")
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]), { type: "$unsubscribed", payload: { topics: ["b"], reason: "revoked" } })
  await assert.rejects(ended.next(), (error: unknown) => error instanceof UnsubscribedError && error.reason === "revoked")
  assert.deepEqual(topics.wanted, [])
})

test("an iterator that is not read is bounded", async () => {
  const { network, topics } = await connected()
  const messages = topics.messages("a", { max: 2 })
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]), broadcast("a", 1), broadcast("a", 2), broadcast("a", 3))
  assert.deepEqual([(await messages.next()).value.payload, (await messages.next()).value.payload], [1, 2])
  await assert.rejects(messages.next(), { code: "OVERFLOW" })
  assert.equal((await messages.next()).done, true)
})

test("leaving the loop unsubscribes", async () => {
  const { network, topics } = await connected()
  const messages = topics.messages("a")
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]), broadcast("a", 1))
  for await (const _ of messages) break
  await turn()
  assert.equal(network.socket.frames()[0]?.type, "$unsubscribe")
})

test("a publish never throws and says what came of it", async () => {
  const { network, topics } = await connected()
  const publishing = topics.publish("a", { type: "SAID", payload: null }, { excludeSelf: true, partitionKey: "k" })
  await turn()
  const [request] = network.socket.frames()
  assert.deepEqual(request?.payload, { topic: "a", message: { type: "SAID", payload: null }, excludeSelf: true, partitionKey: "k" })
  await network.socket.says(reply(request, { ok: true, capability: "exact", matched: 2 }))
  assert.deepEqual(await publishing, { ok: true, capability: "exact", matched: 2 })
  const large = await topics.publish("a", { type: "SAID", payload: "ü".repeat(600_000) })
  assert.deepEqual([large.ok, !large.ok && large.error], [false, "PAYLOAD_TOO_LARGE"])
  const circular: Record<string, unknown> = {}
  circular.self = circular
  const impossible = await topics.publish("a", { type: "SAID", payload: circular })
  assert.equal(!impossible.ok && impossible.error, "VALIDATION")
  const aborted = await topics.publish("a", { type: "SAID" }, { signal: AbortSignal.abort() })
  assert.equal(!aborted.ok && aborted.error, "STATE")
  const lost = topics.publish("a", { type: "SAID" })
  await turn()
  await network.socket.closes()
  const result = await lost
  assert.deepEqual([result.ok, !result.ok && result.error, !result.ok && result.retryable], [false, "CONNECTION_CLOSED", true])
  const waiting = topics.publish("a", { type: "SAID" }, { timeoutMs: 100 })
  await network.clock.advance(100)
  assert.equal((await waiting).ok, false)
})

test("a publish while away waits for the connection and is sent behind the subscriptions", async () => {
  const { network, topics } = await connected()
  topics.listen("a", () => {})
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]))
  await network.socket.closes()
  const publishing = topics.publish("a", { type: "SAID" })
  await network.clock.advance(500)
  await network.socket.opens()
  await network.socket.says(hello())
  const frames = network.socket.frames()
  assert.deepEqual(frames.map(each => each.type), ["$set", "$publish"])
  await network.socket.says(reply(frames[1], { ok: true, capability: "exact", matched: 1 }))
  assert.equal((await publishing).ok, true)
})

test("a socket that takes no more refuses publishes instead of growing", async () => {
  const { network, topics } = await connected()
  network.socket.bufferedAmount = 5 * 1024 * 1024
  const result = await topics.publish("a", { type: "SAID" })
  assert.equal(!result.ok && result.error, "BACKPRESSURE")
})

test("bytes go out and come in as they are", async () => {
  const { network, topics } = await connected()
  void topics.publish("a", { type: "IMAGE", meta: { name: "x" }, payload: new Uint8Array([1, 2, 255]) })
  await turn()
  const [frame] = network.socket.sent as [Uint8Array]
  const length = new DataView(frame.buffer).getUint16(0)
  const header = JSON.parse(new TextDecoder().decode(frame.subarray(2, 2 + length)))
  assert.deepEqual(header.payload, { topic: "a", message: { type: "IMAGE", meta: { name: "x" } } })
  assert.deepEqual([...frame.subarray(2 + length)], [1, 2, 255])
  const heard: Message[] = []
  topics.onMessage(each => heard.push(each))
  const text = new TextEncoder().encode(JSON.stringify({ type: "IMAGE", meta: { topic: "a" } }))
  await network.socket.says(new Uint8Array([0, text.length, ...text, 9, 8]).buffer)
  assert.ok(heard[0]?.binary)
  assert.deepEqual(heard[0]?.payload, new Uint8Array([9, 8]))
})

for (const [library, schema] of [["zod", z.object({ text: z.string() })], ["valibot", v.object({ text: v.string() })]] as const) {
  test(`typed messages are checked before they are sent and when they are received: ${library}`, async () => {
    const { network, topics } = await connected()
    const Said = message("SAID", schema)
    const wrong = await topics.publish("a", Said, { text: 7 } as never)
    assert.equal(!wrong.ok && wrong.error, "VALIDATION")
    assert.ok(!wrong.ok && wrong.cause instanceof ValidationError && wrong.cause.issues.length === 1)
    assert.deepEqual(network.socket.frames(), [])
    const heard: string[] = []
    const errors: unknown[] = []
    topics.listen("a", Said, { message: each => heard.push(each.payload.text), error: error => errors.push(error) })
    await turn()
    await network.socket.says(
      reply(network.socket.frames()[0]),
      broadcast("a", { text: "good" }),
      broadcast("a", { text: 1 }),
      { type: "OTHER", meta: { topic: "a" }, payload: {} },
    )
    assert.deepEqual(heard, ["good"])
    assert.ok(errors.length === 1 && errors[0] instanceof ValidationError)
  })
}

test("messages whose check takes time keep their order", async () => {
  const { network, topics } = await connected()
  const Said = message("SAID", z.object({ n: z.number() }).refine(async ({ n }) => (n === 1 && (await turn()), true)))
  const heard: number[] = []
  topics.listen("a", Said, each => heard.push(each.payload.n))
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]), ...[1, 2, 3].map(n => broadcast("a", { n })))
  await turn()
  assert.deepEqual(heard, [1, 2, 3])
})

test("a typed topic is made of checked arguments and read back", () => {
  const Room = topic("room", z.object({ roomId: z.uuid() }), ({ roomId }) => `room:${roomId}`, text => ({ roomId: text.split(":")[1] }))
  const roomId = "6f1c2d3e-4b5a-4c7d-8e9f-0a1b2c3d4e5f"
  assert.equal(Room.name, "room")
  assert.equal(Room.make({ roomId }), `room:${roomId}`)
  assert.throws(() => Room.make({ roomId: "x" }), ValidationError)
  assert.deepEqual(Room.parse(`room:${roomId}`), { roomId })
  assert.equal(Room.parse(`other:${roomId}`), undefined)
  assert.equal(Room.parse("room"), undefined)
  for (const type of ["$x", "__x", "ERROR", "RPC_ERROR", "", "x".repeat(129)]) assert.throws(() => message(type, z.any()), TypeError)
})
