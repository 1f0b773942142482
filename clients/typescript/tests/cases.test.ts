/** The cases that all clients run: how a stream or a connection ends, and what follows; what patterns match. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { Entities } from "../src/entities/index.js"
import { inMemory, type Wire } from "../src/rooms/index.js"
import { Topics, type TokenProvider } from "../src/topics/index.js"
import { matcher } from "../src/topics/pattern.js"
import { FakeNetwork, hello, turn } from "./fakes.js"
import { Script } from "./room-script.js"
import { cases as read } from "./talks.js"

interface Case {
  name: string
  when: { refuse?: { status: number; retryAfter?: number; body: object }; info?: { reason: string; detail: object }; close?: number; end?: true }
  then: { wait?: string; ms?: number; stop?: string; skipped?: string; cursor?: null }
}

const cases = read<Case[]>("rooms/ends.json")

async function happen(script: Script, wire: Wire, { refuse, info, close }: Case["when"]): Promise<void> {
  if (wire === "sse") {
    if (refuse) return script.refuse(refuse.status, refuse.body, refuse.retryAfter === undefined ? {} : { "retry-after": String(refuse.retryAfter) })
    await script.open()
    return info ? script.info(info.reason, "01A", info.detail) : script.end()
  }
  await turn()
  const { socket } = script.network
  await socket.opens()
  if (info) await socket.says({ type: "infoEvent", cursor: "01A", ...info })
  else await socket.closes(close ?? 1000)
}

for (const wire of ["sse", "websocket"] as const) {
  test(`every end is followed by what the cases of all clients say: ${wire}`, async () => {
    assert.ok(cases.length >= 25)
    for (const { name, when, then } of cases) {
      // On a WebSocket a refusal is read from the answer to a plain request, which the other wire shows.
      if (wire === "sse" ? when.close !== undefined : when.refuse !== undefined) continue
      const script = new Script()
      const following = script.follow({ wire, cursors: inMemory("01A") }, { token: () => "token" })
      await happen(script, wire, when)
      const { state } = following
      if (then.stop !== undefined) {
        assert.deepEqual([state.status, state.status === "closed" && state.why.reason], ["closed", then.stop], name)
        continue
      }
      assert.equal(state.status, "waiting", name)
      if (state.status !== "waiting") continue
      const reason = ["lost", "malformed", "silent"].includes(state.why.reason) ? "network" : state.why.reason
      assert.deepEqual([reason, state.retryAt - script.network.clock.now()], [then.wait, then.ms], name)
      if (then.skipped !== undefined) assert.deepEqual(script.told, [`missed ${then.skipped}`], name)
      await script.network.clock.advance(then.ms!)
      const cursor = "cursor" in then ? null : "01A"
      if (wire === "sse") assert.equal(script.cursor, cursor, name)
      else {
        await script.network.socket.opens()
        const [first] = script.network.socket.frames()
        assert.deepEqual(first, cursor === null ? { type: "ping" } : { type: "resume", cursor }, name)
      }
    }
  })
}

interface Ending {
  name: string
  when: { close?: number; said?: object; refuse?: { status?: number; retryAfter?: number } }
  then: { wait?: string; ms?: number; stop?: string; token?: "refused" }
}

const CAPABILITIES = [
  { capability: "topics", begin: beginTopics, last: (said: object) => ({ type: "$close", payload: said }), least: 22 },
  { capability: "entities", begin: beginEntities, last: (said: object) => ({ type: "ERROR", payload: said }), least: 16 },
] as const

function beginTopics(options: { token: TokenProvider; network: FakeNetwork }) {
  const topics = new Topics({ server: "https://tidings.example", environment: options.network.environment, onError: () => {}, ...options })
  topics.connect().catch(() => {})
  return { client: topics, greeting: hello() }
}

function beginEntities(options: { token: TokenProvider; network: FakeNetwork }) {
  const entities = new Entities({ server: "https://tidings.example", environment: options.network.environment, onError: () => {}, ...options })
  entities.watch("task", "all", {})
  return { client: entities, greeting: { type: "CONNECTED", payload: { connectionId: "c", cursor: "0", heartbeatMs: 15_000 } } }
}

for (const { capability, begin, last, least } of CAPABILITIES) {
  test(`every end of a connection is followed by what the cases of all clients say: ${capability}`, async () => {
    const endings = read<Ending[]>(`${capability}/ends.json`)
    assert.ok(endings.length >= least)
    for (const { name, when, then } of endings) {
      const network = new FakeNetwork()
      const asked: string[] = []
      const { client, greeting } = begin({ network, token: ({ reason }) => (asked.push(reason), "token") })
      await turn()
      if (when.refuse) {
        const { status, retryAfter } = when.refuse
        const headers = retryAfter === undefined ? {} : { "retry-after": String(retryAfter) }
        if (status !== undefined) network.answer = async () => new Response("no", { status, headers })
        await network.socket.closes(1006)
      } else {
        await network.socket.opens()
        await network.socket.says(greeting)
        if (when.said) await network.socket.says(last(when.said))
        await network.socket.closes(when.close)
      }
      const { state } = client
      if (then.stop !== undefined) {
        assert.deepEqual([state.status, state.status === "closed" && state.why.reason], ["closed", then.stop], name)
        assert.equal(network.clock.next, undefined, name)
        continue
      }
      assert.equal(state.status, "waiting", name)
      if (state.status !== "waiting") continue
      assert.deepEqual([state.why.reason, state.retryAt - network.clock.now()], [then.wait, then.ms], name)
      await network.clock.advance(then.ms!)
      assert.deepEqual([network.sockets.length, asked.at(-1)], [2, then.token ?? "connect"], name)
    }
  })
}

test("patterns match what the cases of all clients say", () => {
  const patterns = read<{ pattern: string; matches: string[]; not: string[] }[]>("topics/patterns.json")
  assert.ok(patterns.length >= 18)
  for (const { pattern, matches, not } of patterns) {
    for (const topic of matches) assert.ok(matcher(pattern)(topic), `${pattern} matches ${topic}`)
    for (const topic of not) assert.ok(!matcher(pattern)(topic), `${pattern} does not match ${topic}`)
  }
})
