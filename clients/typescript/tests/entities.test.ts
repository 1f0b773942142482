import assert from "node:assert/strict"
import { test } from "node:test"
import { Entities, type EntitiesOptions } from "../src/entities/index.js"
import { FakeNetwork, turn } from "./fakes.js"

const ready = { type: "CONNECTED", payload: { connectionId: "c", cursor: "c0", heartbeatMs: 15_000 } }

function client(options: Partial<EntitiesOptions> = {}) {
  const network = new FakeNetwork()
  const errors: any[] = []
  const entities = new Entities({ server: "https://x", project: "p", environment: network.environment, onError: error => errors.push(error), ...options })
  return { network, entities, errors }
}

async function greet(network: FakeNetwork) {
  await turn()
  await network.socket.opens()
  await network.socket.says(ready)
}

/** Loses the connection, opens the next, and answers its `CONNECTED`. */
async function reconnect(network: FakeNetwork) {
  await network.socket.closes()
  await network.clock.advance(10_000)
  await network.socket.opens()
  await network.socket.says(ready)
}

const subscribed = (request: any, cursor: string, more: object = {}) => ({
  type: "SUBSCRIBED",
  payload: { count: 1, entityCode: request.payload.entityCode, cursor, requestId: request.payload.requestId, ...more },
})
const invalidate = (entityCode: string, changes: [id: string, version: number][], cursor?: string) => ({
  type: "INVALIDATE",
  payload: { entityCode, changes: changes.map(([entityId, version]) => ({ entityId, action: "UPDATE", version })), timestamp: "t", cursor },
})

test("watchers share subscriptions, and each hears its own", async () => {
  const { network, entities } = client()
  const heard: unknown[] = []
  const collect = (who: string) => ({ changes }: { changes: { entityId: string }[] }) => heard.push([who, ...changes.map(each => each.entityId)])
  const first = entities.watch("task", ["1", "2"], collect("first"))
  entities.watch("task", ["2", "3"], collect("second"))
  entities.watch("user", "all", collect("users"))
  await greet(network)
  const frames = network.socket.frames()
  assert.deepEqual(frames.map(({ type, payload }) => [type, payload.entityCode, payload.entityIds, payload.since]), [
    ["SUBSCRIBE", "task", ["1", "2", "3"], undefined],
    ["SUBSCRIBE", "user", [], undefined],
  ])
  assert.equal(entities.state.status, "connecting")
  await network.socket.says(...frames.map(frame => subscribed(frame, "c1")))
  assert.equal(entities.state.status, "connected")
  await first.ready
  await network.socket.says(invalidate("task", [["1", 5], ["2", 6], ["3", 7]], "c2"), invalidate("user", [["9", 8]], "c3"))
  assert.deepEqual(heard, [["first", "1", "2"], ["second", "2", "3"], ["users", "9"]])
  first.close()
  await turn()
  assert.deepEqual(network.socket.frames().map(({ type, payload }) => [type, payload.entityIds]), [["UNSUBSCRIBE", ["1"]]])
})

test("ids are added and removed in one request for one tick, and what cancels out costs nothing", async () => {
  const { network, entities } = client()
  const watch = entities.watch("task", ["1"], {})
  await greet(network)
  await network.socket.says(subscribed(network.socket.frames()[0], "c1"))
  watch.add("2", "3", "2")
  watch.remove("3")
  watch.add("4")
  await turn()
  assert.deepEqual(network.socket.frames().map(({ type, payload }) => [type, payload.entityIds]), [["SUBSCRIBE", ["2", "4"]]])
  entities.watch("task", ["5"], {}).close()
  await turn()
  assert.deepEqual(network.socket.frames(), [])
})

test("a reconnect asks for what was missed since the last cursor", async () => {
  const { network, entities } = client()
  const heard: number[] = []
  entities.watch("task", ["1"], ({ changes }) => heard.push(...changes.map(each => each.version)))
  entities.watch("user", ["7"], {})
  await greet(network)
  await network.socket.says(...network.socket.frames().map(frame => subscribed(frame, "c1")))
  await network.socket.says(invalidate("task", [["1", 3]], "c3"))
  await reconnect(network)
  const frames = network.socket.frames()
  // The cursor says that everything was told, also of the type that was quiet.
  assert.deepEqual(frames.map(({ payload }) => [payload.entityCode, payload.since]), [["task", "c3"], ["user", "c3"]])
  await network.socket.says(...frames.map(frame => subscribed(frame, "c9")), invalidate("task", [["1", 3]], "c5"), invalidate("task", [["1", 4]], "c9"))
  assert.deepEqual(heard, [3, 4])
})

