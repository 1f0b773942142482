// The official client against a tidings server, as its users would write it.
import { DurableStream, FetchError, IdempotentProducer, stream } from "@durable-streams/client"
import { expect, test } from "vitest"

type Item = { n: number }

const url = (name: string) => `${process.env.TIDINGS_URL}/v1/client-tests/stream/${name}`
const items = (from: number, to: number): Item[] =>
  Array.from({ length: to - from }, (_, i) => ({ n: from + i }))

async function jsonStream(name: string) {
  return DurableStream.create({ url: url(name), contentType: "application/json" })
}

/** Collects what a live reader hears until it has `count` items. */
async function heard(name: string, live: "long-poll" | "sse", count: number, whileListening: () => Promise<void>) {
  const got: Item[] = []
  const response = await stream<Item>({ url: url(name), offset: "-1", live })
  const complete = new Promise<void>((resolve) => {
    response.subscribeJson(async (batch) => {
      got.push(...batch.items)
      if (got.length >= count) resolve()
    })
  })
  await whileListening()
  await complete
  response.cancel()
  return got
}

test("appends and reads back", async () => {
  const handle = await jsonStream("catch-up")
  for (const item of items(0, 10)) await handle.append(JSON.stringify(item))
  const response = await stream<Item>({ url: url("catch-up"), live: false })
  expect(await response.json()).toEqual(items(0, 10))
  expect((await handle.head()).offset).toBe(response.offset)
})

test("reads bytes as they were written", async () => {
  const handle = await DurableStream.create({ url: url("bytes"), contentType: "application/octet-stream" })
  await handle.append(new Uint8Array([0, 1, 2, 253, 254, 255]))
  const response = await stream({ url: url("bytes"), live: false })
  expect(Array.from(await response.body())).toEqual([0, 1, 2, 253, 254, 255])
})

for (const live of ["long-poll", "sse"] as const) {
  test(`hears by ${live} what was there and what comes`, async () => {
    const name = `live-${live}`
    const handle = await jsonStream(name)
    for (const item of items(0, 5)) await handle.append(JSON.stringify(item))
    const got = await heard(name, live, 20, async () => {
      for (const item of items(5, 20)) await handle.append(JSON.stringify(item))
    })
    expect(got).toEqual(items(0, 20))
  })
}

for (const live of ["long-poll", "sse"] as const) {
  test(`hears by ${live} what a session subscribes to`, async () => {
    const [source, session] = [`source-${live}`, `session-${live}`]
    await jsonStream(source)
    const post = async (path: string, body: unknown) => {
      const headers = { "content-type": "application/json" }
      const answer = await fetch(`${process.env.TIDINGS_URL}/v1/client-tests/${path}`, {
        method: "POST",
        headers,
        body: JSON.stringify(body),
      })
      expect(answer.ok).toBe(true)
    }
    await post("subscribe", { sessionId: session, streamId: source })
    await post(`publish/${source}`, { n: 0 })
    const got = await heard(session, live, 20, async () => {
      for (const item of items(1, 20)) await post(`publish/${source}`, item)
    })
    expect(got).toEqual(items(0, 20))
  })
}

test("produces exactly once, and fences an older epoch off", async () => {
  const handle = await jsonStream("producer")
  const errors: unknown[] = []
  const producer = new IdempotentProducer(handle, "worker", { onError: (error) => errors.push(error) })
  for (const item of items(0, 500)) producer.append(JSON.stringify(item))
  await producer.flush()

  const successor = new IdempotentProducer(handle, "worker", { epoch: 1, onError: (error) => errors.push(error) })
  for (const item of items(500, 600)) successor.append(JSON.stringify(item))
  await successor.flush()
  expect(errors).toEqual([])

  producer.append(JSON.stringify({ n: -1 }))
  await producer.flush().catch(() => {})
  expect(errors.length).toBe(1)

  const response = await stream<Item>({ url: url("producer"), live: false })
  expect(await response.json()).toEqual(items(0, 600))
})

test("closes, and tells readers and writers so", async () => {
  const handle = await jsonStream("closing")
  await handle.append(JSON.stringify({ n: 1 }))
  await handle.close()
  const response = await stream<Item>({ url: url("closing"), live: false })
  expect(await response.json()).toEqual([{ n: 1 }])
  expect(response.streamClosed).toBe(true)
  await expect(handle.append(JSON.stringify({ n: 2 }))).rejects.toThrow()
  await handle.delete()
  await expect(stream({ url: url("closing"), live: false })).rejects.toThrow(FetchError)
})
