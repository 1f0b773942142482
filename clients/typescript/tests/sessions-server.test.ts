import assert from "node:assert/strict"
import { test } from "node:test"
import { HttpError, Sessions, type Envelope, type SessionsOptions } from "../src/sessions/index.js"
import { FakeNetwork } from "./fakes.js"
import { Server, token, until } from "./server.js"

const KEY = "a-signing-key-of-the-tests"
const open = await Server.start()

function client(options: Partial<SessionsOptions> = {}) {
  return new Sessions({ server: open.url, project: "app", ...options })
}

let streams = 0
async function stream(server = open, project = "app", headers: Record<string, string> = {}): Promise<string> {
  const id = `stream-${++streams}`
  const answer = await fetch(`${server.url}/v1/${project}/stream/${id}`, { method: "PUT", headers: { "content-type": "application/json", ...headers } })
  assert.equal(answer.status, 201)
  return id
}

for (const live of ["sse", "long-poll"] as const) {
  test(`messages come by their stream, in order, and a later reader resumes: ${live}`, async () => {
    const sessions = client()
    const [orders, alerts] = [await stream(), await stream()]
    const session = sessions.session(`alice-${live}`)
    assert.equal((await session.subscribe(orders, { envelope: true })).isNewSession, true)
    assert.equal((await session.subscribe(alerts)).isNewSession, false)
    const heard: unknown[] = []
    const handlers = {
      streams: { [orders]: (message: any) => heard.push([message.stream, message.payload]) },
      message: (message: unknown) => heard.push(message),
    }
    const reader = session.follow(handlers, { live })
    assert.deepEqual((await sessions.publish(orders, { id: 1 })).mode, "inline")
    await sessions.publish(alerts, "done")
    await until(() => heard.length === 2)
    await until(() => reader.offset !== "-1")
    await new Promise(setImmediate)
    reader.close()
    await reader.done
    const published = await sessions.publish(orders, { id: 2 })
    assert.deepEqual([published.count, published.successes], [1, 1])
    const second = session.follow(handlers, { live, offset: reader.offset })
    await until(() => heard.length === 3)
    second.close()
    assert.deepEqual(heard, [[orders, { id: 1 }], "done", [orders, { id: 2 }]])
  })
}

test("a loop gets messages, and one whose reader resumes gets what the loop before had not handled", async () => {
  const sessions = client()
  const orders = await stream()
  const session = sessions.session("erin")
  await session.subscribe(orders, { envelope: true })
  for (const id of [1, 2, 3]) await sessions.publish(orders, { id })
  const heard: unknown[] = []
  let offset = "-1"
  for await (const message of session.messages() as AsyncIterable<Envelope<{ id: number }>>) {
    heard.push(message.payload.id)
    if (message.payload.id === 2) break
    offset = message.offset
  }
  assert.deepEqual(heard, [1, 2])
  const controller = new AbortController()
  for await (const message of session.messages({ signal: controller.signal }) as AsyncIterable<Envelope<{ id: number }>>) {
    heard.push(message.payload.id)
    if (message.payload.id === 3) controller.abort()
  }
  assert.deepEqual(heard, [1, 2, 1, 2, 3])
  assert.notEqual(offset, "-1")
})

test("a session is looked at, touched, unsubscribed and deleted", async () => {
  const sessions = client()
  const orders = await stream()
  const session = sessions.session("bob")
  await session.subscribe(orders, { envelope: true })
  assert.deepEqual((await session.get()).subscriptions.map(({ streamId, envelope }) => [streamId, envelope]), [[orders, true]])
  assert.ok((await session.touch()).expiresAt > Date.now())
  await session.unsubscribe(orders)
  assert.deepEqual((await session.get()).subscriptions, [])
  await session.delete()
  await assert.rejects(session.get(), (error: unknown) => error instanceof HttpError && error.status === 404)
})

