import assert from "node:assert/strict"
import { createServer } from "node:http"
import type { AddressInfo } from "node:net"
import { test } from "node:test"
import { Webhook } from "standardwebhooks"
import { Hooks, HttpError, verify, VerificationError, type Delivery } from "../src/hooks/index.js"
import { Server, until } from "./server.js"

const SECRET = "whsec_LJQmzuinyKASY6ILRUjiaGO2ANBrlOOnjrDj04aqF+o="
const OTHER = "whsec_wc+YCeeAtUEDcMGhGfX1657z6oCrIfuX7vYSy8hqEUM="
const BODY = JSON.stringify({ id: "e1", type: "orders.paid", ts: "2026-11-16T17:34:37.755Z", payload: { amount: 7 } })

/** A delivery, signed by the reference library. */
function signed({ body = BODY, secret = SECRET, at = new Date(), more = {} as Record<string, string> } = {}) {
  const signature = new Webhook(secret).sign("msg_1", at, body)
  return { headers: { "webhook-id": "msg_1", "webhook-timestamp": String(Math.floor(at.getTime() / 1000)), "webhook-signature": signature, ...more }, body }
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list = []
  for await (const item of items) list.push(item)
  return list
}

const fails = (code: string) => (error: unknown) => error instanceof VerificationError && error.code === code

test("what the reference library signs is verified, and what it is, is read", async () => {
  const { headers, body } = signed()
  const expected = { id: "e1", type: "orders.paid", ts: "2026-11-16T17:34:37.755Z", payload: { amount: 7 } }
  for (const request of [{ headers, body }, new Request("http://x/", { method: "POST", headers, body }), { headers: new Headers(headers), body: new TextEncoder().encode(body) }]) {
    const delivery = await verify<{ amount: number }>(request, SECRET)
    assert.deepEqual([delivery.id, delivery.event, delivery.body], ["msg_1", expected, BODY])
  }
})

test("whatever is changed is refused", async () => {
  await assert.rejects(verify({ ...signed(), body: BODY.replace("7", "8") }, SECRET), fails("SIGNATURE"))
  await assert.rejects(verify(signed({ secret: OTHER }), SECRET), fails("SIGNATURE"))
  await assert.rejects(verify({ ...signed(), headers: { ...signed().headers, "webhook-id": "msg_2" } }, SECRET), fails("SIGNATURE"))
  await assert.rejects(verify(signed({ more: { "webhook-signature": "v1,???  v2,abc v1," } }), SECRET), fails("SIGNATURE"))
  await assert.rejects(verify({ headers: {}, body: BODY }, SECRET), fails("HEADERS"))
  await assert.rejects(verify(signed(), "whsec_???"), TypeError)
})

test("an old delivery, one from the future, and a time that is none are refused", async () => {
  const now = 1_795_040_176_000
  const at = (ms: number) => verify(signed({ at: new Date(now + ms) }), SECRET, { now })
  await at(-300_000)
  await at(300_000)
  await assert.rejects(at(-301_000), fails("TIMESTAMP"))
  await assert.rejects(at(301_000), fails("TIMESTAMP"))
  await assert.rejects(verify(signed({ more: { "webhook-timestamp": "soon" } }), SECRET), fails("TIMESTAMP"))
})

test("while a secret is rotated either may have signed", async () => {
  await verify(signed(), [OTHER, SECRET])
  const [old, fresh] = [signed(), signed({ secret: OTHER })]
  const both = { ...old, headers: { ...old.headers, "webhook-signature": `${old.headers["webhook-signature"]} ${fresh.headers["webhook-signature"]}` } }
  await verify(both, SECRET)
  await verify(both, OTHER)
})

