import assert from "node:assert/strict"
import { test } from "node:test"
import { Topics, UnauthorizedError, type TopicsOptions } from "../src/topics/index.js"
import { FakeNetwork, hello, reply, turn } from "./fakes.js"

function client(options: Partial<TopicsOptions> = {}) {
  const network = new FakeNetwork()
  const topics = new Topics({ server: "https://tidings.example", project: "shop", environment: network.environment, ...options })
  return { network, topics }
}

async function connected(options: Partial<TopicsOptions> = {}) {
  const { network, topics } = client(options)
  topics.connect().catch(() => {})
  await turn()
  await network.socket.opens()
  await network.socket.says(hello())
  return { network, topics }
}

test("nothing is connected until something is needed", async () => {
  const { network, topics } = client()
  await turn()
  assert.equal(network.sockets.length, 0)
  assert.equal(topics.state.status, "idle")
  topics.subscribe("a").catch(() => {})
  await turn()
  assert.equal(network.socket.url, "wss://tidings.example/v1/shop/topics")
})

test("all states are told in their order", async () => {
  const { network, topics } = client()
  const states: string[] = []
  topics.onState(({ status }) => states.push(status))
  topics.connect().catch(() => {})
  await turn()
  await network.socket.opens()
  await network.socket.says(hello())
  await network.socket.closes()
  await network.clock.advance(500)
  topics.close()
  assert.deepEqual(states, ["connecting", "connected", "waiting", "connecting", "closed"])
})

test("delays are random below a bound that doubles up to the maximum", async () => {
  const { network, topics } = client()
  topics.connect().catch(() => {})
  await turn()
  const delays = []
  for (let count = 0; count < 9; count++) {
    network.random = count % 2 === 0 ? 1 : 0.5
    await network.socket.closes()
    assert.equal(topics.state.status, "waiting")
    const delay = topics.state.status === "waiting" ? topics.state.retryAt - network.clock.now() : NaN
    delays.push(delay)
    await network.clock.advance(delay)
  }
  assert.deepEqual(delays, [500, 500, 2000, 2000, 8000, 8000, 30_000, 15_000, 30_000])
})

test("a connection that ends at once counts as a failure and one that lasted does not", async () => {
  const { network, topics } = await connected()
  const delay = () => (topics.state.status === "waiting" ? topics.state.retryAt - network.clock.now() : NaN)
  network.random = 1
  const again = async (lasting: number) => {
    await network.clock.advance(delay())
    await network.socket.opens()
    await network.socket.says(hello())
    await network.clock.advance(lasting)
    await network.socket.closes()
    return delay()
  }
  await network.socket.closes()
  assert.equal(delay(), 500)
  assert.equal(await again(9_000), 1000)
  assert.equal(await again(9_000), 2000)
  assert.equal(await again(10_000), 500)
})

test("the server says when to come again, and waking up does not make it sooner", async () => {
  const { network, topics } = await connected()
  await network.socket.says({ type: "$close", payload: { code: 1001, reason: "going-away", reconnect: true, retryAfterMs: 5_000 } })
  await network.socket.closes(1001, "going-away")
  assert.equal(topics.state.status === "waiting" && topics.state.why.reason, "going-away")
  await network.clock.advance(4_000)
  network.woken()
  await turn()
  assert.equal(network.sockets.length, 1)
  await network.clock.advance(1_000)
  assert.equal(network.sockets.length, 2)
})

test("waking up ends a wait that nobody asked for", async () => {
  const { network } = await connected()
  for (let count = 0; count < 6; count++) {
    await network.socket.closes()
    await network.clock.advance(count < 5 ? 30_000 : 0)
  }
  const before = network.sockets.length
  network.woken()
  await network.clock.advance(0)
  assert.equal(network.sockets.length, before + 1)
})

test("codes that say so end the client", async () => {
  for (const code of [1002, 1007, 1008, 1009, 4403]) {
    const { network, topics } = await connected()
    await network.socket.closes(code)
    assert.equal(topics.state.status, "closed", String(code))
    assert.equal(topics.state.status === "closed" && topics.state.why.code, code)
  }
  for (const code of [1000, 1001, 1006, 1011, 4408, 4409]) {
    const { network, topics } = await connected()
    await network.socket.closes(code)
    assert.equal(topics.state.status, "waiting", String(code))
  }
})