test("a session that has expired is made again with its subscriptions, and the reader is told", async () => {
  const server = await Server.start({ config: "[sessions]\nttl_seconds = 1\n" })
  const sessions = client({ server: server.url })
  const orders = await stream(server)
  const session = sessions.session("carol")
  await session.subscribe(orders)
  await until(async () => (await session.get().catch(() => undefined)) === undefined)
  const heard: unknown[] = []
  let expired = 0
  const reader = session.follow({ message: message => heard.push(message), expired: () => expired++ })
  await until(() => expired === 1 && reader.state.status === "connected")
  await sessions.publish(orders, 1)
  await until(() => heard.length === 1)
  reader.close()
  assert.deepEqual(heard, [1])
})

test("a server that restarts loses nothing and repeats nothing", async () => {
  const server = await Server.start()
  const sessions = client({ server: server.url })
  const orders = await stream(server)
  const session = sessions.session("dave")
  await session.subscribe(orders)
  const heard: unknown[] = []
  const reader = session.follow({ message: message => heard.push(message) })
  await sessions.publish(orders, 1)
  await until(() => heard.length === 1)
  await server.stop()
  await until(() => reader.state.status === "waiting")
  await server.run()
  await sessions.publish(orders, 2)
  await until(() => heard.length === 2)
  reader.close()
  assert.deepEqual(heard, [1, 2])
})

test("a token that is refused is replaced once, and what stays refused is told", async () => {
  const server = await Server.start({ dev: false, config: `[auth]\nprojects = [{ id = "shop", keys = ["${KEY}"] }]\n` })
  const good = await token(KEY, { project: "shop", sub: "ann", scope: "write", exp: Math.floor(Date.now() / 1000) + 600 })
  const orders = await stream(server, "shop", { authorization: `Bearer ${good}` })
  const asked: string[] = []
  const sessions = client({ server: server.url, project: "shop", token: ({ reason }) => (asked.push(reason), reason === "refused" ? good : "stale") })
  await sessions.session("ann").subscribe(orders)
  assert.deepEqual(asked, ["connect", "refused"])
  const heard: unknown[] = []
  const reader = sessions.session("ann").follow({ message: message => heard.push(message) })
  await sessions.publish(orders, 1)
  await until(() => heard.length === 1)
  reader.close()
  const refused = client({ server: server.url, project: "shop", token: "stale" }).session("ann").follow({})
  await assert.rejects(refused.done, (error: any) => error.status === 401)
})

test("a reader waits as long as the server asks, also when the device wakes up, and sooner where it asks for nothing", async () => {
  const network = new FakeNetwork()
  let asked = 0
  let headers: Record<string, string> = { "retry-after": "7" }
  network.answer = async () => (asked++, new Response("not now", { status: 503, headers }))
  const reader = new Sessions({ server: "http://x", environment: network.environment }).session("s").follow({})
  await until(() => reader.state.status === "waiting")
  assert.equal(reader.state.status === "waiting" && reader.state.retryAt - network.clock.now(), 7_000)
  headers = {}
  network.woken()
  await network.clock.advance(6_999)
  assert.equal(asked, 1)
  await network.clock.advance(1)
  await until(() => asked === 2 && reader.state.status === "waiting")
  network.woken()
  await network.clock.advance(0)
  await until(() => asked === 3)
  reader.close()
  await reader.done
  assert.equal(network.clock.next, undefined)
})

test("a page that does not read keeps its session alive by touching it", async () => {
  const network = new FakeNetwork()
  const paths: string[] = []
  network.answer = async url => {
    paths.push(new URL(url).pathname.replace("/v1/_default/", ""))
    const body = { sessionId: "s", expiresAt: network.clock.now() + 1_800_000 }
    return paths.length === 3 ? Response.json({ error: { code: "session_not_found" } }, { status: 404 }) : Response.json(body)
  }
  const session = new Sessions({ server: "http://x", environment: network.environment }).session("s")
  await session.subscribe("orders")
  let expired = 0
  const stop = session.keepAlive({ expired: () => expired++ })
  await network.clock.advance(300_000)
  assert.deepEqual([paths, expired], [["subscribe", "session/s/touch"], 0])
  await network.clock.advance(300_000)
  assert.deepEqual([paths.slice(2), expired], [["session/s/touch", "subscribe"], 1])
  stop()
  await network.clock.advance(3_600_000)
  assert.equal(paths.length, 4)
})
