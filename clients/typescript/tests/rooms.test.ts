import assert from "node:assert/strict"
import { test } from "node:test"
import { inMemory, Rooms, type RoomEvent } from "../src/rooms/index.js"
import { SseParser } from "../src/rooms/sse.js"
import { FakeNetwork, turn } from "./fakes.js"
import { Script } from "./room-script.js"

const waiting = ({ state }: { state: any }, script: Script) => (state.status === "waiting" ? [state.why.reason, state.retryAt - script.network.clock.now()] : state.status)

test("an event is handled, then its cursor is stored, and the next request has it", async () => {
  const script = new Script()
  const cursors = inMemory("01A")
  const following = script.follow({ cursors })
  await script.open()
  assert.equal(script.cursor, "01A")
  assert.equal(following.state.status, "connected")
  await script.message("01B")
  await script.message("01B")
  await script.message("01A")
  assert.deepEqual(script.told, ["01B"])
  assert.equal(await cursors.load(), "01B")
  await script.write(`event: typingEvent\ndata: {"cursor":"01T","payload":{}}\n\nid: 01C\n\n`)
  assert.equal(await cursors.load(), "01C")
  await script.end()
  assert.deepEqual(waiting(following, script), ["ended", 250])
  await script.network.clock.advance(250)
  assert.equal(script.cursor, "01C")
})

test("where a stream without a cursor begins is where the next one resumes", async () => {
  const script = new Script()
  script.follow()
  await script.open("00A")
  assert.equal(script.cursor, null)
  await script.cut()
  await script.network.clock.advance(500)
  assert.equal(script.cursor, "00A")
})

test("on 410 it tells what is gone once, drops its cursor and begins at the head", async () => {
  const script = new Script()
  const following = script.follow({ cursors: inMemory("01A") })
  await script.refuse(410, { error: "CursorCompacted", detail: { head: "01G" } })
  assert.deepEqual([script.told, waiting(following, script)], [["missed CursorCompacted"], ["skipped", 250]])
  await script.network.clock.advance(250)
  assert.equal(script.cursor, null)
  await script.open()
  await script.info("compacted", "01G")
  assert.deepEqual(script.told, ["missed CursorCompacted", "info compacted"])
  await script.message("01H")
  await script.info("compacted", "01K")
  assert.deepEqual(script.told.slice(2), ["01H", "info compacted", "missed compacted"])
  await script.end()
  await script.network.clock.advance(250)
  assert.equal(script.cursor, "01K")
})

test("each end is waited for as the table says", async () => {
  const cases: [(script: Script) => Promise<void>, unknown][] = [
    [script => script.refuse(409, { error: "SlowConsumer" }), ["slow-consumer", 250]],
    [script => script.refuse(409, { error: "SlowConsumer", retryAfter: 1.5 }), ["slow-consumer", 1500]],
    [script => script.refuse(503, {}, { "retry-after": "7" }), ["unavailable", 7000]],
    [script => script.refuse(500), ["unavailable", 500]],
    [script => script.refuse(200, {}, { "content-type": "text/html" }), ["unavailable", 500]],
    [script => script.unreachable(), ["lost", 500]],
    [script => script.refuse(403, { error: "NotMember" }), "closed"],
    [script => script.refuse(404, { error: "ConvoNotFound" }), "closed"],
    [script => script.refuse(400, { error: "InvalidCursor" }), "closed"],
    [script => script.refuse(401), "closed"],
    [async script => (await script.open(), await script.info("server-restart", "01A", { retryAfter: 2.25 })), ["server-restart", 2250]],
    [async script => (await script.open(), await script.info("slow-consumer", "01A", { retryAfter: 0.4 })), ["slow-consumer", 400]],
    [async script => (await script.open(), await script.info("membership-revoked", "01A")), "closed"],
    [async script => (await script.open(), await script.write("event: messageEvent\ndata: {}\n\n")), ["malformed", 500]],
    [async script => (await script.open(), await script.write(`data: ${"x".repeat(1 << 20)}x`)), ["malformed", 500]],
    [async script => (await script.open(), await script.write("retry: 900\n"), await script.end()), ["ended", 900]],
  ]
  for (const [index, [happens, expected]] of cases.entries()) {
    const script = new Script()
    const following = script.follow({ cursors: inMemory("01A") })
    await happens(script)
    assert.deepEqual(waiting(following, script), expected, `case ${index}`)
  }
})

