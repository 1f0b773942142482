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

type Need = "patterns" | "presence" | "history"

/** What the server says to each, if it refuses it. */
async function refusals(): Promise<Partial<Record<Need, string>>> {
  const server = await Server.start({ config: RULES }).catch(() => Server.start())
  const topics = new Topics({ server: server.url, project: "probe" })
  const refused: Partial<Record<Need, string>> = {}
  const ask = (need: Need, answer: Promise<unknown>) => answer.catch((error: unknown) => void (refused[need] = `the server refuses ${need}: ${String(error)}`))
  await ask("patterns", topics.subscribe("probe:*"))
  await ask("presence", topics.subscribe("present", { presence: true }))
  await ask("history", topics.history("kept:probe"))
  topics.close()
  await server.stop()
  return refused
}

const refused = await refusals()

/** A test of what the server may not serve yet. */
export function needed(name: string, needs: Need[], run: (t: TestContext) => Promise<void>): void {
  const [why] = needs.flatMap(need => refused[need] ?? [])
  test(name, async t => (why ? t.skip(why) : run(t)))
}
