/** Whether the server serves patterns, history and presence of topics. Tests that need them are skipped, with its words, if it does not. */
import { test, type TestContext } from "node:test"
import { Topics } from "../src/topics/index.js"
import { Server } from "./server.js"

export const RULES = `[[topics.rules]]
pattern = "kept:**"
history_messages = 10000

[[topics.rules]]
pattern = "short:**"
history_messages = 3
`

/** Why the tests cannot run, if they cannot: what the server says that it does not do. */
async function refusal(): Promise<string | undefined> {
  const server = await Server.start({ config: RULES }).catch((error: unknown) => String(error))
  if (typeof server === "string") return `the server does not take rules with history: ${server}`
  const topics = new Topics({ server: server.url, project: "probe" })
  try {
    await topics.subscribe("probe:*")
    await topics.subscribe("present", { presence: true })
    await topics.history("kept:probe")
    return undefined
  } catch (error) {
    return `the server refuses patterns, presence or history: ${String(error)}`
  } finally {
    topics.close()
    await server.stop()
  }
}

const refused = await refusal()

export function needed(name: string, run: (t: TestContext) => Promise<void>): void {
  test(name, async t => (refused ? t.skip(refused) : run(t)))
}

