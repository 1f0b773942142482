/** The talks that all clients share, against a scripted server, which says what the table says, and against the real one. */
import assert from "node:assert/strict"
import { after, test } from "node:test"
import { FakeNetwork, hello, turn } from "./fakes.js"
import { Server } from "./server.js"
import { cases, compare, entitiesApplication, newProject, outcomeOf, real, request, sessionsCall, topicsApplication, type Application, type Frame, type Talk, type Where } from "./talks.js"

const open = await Server.start()
const CAPABILITIES = [
  { capability: "topics", begin: topicsApplication, greeting: hello(), least: 4 },
  { capability: "entities", begin: entitiesApplication, greeting: { type: "CONNECTED", payload: { connectionId: "c", cursor: "0", heartbeatMs: 15_000 } }, least: 4 },
] as const

/** Takes the server's part: the client says exactly what the table says, and gets the answers of the table. */
async function scripted(talk: Talk, begin: (where: Where) => Application, greeting: Frame): Promise<void> {
  const network = new FakeNetwork()
  const application = begin({ server: "https://tidings.example", project: "p", environment: network.environment })
  after(() => application.close())
  await turn()
  // What is called before there is a connection is part of its first request.
  let greeted = network.sockets.length > 0
  if (greeted) {
    await network.socket.opens()
    await network.socket.says(greeting)
  }
  for (const [index, step] of talk.steps.entries()) {
    const what = `${talk.name}, step ${index}`
    const outcome = step.call && outcomeOf(application.call(...step.call))
    await turn()
    if (step.reconnect) {
      await network.socket.closes()
      await network.clock.advance(15_000)
    }
    if (step.reconnect || !greeted) {
      await network.socket.opens()
      await network.socket.says(greeting)
      greeted = true
    }
    const sent: Frame[] = network.socket.frames()
    const said = sent.map(({ type, payload }) => ({ type, ...(payload !== undefined && { payload }) }))
    assert.deepEqual(said, step.sends ?? [], what)
    const ids = sent.map(({ meta }) => meta?.correlationId)
    for (const frame of step.server ?? []) {
      const answers = ["$reply", "RPC_ERROR"].includes(frame.type)
      const payload = frame.type === "RPC_ERROR" ? { message: "refused", ...frame.payload } : frame.payload
      await network.socket.says(answers ? { ...frame, meta: { correlationId: ids.shift() }, payload } : frame)
    }
    if (outcome) compare(await outcome, step, what)
    assert.deepEqual(application.heard.splice(0), step.hears ?? [], what)
  }
  application.close()
}

for (const { capability, begin, greeting, least } of CAPABILITIES) {
  const talks = cases<Talk[]>(`${capability}/talks.json`)
  test(`the client of ${capability} talks as the table says, with a scripted server`, async () => {
    assert.ok(talks.length >= least)
    for (const talk of talks) await scripted(talk, begin, greeting)
  })
  test(`the client of ${capability} talks as the table says, with the real server`, async () => {
    for (const talk of talks) await real(open, talk, begin)
  })
}

test("the client of topics talks of patterns, history and presence as the table says, with a scripted server", async () => {
  const talks = cases<Talk[]>("topics/more-talks.json")
  assert.ok(talks.length >= 3)
  for (const talk of talks) await scripted(talk, topicsApplication, hello())
})

test("the client of sessions asks as the table says, and takes its answers", async () => {
  const talks = cases<Talk[]>("sessions/talks.json")
  assert.ok(talks.length >= 2)
  for (const talk of talks) {
    const network = new FakeNetwork()
    const call = sessionsCall({ server: "https://tidings.example", project: "p", environment: network.environment })
    for (const [index, step] of talk.steps.entries()) {
      if (!step.call) continue
      const what = `${talk.name}, step ${index}`
      const { status, body, headers = {} } = step.answer!
      const asked: unknown[] = []
      network.answer = async (url, init = {}) => {
        const path = new URL(url).pathname.replace("/v1/p/", "")
        asked.push({ method: init.method, path, ...(init.body && { body: JSON.parse(init.body as string) }) })
        return new Response(status === 204 ? null : JSON.stringify(body ?? {}), { status, headers })
      }
      compare(await outcomeOf(call(...step.call)), step, what)
      assert.deepEqual(asked, [step.request], what)
    }
  }
})

test("the client of sessions asks as the table says, with the real server", async () => {
  for (const talk of cases<Talk[]>("sessions/talks.json")) {
    const project = newProject()
    const call = sessionsCall({ server: open.url, project, environment: {} })
    for (const [index, step] of talk.steps.entries()) {
      if (step.other) await request(open, project, step.other)
      if (step.call) compare(await outcomeOf(call(...step.call)), step, `${talk.name}, step ${index}`)
    }
  }
})
