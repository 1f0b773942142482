import assert from "node:assert/strict"
import { after, test } from "node:test"
import type { Page } from "playwright-core"
import postgres from "postgres"
import { pageAt } from "./browser.js"
import { startExample } from "./example.js"

const said = await startExample("todo")
const [, url] = /^open (\S+)$/m.exec(said)!
const sql = postgres(/the database is (\S+)/.exec(said)![1]!, { onnotice: () => {} })
after(() => sql.end())

const lines = (page: Page) => page.locator("li label").allTextContents()
const shows = (page: Page, ...titles: string[]) =>
  page.waitForFunction(expected => [...document.querySelectorAll("li label")].map(each => each.textContent).join("\n") === expected, titles.join("\n"))
const add = async (page: Page, title: string) => {
  await page.fill("form input", title)
  await page.click("form button")
}

async function open(): Promise<Page> {
  const { page } = await pageAt(url!)
  await page.waitForSelector("#live[data-status=connected]")
  return page
}

test("two pages show the same things to do, whoever changes the table, also through a crash of the server", async () => {
  const [ann, bob] = [await open(), await open()]
  await add(ann, "buy milk")
  await Promise.all([shows(ann, "buy milk"), shows(bob, "buy milk")])
  await add(bob, "<b>bake</b>")
  await shows(ann, "buy milk", "<b>bake</b>")
  await ann.click("li:first-child input")
  await bob.waitForSelector("li:first-child[data-done=true]")
  // Somebody who knows of neither the application nor tidings.
  await sql`INSERT INTO todo (title) VALUES ('call Carol')`
  await Promise.all([ann, bob].map(page => shows(page, "buy milk", "<b>bake</b>", "call Carol")))
  if (process.env.TIDINGS_SCREENSHOT) {
    await ann.setViewportSize({ width: 560, height: 420 })
    await ann.screenshot({ path: process.env.TIDINGS_SCREENSHOT })
  }

  process.kill(Number(/tidings is process (\d+)/.exec(said)![1]), "SIGKILL")
  await ann.waitForSelector("#live:not([data-status=connected])")
  await sql`DELETE FROM todo WHERE title = 'buy milk'`
  await Promise.all([ann, bob].map(page => page.waitForSelector("#live[data-status=connected]")))
  await Promise.all([ann, bob].map(page => shows(page, "<b>bake</b>", "call Carol")))
  await bob.click("li:last-child button")
  await shows(ann, "<b>bake</b>")
  assert.deepEqual([await lines(ann), await lines(bob)], [["<b>bake</b>"], ["<b>bake</b>"]])
  assert.deepEqual([await ann.textContent("#error"), await bob.textContent("#error")], ["", ""])
})

test("the application refuses what it cannot store", async () => {
  for (const [method, path, body, status] of [["POST", "/todos", '{"title":" "}', 400], ["POST", "/todos", "no json", 400], ["POST", "/todos", "x".repeat(5000), 413], ["DELETE", "/todos/x", null, 404], ["PUT", "/todos/00000000-0000-4000-8000-000000000000", null, 405]] as const) {
    const response = await fetch(new URL(path, url), { method, body })
    assert.equal(response.status, status, `${method} ${path}`)
  }
})
