import assert from "node:assert/strict"
import { test } from "node:test"
import { Rooms } from "../src/rooms/index.js"
import { openPage } from "./browser.js"
import { Server } from "./server.js"

const said = (id: string) => ({ type: "messageEvent", payload: { messageView: { id } } })

test("a browser follows a room by each wire, and through a restart of the server", async () => {
  const server = await Server.start()
  const room = new Rooms({ server: server.url, project: "p" }).room("lobby")
  await room.changeMembers({ add: ["dev"] })
  const { page } = await openPage("wires.ts", { server: server.url })
  const shows = (text: string) =>
    page.waitForFunction(expected => ["sse", "websocket", "eventsource"].every(id => document.querySelector(`#${id}`)?.textContent === expected), text)
  await page.waitForFunction(() => document.querySelectorAll("p[data-state=connected]").length === 3)
  await room.write([said("m1"), said("m2")])
  await shows(" m1 m2")
  await server.stop()
  await page.waitForFunction(() => document.querySelectorAll("p[data-state=waiting], p[data-state=connecting]").length === 3)
  await server.run()
  await room.write(said("m3"))
  await shows(" m1 m2 m3")
  assert.equal(await page.getAttribute("body", "data-verify"), "SIGNATURE")
})

test("a browser is told what is gone by each wire, though it cannot see why a connection is refused", async () => {
  const server = await Server.start()
  const room = new Rooms({ server: server.url, project: "p" }).room("lobby")
  await room.changeMembers({ add: ["dev"] })
  const { page } = await openPage("wires.ts", { server: server.url, cursor: "7ZZZZZZZZZZZZZZZZZZZZZZZZZ" })
  await page.waitForFunction(() => document.querySelectorAll("p[data-state=connected]").length === 3)
  await room.write(said("m1"))
  await page.waitForFunction(() => [...document.querySelectorAll("p")].every(line => line.textContent?.endsWith("m1")))
  assert.deepEqual(await page.locator("p").allTextContents(), [" FutureCursor m1", " reset m1", " FutureCursor m1"])
})

test("a page that is visible, shown or online again asks whether its connection lives", async () => {
  const server = await Server.start()
  const { page } = await openPage("strict-mode.tsx", { server: server.url })
  await page.waitForSelector("#chat[data-ready=true]")
  for (const sign of ["visibilitychange", "pageshow", "online"]) {
    await page.evaluate(() => window.sent.splice(0))
    // Again and again, because one question at a time is asked.
    await page.waitForFunction(name => {
      const target = name === "visibilitychange" ? document : window
      target.dispatchEvent(new Event(name))
      return window.sent.some(({ type }) => type === "__heartbeat")
    }, sign)
  }
  await page.waitForSelector("main[data-connection=connected]")
})
