// Bundles check.ts, with the client from its sources, and runs it. A project of its own has the client as a dependency.
import { spawn } from "node:child_process"
import { createRequire } from "node:module"
import { fileURLToPath } from "node:url"

const here = fileURLToPath(new URL(".", import.meta.url))
const client = fileURLToPath(new URL("../../clients/typescript/", import.meta.url))
const { build } = createRequire(client)("esbuild")
const outfile = `${here}node_modules/.check.mjs`
await build({
  entryPoints: [`${here}check.ts`],
  outfile,
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node20",
  external: ["rxdb", "rxdb/*", "rxjs"],
  alias: { "tidings-client/entities": `${client}src/entities/index.ts` },
})
const check = spawn(process.execPath, ["--experimental-websocket", "--no-warnings", outfile], { stdio: "inherit" })
check.on("exit", code => process.exit(code ?? 1))