test("a cursor moves only when all requests of the type are answered", async () => {
  const { network, entities } = client({ maxIds: 1 })
  entities.watch("task", ["1", "2"], {})
  await greet(network)
  const [first, second] = network.socket.frames()
  await network.socket.says(subscribed(first, "c1"), invalidate("task", [["1", 2]], "c2"))
  await reconnect(network)
  const again = network.socket.frames()
  assert.deepEqual(again.map(({ payload }) => payload.since), ["c1", "c1"])
  assert.notDeepEqual(second, undefined)
  await network.socket.says(...again.map(frame => subscribed(frame, "c5")), invalidate("task", [["2", 3]], "c6"))
  await reconnect(network)
  assert.deepEqual(network.socket.frames().map(({ payload }) => payload.since), ["c6", "c6"])
})

test("a version is told once and never after a newer one", async () => {
  const { network, entities } = client()
  const heard: number[] = []
  entities.watch("task", "all", ({ changes }) => heard.push(...changes.map(each => each.version)))
  await greet(network)
  await network.socket.says(subscribed(network.socket.frames()[0], "c1"))
  for (const version of [3, 3, 2, 5, 4]) await network.socket.says(invalidate("task", [["1", version]]))
  assert.deepEqual(heard, [3, 5])
  await network.socket.says({ type: "RESYNC", payload: { reason: "source-reset" } }, invalidate("task", [["1", 1]]))
  assert.deepEqual(heard, [3, 5, 1])
})

test("a resync is told to whom it concerns, and one that nobody announced too", async () => {
  const { network, entities } = client()
  const told: unknown[] = []
  entities.watch("task", ["1"], { resync: ({ reason }) => told.push(["task", reason]) })
  entities.watch("user", ["1"], { resync: ({ reason }) => told.push(["user", reason]) })
  await greet(network)
  await network.socket.says(...network.socket.frames().map(frame => subscribed(frame, "c1")))
  await network.socket.says({ type: "RESYNC", payload: { entityCode: "task", reason: "overflow" } })
  assert.deepEqual(told.splice(0), [["task", "overflow"]])
  await reconnect(network)
  const frames = network.socket.frames()
  assert.deepEqual(frames.map(({ payload }) => payload.since), [undefined, "c1"])
  await network.socket.says(...frames.map(frame => subscribed(frame, "c7")))
  assert.deepEqual(told.splice(0), [["task", "cursor-unknown"]])
  await reconnect(network)
  const [task, user] = network.socket.frames()
  assert.deepEqual([task?.payload.since, user?.payload.since], ["c7", "c1"])
  await network.socket.says({ type: "RESYNC", payload: { entityCode: "user", reason: "cursor-expired" } }, subscribed(user, "c9"), subscribed(task, "c9"))
  assert.deepEqual(told, [["user", "cursor-expired"]])
})

test("a cursor that is none for this server is dropped, and the watcher is told", async () => {
  const { network, entities, errors } = client()
  const told: string[] = []
  entities.watch("task", ["1"], { resync: ({ reason }) => told.push(reason) })
  await greet(network)
  await network.socket.says(subscribed(network.socket.frames()[0], "c1"))
  await reconnect(network)
  const [request] = network.socket.frames()
  await network.socket.says({ type: "ERROR", payload: { code: "InvalidCursor", message: "?", requestId: request?.payload.requestId } })
  const [second] = network.socket.frames()
  assert.equal(second?.payload.since, undefined)
  await network.socket.says(subscribed(second, "c2"))
  assert.deepEqual([told, errors], [["cursor-unknown"], []])
})

test("what is denied is told with its reason and not asked for again", async () => {
  const { network, entities } = client()
  const denied: unknown[] = []
  entities.watch("task", ["1", "2"], { denied: each => denied.push(each) })
  const whole = entities.watch("secret", "all", { denied: each => denied.push(each) })
  await greet(network)
  const [tasks, secret] = network.socket.frames()
  await network.socket.says(
    subscribed(tasks, "c1", { denied: [{ entityId: "2", code: "Forbidden" }] }),
    { type: "ERROR", payload: { code: "Forbidden", message: "no", requestId: secret?.payload.requestId } },
  )
  assert.deepEqual(denied, [{ entityCode: "task", entityId: "2", code: "Forbidden" }, { entityCode: "secret", code: "Forbidden" }])
  await assert.rejects(whole.ready, { code: "Forbidden" })
  await reconnect(network)
  assert.deepEqual(network.socket.frames().map(({ payload }) => payload.entityIds), [["1"]])
})

