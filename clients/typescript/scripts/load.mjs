// Measures, and asserts nothing. `node scripts/load.mjs worker [messages per second] [seconds]`: a page whose worker receives that
// many messages over a WebSocket. `node scripts/load.mjs reconnect [subscriptions]`: a client that comes back, with the server that
// TIDINGS_BINARY names.
import { spawn } from "node:child_process"
import { createHash } from "node:crypto"
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { createServer } from "node:http"
import { connect, createServer as createTcpServer } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { build } from "esbuild"
import { chromium } from "playwright-core"

const root = fileURLToPath(new URL("..", import.meta.url))
const median = values => values.sort((a, b) => a - b)[Math.floor(values.length / 2)]
const listening = server => new Promise(resolve => server.listen(0, "127.0.0.1", () => resolve(server.address().port)))

/** A frame of the server: text, not masked. */
function frame(text) {
  const body = Buffer.from(text)
  const head = body.length < 126 ? Buffer.from([0x81, body.length]) : Buffer.from([0x81, 126, body.length >> 8, body.length & 255])
  return Buffer.concat([head, body])
}

/** The texts of frames of a client, which are masked and here whole. */
function* textsOf(data) {
  for (let at = 0; at + 6 <= data.length; ) {
    let length = data[at + 1] & 127
    let begin = at + 2
    if (length === 126) {
      length = data.readUInt16BE(begin)
      begin += 2
    }
    const mask = data.subarray(begin, begin + 4)
    const body = data.subarray(begin + 4, begin + 4 + length).map((byte, index) => byte ^ mask[index % 4])
    if ((data[at] & 15) === 1) yield Buffer.from(body).toString()
    at = begin + 4 + length
  }
}

const HELLO = { clientId: "c", memberId: "m", session: "s", project: "p", user: null, expiresAt: null, heartbeatMs: 25_000, limits: { topicLength: 128, topicsPerConnection: 1000, topicsPerRequest: 1000, frameBytes: 1 << 20, payloadBytes: 1 << 20 } }

async function worker(rate = 100_000, seconds = 10) {
  const topics = Array.from({ length: 1000 }, (_, index) => `t:${index}`)
  const messages = topics.map(topic => frame(JSON.stringify({ type: "N", meta: { topic }, payload: { text: "x".repeat(40) } })))
  const site = createServer(async (request, response) => {
    const script = { "/worker.js": workerScript, "/page.js": pageScript }[request.url]
    response.setHeader("content-type", script ? "text/javascript" : "text/html")
    response.end(script ?? '<!doctype html><script type="module" src="/page.js"></script>')
  })
  let sent = 0
  site.on("upgrade", (request, socket) => {
    const accept = createHash("sha1").update(`${request.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64")
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`)
    socket.on("error", () => {})
    socket.write(frame(JSON.stringify({ type: "$hello", payload: HELLO })))
    socket.on("data", data => {
      for (const text of textsOf(data)) {
        const { type, meta } = JSON.parse(text)
        if (meta) socket.write(frame(JSON.stringify({ type: "$reply", meta, payload: {} })))
        if (type !== "$set") continue
        const began = performance.now()
        const timer = setInterval(() => {
          const due = Math.floor(((performance.now() - began) / 1000) * rate)
          const batch = []
          // What the page does not take, it is not sent.
          while (sent < due && socket.writableLength < 8 << 20 && batch.length < rate / 10) batch.push(messages[sent++ % messages.length])
          if (batch.length > 0) socket.write(Buffer.concat(batch))
        }, 10)
        socket.on("close", () => clearInterval(timer))
      }
    })
  })
  const source = contents => build({ stdin: { contents, resolveDir: `${root}src`, loader: "ts" }, bundle: true, write: false, format: "esm", minify: true, target: "es2022" }).then(({ outputFiles }) => outputFiles[0].text)
  const workerScript = await source(`
    import { Topics } from "./topics/index.ts"
    const topics = new Topics({ server: location.origin })
    let heard = 0
    for (let index = 0; index < 1000; index++) topics.listen("t:" + index, () => heard++)
    setInterval(() => postMessage(heard), 1000)`)
  const pageScript = await source(`
    const state = ((globalThis as any).state = { heard: [] as number[], frames: [] as number[] })
    new Worker("/worker.js", { type: "module" }).onmessage = ({ data }) => state.heard.push(data)
    const tick = (now: number) => (state.frames.push(now), requestAnimationFrame(tick))
    requestAnimationFrame(tick)`)
  const port = await listening(site)
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] })
  const page = await browser.newPage()
  await page.goto(`http://127.0.0.1:${port}/`)
  await new Promise(resolve => setTimeout(resolve, (seconds + 2) * 1000))
  const { heard, frames } = await page.evaluate(() => globalThis.state)
  await browser.close()
  site.closeAllConnections()
  site.close()
  const rates = heard.slice(2).map((count, index) => count - heard[index + 1])
  const gaps = frames.slice(60).map((at, index) => at - frames[index + 59])
  console.log(`messages a second, median: ${median([...rates])} of ${rate} offered; by second: ${rates.join(" ")}`)
  console.log(`frames of the page: ${((1000 * gaps.length) / gaps.reduce((sum, gap) => sum + gap, 0)).toFixed(1)} a second, longest gap ${Math.max(...gaps).toFixed(0)} ms, gaps above 34 ms: ${gaps.filter(gap => gap > 34).length}`)
}

