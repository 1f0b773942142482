// Shared by the examples: runs the server, from `TIDINGS_BINARY` or as Cargo builds it, as long as this process runs.
import { spawn, spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

const repository = fileURLToPath(new URL("..", import.meta.url))

/** Called when the process ends, whatever ends it. */
export function atExit(callback) {
  process.once("exit", callback)
}
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, () => process.exit())
// Who starts an example for a test may be killed.
if (process.env.TIDINGS_EXAMPLE_ENDS_WITH_PARENT) {
  const parent = process.ppid
  setInterval(() => process.ppid === parent || process.exit(), 200).unref()
}

/** A folder that is removed at the end. */
export function temporaryFolder(name) {
  const folder = mkdtempSync(join(tmpdir(), `tidings-${name}-`))
  atExit(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** The program, built first if need be. */
export function tidings() {
  if (process.env.TIDINGS_BINARY) return process.env.TIDINGS_BINARY
  const { status } = spawnSync("cargo", ["build", "--release", "--package", "tidings"], { cwd: repository, stdio: "inherit" })
  if (status !== 0) throw new Error("the server could not be built; TIDINGS_BINARY names one that is")
  return join(repository, "target/release/tidings")
}

/** Starts a server with --dev, and again on its port and data if it ends. Resolves with its URL. */
export async function startServer(binary, { environment = {}, listen = "127.0.0.1:0" } = {}) {
  const data = temporaryFolder("data")
  const state = { url: "", pid: 0 }
  let ended = false
  let child
  atExit(() => {
    ended = true
    child?.kill("SIGKILL")
  })
  const start = () =>
    new Promise((resolve, reject) => {
      const at = state.url ? new URL(state.url).host : listen
      child = spawn(binary, ["serve", "--dev", "--log", "error", "--listen", at, "--data", data], {
        stdio: ["ignore", "pipe", "inherit"],
        env: { ...process.env, ...environment },
      })
      state.pid = child.pid
      child.once("error", reject)
      let said = ""
      child.stdout.on("data", chunk => {
        said += chunk
        const [, url] = /serves on (\S+)/.exec(said) ?? []
        if (url) resolve((state.url = url))
      })
      child.once("exit", code => {
        reject(new Error(`the server ended with ${code}`))
        if (!ended && state.url) setTimeout(() => start().catch(console.error), 300)
      })
    })
  await start()
  return state
}
