// Bundles the page and serves it: `node examples/chat-react/serve.mjs`, after `npm install` in clients/typescript.
import { readFileSync } from "node:fs"
import { createServer } from "node:http"
import { createRequire } from "node:module"
import { fileURLToPath } from "node:url"

const here = fileURLToPath(new URL(".", import.meta.url))
const client = fileURLToPath(new URL("../../clients/typescript/", import.meta.url))
const { build } = createRequire(client)("esbuild")

/** The page's script, from sources. A project of its own has the client as a dependency and needs none of these options. */
export async function bundle() {
  const { outputFiles } = await build({
    entryPoints: [`${here}app.tsx`],
    bundle: true,
    write: false,
    format: "esm",
    jsx: "automatic",
    target: "es2022",
    define: { "process.env.NODE_ENV": '"development"' },
    nodePaths: [`${client}node_modules`],
    alias: Object.fromEntries(["topics", "rooms", "react"].map(part => [`tidings-client/${part}`, `${client}src/${part}/index.ts`])),
  })
  return outputFiles[0].text
}

/** Serves the page on a port of the loopback interface; 0 takes a free one. */
export async function serve(port) {
  const script = await bundle()
  const site = createServer((request, response) => {
    const isScript = request.url === "/app.js"
    response.setHeader("content-type", isScript ? "text/javascript" : "text/html")
    response.end(isScript ? script : readFileSync(`${here}index.html`))
  })
  await new Promise(resolve => site.listen(port, "127.0.0.1", resolve))
  return site
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const site = await serve(Number(process.env.PORT ?? 8000))
  console.log(`http://127.0.0.1:${site.address().port}/?room=lobby&name=ann`)
}