test("a connection that falls silent is given up without waiting for its end", async () => {
  const { network, topics } = await connected()
  const socket = network.socket
  await network.clock.advance(25_000)
  assert.deepEqual(socket.frames(), [{ type: "__heartbeat" }])
  await socket.says({ type: "__heartbeat_ack", meta: { ts: 1 } })
  await network.clock.advance(25_000)
  assert.deepEqual(socket.frames(), [{ type: "__heartbeat" }])
  assert.deepEqual(topics.state, { status: "connected" })
  await network.clock.advance(10_000)
  const { state } = topics
  assert.equal(state.status === "waiting" && state.why.reason, "silent")
  assert.equal(socket.closedWith, 1000)
})

test("after sleep a dead connection is found in seconds", async () => {
  const { network, topics } = await connected()
  await network.clock.sleep(3_600_000)
  assert.deepEqual(network.socket.frames(), [{ type: "__heartbeat" }])
  await network.clock.advance(4_000)
  assert.equal(topics.state.status === "waiting" && topics.state.why.reason, "silent")
})

test("a page that comes back asks whether its connection lives, and keeps one that does", async () => {
  const { network, topics } = await connected()
  network.woken()
  network.woken()
  assert.deepEqual(network.socket.frames(), [{ type: "__heartbeat" }])
  await network.socket.says({ type: "__heartbeat_ack", meta: { ts: 1 } })
  await network.clock.advance(4_000)
  assert.equal(topics.state.status, "connected")
  assert.equal(network.sockets.length, 1)
})

test("a server that accepts and says nothing is not waited for", async () => {
  const { network, topics } = client()
  topics.connect().catch(() => {})
  await turn()
  await network.socket.opens()
  await network.clock.advance(15_000)
  assert.equal(topics.state.status === "waiting" && topics.state.why.reason, "timeout")
})

test("a token is asked for before every connection, once for all who wait", async () => {
  let asked = 0
  const { network } = client({ token: async () => `token-${++asked}` })
  const topics = new Topics({ server: "https://tidings.example", token: async () => `token-${++asked}`, environment: network.environment })
  for (let count = 0; count < 20; count++) topics.subscribe(`t${count}`).catch(() => {})
  await turn()
  assert.equal(asked, 1)
  assert.equal(new URL(network.socket.url).searchParams.get("token"), "token-1")
  await network.socket.opens()
  await network.socket.closes()
  await network.clock.advance(500)
  assert.equal(new URL(network.socket.url).searchParams.get("token"), "token-2")
})

test("a token is renewed on the open connection before it expires, by the server's clock", async () => {
  const asked: string[] = []
  const { network, topics } = client({ token: ({ reason }) => (asked.push(reason), `t${asked.length}`) })
  topics.connect().catch(() => {})
  await turn()
  await network.socket.opens()
  // The server's clock is an hour ahead.
  const serverNow = () => network.clock.now() + 3_600_000
  await network.socket.says(hello({ expiresAt: serverNow() + 600_000 }))
  assert.deepEqual(network.socket.frames().map(frame => frame.type), ["__heartbeat"])
  await network.socket.says({ type: "__heartbeat_ack", meta: { ts: serverNow() } })
  for (let left = 540_000; left > 0; left -= 20_000) {
    await network.clock.advance(20_000)
    await network.socket.says({ type: "noise" })
  }
  const [renewal] = network.socket.frames()
  assert.deepEqual([renewal?.type, renewal?.payload], ["$auth", { token: "t2" }])
  await network.socket.says(reply(renewal, { expiresAt: serverNow() + 600_000, removed: [] }))
  assert.deepEqual(asked, ["connect", "expiring"])
  assert.equal(topics.state.status, "connected")
  assert.equal(network.sockets.length, 1)
})

test("a provider that fails is asked again, and one that says unauthorized is not", async () => {
  let failures = 0
  const passing = client({ token: () => Promise.reject(new Error(`down ${++failures}`)) , onError: () => {} })
  passing.topics.connect().catch(() => {})
  await turn()
  assert.equal(passing.topics.state.status, "waiting")
  await passing.network.clock.advance(500)
  assert.equal(failures, 2)
  const final = client({ token: () => Promise.reject(new UnauthorizedError("signed out")), onError: () => {} })
  const connecting = assert.rejects(final.topics.connect(), { code: "CONNECTION_CLOSED" })
  await connecting
  assert.equal(final.topics.state.status, "closed")
})

