import { Topics, type TopicsOptions } from "../src/topics/index.js"
import { FakeNetwork, hello, turn } from "./fakes.js"

export async function connected(options: Partial<TopicsOptions> = {}) {
  const network = new FakeNetwork()
  const topics = new Topics({ server: "https://tidings.example", project: "shop", environment: network.environment, ...options })
  await greet(network, topics)
  return { network, topics }
}

export async function greet(network: FakeNetwork, topics: Topics) {
  topics.connect().catch(() => {})
  await turn()
  await network.socket.opens()
  await network.socket.says(hello())
}

/** Loses the connection and answers the new one's `$hello`. */
export async function reconnect(network: FakeNetwork) {
  await network.socket.closes()
  await network.clock.advance(30_000 - 15_000)
  await network.socket.opens()
  await network.socket.says(hello())
}

export const broadcast = (topic: string, payload: unknown, more: object = {}) => ({ type: "SAID", meta: { topic, ...more }, payload })
