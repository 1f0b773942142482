import assert from "node:assert/strict"
import { test } from "node:test"
import type { Page } from "playwright-core"
import { pageAt } from "./browser.js"
import { startExample } from "./example.js"
import { needed } from "./support.js"

const said = await startExample("chat-react")
const address = new URL(/^open (\S+)$/m.exec(said)![1]!)

async function join(name: string, room = "lobby"): Promise<Page> {
  address.searchParams.set("name", name)
  address.searchParams.set("room", room)
  const { page } = await pageAt(address.href)
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

test("two pages chat, see each other typing and waving, and go on after a crash of the server", async () => {
  const [ann, bob] = [await join("ann"), await join("bob")]
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

  process.kill(Number(/tidings is process (\d+)/.exec(said)![1]), "SIGKILL")
  await ann.waitForSelector("#room:not([data-status=connected])")
  await say(ann, "are you there?")
  await Promise.all([hears(ann, 3), hears(bob, 3)])
  const all = ["annhello", "bob<b>hi</b>", "annare you there?"]
  assert.deepEqual([await lines(ann), await lines(bob)], [all, all])
  // Who comes later reads what was said.
  const carol = await join("carol")
  await hears(carol, 3)
  assert.deepEqual(await lines(carol), all)
})

needed("who is here is shown, and who leaves is not any more", ["presence"], async () => {
  const [ann, bob] = [await join("ann", "porch"), await join("bob", "porch")]
  const here = (page: Page, names: string) => page.waitForFunction(expected => document.querySelector("#here")?.textContent === expected, `here: ${names}`)
  await Promise.all([here(ann, "ann, bob"), here(bob, "ann, bob")])
  await bob.close()
  await here(ann, "ann")
})