test("an expired token brings a new one, and a second refusal is the end", async () => {
  const asked: string[] = []
  const { network, topics } = client({ token: ({ reason }) => (asked.push(reason), "t") })
  topics.connect().catch(() => {})
  await turn()
  for (const status of ["waiting", "closed"]) {
    await network.socket.opens()
    await network.socket.says(hello())
    await network.socket.closes(4401, "token-expired")
    assert.equal(topics.state.status, status)
    if (status === "waiting") await network.clock.advance(500)
  }
  assert.deepEqual(asked, ["connect", "refused"])
})

test("a refused handshake is explained by a plain request, and a fixed token is not tried again", async () => {
  const { network, topics } = client({ token: "old" })
  network.answer = async () => new Response('{"error":{"code":"unauthorized"}}', { status: 401 })
  const connecting = assert.rejects(topics.connect(), (error: Error) => /401/.test(String((error.cause as Error).message)))
  await turn()
  await network.socket.closes(1006)
  await connecting
  assert.equal(topics.state.status === "closed" && topics.state.why.code, 401)
})

test("a refused handshake that may pass is tried again when the server says", async () => {
  const { network, topics } = client()
  network.answer = async () => new Response("", { status: 503, headers: { "retry-after": "7" } })
  topics.connect().catch(() => {})
  await turn()
  await network.socket.closes(1006)
  assert.equal(topics.state.status === "waiting" && topics.state.retryAt - network.clock.now(), 7_000)
})

test("aborting closes for good, whatever waits is told, and nothing is left unhandled", async () => {
  const controller = new AbortController()
  const { network, topics } = client({ signal: controller.signal })
  const waiting = [topics.subscribe("a"), topics.connect(), topics.presence("a")]
  const publishing = topics.publish("a", { type: "X" })
  const listening = topics.listen("b", () => {})
  await turn()
  controller.abort()
  for (const each of await Promise.allSettled(waiting)) {
    assert.equal(each.status === "rejected" && each.reason.code, "CONNECTION_CLOSED")
  }
  const result = await publishing
  assert.deepEqual([result.ok, !result.ok && result.error, !result.ok && result.retryable], [false, "CONNECTION_CLOSED", false])
  await assert.rejects(listening.ready, { code: "CONNECTION_CLOSED" })
  assert.equal(topics.state.status, "closed")
  assert.deepEqual(network.reported, [])
  await assert.rejects(topics.subscribe("later"), { code: "CONNECTION_CLOSED" })
})

test("a callback that throws is reported and disturbs nobody", async () => {
  const { network, topics } = await connected()
  const heard: unknown[] = []
  topics.listen("a", () => {
    throw new Error("mine")
  })
  topics.listen("a", async () => {
    throw new Error("async")
  })
  topics.listen("a", message => heard.push(message.payload))
  await turn()
  await network.socket.says(reply(network.socket.frames()[0]), { type: "X", meta: { topic: "a" }, payload: 1 })
  assert.deepEqual(heard, [1])
  assert.deepEqual(network.reported.map(error => (error as Error).message), ["mine", "async"])
})

test("a frame that is not understood is reported and the connection goes on", async () => {
  const { network, topics } = await connected({ onError: error => network.reported.push(error) })
  await network.socket.says("no json", "[]", new ArrayBuffer(1), { type: "$new" }, { type: "ERROR", payload: { code: "INTERNAL", message: "?" } })
  assert.equal(network.reported.length, 4)
  assert.equal(topics.state.status, "connected")
})

test("an onError that throws is reported, and nothing is left unhandled", async () => {
  const { network, topics } = client({
    token: () => Promise.reject(new Error("down")),
    onError: () => {
      throw new Error("mine")
    },
  })
  topics.connect().catch(() => {})
  await turn()
  assert.equal(topics.state.status, "waiting")
  assert.deepEqual(network.reported.map(error => (error as Error).message), ["mine"])
})
