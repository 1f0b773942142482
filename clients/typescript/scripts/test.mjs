// Builds the tests and runs them with Node's own runner. Arguments select files: `npm test -- topics rooms`.
import { spawn } from "node:child_process"
import { readdirSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"

const root = fileURLToPath(new URL("..", import.meta.url))
const asked = process.argv.slice(2)
const all = readdirSync(`${root}tests`).filter(name => /\.test\.tsx?$/.test(name))
const chosen = asked.length === 0 ? all : all.filter(name => asked.some(word => name.startsWith(`${word}.`)))
if (chosen.length === 0) throw new Error(`no tests named ${asked.join(", ")}`)

const outdir = `${root}build/tests`
await build({
  entryPoints: chosen.map(name => `${root}tests/${name}`),
  outdir,
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node20",
  packages: "external",
  sourcemap: "inline",
  outExtension: { ".js": ".mjs" },
  logLevel: "warning",
})

// Node 20 has a WebSocket only if asked; later ones take the flag, too.
const files = chosen.map(name => `${outdir}/${name.replace(/\.tsx?$/, ".mjs")}`)
const flags = ["--enable-source-maps", "--experimental-websocket", "--no-warnings", "--test-reporter=tap", "--test-timeout=90000"]
const runner = spawn(process.execPath, [...flags, "--test", "--test-concurrency=2", ...files], { cwd: root, stdio: "inherit" })
runner.on("exit", code => process.exit(code ?? 1))
