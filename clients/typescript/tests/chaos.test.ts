import assert from "node:assert/strict"
import { test } from "node:test"
import { inMemory, Rooms, type RoomEvent } from "../src/rooms/index.js"
import { Sessions } from "../src/sessions/index.js"
import { Topics } from "../src/topics/index.js"
import { fastClock, seeded } from "./fakes.js"
import { Proxy } from "./proxy.js"
import { Server, token, until } from "./server.js"

const CUTS = Number(process.env.TIDINGS_CUTS ?? 100)
const SEED = Number(process.env.TIDINGS_SEED ?? Math.floor(Math.random() * 1e9))
// The clients' clocks are fast, so the server's heartbeats must be, or these would find it silent.
const config = '[rooms]\nheartbeat = "1s"\n'
const environment = { clock: fastClock(25) }

/** Does something to the connections, again and again, until there were enough cuts. */
async function wreck(proxy: Proxy, server: Server, random: () => number, { restarts = 2 } = {}): Promise<void> {
  const every = Math.ceil(CUTS / (restarts + 1))
  let next = every
  while (proxy.cuts < CUTS) {
    await new Promise(resolve => setTimeout(resolve, random() * 30))
    if (proxy.size === 0) continue
    const kind = random()
    if (kind < 0.1) proxy.mute()
    else if (kind < 0.2) proxy.hold(500 + random() * 2_500)
    else proxy.cut()
    if (proxy.cuts >= next) {
      next += every
      await server.stop(random() < 0.5 ? "SIGKILL" : "SIGTERM")
      await server.run()
    }
  }
}

/** Runs a job over and over until another is done. */
async function meanwhile(busy: Promise<void>, job: (round: number) => Promise<unknown>): Promise<number> {
  let done = false
  busy.finally(() => (done = true)).catch(() => {})
  let round = 0
  while (!done) await job(round++)
  await busy
  return round
}

test(`rooms lose nothing and double nothing through ${CUTS} cuts, silences, late arrivals and restarts, seed ${SEED}`, async () => {
  const server = await Server.start({ config })
  const proxy = await Proxy.start(server.url)
  const through = new Rooms({ server: proxy.url, project: "p", environment })
  await new Rooms({ server: server.url, project: "p" }).room("r").changeMembers({ add: ["dev"] })
  const idOf = ({ payload }: RoomEvent) => (payload as any).messageView.id as number
  const heard: Record<string, number[]> = { sse: [], websocket: [] }
  const followings = (["sse", "websocket"] as const).map(wire =>
    through.room("r").follow(event => void heard[wire]!.push(idOf(event)), { wire, cursors: inMemory("00000000000000000000000000"), onStale: "oldest" }),
  )
  const written = await meanwhile(wreck(proxy, server, seeded(SEED)), id =>
    through.room("r").write({ type: "messageEvent", payload: { messageView: { id } } }, { timeoutMs: 10 * 60_000 }),
  )
  const expected = Array.from({ length: written }, (_, id) => id)
  await until(() => heard.sse!.length >= written && heard.websocket!.length >= written)
  for (const following of followings) following.close()
  assert.deepEqual(heard, { sse: expected, websocket: expected })
  assert.ok(proxy.cuts >= CUTS)
})

test(`sessions lose nothing and double nothing through ${CUTS} cuts, silences, late arrivals and restarts, seed ${SEED}`, async () => {
  const server = await Server.start({ config })
  const proxy = await Proxy.start(server.url)
  await fetch(`${server.url}/v1/p/stream/orders`, { method: "PUT", headers: { "content-type": "application/json" } })
  const session = new Sessions({ server: proxy.url, project: "p", environment: { clock: fastClock(100) } }).session("s")
  await new Sessions({ server: server.url, project: "p" }).session("s").subscribe("orders", { envelope: true })
  const readers = (["sse", "long-poll"] as const).map(live => {
    const own: number[] = []
    const reader = session.follow({ streams: { orders: message => void own.push(message.payload) } }, { live })
    return { own, reader }
  })
  const direct = new Sessions({ server: server.url, project: "p" })
  const producer = (round: number) => ({ "producer-id": "test", "producer-epoch": "0", "producer-seq": String(round) })
  const published = await meanwhile(wreck(proxy, server, seeded(SEED + 1)), async round => {
    // The publisher is not what is tested: it repeats until the server has it.
    while (!(await direct.publish("orders", round, { headers: producer(round) }).then(() => true, () => false)));
  })
  const expected = Array.from({ length: published }, (_, round) => round)
  await until(() => readers.every(({ own }) => own.length >= published))
  for (const { reader } of readers) reader.close()
  assert.deepEqual(readers.map(({ own }) => own), [expected, expected])
})

