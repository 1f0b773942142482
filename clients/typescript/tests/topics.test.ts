import assert from "node:assert/strict"
import { test } from "node:test"
import { AclSubscribeError, InvalidTopicError, TopicLimitExceededError, type Message } from "../src/topics/index.js"
import { refuse, reply, turn } from "./fakes.js"
import { broadcast, connected, reconnect } from "./topics-scene.js"

test("subscriptions of one tick are one request, and each has its outcome", async () => {
  const { network, topics } = await connected()
  const outcomes = ["a", "b", "a", "c"].map(each => topics.subscribe(each))
  await turn()
  const [request, ...more] = network.socket.frames()
  assert.deepEqual(more, [])
  assert.deepEqual([request?.type, request?.payload], ["$subscribeMany", { topics: ["a", "b", "c"] }])
  assert.equal(topics.has("a"), false)
  assert.equal(topics.localStatus("a"), "pending-subscribe")
  await network.socket.says(reply(request, { added: 3, total: 3 }))
  await Promise.all(outcomes)
  assert.deepEqual([...topics], ["a", "b", "c"])
  assert.equal(topics.localStatus("a"), "settled")
  assert.equal(topics.localStatus("z"), "absent")
})

test("after a reconnect one $set restores a thousand subscriptions with their positions", async () => {
  const { network, topics } = await connected()
  const names = Array.from({ length: 1000 }, (_, index) => `t:${index}`)
  const restored: unknown[] = []
  topics.onRestored(each => restored.push(each))
  const heard: Message[] = []
  for (const name of names.slice(0, 500)) topics.listen(name, each => heard.push(each))
  void topics.subscribeMany(names.slice(500))
  await turn()
  for (const request of network.socket.frames()) await network.socket.says(reply(request))
  await network.socket.says(broadcast("t:1", "x", { epoch: "e", offset: 7 }), broadcast("t:600", "y", { epoch: "e", offset: 9 }))
  await reconnect(network)
  const [request, ...more] = network.socket.frames()
  assert.deepEqual(more, [])
  assert.equal(request?.type, "$set")
  assert.deepEqual(new Set(request?.payload.topics), new Set(names))
  assert.deepEqual(request?.payload.recover, { "t:1": { epoch: "e", offset: 7 }, "t:600": { epoch: "e", offset: 9 } })
  assert.equal(topics.state.status, "connecting")
  await network.socket.says(reply(request, { positions: { "t:1": { epoch: "e", offset: 8, recovered: true }, "t:600": { epoch: "f", offset: 2, recovered: false } } }))
  assert.equal(topics.state.status, "connected")
  assert.equal(restored.length, 1000)
  assert.deepEqual(restored[1], { topic: "t:1", recovered: true })
  await network.socket.says(broadcast("t:1", "missed", { epoch: "e", offset: 8 }))
  assert.deepEqual(heard.map(each => each.payload), ["x", "missed"])
  assert.deepEqual([topics.position("t:1"), topics.position("t:600")], [{ epoch: "e", offset: 8 }, { epoch: "f", offset: 2 }])
})

test("a connection that is lost during the replay asks again for what it has not heard", async () => {
  const { network, topics } = await connected()
  topics.listen("a", () => {})
  await turn()
  await network.socket.says(reply(network.socket.frames()[0], { epoch: "e", offset: 3 }))
  await reconnect(network)
  await network.socket.says(reply(network.socket.frames()[0], { positions: { a: { epoch: "e", offset: 6, recovered: true } } }))
  await network.socket.says(broadcast("a", 4, { epoch: "e", offset: 4 }))
  await reconnect(network)
  assert.deepEqual(network.socket.frames()[0]?.payload.recover, { a: { epoch: "e", offset: 4 } })
})

test("a message that comes twice is heard once", async () => {
  const { network, topics } = await connected()
  const heard: unknown[] = []
  topics.listen("a", each => heard.push(each.payload))
  await turn()
  await network.socket.says(reply(network.socket.frames()[0], { epoch: "e", offset: 3 }))
  for (const offset of [3, 4, 4, 6, 5]) await network.socket.says(broadcast("a", offset, { epoch: "e", offset }))
  await network.socket.says(broadcast("a", "new life", { epoch: "f", offset: 1 }))
  assert.deepEqual(heard, [4, 6, "new life"])
})

