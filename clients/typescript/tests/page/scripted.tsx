/** Presence and invalidation under StrictMode, against a script of the server in the page: the real one may not have them. */
import { StrictMode, useState } from "react"
import { createRoot } from "react-dom/client"
import { Entities } from "../../src/entities/index.js"
import { useInvalidation, usePresence } from "../../src/react/index.js"
import { Topics } from "../../src/topics/index.js"

window.sent = []
const me = { id: "m_me", user: "me", since: 1 }
const bob = { id: "m_bob", user: "bob", since: 2 }
let present = [me, bob]

/** The server's side of a connection. */
class ScriptedSocket extends EventTarget {
  static latest: Record<string, ScriptedSocket> = {}
  readyState = 0
  bufferedAmount = 0
  binaryType = "arraybuffer"
  onopen: (() => void) | null = null
  onclose: ((event: { code: number; reason: string }) => void) | null = null
  onmessage: ((event: { data: string }) => void) | null = null
  onerror: (() => void) | null = null

  constructor(url: string) {
    super()
    const kind = url.includes("/sync") ? "entities" : "topics"
    ScriptedSocket.latest[kind] = this
    setTimeout(() => {
      this.readyState = 1
      this.onopen?.()
      const limits = { topicsPerRequest: 1000, frameBytes: 1e6 }
      const hello = { session: "s", expiresAt: null, heartbeatMs: 25_000, limits }
      this.say(kind === "topics" ? { type: "$hello", payload: hello } : { type: "CONNECTED", payload: { heartbeatMs: 15_000 } })
    })
  }

  say(frame: unknown): void {
    setTimeout(() => this.onmessage?.({ data: JSON.stringify(frame) }))
  }

  send(text: string): void {
    const { type, meta, payload } = JSON.parse(text)
    window.sent.push({ type, payload })
    if (type === "SUBSCRIBE") this.say({ type: "SUBSCRIBED", payload: { entityCode: payload.entityCode, requestId: payload.requestId, cursor: "c1" } })
    else if (type === "$presence") this.say({ type: "$reply", meta, payload: { members: present, count: present.length, capability: "exact" } })
    else if (meta) this.say({ type: "$reply", meta, payload: {} })
  }

  close(): void {
    this.readyState = 3
  }

  lose(): void {
    this.readyState = 3
    this.onclose?.({ code: 1006, reason: "" })
  }
}

const environment = { WebSocket: ScriptedSocket as never }
const topics = new Topics({ server: "http://scripted", backoff: { firstMs: 1 }, environment })
const entities = new Entities({ server: "http://scripted", environment })
const act: Record<string, () => void> = {
  join: () => ScriptedSocket.latest.topics!.say({ type: "$join", meta: { topic: "room" }, payload: { member: { id: "m_ann", user: "ann", since: 3 } } }),
  leave: () => ScriptedSocket.latest.topics!.say({ type: "$leave", meta: { topic: "room" }, payload: { member: bob } }),
  away: () => {
    present = [me]
    ScriptedSocket.latest.topics!.lose()
  },
  change: () => ScriptedSocket.latest.entities!.say({ type: "INVALIDATE", payload: { entityCode: "task", changes: [{ entityId: "1", action: "UPDATE", version: Date.now() }] } }),
}

function Present() {
  const { members, ready } = usePresence(topics, "room", { name: "Me" })
  return <p id="present" data-ready={ready}>{members.map(({ user }) => user).join(" ")}</p>
}

function Task() {
  const [count, setCount] = useState(0)
  // A new list and a new function in each render.
  const { ready } = useInvalidation(entities, "task", ["2", "1"], ({ changes }) => setCount(count => count + changes.length))
  return <p id="task" data-ready={ready}>{count}</p>
}

function App() {
  const [shown, show] = useState(true)
  return (
    <>
      {Object.entries(act).map(([name, run]) => (
        <button key={name} id={name} onClick={run} />
      ))}
      <button id="toggle" onClick={() => show(!shown)} />
      {shown && <Present />}
      {shown && <Task />}
    </>
  )
}

createRoot(document.querySelector("#root")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
)
