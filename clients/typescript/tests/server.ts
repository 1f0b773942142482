/** The real server, in a process of its own. It ends with the test's process, also if that is killed. */
import { spawn, type ChildProcess } from "node:child_process"
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { after } from "node:test"

const binary = process.env.TIDINGS_BINARY ?? new URL("../../../../target/debug/tidings", import.meta.url).pathname

export class Server {
  #process: ChildProcess | undefined
  #pid = 0
  url = ""

  private constructor(
    readonly data: string,
    readonly args: string[],
  ) {}

  /** Starts `tidings serve` on a free port, with `--dev` unless there is a configuration that says otherwise. */
  static async start({ config = "", dev = true, args = [] as string[] } = {}): Promise<Server> {
    const data = mkdtempSync(join(tmpdir(), "tidings-client-"))
    if (config) writeFileSync(join(data, "tidings.toml"), config)
    const server = new Server(data, [...(dev ? ["--dev"] : []), ...(config ? ["--config", join(data, "tidings.toml")] : []), ...args])
    after(() => server.remove())
    await server.run()
    return server
  }

  /** Runs it, again on the same port if it ran before. */
  async run(): Promise<void> {
    const listen = this.url ? new URL(this.url).host : "127.0.0.1:0"
    // The shell ends the server when its input ends, and its input ends with this process; it ends with the server.
    const script = 'exec 3<&0; "$@" & pid=$!; echo "pid $pid"; (cat <&3 >/dev/null; kill -9 $pid 2>/dev/null) & wait $pid'
    const child = spawn("sh", ["-c", script, "sh", binary, "serve", "--listen", listen, "--data", join(this.data, "store"), "--log", "error", ...this.args], {
      stdio: ["pipe", "pipe", "pipe"],
    })
    this.#process = child
    let said = ""
    child.stderr!.on("data", chunk => (said += chunk))
    this.url = await new Promise<string>((resolve, reject) => {
      child.stdout!.on("data", chunk => {
        said += chunk
        this.#pid = Number(/pid (\d+)/.exec(said)?.[1] ?? 0)
        const url = /serves on (\S+)/.exec(said)?.[1]
        if (url) resolve(url)
      })
      child.on("exit", () => {
        if (this.#process === child) this.#process = undefined
        reject(new Error(`the server ended: ${said}`))
      })
    })
  }

  /** Ends it at once, as a crash would, or gracefully with SIGTERM. */
  async stop(signal: "SIGKILL" | "SIGTERM" = "SIGKILL"): Promise<void> {
    const child = this.#process
    if (!child) return
    this.#process = undefined
    process.kill(this.#pid, signal)
    await until(() => !alive(this.#pid))
    child.stdin!.end()
    await new Promise(resolve => (child.exitCode === null ? child.on("exit", resolve) : resolve(undefined)))
  }

  async remove(): Promise<void> {
    await this.stop()
    rmSync(this.data, { recursive: true, force: true })
  }

  /** Sends JSON, and returns what is answered; fails on a status that is not a success. */
  async post(path: string, body: unknown, headers: Record<string, string> = {}): Promise<any> {
    const answer = await fetch(`${this.url}${path}`, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json", ...headers } })
    const text = await answer.text()
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${text}`)
    return text ? JSON.parse(text) : undefined
  }
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

/** Waits until something holds that others bring about. */
export async function until(holds: () => boolean | Promise<boolean>, what = "it holds"): Promise<void> {
  const end = Date.now() + 30_000
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`timed out waiting until ${what}: ${holds}`)
    await new Promise(resolve => setTimeout(resolve, 5))
  }
}

/** A project token, signed as the server's operator would. */
export async function token(key: string, claims: Record<string, unknown>): Promise<string> {
  const { createHmac } = await import("node:crypto")
  const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url")
  const text = `${part({ alg: "HS256", typ: "JWT" })}.${part(claims)}`
  return `${text}.${createHmac("sha256", Buffer.from(key)).update(text).digest("base64url")}`
}
