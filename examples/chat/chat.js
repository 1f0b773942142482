// The page: who joins which room, what is said, and by whom. Where the server is can be told in the page's address:
// ?server=http://127.0.0.1:4437&project=chat&room=lobby&name=ann
import { Connection } from "./connection.js"

const asked = new URLSearchParams(location.search)
const server = asked.get("server") ?? "http://127.0.0.1:4437"
const project = asked.get("project") ?? "chat"

const [join, say] = [document.querySelector("#join"), document.querySelector("#say")]
const [said, status] = [document.querySelector("#said"), document.querySelector("#status")]

let joined = null
let wasOnline = false

const connection = new Connection({
  url: `${server}/v1/${project}/topics`,
  // With users, this asks your backend for a token of the user who is logged in; it is called again for each connection and
  // before a token expires. A server that runs with --dev needs none.
  token: async () => asked.get("token"),
  onMessage({ type, payload }) {
    if (type === "SAID") show(payload.from, payload.text)
  },
  onStatus(now, reason) {
    status.dataset.status = now
    status.textContent = reason ? `${now} (${reason})` : now
    if (now === "online" && joined && wasOnline && !reason) note("connected again; what was said meanwhile is not shown")
    wasOnline ||= now === "online"
  },
})

join.onsubmit = async event => {
  event.preventDefault()
  const room = { name: join.name.value, topic: `room:${join.room.value}` }
  try {
    await connection.set([room.topic])
    joined = room
    note(`${room.name} joined ${join.room.value}`)
  } catch (error) {
    note(`not joined: ${error.message}`)
  }
}

say.onsubmit = async event => {
  event.preventDefault()
  if (!joined) return note("join a room first")
  const text = say.text.value
  try {
    // The others receive it. Here it is shown when the server has it.
    await connection.publish(joined.topic, { type: "SAID", payload: { from: joined.name, text } })
    say.text.value = ""
    show(joined.name, text)
  } catch (error) {
    note(`not sent: ${error.message}`)
  }
}

function show(from, text) {
  const [line, name] = [document.createElement("li"), document.createElement("b")]
  // Set as text: what others say must not become markup.
  name.textContent = from
  line.append(name, text)
  said.append(line)
  line.scrollIntoView()
}

function note(text) {
  const line = document.createElement("li")
  line.className = "note"
  line.textContent = text
  said.append(line)
}

if (asked.has("name")) join.name.value = asked.get("name")
if (asked.has("room")) join.room.value = asked.get("room")
if (asked.has("name") && asked.has("room")) join.requestSubmit()
