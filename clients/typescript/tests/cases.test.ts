/** The cases that all clients run: how a stream of a room ends, and what follows. */
import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { test } from "node:test"
import { inMemory, type Wire } from "../src/rooms/index.js"
import { turn } from "./fakes.js"
import { Script } from "./room-script.js"

interface Case {
  name: string
  when: { refuse?: { status: number; retryAfter?: number; body: object }; info?: { reason: string; detail: object }; close?: number; end?: true }
  then: { wait?: string; ms?: number; stop?: string; skipped?: string; cursor?: null }
}

const cases = JSON.parse(readFileSync(new URL("../../../../testing/conformance/cases/rooms/ends.json", import.meta.url), "utf8")) as Case[]

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
