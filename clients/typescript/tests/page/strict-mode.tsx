/** Components as an application would write them, under StrictMode. What they send is counted in `window.sent`. */
import { StrictMode, useState } from "react"
import { createRoot } from "react-dom/client"
import { useConnection, useRoom, useTopic } from "../../src/react/index.js"
import { Rooms } from "../../src/rooms/index.js"
import { message, Topics } from "../../src/topics/index.js"
import { z } from "zod"

window.sent = []
window.fetched = []
class CountingSocket extends WebSocket {
  override send(data: string): void {
    window.sent.push(JSON.parse(data))
    super.send(data)
  }
}

const server = new URLSearchParams(location.search).get("server")!
const topics = (window.topics = new Topics({ server, project: "p", environment: { WebSocket: CountingSocket } }))
const rooms = new Rooms({
  server,
  project: "p",
  environment: {
    fetch: (input, init) => {
      window.fetched.push(`${init?.method ?? "GET"} ${new URL(String(input)).pathname}`)
      return fetch(input, init)
    },
  },
})
const Said = message("SAID", z.object({ text: z.string() }))

function Chat({ topic }: { topic: string }) {
  const { messages, ready, error, publish } = useTopic(topics, topic, Said)
  return (
    <section id="chat" data-ready={ready} data-error={String(error)}>
      {messages.map((each, index) => (
        <p key={index}>{each.payload.text}</p>
      ))}
      <button onClick={() => void publish({ text: `by button ${messages.length}` })}>say</button>
    </section>
  )
}

function Conversation({ name }: { name: string }) {
  const { events, state } = useRoom(rooms, "lobby")
  return (
    <section id={name} data-state={state.status}>
      {events.map(event => (
        <p key={event.cursor}>{(event.payload as any).messageView.id}</p>
      ))}
    </section>
  )
}

function App() {
  const [shown, show] = useState(true)
  const [topic, setTopic] = useState("chat:1")
  const [rendered, render] = useState(0)
  const connection = useConnection(topics)
  return (
    <main data-connection={connection.status}>
      <button id="toggle" onClick={() => show(!shown)} />
      <button id="other" onClick={() => setTopic("chat:2")} />
      <button id="render" onClick={() => render(rendered + 1)} />
      {shown && <Chat topic={topic} />}
      {shown && <Conversation name="first" />}
      {shown && <Conversation name="second" />}
    </main>
  )
}

createRoot(document.querySelector("#root")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
)
