/** Topics with history, against a model of the server that loses connections between any two frames. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { Topics } from "../src/topics/index.js"
import { FakeNetwork, FakeSocket, hello, reply, seeded, turn } from "./fakes.js"

const SEED = Number(process.env.TIDINGS_SEED ?? Math.floor(Math.random() * 1e9))
const NAMES = ["a", "b", "c", "d"]

interface Kept {
  offset: number
  payload: number
}

/** Keeps the last messages of each topic and answers as the protocol says. What it sends waits until the test lets it through. */
class HistoryServer {
  readonly kept = new Map<string, Kept[]>(NAMES.map(name => [name, []]))
  readonly heads = new Map<string, number>(NAMES.map(name => [name, 0]))
  epoch = 1
  outgoing: unknown[] = []
  subscribed = new Set<string>()
  sets = 0

  constructor(readonly keep: number) {}

  /** A new connection. */
  connect(): void {
    this.outgoing = [hello()]
    this.subscribed.clear()
    this.sets = 0
  }

  publish(topic: string, payload: number): void {
    const offset = this.heads.get(topic)! + 1
    this.heads.set(topic, offset)
    const kept = [...this.kept.get(topic)!, { offset, payload }].slice(-this.keep)
    this.kept.set(topic, kept)
    if (this.subscribed.has(topic)) this.#tell(topic, { offset, payload })
  }

  /** History is lost: the next one has another epoch. */
  forget(): void {
    this.epoch++
    for (const name of NAMES) {
      this.kept.set(name, [])
      this.heads.set(name, 0)
    }
  }

  take(socket: FakeSocket): void {
    for (const frame of socket.frames()) {
      if (!frame.type.startsWith("$s")) continue
      if (frame.type === "$set") this.sets++
      const topics: string[] = frame.payload.topics ?? [frame.payload.topic]
      const recover = frame.payload.topics ? (frame.payload.recover ?? {}) : { [topics[0]!]: frame.payload.recover }
      const positions: Record<string, unknown> = {}
      const replays: [string, Kept][] = []
      for (const topic of topics) {
        const [head, kept, from] = [this.heads.get(topic)!, this.kept.get(topic)!, recover[topic]]
        const oldest = kept[0]?.offset ?? head + 1
        const recovered = from && from.epoch === `e${this.epoch}` && from.offset <= head && from.offset >= oldest - 1
        positions[topic] = { epoch: `e${this.epoch}`, offset: head, ...(from && { recovered: Boolean(recovered) }) }
        if (recovered) replays.push(...kept.filter(({ offset }) => offset > from.offset).map(each => [topic, each] as [string, Kept]))
        this.subscribed.add(topic)
      }
      this.outgoing.push(reply(frame, frame.payload.topics ? { positions } : positions[topics[0]!]))
      for (const [topic, each] of replays) this.#tell(topic, each)
    }
  }

  #tell(topic: string, { offset, payload }: Kept): void {
    this.outgoing.push({ type: "N", meta: { topic, epoch: `e${this.epoch}`, offset }, payload })
  }
}

/** Runs a client against the model through cuts; returns what was published, heard and told for each topic. */
async function run(seed: number, keep: number, { forgets = false, cuts = 100 } = {}) {
  const random = seeded(seed)
  const network = new FakeNetwork()
  const server = new HistoryServer(keep)
  const topics = new Topics({ server: "http://x", environment: { ...network.environment, random } })
  const published = new Map<string, number[]>(NAMES.map(name => [name, []]))
  const heard = new Map<string, (number | "gap")[]>(NAMES.map(name => [name, []]))
  for (const name of NAMES) {
    topics.listen(name, {
      message: ({ payload }) => void heard.get(name)!.push(payload as number),
      restored: ({ recovered }) => void (recovered || heard.get(name)!.push("gap")),
    })
  }
  let number = 0
  const publish = () => {
    const name = NAMES[Math.floor(random() * NAMES.length)]!
    published.get(name)!.push(++number)
    server.publish(name, number)
  }
  await turn()
  const sets: number[] = []
  for (let cut = 0; cut <= cuts; cut++) {
    const { socket } = network
    await socket.opens()
    server.connect()
    // The last connection lasts until everything has come.
    let steps = cut === cuts ? Infinity : Math.floor(random() * 25)
    for (; steps > 0; steps--) {
      if (random() < 0.5 && steps !== Infinity) publish()
      const frame = server.outgoing.shift()
      if (frame) await socket.says(frame)
      server.take(socket)
      if (steps === Infinity && server.outgoing.length === 0 && topics.state.status === "connected") break
    }
    sets.push(server.sets)
    if (cut === cuts) break
    await socket.closes()
    if (forgets && random() < 0.1) server.forget()
    for (let count = Math.floor(random() * 6); count > 0; count--) publish()
    while (network.socket === socket) await network.clock.advance(1_000)
  }
  assert.ok(sets.every(count => count <= 1), "one $set for each connection")
  return { published, heard }
}

test(`topics with history lose nothing and double nothing through a hundred cuts, seed ${SEED}`, async () => {
  for (let round = 0; round < 4; round++) {
    const { published, heard } = await run(SEED + round, Infinity)
    for (const name of NAMES) {
      const list = heard.get(name)!
      // What was published before the first subscription is not for it.
      const expected = published.get(name)!.filter(each => each >= Number(list[0] ?? Infinity))
      assert.deepEqual(list, expected, `${name}, round ${round}`)
      assert.ok(list.length > 50)
    }
  }
})

test(`whatever a topic with a short or forgotten history loses is told, and nothing is doubled, seed ${SEED}`, async () => {
  let gaps = 0
  for (let round = 0; round < 4; round++) {
    const { published, heard } = await run(SEED + round, 3, { forgets: true })
    for (const name of NAMES) {
      const list = heard.get(name)!
      const numbers = list.filter(each => each !== "gap")
      assert.deepEqual(numbers, [...new Set(numbers)].sort((a, b) => a - b))
      const all = published.get(name)!
      for (let at = 1; at < list.length; at++) {
        const [before, now] = [list[at - 1]!, list[at]!]
        if (before === "gap" || now === "gap") continue
        assert.equal(all.indexOf(now), all.indexOf(before) + 1, `${name}, round ${round}: ${before} is followed by ${now}`)
      }
      gaps += list.length - numbers.length
    }
  }
  assert.ok(gaps > 0)
})
