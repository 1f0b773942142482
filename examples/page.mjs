// Shared by the examples: bundles a page from its sources and serves it. A project of its own has the client as a dependency and
// needs none of these options.
import { readFileSync } from "node:fs"
import { createServer } from "node:http"
import { createRequire } from "node:module"
import { fileURLToPath } from "node:url"

export const client = fileURLToPath(new URL("../clients/typescript/", import.meta.url))
/** Loads a package that `npm install` has put into clients/typescript. */
export const require = createRequire(client)

/** The script of a folder's `app.tsx`. */
async function bundle(folder) {
  const { outputFiles } = await require("esbuild").build({
    entryPoints: [`${folder}app.tsx`],
    bundle: true,
    write: false,
    format: "esm",
    jsx: "automatic",
    target: "es2022",
    define: { "process.env.NODE_ENV": '"development"' },
    nodePaths: [`${client}node_modules`],
    alias: Object.fromEntries(["topics", "rooms", "entities", "react"].map(part => [`tidings-client/${part}`, `${client}src/${part}/index.ts`])),
  })
  return outputFiles[0].text
}

/** Serves a folder's page on a port of the loopback interface; 0 takes a free one. `handle` answers other requests, if it says so. */
export async function servePage(folder, port, handle = async () => false) {
  const script = await bundle(folder)
  const site = createServer(async (request, response) => {
    try {
      if (await handle(request, response)) return
      const isScript = request.url === "/app.js"
      response.setHeader("content-type", isScript ? "text/javascript" : "text/html")
      response.end(isScript ? script : readFileSync(`${folder}index.html`))
    } catch (error) {
      console.error(error)
      response.writeHead(500).end()
    }
  })
  await new Promise((resolve, reject) => site.once("error", reject).listen(port, "127.0.0.1", resolve))
  return site
}