test("a topic that is left and wanted again is new, not restored", async () => {
  const { network, topics } = await connected()
  const restored: unknown[] = []
  topics.onRestored(each => restored.push(each))
  for (let round = 0; round < 2; round++) {
    const subscription = topics.listen("a", () => {})
    await turn()
    await network.socket.says(reply(network.socket.frames()[0], { epoch: "e", offset: round }))
    subscription.close()
    await turn()
    await network.socket.says(reply(network.socket.frames()[0]))
  }
  assert.deepEqual([restored, topics.position("a")], [[], undefined])
})

test("the session survives reconnects, so that excludeSelf does", async () => {
  const { network } = await connected()
  await network.socket.closes()
  await network.clock.advance(500)
  assert.equal(new URL(network.socket.url).searchParams.get("session"), "s_1")
})

test("a topic that is refused fails for those who want it and for nobody else", async () => {
  const { network, topics } = await connected()
  const errors: unknown[] = []
  topics.listen("denied", { error: error => errors.push(error) })
  const denied = assert.rejects(topics.subscribe("denied"), AclSubscribeError)
  const fine = topics.subscribe("fine")
  await turn()
  await network.socket.says(refuse(network.socket.frames()[0], "ACL_SUBSCRIBE", { topic: "denied", op: "subscribe" }))
  await denied
  const [second] = network.socket.frames()
  assert.deepEqual([second?.type, second?.payload], ["$subscribe", { topic: "fine" }])
  await network.socket.says(reply(second))
  await fine
  assert.ok(errors[0] instanceof AclSubscribeError && errors[0].topic === "denied" && !errors[0].retryable)
  assert.deepEqual(topics.wanted, ["fine"])
})

test("where the server names no topic the refused ones are found by halves", async () => {
  const { network, topics } = await connected()
  const bad = new Set(["t3", "t8"])
  const outcomes = Promise.allSettled(Array.from({ length: 10 }, (_, index) => topics.subscribe(`t${index}`)))
  for (let round = 0; round < 10; round++) {
    await turn()
    for (const request of network.socket.frames()) {
      const asked: string[] = request.payload.topics ?? [request.payload.topic]
      const refused = asked.some(each => bad.has(each))
      await network.socket.says(refused ? refuse(request, "INVALID_TOPIC", { reason: "length", length: 200, max: 128 }) : reply(request))
    }
  }
  const settled = await outcomes
  assert.deepEqual(settled.flatMap((each, index) => (each.status === "rejected" ? [index] : [])), [3, 8])
  assert.ok(settled[3]?.status === "rejected" && settled[3].reason instanceof InvalidTopicError)
  assert.equal(topics.size, 8)
})

test("a topic that is revoked while away does not keep the others from coming back", async () => {
  const { network, topics } = await connected()
  const errors: unknown[] = []
  topics.listen("kept", () => {})
  topics.listen("revoked", { error: error => errors.push(error) })
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]))
  await reconnect(network)
  await network.socket.says(refuse(network.socket.frames()[0], "ACL_SUBSCRIBE", { topic: "revoked", reason: "revoked" }))
  const [second] = network.socket.frames()
  assert.deepEqual(second?.payload, { topic: "kept" })
  await network.socket.says(reply(second))
  assert.equal(topics.state.status, "connected")
  assert.equal(errors.length, 1)
})

test("what the server cannot do now is asked for again", async () => {
  const { network, topics } = await connected()
  const outcome = topics.subscribe("a")
  await turn()
  await network.socket.says(refuse(network.socket.frames()[0], "ADAPTER_ERROR", { adapter: "redis" }, true))
  await network.clock.advance(1_000)
  await network.socket.says(reply(network.socket.frames()[0]))
  await outcome
})

