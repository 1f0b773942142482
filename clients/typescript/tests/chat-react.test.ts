import assert from "node:assert/strict"
import { after, test } from "node:test"
import type { Page } from "playwright-core"
import { pageAt } from "./browser.js"
import { Server } from "./server.js"

const { serve } = (await import(new URL("../../../../examples/chat-react/serve.mjs", import.meta.url).href)) as { serve(port: number): Promise<import("node:http").Server> }
const site = await serve(0)
after(() => (site.close(), site.closeAllConnections()))
const { port } = site.address() as import("node:net").AddressInfo

async function join(server: Server, name: string): Promise<Page> {
  const { page } = await pageAt(`http://127.0.0.1:${port}/?${new URLSearchParams({ server: server.url, name })}`)
  await page.waitForSelector("#room[data-status=connected]")
  await page.waitForSelector("#live[data-status=connected]")
  return page
}

const lines = (page: Page) => page.locator("ol li").allTextContents()
const hears = (page: Page, count: number) => page.waitForFunction(most => document.querySelectorAll("ol li").length === most, count)
const say = async (page: Page, text: string) => {
  await page.fill("input", text)
  await page.click("form button:not([type])")
}

test("two pages chat, see each other typing and waving, and go on after the server restarts", async () => {
  const server = await Server.start()
  const [ann, bob] = [await join(server, "ann"), await join(server, "bob")]
  await say(ann, "hello")
  await hears(bob, 1)
  await say(bob, "<b>hi</b>")
  await hears(ann, 2)
  await bob.fill("input", "thinking")
  await ann.waitForFunction(() => document.querySelector("#typing")?.textContent === "bob is typing")
  await ann.click("#wave")
  await bob.waitForFunction(() => document.querySelector("#waves")?.textContent === "ann waves")
  assert.equal(await ann.textContent("#waves"), "")
  if (process.env.TIDINGS_SCREENSHOT) {
    await ann.setViewportSize({ width: 640, height: 480 })
    await ann.screenshot({ path: process.env.TIDINGS_SCREENSHOT })
  }

  await server.stop()
  await ann.waitForSelector("#room:not([data-status=connected])")
  await say(ann, "are you there?")
  await server.run()
  await Promise.all([hears(ann, 3), hears(bob, 3)])
  const all = ["annhello", "bob<b>hi</b>", "annare you there?"]
  assert.deepEqual([await lines(ann), await lines(bob)], [all, all])
  // Who comes later reads what was said.
  const carol = await join(server, "carol")
  await hears(carol, 3)
  assert.deepEqual(await lines(carol), all)
})
