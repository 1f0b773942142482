/** Starts an example by its one command, as a user does. It ends with this process. */
import { spawn } from "node:child_process"
import { after } from "node:test"
import { fileURLToPath } from "node:url"

const repository = fileURLToPath(new URL("../../../../", import.meta.url))

/** Resolves with what it has printed up to the address to open. */
export function startExample(name: string): Promise<string> {
  const binary = process.env.TIDINGS_BINARY ?? `${repository}target/debug/tidings`
  const child = spawn(process.execPath, [`${repository}examples/${name}/start.mjs`], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, PORT: "0", TIDINGS_BINARY: binary, TIDINGS_EXAMPLE_ENDS_WITH_PARENT: "1" },
  })
  const ended = new Promise<void>(resolve => child.once("exit", () => resolve()))
  after(async () => {
    child.kill("SIGTERM")
    await ended
  })
  let said = ""
  child.stderr.on("data", chunk => (said += chunk))
  return new Promise((resolve, reject) => {
    child.stdout.on("data", chunk => {
      said += chunk
      if (/^open http\S+$/m.test(said)) resolve(said)
    })
    child.once("exit", code => reject(new Error(`${name} ended with ${code}: ${said}`)))
  })
}