test("changes of many are one request, and all or none", async () => {
  const { network, topics } = await connected()
  const first = topics.set(["a", "b", "c"])
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]))
  assert.deepEqual(await first, { added: 3, removed: 0, total: 3 })
  const swap = topics.update(draft => {
    draft.delete("a")
    draft.add("d")
  })
  await turn()
  const [request] = network.socket.frames()
  assert.deepEqual([request?.type, request?.payload], ["$update", { add: ["d"], remove: ["a"] }])
  const refused = assert.rejects(swap, TopicLimitExceededError)
  await network.socket.says(refuse(request, "TOPIC_LIMIT_EXCEEDED", { scope: "connection", limit: 3 }))
  await refused
  assert.deepEqual([topics.wanted.sort(), [...topics].sort()], [["a", "b", "c"], ["a", "b", "c"]])
  const cleared = topics.clear()
  await turn()
  const [clearing] = network.socket.frames()
  assert.deepEqual([clearing?.type, clearing?.payload.topics.sort()], ["$unsubscribeMany", ["a", "b", "c"]])
  await network.socket.says(reply(clearing, { removed: 3 }))
  assert.deepEqual(await cleared, { added: 0, removed: 3, total: 0 })
  assert.deepEqual(await topics.set([]), { added: 0, removed: 0, total: 0 })
  assert.deepEqual(network.socket.frames(), [])
})

test("a change whose connection is lost is made on the next one", async () => {
  const { network, topics } = await connected()
  const outcome = topics.subscribeMany(["a", "b"])
  await turn()
  network.socket.frames()
  await reconnect(network)
  const [request] = network.socket.frames()
  assert.deepEqual([request?.type, request?.payload], ["$set", { topics: ["a", "b"] }])
  await network.socket.says(reply(request))
  assert.deepEqual(await outcome, { added: 2, removed: 0, total: 2 })
})

test("an abort cancels a change that has not taken effect, and is late otherwise", async () => {
  const { network, topics } = await connected()
  for (const late of [false, true]) {
    const controller = new AbortController()
    const outcome = topics.subscribe("a", { signal: controller.signal, waitFor: "settled", timeoutMs: 5_000 })
    outcome.catch(() => {})
    await turn()
    const [request] = network.socket.frames()
    assert.deepEqual(request?.payload.options, { waitFor: "settled", timeoutMs: 5_000 })
    controller.abort()
    assert.deepEqual(network.socket.frames(), [{ type: "$ws:abort", meta: request?.meta }])
    await network.socket.says(late ? reply(request) : refuse(request, "CANCELLED"))
    if (late) await outcome
    else await assert.rejects(outcome, { name: "AbortError" })
    assert.equal(topics.has("a"), late)
  }
})

test("listeners share a subscription, and the last one ends it", async () => {
  const { network, topics } = await connected()
  const [first, second] = [topics.listen("a", () => {}), topics.listen("a", () => {})]
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]))
  await Promise.all([first.ready, second.ready])
  first.close()
  first.close()
  await turn()
  assert.deepEqual(network.socket.frames(), [])
  second.close()
  await turn()
  assert.deepEqual(network.socket.frames().map(each => [each.type, each.payload]), [["$unsubscribe", { topic: "a" }]])
})

test("a listener that is replaced in the same tick costs nothing and misses nothing", async () => {
  const { network, topics } = await connected()
  const heard: unknown[] = []
  topics.listen("a", () => heard.push("first")).close()
  const second = topics.listen("a", each => heard.push(each.payload))
  await turn()
  const requests = network.socket.frames()
  assert.equal(requests.length, 1)
  await network.socket.says(reply(requests[0], { epoch: "e", offset: 1 }))
  second.close()
  topics.listen("a", each => heard.push(each.payload))
  await turn()
  assert.deepEqual(network.socket.frames(), [])
  await network.socket.says(broadcast("a", "once", { epoch: "e", offset: 2 }))
  assert.deepEqual(heard, ["once"])
})

test("a pattern hears the topics that it matches, and each listener a message once", async () => {
  const { network, topics } = await connected()
  const heard: string[] = []
  topics.listen("room:*", each => heard.push(`* ${each.topic}`))
  topics.listen("room:1", each => heard.push(`1 ${each.topic}`))
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]), broadcast("room:1", 0), broadcast("room:2", 0), broadcast("room:2:x", 0))
  assert.deepEqual(heard, ["1 room:1", "* room:1", "* room:2"])
})