test(`topics come back after each of ${CUTS} cuts with one $set, hear each message once, and are told of each gap, seed ${SEED}`, async t => {
  const server = await Server.start({ config })
  const proxy = await Proxy.start(server.url)
  const requests = new Map<WebSocket, string[]>()
  class Counting extends WebSocket {
    override send(data: string): void {
      requests.set(this, [...(requests.get(this) ?? []), JSON.parse(data).type])
      super.send(data)
    }
  }
  const topics = new Topics({ server: proxy.url, project: "p", backoff: { maxMs: 1_000 }, environment: { ...environment, WebSocket: Counting as never } })
  const publisher = new Topics({ server: server.url, project: "p", environment })
  t.after(() => (topics.close(), publisher.close()))
  const heard: number[] = []
  let gaps = 0
  topics.listen("a", { message: ({ payload }) => void heard.push(payload as number), restored: ({ recovered }) => void (recovered || gaps++) })
  for (let count = 0; count < 50; count++) topics.listen(`b:${count}`, {})
  let connected = 0
  topics.onState(({ status }) => void (status === "connected" && connected++))
  await meanwhile(wreck(proxy, server, seeded(SEED + 2)), async round => {
    await publisher.publish("a", { type: "N", payload: round }, { timeoutMs: 1_000 })
    await new Promise(resolve => setTimeout(resolve, 1))
  })
  await until(() => topics.state.status === "connected")
  // The last connection may be a silent one, which nobody has noticed yet.
  await until(async () => (await publisher.publish("a", { type: "N", payload: -1 }), heard.includes(-1)))
  const numbers = heard.filter(number => number >= 0)
  assert.deepEqual(numbers, [...new Set(numbers)].sort((a, b) => a - b))
  assert.ok(numbers.length > 0)
  assert.equal(gaps, connected - 1)
  for (const types of requests.values()) {
    const changes = types.filter(type => type !== "__heartbeat")
    if (changes.length > 0) assert.deepEqual(changes, ["$set"])
  }
  assert.equal(topics.size, 51)
})

test("tokens that expire all the time lose nothing and double nothing, and the connection of topics outlives them", async t => {
  const key = "a-signing-key-of-the-tests"
  const server = await Server.start({ dev: false, config: `[auth]\nprojects = [{ id = "p", keys = ["${key}"] }]\n` })
  const lasting = (seconds: number) => token(key, { project: "p", sub: "ann", scope: "manage", exp: Math.floor(Date.now() / 1000) + seconds })
  const rooms = new Rooms({ server: server.url, project: "p", token: () => lasting(600) })
  const brief = new Rooms({ server: server.url, project: "p", token: () => lasting(2), environment })
  await rooms.room("r").changeMembers({ add: ["ann"] })
  const heard: number[] = []
  let expired = 0
  const following = brief.room("r").follow({
    event: ({ payload }) => void heard.push((payload as any).messageView.id),
    info: ({ reason }) => void (reason === "token-expired" && expired++),
  })
  let renewed = 0
  const topics = new Topics({ server: server.url, project: "p", token: ({ reason }) => (reason === "expiring" && renewed++, lasting(3)) })
  t.after(() => topics.close())
  const states: string[] = []
  topics.onState(({ status }) => void states.push(status))
  await topics.subscribe("a")
  await until(() => following.state.status === "connected")
  let written = 0
  while (expired < 2 || renewed < 2) await rooms.room("r").write({ type: "messageEvent", payload: { messageView: { id: written++ } } })
  await until(() => heard.length >= written)
  following.close()
  assert.deepEqual(heard, Array.from({ length: written }, (_, id) => id))
  assert.deepEqual(states, ["connecting", "connected"])
})