test("a body is bounded and of each format", async () => {
  await assert.rejects(verify(signed(), SECRET, { maxBytes: 10 }), fails("BODY"))
  await assert.rejects(verify(signed({ body: "no json" }), SECRET), fails("BODY"))
  const raw = await verify(signed({ body: '{"amount":7}' }), SECRET)
  assert.deepEqual(raw.event, { payload: { amount: 7 } })
  const binary = await verify(signed({ body: '{"amount":7}', more: { "ce-id": "e1", "ce-type": "orders.paid", "ce-time": "t" } }), SECRET)
  assert.deepEqual(binary.event, { id: "e1", type: "orders.paid", ts: "t", payload: { amount: 7 } })
  const structured = signed({ body: '{"specversion":"1.0","id":"e1","type":"orders.paid","time":"t","data":{"amount":7}}', more: { "content-type": "application/cloudevents+json" } })
  assert.deepEqual((await verify(structured, SECRET)).event, { id: "e1", type: "orders.paid", ts: "t", payload: { amount: 7 } })
})

test("hooks of the real server are managed, deliver what is sent, and are verified through a rotation", async t => {
  const server = await Server.start()
  const hooks = new Hooks({ server: server.url, project: "shop" })
  const secrets: string[] = []
  const received: (Delivery<any> | unknown)[] = []
  const endpoint = createServer(async (request, response) => {
    const delivery = await verify(request, secrets).catch((error: unknown) => error)
    received.push(delivery)
    response.statusCode = delivery instanceof Error ? 400 : 204
    response.end()
  })
  await new Promise<void>(resolve => endpoint.listen(0, "127.0.0.1", resolve))
  t.after(() => (endpoint.close(), endpoint.closeAllConnections()))
  const url = `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}/`
  const hook = await hooks.create({ pattern: "orders.*", url, maxRetries: 0 })
  secrets.push(hook.secret)
  assert.deepEqual(await hooks.send({ type: "orders.paid", id: "o1", amount: 7 }), { ok: true, received: 1, namespace: "shop" })
  await until(() => received.length === 1)
  const [first] = received as Delivery<any>[]
  assert.deepEqual([first!.event?.id, first!.event?.type, first!.event?.payload?.amount], ["o1", "orders.paid", 7])
  const { secret } = await hooks.rotateSecret(hook.id, { overlapSeconds: 60 })
  secrets.splice(0, 1, secret)
  await hooks.test(hook.id)
  await until(() => received.length === 2)
  assert.equal((received[1] as Delivery).event.type, "hook.test")
  secrets.splice(0, 1, OTHER)
  await hooks.send([{ type: "orders.paid", id: "o2" }, { type: "other", id: "o3" }])
  await until(() => received.length === 3)
  assert.ok(received[2] instanceof VerificationError)
  await until(async () => (await all(hooks.deadLetters(hook.id))).length === 1)
  const [letter] = await all(hooks.deadLetters(hook.id))
  assert.equal(letter!.eventId, "o2")
  assert.equal((await hooks.attempts(hook.id, letter!.deliveryId)).length, 1)
  secrets.push(secret)
  await hooks.retryDeadLetter(hook.id, letter!.id)
  await until(() => received.length === 4)
  assert.equal((received[3] as Delivery).event.id, "o2")
  await until(async () => (await all(hooks.deliveries(hook.id, { status: "delivered", limit: 1 }))).length === 3)
  assert.equal((await hooks.replay(hook.id, { from: "2020-01-01T00:00:00Z" })).events, 2)
  await until(() => received.length === 6)
  assert.equal((await hooks.update(hook.id, { concurrency: 1 })).concurrency, 1)
  await hooks.pause(hook.id)
  assert.equal((await hooks.get(hook.id)).active, false)
  await hooks.resume(hook.id)
  assert.deepEqual((await hooks.match("orders.paid")).map(({ id }) => id), [hook.id])
  assert.deepEqual((await all(hooks.list({ limit: 1 }))).map(({ id }) => id), [hook.id])
  await hooks.delete(hook.id)
  await assert.rejects(hooks.get(hook.id), (error: unknown) => error instanceof HttpError && error.status === 404 && error.code === "hook_not_found")
})