test("presence, history and verification speak as the protocol says", async () => {
  const { network, topics } = await connected()
  const changes: unknown[] = []
  topics.listen("a", { presence: change => changes.push(change) }, { presence: { info: { name: "Ann" } } })
  await turn()
  const [joining] = network.socket.frames()
  assert.deepEqual([joining?.type, joining?.payload], ["$subscribe", { topic: "a", presence: { info: { name: "Ann" } } }])
  await network.socket.says(reply(joining, { added: 1, total: 1 }))
  const asked = [topics.presence("a"), topics.history("a", { since: { epoch: "e", offset: 2 }, limit: 5 }), topics.verify("a", { mode: "strict" })] as const
  await turn()
  const frames = network.socket.frames()
  assert.deepEqual(frames.map(({ type, payload }) => [type, payload]), [
    ["$presence", { topic: "a" }],
    ["$history", { topic: "a", since: { epoch: "e", offset: 2 }, limit: 5 }],
    ["$verify", { topic: "a", mode: "strict" }],
  ])
  const bob = { id: "m_2", user: "bob", since: 1 }
  await network.socket.says(
    reply(frames[0], { members: [bob], count: 1, capability: "exact" }),
    reply(frames[1], { epoch: "e", offset: 3, messages: [broadcast("a", "past", { epoch: "e", offset: 3 })] }),
    reply(frames[2], { kind: "subscribed" }),
    { type: "$leave", meta: { topic: "a" }, payload: { member: bob } },
  )
  assert.deepEqual(await asked[0], { members: [bob], count: 1, capability: "exact" })
  assert.equal((await asked[1]).messages[0]?.payload, "past")
  assert.deepEqual(await asked[2], { kind: "subscribed" })
  assert.deepEqual(changes, [{ kind: "leave", topic: "a", member: bob }])
  await reconnect(network)
  assert.deepEqual(network.socket.frames().map(({ type, payload }) => [type, payload]), [["$subscribe", { topic: "a", presence: { info: { name: "Ann" } } }]])
})

test("a subscription with a time to live is renewed by asking again, and restored with it", async () => {
  const { network, topics } = await connected()
  for (let round = 0; round < 2; round++) {
    const renewed = topics.subscribe("a", { ttlMs: 60_000 })
    await turn()
    const [request, ...more] = network.socket.frames()
    assert.deepEqual([request?.type, request?.payload, more], ["$subscribe", { topic: "a", ttlMs: 60_000 }, []])
    await network.socket.says(reply(request))
    await renewed
  }
  await reconnect(network)
  assert.deepEqual(network.socket.frames().map(({ type, payload }) => [type, payload]), [["$subscribe", { topic: "a", ttlMs: 60_000 }]])
})

test("a subscription that the message bus took back is asked for again", async () => {
  const { network, topics } = await connected()
  topics.listen("a", () => {})
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]), { type: "$unsubscribed", payload: { topics: ["a"], reason: "adapter" } })
  assert.deepEqual(network.socket.frames().map(each => each.type), ["$subscribe"])
})

test("the topics are a read-only set and its iteration a snapshot", async () => {
  const { network, topics } = await connected()
  void topics.subscribeMany(["b", "a"])
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]))
  const set: ReadonlySet<string> = topics
  assert.deepEqual([set.size, set.has("a"), [...set], [...set.keys()], [...set.entries()]], [2, true, ["b", "a"], ["b", "a"], [["b", "b"], ["a", "a"]]])
  const seen: string[] = []
  set.forEach((each, _, facade) => {
    seen.push(each)
    assert.equal(facade, topics)
    void topics.unsubscribe(each)
  })
  assert.deepEqual(seen, ["b", "a"])
  const open = topics as unknown as Set<string>
  assert.throws(() => open.add("c"), TypeError)
  assert.throws(() => open.delete("a"), TypeError)
  assert.throws(() => (open.add = () => open), TypeError)
  assert.ok(Object.isFrozen(topics))
})

test("settle waits for what is under way, whatever its outcome", async () => {
  const { network, topics } = await connected()
  topics.subscribe("a").catch(() => {})
  let settled = false
  const settling = topics.settle("a").then(() => (settled = true))
  await turn()
  const [request] = network.socket.frames()
  assert.equal(settled, false)
  await network.socket.says(refuse(request, "ACL_SUBSCRIBE", { topic: "a" }))
  await network.socket.says(reply(network.socket.frames()[0]))
  await settling
})