test("failures are waited for longer each time, until a stream has lasted", async () => {
  const script = new Script()
  const following = script.follow()
  const waits = []
  for (let count = 0; count < 7; count++) {
    await script.unreachable()
    const [, ms] = waiting(following, script) as [string, number]
    waits.push(ms)
    await script.network.clock.advance(ms)
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 15_000, 15_000])
  await script.open()
  await script.network.clock.advance(10_000)
  await script.cut()
  assert.deepEqual(waiting(following, script), ["lost", 500])
})

test("a silent server is left after two and a half heartbeats, and one that sends them is not", async () => {
  const script = new Script()
  const following = script.follow()
  await script.open()
  for (let count = 0; count < 4; count++) {
    await script.network.clock.advance(30_000)
    await script.write(": keep-alive\n\n")
  }
  assert.equal(following.state.status, "connected")
  await script.network.clock.advance(37_500)
  assert.deepEqual(waiting(following, script), ["silent", 500])
})

test("a WebSocket is asked whether it lives, and left when it does not answer", async () => {
  const script = new Script()
  const following = script.follow({ wire: "websocket" })
  await turn()
  const { socket } = script.network
  await socket.opens()
  assert.deepEqual(socket.frames(), [{ type: "ping" }])
  for (let count = 0; count < 8; count++) {
    await script.network.clock.advance(15_000)
    assert.deepEqual(socket.frames(), [{ type: "ping" }])
    await socket.says({ type: "pong" })
  }
  assert.equal(following.state.status, "connected")
  await script.network.clock.advance(37_500)
  assert.deepEqual(waiting(following, script), ["silent", 500])
  assert.equal(socket.closedWith, 1000)
  following.close()
  await turn()
  assert.equal(script.network.clock.next, undefined)
})

test("after sleep the stream is opened again at once", async () => {
  const script = new Script()
  const following = script.follow({ cursors: inMemory("01A") })
  await script.open()
  await script.network.clock.sleep(3_600_000)
  assert.deepEqual(waiting(following, script), ["silent", 500])
  script.network.woken()
  await script.network.clock.advance(250)
  assert.equal(script.requests.length, 2)
  assert.equal(script.cursor, "01A")
})

test("a token that is refused is replaced once", async () => {
  const script = new Script()
  const asked: string[] = []
  const following = script.follow({}, { token: ({ reason }) => (asked.push(reason), `t${asked.length}`) })
  await script.refuse(401)
  await script.network.clock.advance(250)
  assert.equal((script.requests[1]!.init.headers as Record<string, string>).authorization, "Bearer t2")
  await script.refuse(401)
  assert.deepEqual([asked, following.state.status], [["connect", "refused"], "closed"])
  await assert.rejects(following.done, { code: "http_401" })
})

test("a handler that fails stops the reader and keeps the event for the next one", async () => {
  const script = new Script()
  const cursors = inMemory("01A")
  const rooms = new Rooms({ server: "https://tidings.example", environment: script.network.environment })
  const following = rooms.room("r").follow(() => Promise.reject(new Error("disk full")), { cursors })
  await script.open()
  await script.message("01B")
  await assert.rejects(following.done, /disk full/)
  assert.equal(await cursors.load(), "01A")
})

test("events are handled one after the other", async () => {
  const script = new Script()
  const rooms = new Rooms({ server: "https://tidings.example", environment: script.network.environment })
  const seen: string[] = []
  let release = () => {}
  rooms.room("r").follow(event => {
    seen.push(event.cursor)
    return new Promise<void>(resolve => (release = resolve))
  })
  await script.open()
  await script.message("01A")
  await script.message("01B")
  assert.deepEqual(seen, ["01A"])
  release()
  await turn()
  assert.deepEqual(seen, ["01A", "01B"])
})

test("a loop stores the cursor of an event when it asks for the next, and not when it is left", async () => {
  const script = new Script()
  const cursors = inMemory("01A")
  const rooms = new Rooms({ server: "https://tidings.example", environment: script.network.environment })
  const seen: RoomEvent[] = []
  const looping = (async () => {
    for await (const event of rooms.room("r").events({ cursors })) {
      seen.push(event)
      if (event.cursor === "01C") break
    }
  })()
  await script.open()
  await script.message("01B")
  await script.message("01C")
  await looping
  await turn()
  assert.deepEqual([seen.map(({ cursor }) => cursor), await cursors.load()], [["01B", "01C"], "01B"])
})

