/** Pages in real headless Chromium, from a site of the test's own. */
import { createServer } from "node:http"
import type { AddressInfo } from "node:net"
import { fileURLToPath } from "node:url"
import { after } from "node:test"
import { build } from "esbuild"
import { chromium, type Page } from "playwright-core"

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
})
after(() => browser.close())

/** Builds `tests/page/{name}` and shows it, with parameters in its query. Errors of the page fail the test that reads them. */
export async function openPage(name: string, parameters: Record<string, string>): Promise<{ page: Page; errors: string[] }> {
  const built = await build({
    entryPoints: [fileURLToPath(new URL(`../../tests/page/${name}`, import.meta.url))],
    bundle: true,
    write: false,
    format: "esm",
    platform: "browser",
    jsx: "automatic",
    // The development build: StrictMode does nothing in the other one.
    define: { "process.env.NODE_ENV": '"development"' },
    logLevel: "warning",
  })
  const script = built.outputFiles[0]!.text
  const site = createServer((request, response) => {
    const isScript = request.url === "/page.js"
    response.setHeader("content-type", isScript ? "text/javascript" : "text/html")
    response.end(isScript ? script : '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><div id="root"></div><script type="module" src="/page.js"></script>')
  })
  await new Promise<void>(resolve => site.listen(0, "127.0.0.1", resolve))
  after(() => (site.close(), site.closeAllConnections()))
  const { port } = site.address() as AddressInfo
  return pageAt(`http://127.0.0.1:${port}/?${new URLSearchParams(parameters)}`)
}

/** Shows what is at an address. */
export async function pageAt(url: string): Promise<{ page: Page; errors: string[] }> {
  const page = await browser.newPage()
  page.setDefaultTimeout(30_000)
  const errors: string[] = []
  page.on("pageerror", error => errors.push(String(error)))
  page.on("console", message => message.type() === "error" && errors.push(message.text()))
  await page.goto(url)
  return { page, errors }
}