async function reconnect(count = 1000) {
  const data = mkdtempSync(join(tmpdir(), "tidings-load-"))
  const server = spawn(process.env.TIDINGS_BINARY ?? `${root}../../target/release/tidings`, ["serve", "--dev", "--log", "error", "--listen", "127.0.0.1:0", "--data", data], { stdio: ["ignore", "pipe", "inherit"] })
  const url = await new Promise(resolve => server.stdout.on("data", chunk => /serves on (\S+)/.exec(chunk) && resolve(/serves on (\S+)/.exec(chunk)[1])))
  const sockets = new Set()
  const proxy = createTcpServer(from => {
    const to = connect(Number(new URL(url).port), "127.0.0.1")
    for (const [one, other] of [[from, to], [to, from]]) {
      sockets.add(one)
      one.on("error", () => {}).on("close", () => (sockets.delete(one), other.destroy()))
      one.pipe(other)
    }
  })
  const port = await listening(proxy)
  writeFileSync(`${data}/client.mjs`, (await build({ stdin: { contents: 'export { Topics } from "./topics/index.ts"', resolveDir: `${root}src` }, bundle: true, write: false, format: "esm" })).outputFiles[0].text)
  const { Topics } = await import(`${data}/client.mjs`)
  const frames = []
  let opened = 0
  class Counting extends WebSocket {
    constructor(...args) {
      super(...args)
      this.addEventListener("open", () => (opened = performance.now()))
    }
    send(data) {
      frames.push(JSON.parse(data).type)
      super.send(data)
    }
  }
  const topics = new Topics({ server: `http://127.0.0.1:${port}`, environment: { WebSocket: Counting }, backoff: { firstMs: 50, maxMs: 50 } })
  for (let index = 0; index < count; index++) topics.listen(`t:${index}`, {})
  const connected = () => new Promise(resolve => topics.onState(({ status }) => status === "connected" && resolve(performance.now())))
  await connected()
  const [times, trips] = [[], []]
  for (let round = 0; round < 20; round++) {
    const began = performance.now()
    await topics.list()
    trips.push(performance.now() - began)
    frames.length = 0
    const back = connected()
    for (const socket of sockets) socket.destroy()
    times.push((await back) - opened)
    if (frames.join() !== "$set") throw new Error(`one $set, not ${frames}`)
  }
  console.log(`${count} subscriptions: one $set; live ${median(times).toFixed(1)} ms after the socket was open, at most ${Math.max(...times).toFixed(1)} ms; a round trip takes ${median(trips).toFixed(1)} ms`)
  topics.close()
  server.kill()
  proxy.close()
  rmSync(data, { recursive: true, force: true })
}

const [what, ...numbers] = process.argv.slice(2)
await { worker, reconnect }[what](...numbers.map(Number))
process.exit()
