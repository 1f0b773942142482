/** The built package in Node, Bun and Deno: the same program does the same in each. */
import assert from "node:assert/strict"
import { execFile } from "node:child_process"
import { existsSync } from "node:fs"
import { createServer } from "node:http"
import type { AddressInfo } from "node:net"
import { after, test } from "node:test"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { build } from "esbuild"
import { Proxy } from "./proxy.js"
import { Server } from "./server.js"

const root = fileURLToPath(new URL("../../", import.meta.url))
const run = promisify(execFile)
const folder = `${root}build/runtimes`

const RUNTIMES: [name: string, program: string, ...args: string[]][] = [
  ["Node", process.execPath, "--experimental-websocket", "--no-warnings"],
  ["Bun", `${root}node_modules/.bin/bun`, "run"],
  ["Deno", `${root}node_modules/.bin/deno`, "run", "--no-config", "--allow-net"],
]
const STEPS = ["connect", "subscribe", "publish", "bytes", "reconnect", "types", "refused", "rooms: sse", "rooms: websocket", "entities", "sessions", "hooks.verify", "all"]

await run(process.execPath, [`${root}scripts/build.mjs`, `${folder}/package`])
await build({
  entryPoints: [`${root}tests/runtimes/program.ts`],
  outfile: `${folder}/program.mjs`,
  bundle: true,
  format: "esm",
  target: "es2022",
  // As the package's own exports say, for the code that was built.
  alias: Object.fromEntries(["topics", "rooms", "entities", "sessions", "hooks"].map(part => [`tidings-client/${part}`, `${folder}/package/${part}/index.js`])),
  logLevel: "warning",
})

const open = await Server.start()
const guarded = await Server.start({ dev: false, config: '[auth]\nprojects = [{ id = "shop", keys = ["a-signing-key-of-the-tests"] }]\n' })

for (const [name, program, ...args] of RUNTIMES) {
  test(`topics, rooms, entities, sessions and hooks work in ${name}`, async t => {
    assert.ok(existsSync(program), `${program} is missing; scripts/install-test-tools installs it`)
    const proxy = await Proxy.start(open.url)
    const control = createServer((_, response) => {
      proxy.cut()
      response.end()
    })
    await new Promise<void>(resolve => control.listen(0, "127.0.0.1", resolve))
    after(() => control.close())
    const cut = `http://127.0.0.1:${(control.address() as AddressInfo).port}/`
    const { stdout } = await run(program, [...args, `${folder}/program.mjs`, open.url, proxy.url, cut, guarded.url], { timeout: 80_000 })
    const done = stdout.split("\n").flatMap(line => line.match(/^done: (.*)$/)?.[1] ?? [])
    assert.deepEqual(done, STEPS)
    t.diagnostic(stdout.split("\n").filter(line => !line.startsWith("done: ")).join(" "))
  })
}

const PARTS = ["connection", "topics", "messages", "history", "rooms", "cases", "entities"]
await build({
  entryPoints: PARTS.map(part => `${root}tests/${part}.test.ts`),
  outdir: folder,
  bundle: true,
  format: "esm",
  platform: "node",
  target: "es2022",
  packages: "external",
  outExtension: { ".js": ".mjs" },
  logLevel: "warning",
})

const RUNNERS: [name: string, program: string, passed: RegExp, ...args: string[]][] = [
  ["Bun", `${root}node_modules/.bin/bun`, /^ *(\d+) pass$/m, "test", ...PARTS.map(part => `./${part}.test.mjs`)],
  ["Deno", `${root}node_modules/.bin/deno`, /ok \| (\d+) passed \| 0 failed/, "test", "--no-check", "--allow-all", ...PARTS.map(part => `${part}.test.mjs`)],
]

for (const [name, program, passed, ...args] of RUNNERS) {
  test(`the tests without a server pass in ${name}`, async t => {
    const { stdout, stderr } = await run(program, args, { cwd: folder, timeout: 80_000, env: { ...process.env, NO_COLOR: "1" } })
    const count = Number(passed.exec(stdout + stderr)?.[1])
    assert.ok(count >= 85, `${count} tests have passed: ${stdout} ${stderr}`)
    t.diagnostic(`${count} tests`)
  })
}