test("leaving the whole type keeps single ids that others watch", async () => {
  const { network, entities } = client()
  const whole = entities.watch("task", "all", {})
  entities.watch("task", ["1"], {})
  await greet(network)
  assert.deepEqual(network.socket.frames().map(({ payload }) => payload.entityIds), [[], ["1"]])
  whole.close()
  await turn()
  assert.deepEqual(network.socket.frames().map(({ type, payload }) => [type, payload.entityIds]), [["UNSUBSCRIBE", []], ["SUBSCRIBE", ["1"]]])
})

test("a token is renewed when the server says that it expires, and replaced when it was refused", async () => {
  const asked: string[] = []
  const { network, entities } = client({ token: ({ reason }) => (asked.push(reason), `t${asked.length}`) })
  const denied: unknown[] = []
  entities.watch("task", ["1", "2"], { denied: each => denied.push(each.entityId) })
  await greet(network)
  network.socket.frames()
  await network.socket.says({ type: "TOKEN_EXPIRING_SOON", payload: { expiresIn: 300 } })
  assert.deepEqual(network.socket.frames(), [{ type: "TOKEN_REFRESH", payload: { token: "t2" } }])
  await network.socket.says({ type: "TOKEN_REFRESHED", payload: { expiresIn: 600, removed: [{ entityCode: "task", entityIds: ["2"] }] } })
  assert.deepEqual(denied, ["2"])
  await network.socket.closes(4401)
  await network.clock.advance(500)
  assert.deepEqual(asked, ["connect", "expiring", "refused"])
  assert.equal(new URL(network.socket.url).searchParams.get("token"), "t3")
})

test("a connection that was taken over does not come again, and one too many waits", async () => {
  const over = client()
  const watch = over.entities.watch("task", "all", {})
  await greet(over.network)
  await over.network.socket.closes(4000)
  assert.equal(over.entities.state.status, "closed")
  await assert.rejects(watch.ready, { code: "CONNECTION_CLOSED" })
  const many = client()
  many.entities.watch("task", "all", {})
  await greet(many.network)
  await many.network.socket.closes(4429)
  const { state } = many.entities
  assert.equal(state.status === "waiting" && state.retryAt - many.network.clock.now(), 30_000)
})

test("a loop gets changes and resyncs, from the subscription on, and ends with its signal", async () => {
  const { network, entities } = client()
  const controller = new AbortController()
  const told: unknown[] = []
  const looping = (async () => {
    for await (const each of entities.changes("task", ["1"], { signal: controller.signal })) told.push("changes" in each ? each.changes[0]!.version : each.reason)
  })()
  await greet(network)
  await network.socket.says(subscribed(network.socket.frames()[0], "c1"))
  await network.socket.says(invalidate("task", [["1", 4]], "c2"))
  await network.socket.says({ type: "RESYNC", payload: { entityCode: "task", reason: "overflow" } }, invalidate("task", [["1", 1]], "c3"))
  controller.abort()
  await looping
  assert.deepEqual(told, ["subscribed", 4, "overflow", 1])
  assert.deepEqual(network.socket.frames().map(({ type }) => type), ["UNSUBSCRIBE"])
})

test("a loop fails when its type is denied or the client is closed by the server, and ends when it is closed", async () => {
  const refused = client()
  const denied = refused.entities.changes("secret", "all")
  await greet(refused.network)
  const [request] = refused.network.socket.frames()
  await refused.network.socket.says({ type: "ERROR", payload: { code: "Forbidden", message: "no", requestId: request?.payload.requestId } })
  await assert.rejects(denied.next(), { code: "Forbidden" })
  const other = refused.entities.changes("task", "all")
  await turn()
  await refused.network.socket.says(subscribed(refused.network.socket.frames()[0], "c1"))
  assert.deepEqual((await other.next()).value, { entityCode: "task", reason: "subscribed" })
  await refused.network.socket.closes(4000)
  await assert.rejects(other.next(), { code: "CONNECTION_CLOSED" })
  const closed = client()
  const last = closed.entities.changes("task", "all")
  await greet(closed.network)
  await closed.network.socket.says(subscribed(closed.network.socket.frames()[0], "c1"))
  await last.next()
  closed.entities.close()
  assert.equal((await last.next()).done, true)
})
