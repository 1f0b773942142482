import assert from "node:assert/strict"
import { test } from "node:test"
import { HttpError, inMemory, Rooms, type RoomEvent, type RoomsOptions, type Wire } from "../src/rooms/index.js"
import { Server, token, until } from "./server.js"

const KEY = "a-signing-key-of-the-tests"
const open = await Server.start()
const guarded = await Server.start({ dev: false, config: `[auth]\nprojects = [{ id = "shop", keys = ["${KEY}"] }]\n` })
const WIRES: Wire[] = ["sse", "websocket"]

function client(options: Partial<RoomsOptions> = {}): Rooms {
  return new Rooms({ server: open.url, project: "p", ...options })
}

let rooms = 0
async function room(options: Partial<RoomsOptions> = {}) {
  const room = client(options).room(`room ${++rooms}`)
  await room.changeMembers({ add: ["dev"] })
  return room
}

const said = (id: string) => ({ type: "messageEvent", payload: { messageView: { id } } })
const idOf = ({ payload }: RoomEvent) => (payload as any).messageView?.id

for (const wire of WIRES) {
  test(`what is written is followed in order, and resumed at the cursor: ${wire}`, async () => {
    const r = await room()
    const cursors = inMemory()
    const heard: string[] = []
    const first = r.follow({ event: event => heard.push(idOf(event)) }, { wire, cursors })
    await until(() => first.state.status === "connected")
    await r.write([said("m1"), said("m2")])
    await until(() => heard.length === 2)
    await until(async () => (await cursors.load()) !== undefined)
    first.close()
    await first.done
    await r.write(said("m3"))
    const infos: string[] = []
    const second = r.follow({ event: event => heard.push(idOf(event)), info: ({ reason }) => infos.push(reason) }, { wire, cursors, caughtUp: true })
    await until(() => infos.includes("caught-up"))
    second.close()
    assert.deepEqual(heard, ["m1", "m2", "m3"])
  })

  test(`a cursor that was never given is told, and the reader goes on at the head: ${wire}`, async () => {
    const r = await room()
    await r.write(said("old"))
    const told: string[] = []
    const heard: string[] = []
    const following = r.follow(
      { event: event => heard.push(idOf(event)), missed: ({ name }) => told.push(name) },
      { wire, cursors: inMemory("7ZZZZZZZZZZZZZZZZZZZZZZZZZ") },
    )
    await until(() => told.length === 1 && following.state.status === "connected")
    await r.write(said("new"))
    await until(() => heard.length === 1)
    following.close()
    assert.deepEqual([heard, told], [["new"], [wire === "sse" ? "FutureCursor" : "reset"]])
  })

  test(`who is not a member is told so, and does not try again: ${wire}`, async () => {
    const exp = Math.floor(Date.now() / 1000) + 600
    const manage = client({ server: guarded.url, project: "shop", token: await token(KEY, { project: "shop", sub: "boss", scope: "manage", exp }) })
    const ann = client({ server: guarded.url, project: "shop", token: await token(KEY, { project: "shop", sub: "ann", scope: "write", exp }) })
    const refused = ann.room(`secret ${wire}`).follow({}, { wire })
    await assert.rejects(refused.done, (error: any) => error instanceof HttpError && error.status === 403)
    await manage.room(`secret ${wire}`).changeMembers({ add: ["ann"] })
    const following = ann.room(`secret ${wire}`).follow({}, { wire })
    await until(() => following.state.status === "connected")
    await manage.room(`secret ${wire}`).changeMembers({ remove: ["ann"] })
    await manage.room(`secret ${wire}`).write(said("after"))
    await assert.rejects(following.done, { code: "NotMember" })
  })

  test(`a server that restarts loses nothing: ${wire}`, async () => {
    const server = await Server.start()
    const r = client({ server: server.url }).room("r")
    await r.changeMembers({ add: ["dev"] })
    const heard: string[] = []
    const following = r.follow(event => heard.push(idOf(event)), { wire })
    await until(() => following.state.status === "connected")
    await r.write(said("before"))
    await until(() => heard.length === 1)
    await server.stop()
    const written = r.write(said("meanwhile"))
    await server.run()
    await written
    await r.write(said("after"))
    await until(() => heard.length === 3)
    following.close()
    assert.deepEqual(heard, ["before", "meanwhile", "after"])
  })
}

test("typing is live, reactions are stored, and read positions are kept by device", async () => {
  const r = await room({ device: "phone" })
  const types: string[] = []
  const following = r.follow(event => types.push(event.type))
  await until(() => following.state.status === "connected")
  await r.typing()
  const [written] = await r.write({ type: "reactionEvent", payload: { messageId: "m1", actor: "dev", reaction: "+1", op: "add" } })
  await until(() => types.length === 2)
  following.close()
  assert.deepEqual(types, ["typingEvent", "reactionEvent"])
  r.markSeen(written!.cursor)
  await r.flushSeen()
  const seen = await r.seen()
  assert.deepEqual([seen.cursor, seen.devices], [written!.cursor, { phone: written!.cursor }])
})

test("a write that cannot be is refused by its name, and the next one goes on", async () => {
  const r = await room()
  await assert.rejects(r.write({ type: "messageEvent", payload: {} }), { code: "InvalidRequest", status: 400 })
  assert.equal((await r.write(said("fine"))).length, 1)
  const page = await r.members({ limit: 10 })
  assert.deepEqual(page.members, ["dev"])
})
