/** Patterns, history and presence of topics with the real server. What it refuses is skipped, with its words. */
import assert from "node:assert/strict"
import type { TestContext } from "node:test"
import { Topics, type PresenceChange, type Restored, type TopicsOptions } from "../src/topics/index.js"
import { fastClock } from "./fakes.js"
import { Proxy } from "./proxy.js"
import { Server, until } from "./server.js"
import { needed, RULES } from "./support.js"
import { cases, real, topicsApplication, type Talk } from "./talks.js"

function client(t: TestContext, options: TopicsOptions): Topics {
  const topics = new Topics(options)
  t.after(() => topics.close())
  return topics
}

for (const talk of cases<Talk[]>("topics/more-talks.json")) {
  needed(`the client talks as the table says: ${talk.name}`, [talk.needs!], async () => {
    await real(await Server.start({ config: RULES }), talk, topicsApplication)
  })
}

needed("a hundred cuts, silences and restarts lose nothing and double nothing on a topic with history", ["history"], async t => {
  const server = await Server.start({ config: RULES })
  const proxy = await Proxy.start(server.url)
  const environment = { clock: fastClock(25) }
  const topics = client(t, { server: proxy.url, project: "p", environment, backoff: { maxMs: 500 } })
  const publisher = client(t, { server: server.url, project: "p", environment, backoff: { maxMs: 500 } })
  const heard: number[] = []
  const restored: Restored[] = []
  const listener = topics.listen("kept:1", { message: ({ payload }) => heard.push(payload as number), restored: each => restored.push(each) })
  await listener.ready
  const sent: number[] = []
  for (let round = 0; proxy.cuts < 100; round++) {
    const result = await publisher.publish("kept:1", { type: "N", payload: round })
    if (result.ok) sent.push(round)
    if (round % 2 === 0) proxy.cut()
    else if (round % 9 === 1) proxy.mute()
    if (round % 100 === 50) {
      await server.stop()
      await server.run()
    }
    if (round % 5 === 0) await until(() => topics.state.status === "connected")
  }
  await until(() => heard.at(-1) === sent.at(-1))
  // A publish that was not answered may have been stored.
  assert.deepEqual(heard.filter(each => sent.includes(each)), sent)
  assert.deepEqual(heard, [...new Set(heard)].sort((a, b) => a - b))
  assert.ok(restored.length > 20 && restored.every(({ recovered }) => recovered), JSON.stringify(restored.filter(({ recovered }) => !recovered)))
})

needed("what a topic with a short history does not keep is told", ["history"], async t => {
  const server = await Server.start({ config: RULES })
  const proxy = await Proxy.start(server.url)
  const topics = client(t, { server: proxy.url, project: "p" })
  const restored: Restored[] = []
  await topics.listen("short:1", { restored: each => restored.push(each) }).ready
  const publish = async (count: number) => {
    for (let n = 0; n < count; n++) await server.post("/v1/p/topics/short:1", { type: "N", payload: n })
  }
  await publish(1)
  await until(() => topics.position("short:1")?.offset === 1)
  for (const count of [2, 9]) {
    proxy.cut()
    await until(() => topics.state.status === "waiting")
    await publish(count)
    await until(() => topics.state.status === "connected")
  }
  assert.deepEqual(restored.map(({ recovered }) => recovered), [true, false])
})

needed("a history survives a restart of the server, and is recovered from", ["history"], async t => {
  const server = await Server.start({ config: RULES })
  const topics = client(t, { server: server.url, project: "p", environment: { clock: fastClock(10) } })
  const heard: unknown[] = []
  const restored: Restored[] = []
  await topics.listen("kept:2", { message: ({ payload }) => heard.push(payload), restored: each => restored.push(each) }).ready
  assert.equal((await topics.publish("kept:2", { type: "N", payload: 1 })).ok, true)
  await until(() => heard.length === 1)
  await server.stop()
  await server.run()
  await server.post("/v1/p/topics/kept:2", { type: "N", payload: 2 })
  await until(() => heard.length === 2)
  assert.deepEqual(restored, [{ topic: "kept:2", recovered: true }])
})

needed("excludeSelf holds for what is replayed to the same session", ["history"], async t => {
  const server = await Server.start({ config: RULES })
  const proxy = await Proxy.start(server.url)
  const topics = client(t, { server: proxy.url, project: "p" })
  const heard: unknown[] = []
  await topics.listen("kept:3", ({ payload }) => heard.push(payload)).ready
  await topics.publish("kept:3", { type: "N", payload: "own" }, { excludeSelf: true })
  proxy.cut()
  await until(() => topics.state.status === "waiting")
  await server.post("/v1/p/topics/kept:3", { type: "N", payload: "other" })
  await until(() => heard.length === 1)
  assert.deepEqual(heard, ["other"])
})

needed("members hear who comes and goes, also through a cut", ["presence"], async t => {
  const server = await Server.start()
  const proxy = await Proxy.start(server.url)
  const ann = client(t, { server: server.url, project: "p" })
  const bob = client(t, { server: proxy.url, project: "p" })
  const told: [PresenceChange["kind"], unknown][] = []
  await ann.listen("lobby", { presence: ({ kind, member }) => told.push([kind, member.info]) }, { presence: { info: "ann" } }).ready
  await bob.listen("lobby", {}, { presence: { info: "bob" } }).ready
  await until(() => told.length === 1)
  const { members, count } = await ann.presence("lobby")
  assert.deepEqual([members.map(({ info }) => info).sort(), count], [["ann", "bob"], 2])
  proxy.cut()
  await until(() => told.length === 3)
  bob.close()
  await until(() => told.length === 4)
  assert.deepEqual(told, [["join", "bob"], ["leave", "bob"], ["join", "bob"], ["leave", "bob"]])
})