test("closing ends everything at once", async () => {
  const script = new Script()
  const controller = new AbortController()
  const following = script.follow({ signal: controller.signal })
  await script.open()
  controller.abort()
  await following.done
  assert.equal(following.state.status, "closed")
  assert.equal(script.network.clock.next, undefined)
})

test("marks of what was seen are sent after a second, the latest only", async () => {
  const network = new FakeNetwork()
  const bodies: unknown[] = []
  network.answer = async (_, init) => (bodies.push(JSON.parse(init!.body as string)), Response.json({ cursor: "x" }))
  const room = new Rooms({ server: "https://tidings.example", device: "phone", environment: network.environment }).room("r")
  for (const cursor of ["01A", "01B", "01C"]) room.markSeen(cursor)
  await network.clock.advance(999)
  assert.deepEqual(bodies, [])
  await network.clock.advance(1)
  assert.deepEqual(bodies, [{ cursor: "01C", deviceId: "phone" }])
  room.markSeen("01A", { force: true })
  await room.flushSeen()
  assert.deepEqual(bodies[1], { cursor: "01A", deviceId: "phone", force: true })
  await network.clock.advance(5_000)
  assert.equal(bodies.length, 2)
})

test("a write that fails on the way is repeated under its number, and the next waits for it", async () => {
  const network = new FakeNetwork()
  const sent: [string, string][] = []
  const answers = [() => Promise.reject(new TypeError("reset")), () => Promise.resolve(new Response("", { status: 503 }))]
  network.answer = (_, init) => {
    const headers = init!.headers as Record<string, string>
    sent.push([headers["producer-seq"]!, JSON.parse(init!.body as string).payload.n])
    return (answers.shift() ?? (() => Promise.resolve(Response.json({ cursor: "01A", emittedAt: "t" }))))()
  }
  const room = new Rooms({ server: "https://tidings.example", environment: network.environment }).room("r")
  const writes = [1, 2].map(n => room.write({ type: "messageEvent", payload: { messageView: {}, n } }))
  await network.clock.advance(5_000)
  await Promise.all(writes)
  assert.deepEqual(sent, [["0", 1], ["0", 1], ["0", 1], ["1", 2]])
})

test("a write that nobody answers is repeated, and given up in time", async () => {
  const network = new FakeNetwork()
  let sent = 0
  network.answer = (_, init) =>
    new Promise((_, reject) => {
      sent++
      init!.signal!.addEventListener("abort", () => reject(init!.signal!.reason))
    })
  const room = new Rooms({ server: "https://tidings.example", environment: network.environment }).room("r")
  const written = assert.rejects(room.write({ type: "messageEvent", payload: { messageView: {} } }), { code: "DEADLINE_EXCEEDED" })
  await network.clock.advance(60_000)
  await written
  assert.ok(sent > 1)
})

test("a write that is aborted leaves its number to no other, as it may have been stored", async () => {
  const network = new FakeNetwork()
  const sent: unknown[] = []
  network.answer = (_, init) => {
    const headers = init!.headers as Record<string, string>
    sent.push([headers["producer-id"], headers["producer-seq"]])
    return sent.length === 1 ? Promise.reject(new TypeError("reset")) : Promise.resolve(Response.json({ cursor: "01A", emittedAt: "t" }))
  }
  const room = new Rooms({ server: "https://tidings.example", environment: network.environment }).room("r")
  const controller = new AbortController()
  const aborted = assert.rejects(room.write({ type: "messageEvent", payload: { n: 1 } }, { signal: controller.signal }), { name: "AbortError" })
  await turn()
  controller.abort()
  await aborted
  await room.write({ type: "messageEvent", payload: { n: 2 } })
  const [first, second] = sent as [string, string][]
  assert.equal(sent.length, 2)
  assert.notEqual(first![0], second![0])
})

test("server-sent events are the same in whatever pieces they come", () => {
  const text = "\uFEFFretry: 5\r\nid: 1\revent: a\ndata: x\ndata:y\n\n: comment\n\nid: 2\n\ndata\n\nretry: no\nid: \0\n\n"
  const whole = new SseParser().feed(text)
  assert.deepEqual(whole, [
    { kind: "retry", ms: 5 },
    { kind: "event", name: "a", data: "x\ny" },
    { kind: "id", id: "2" },
    { kind: "event", name: "message", data: "" },
  ])
  for (let size = 1; size < 9; size++) {
    const parser = new SseParser()
    const items = []
    for (let at = 0; at < text.length; at += size) items.push(...parser.feed(text.slice(at, at + size)))
    assert.deepEqual(items, whole, `pieces of ${size}`)
  }
})
