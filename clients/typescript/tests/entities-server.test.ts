import assert from "node:assert/strict"
import { test } from "node:test"
import { Entities, type Change, type EntitiesOptions, type Resync } from "../src/entities/index.js"
import { fastClock } from "./fakes.js"
import { Proxy } from "./proxy.js"
import { Server, token, until } from "./server.js"

const KEY = "a-signing-key-of-the-tests"
const open = await Server.start()

function client(t: { after(f: () => void): void }, options: Partial<EntitiesOptions> = {}): Entities {
  const entities = new Entities({ server: open.url, project: "p", ...options })
  t.after(() => entities.close())
  return entities
}

function change(server: Server, entityCode: string, entityId: string, action: Change["action"] = "UPDATE", headers = {}, project = "p") {
  return server.post(`/v1/${project}/changes`, [{ entityCode, entityId, action }], headers)
}

test("changes reach those who watch the entity or its type, and nobody else", async t => {
  const entities = client(t)
  const heard: string[] = []
  const collect = (who: string) => ({ changes }: { changes: Change[] }) => heard.push(...changes.map(each => `${who} ${each.action} ${each.entityId}`))
  const watches = [entities.watch("task", ["1"], collect("one")), entities.watch("task", "all", collect("all")), entities.watch("user", ["1"], collect("user"))]
  await Promise.all(watches.map(({ ready }) => ready))
  await change(open, "task", "1", "CREATE")
  await change(open, "task", "2", "DELETE")
  await until(() => heard.length === 3)
  watches[1]!.close()
  await change(open, "task", "3")
  await change(open, "task", "1")
  await until(() => heard.length === 4)
  assert.deepEqual(heard, ["one CREATE 1", "all CREATE 1", "all DELETE 2", "one UPDATE 1"])
})

test("what changes while a client is away is told when it is back", async t => {
  const server = await Server.start()
  const proxy = await Proxy.start(server.url)
  const entities = client(t, { server: proxy.url, environment: { clock: fastClock(10) } })
  const versions: number[] = []
  const resyncs: Resync[] = []
  const watch = entities.watch("task", ["1", "2"], {
    invalidate: ({ changes }) => versions.push(...changes.map(({ version }) => version)),
    resync: resync => resyncs.push(resync),
  })
  await watch.ready
  await change(server, "task", "1")
  await until(() => versions.length === 1)
  proxy.cut()
  await until(() => entities.state.status === "waiting")
  await change(server, "task", "2")
  await until(() => versions.length === 2)
  await server.stop()
  await server.run()
  await change(server, "task", "1")
  await until(() => versions.length === 3)
  assert.deepEqual(versions, [...versions].sort((a, b) => a - b))
  assert.deepEqual(resyncs, [])
})

test("thirty cuts lose no change and bring no older version", async t => {
  const server = await Server.start()
  const proxy = await Proxy.start(server.url)
  const entities = client(t, { server: proxy.url, backoff: { maxMs: 500 }, environment: { clock: fastClock(25) } })
  const latest = new Map<string, number>()
  entities.watch("task", "all", ({ changes }) => {
    for (const { entityId, version } of changes) {
      assert.ok(version > (latest.get(entityId) ?? 0))
      latest.set(entityId, version)
    }
  })
  const expected = new Set<string>()
  for (let round = 0; proxy.cuts < 30; round++) {
    const id = String(round % 50)
    expected.add(id)
    await change(server, "task", id)
    if (round % 3 === 0) proxy.cut()
    if (round % 20 === 0) await until(() => entities.state.status === "connected")
  }
  await until(() => entities.state.status === "connected")
  const { cursor: _, ...accepted } = await change(server, "task", "last")
  assert.deepEqual(accepted, { accepted: 1 })
  await until(() => latest.has("last"))
  // The first changes may have come before the first subscription.
  const last = Math.max(...latest.values())
  assert.equal(latest.get("last"), last)
  for (const id of [...expected].slice(1)) assert.ok(latest.has(id), id)
})

test("what a token does not grant is denied, and a token that is refused is replaced", async t => {
  const server = await Server.start({ dev: false, config: `[auth]\nprojects = [{ id = "shop", keys = ["${KEY}"] }]\n` })
  const exp = Math.floor(Date.now() / 1000) + 600
  const granted = await token(KEY, { project: "shop", sub: "ann", scope: "read", exp, entities: ["task:1"] })
  const asked: string[] = []
  const entities = client(t, { server: server.url, project: "shop", token: ({ reason }) => (asked.push(reason), reason === "refused" ? granted : "stale"), onError: () => {} })
  const denied: unknown[] = []
  const watch = entities.watch("task", ["1", "2"], { denied: each => denied.push(each) })
  await watch.ready
  assert.deepEqual([asked, denied], [["connect", "refused"], [{ entityCode: "task", entityId: "2", code: "Forbidden" }]])
  const whole = entities.watch("user", "all", { denied: each => denied.push(each) })
  await assert.rejects(whole.ready, { code: "Forbidden" })
})
