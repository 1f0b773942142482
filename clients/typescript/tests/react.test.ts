import assert from "node:assert/strict"
import { test } from "node:test"
import { Rooms } from "../src/rooms/index.js"
import { Topics } from "../src/topics/index.js"
import { openPage } from "./browser.js"
import { Server } from "./server.js"

const server = await Server.start()

test("under StrictMode hooks subscribe once, share a room's stream, and lose nothing between effects", async t => {
  const topics = new Topics({ server: server.url, project: "p" })
  t.after(() => topics.close())
  const room = new Rooms({ server: server.url, project: "p" }).room("lobby")
  await room.changeMembers({ add: ["dev"] })
  const { page, errors } = await openPage("strict-mode.tsx", { server: server.url })
  const types = () => page.evaluate(() => window.sent.splice(0).map(({ type, payload }) => [type, payload?.topic ?? payload?.topics]))

  await page.waitForSelector("#chat[data-ready=true]")
  await page.waitForSelector("#first[data-state=connected]", { state: "attached" })
  assert.deepEqual(await types(), [["$set", ["chat:1"]]])
  assert.deepEqual(await page.evaluate(() => window.fetched), ["GET /v1/p/rooms/lobby/events"])

  await topics.publish("chat:1", { type: "SAID", payload: { text: "one" } })
  await topics.publish("chat:1", { type: "SAID", payload: { text: "two" } })
  await room.write({ type: "messageEvent", payload: { messageView: { id: "m1" } } })
  await page.waitForFunction(() => document.querySelectorAll("#chat p").length === 2)
  for (const name of ["first", "second"]) await page.waitForFunction(each => document.querySelectorAll(`#${each} p`).length === 1, name)

  // A render with new functions is no new subscription.
  for (let count = 0; count < 3; count++) await page.click("#render")
  assert.deepEqual(await types(), [])
  assert.deepEqual(await page.locator("#chat p").allTextContents(), ["one", "two"])

  await page.click("#chat button")
  await page.waitForFunction(() => document.querySelectorAll("#chat p").length === 3)
  assert.deepEqual(await types(), [["$publish", "chat:1"]])

  // A message that its schema does not accept is told, and not shown.
  await topics.publish("chat:1", { type: "SAID", payload: { text: 7 } })
  await page.waitForSelector("#chat[data-error*='not valid']")
  assert.equal(await page.locator("#chat p").count(), 3)

  await page.click("#other")
  await page.waitForSelector("#chat[data-ready=true]")
  await topics.publish("chat:2", { type: "SAID", payload: { text: "elsewhere" } })
  await page.waitForFunction(() => document.querySelector("#chat p")?.textContent === "elsewhere")
  assert.deepEqual((await types()).map(([type]) => type).sort(), ["$subscribe", "$unsubscribe"])

  await page.click("#toggle")
  await page.waitForFunction(() => window.topics.size === 0)
  assert.deepEqual(await types(), [["$unsubscribe", "chat:2"]])
  await page.click("#toggle")
  await page.waitForSelector("#chat[data-ready=true]")
  assert.deepEqual(await types(), [["$subscribe", "chat:2"]])
  assert.deepEqual(errors, [])
})

test("a page whose server restarts is live again by one $set", async () => {
  const own = await Server.start()
  const { page } = await openPage("strict-mode.tsx", { server: own.url })
  await page.waitForSelector("#chat[data-ready=true]")
  await own.stop()
  await page.waitForSelector("main[data-connection=waiting]")
  await page.evaluate(() => window.sent.splice(0))
  await own.run()
  await page.waitForSelector("main[data-connection=connected]")
  assert.deepEqual(await page.evaluate(() => window.sent.map(({ type, payload }) => [type, payload.topics])), [["$set", ["chat:1"]]])
})

test("presence and invalidation subscribe once under StrictMode, and follow what comes and goes", async () => {
  const { page, errors } = await openPage("scripted.tsx", {})
  const sent = () => page.evaluate(() => window.sent.splice(0).map(({ type, payload }) => [type, payload?.entityIds ?? payload?.topic]))
  const shows = (selector: string, text: string) => page.waitForFunction(([where, what]) => document.querySelector(where!)?.textContent === what, [selector, text])
  await page.waitForSelector("#present[data-ready=true]")
  await page.waitForSelector("#task[data-ready=true]")
  assert.deepEqual((await sent()).sort(), [["$presence", "room"], ["$subscribe", "room"], ["SUBSCRIBE", ["1", "2"]]])
  await shows("#present", "me bob")
  await page.click("#join")
  await shows("#present", "me bob ann")
  await page.click("#leave")
  await shows("#present", "me ann")
  await page.click("#change")
  await shows("#task", "1")
  await page.click("#change")
  await shows("#task", "2")
  assert.deepEqual(await sent(), [])
  // Who left while this page was away is found by asking.
  await page.click("#away")
  await shows("#present", "me")
  assert.deepEqual(await sent(), [["$subscribe", "room"], ["$presence", "room"]])
  await page.click("#toggle")
  await page.waitForFunction(() => window.sent.length === 2)
  assert.deepEqual((await sent()).sort(), [["$unsubscribe", "room"], ["UNSUBSCRIBE", ["1", "2"]]])
  await page.click("#toggle")
  await page.waitForSelector("#task[data-ready=true]")
  await page.waitForSelector("#present[data-ready=true]")
  assert.deepEqual((await sent()).sort(), [["$presence", "room"], ["$subscribe", "room"], ["SUBSCRIBE", ["1", "2"]]])
  assert.deepEqual(errors, [])
})
