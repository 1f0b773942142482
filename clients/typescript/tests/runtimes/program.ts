/**
 * What a program does with the package, in Node, Bun and Deno alike. It prints the name of each step that went well, and ends by
 * itself. Arguments: URL of the server, of a proxy before it, of a page that cuts the proxy, and of a server that wants tokens.
 */
import { z } from "zod"
import { Entities } from "tidings-client/entities"
import { verify, VerificationError } from "tidings-client/hooks"
import { Rooms, type RoomEvent } from "tidings-client/rooms"
import { Sessions } from "tidings-client/sessions"
import { message, Topics, type Message, type Restored } from "tidings-client/topics"

const [server, proxy, cut, guarded] = process.argv.slice(2) as [string, string, string, string]
const project = `p${Math.random().toString(36).slice(2)}`

function done(step: string): void {
  console.log(`done: ${step}`)
}

function check(holds: unknown, what: string): asserts holds {
  if (!holds) throw new Error(what)
}

async function until(holds: () => boolean): Promise<void> {
  for (let count = 0; !holds(); count++) {
    check(count < 2_000, `${holds} within 20 s`)
    await new Promise(resolve => setTimeout(resolve, 10))
  }
}

async function post(path: string, body: unknown): Promise<void> {
  const response = await fetch(`${server}/v1/${project}/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })
  check(response.ok, `${path}: ${response.status}`)
}

async function topics(): Promise<void> {
  const topics = new Topics({ server: proxy, project, backoff: { firstMs: 50 } })
  const heard: Message[] = []
  const restored: Restored[] = []
  const listener = topics.listen("chat:1", { message: message => heard.push(message), restored: each => restored.push(each) })
  await topics.connect()
  done("connect")
  await listener.ready
  done("subscribe")
  const result = await topics.publish("chat:1", { type: "SAID", payload: { text: "hi" } })
  check(result.ok && result.matched === 1, JSON.stringify(result))
  await until(() => heard.length === 1)
  done("publish")
  await topics.publish("chat:1", { type: "IMAGE", payload: new Uint8Array([0, 255, 7]) })
  await until(() => heard.length === 2)
  const bytes = heard[1]!.payload as Uint8Array
  check(heard[1]!.binary && bytes instanceof Uint8Array && [...bytes].join() === "0,255,7", "the bytes are as they were sent")
  done("bytes")
  await fetch(cut)
  await until(() => restored.length === 1)
  await post("topics/chat:1", { type: "SAID", payload: "after" })
  await until(() => heard.length === 3)
  done("reconnect")
  const Said = message("SAID", z.object({ text: z.string() }))
  const wrong = await topics.publish("chat:1", Said, { text: 7 } as never)
  check(!wrong.ok && wrong.error === "VALIDATION", "a payload that is not valid is not sent")
  const loop = (async () => {
    for await (const { payload } of topics.messages("chat:2")) return payload
    return undefined
  })()
  await topics.settle("chat:2")
  await topics.publish("chat:2", Said, { text: "typed" })
  check(JSON.stringify(await loop) === '{"text":"typed"}', "the loop hears it")
  done("types")
  topics.close()
}

async function refused(): Promise<void> {
  const topics = new Topics({ server: guarded, project: "shop", token: "not one of the server's", onError: () => {} })
  const error = await topics.connect().catch((error: unknown) => error)
  check((error as { code?: string }).code === "CONNECTION_CLOSED", String(error))
  const { state } = topics
  check(state.status === "closed" && state.why.code === 401, JSON.stringify(state))
  done("refused")
}

async function rooms(): Promise<void> {
  for (const wire of ["sse", "websocket"] as const) {
    const room = new Rooms({ server, project }).room(`room-${wire}`)
    await room.changeMembers({ add: ["dev"] })
    const heard: RoomEvent[] = []
    const following = room.follow(event => heard.push(event), { wire })
    await until(() => following.state.status === "connected")
    const [written] = await room.write({ type: "messageEvent", payload: { messageView: { id: "m1" } } })
    await until(() => heard.length === 1)
    check(heard[0]!.cursor === written!.cursor, "the event that was written")
    room.markSeen(heard[0]!.cursor)
    await room.flushSeen()
    check((await room.seen()).cursor === written!.cursor, "it was seen")
    following.close()
    await following.done
    done(`rooms: ${wire}`)
  }
}

async function entities(): Promise<void> {
  const entities = new Entities({ server, project })
  const heard: string[] = []
  const watch = entities.watch("task", ["1"], ({ changes }) => heard.push(...changes.map(({ entityId, action }) => `${action} ${entityId}`)))
  await watch.ready
  await post("changes", [{ entityCode: "task", entityId: "1", action: "UPDATE" }])
  await until(() => heard.join() === "UPDATE 1")
  entities.close()
  done("entities")
}

async function sessions(): Promise<void> {
  await fetch(`${server}/v1/${project}/stream/orders`, { method: "PUT", headers: { "content-type": "application/json" } })
  const sessions = new Sessions({ server, project })
  const session = sessions.session("alice")
  await session.subscribe("orders", { envelope: true })
  const heard: unknown[] = []
  const reader = session.follow({ streams: { orders: ({ payload }) => heard.push(payload) } })
  await sessions.publish("orders", { id: 1 })
  await until(() => heard.length === 1)
  reader.close()
  await reader.done
  done("sessions")
}

async function hooks(): Promise<void> {
  const key = crypto.getRandomValues(new Uint8Array(24))
  const secret = `whsec_${btoa(String.fromCharCode(...key))}`
  const body = JSON.stringify({ id: "evt_1", type: "order.paid", ts: "2026-01-01T00:00:00Z", payload: { amount: 5 } })
  const timestamp = String(Math.floor(Date.now() / 1000))
  const hmac = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"])
  const signature = new Uint8Array(await crypto.subtle.sign("HMAC", hmac, new TextEncoder().encode(`msg_1.${timestamp}.${body}`)))
  const headers = { "webhook-id": "msg_1", "webhook-timestamp": timestamp, "webhook-signature": `v1,${btoa(String.fromCharCode(...signature))}` }
  const request = (text: string) => new Request("http://hooks.example/", { method: "POST", headers, body: text })
  const { id, event } = await verify<{ amount: number }>(request(body), ["whsec_b2xkIHNlY3JldA==", secret])
  check(id === "msg_1" && event.payload.amount === 5, "the delivery is verified")
  const error = await verify(request(body.replace("5", "6")), secret).catch((error: unknown) => error)
  check(error instanceof VerificationError && error.code === "SIGNATURE", "a changed body is refused")
  const long = await verify(request("x".repeat(100)), secret, { maxBytes: 99 }).catch((error: unknown) => error)
  check(long instanceof VerificationError && long.code === "BODY", "a long body is refused")
  done("hooks.verify")
}

for (const step of [topics, refused, rooms, entities, sessions, hooks]) await step()
done("all")
