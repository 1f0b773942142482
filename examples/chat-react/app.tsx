/** A chat: what is said is kept in a room; who is typing, waves, or is here is live only. */
import { StrictMode, useEffect, useRef, useState, type FormEvent } from "react"
import { createRoot } from "react-dom/client"
import { useConnection, usePresence, useRoom, useTopic } from "tidings-client/react"
import { inMemory, Rooms } from "tidings-client/rooms"
import { message, Topics, type Member } from "tidings-client/topics"
import { z } from "zod"

const asked = new URLSearchParams(location.search)
const server = asked.get("server") ?? "http://127.0.0.1:4437"
const me = asked.get("name") ?? "somebody"
const name = asked.get("room") ?? "lobby"

// Made once for the page, outside of components. With users, `token` asks your backend; --dev needs none.
const topics = new Topics({ server, project: "chat" })
const rooms = new Rooms({ server, project: "chat" })

/** Someone waves to all who are here now. */
const Wave = message("WAVE", z.object({ from: z.string() }))
/** Cursor before the first event of a room. */
const beginning = "00000000000000000000000000"
/** Shows for how long somebody is seen typing. */
const TYPING_MS = 3_000

interface Said {
  messageView: { from: string; text: string }
}

function Chat() {
  const { events, state, missed, error, room } = useRoom(rooms, name, { cursors: inMemory(beginning), onStale: "oldest" })
  const waves = useTopic(topics, `waves:${name}`, Wave)
  const { members } = usePresence(topics, `here:${name}`, { name: me })
  const live = useConnection(topics)
  const [text, setText] = useState("")
  const [failed, setFailed] = useState("")
  const typing = useTyping(events.at(-1))
  const toldAt = useRef(0)

  const said = events.filter(event => event.type === "messageEvent")
  const say = async (event: FormEvent) => {
    event.preventDefault()
    try {
      // Repeated until the server has it, and stored once.
      await room.write({ type: "messageEvent", payload: { messageView: { from: me, text } } satisfies Said })
      setText("")
      setFailed("")
      toldAt.current = 0
    } catch (error) {
      setFailed(`not sent: ${(error as Error).message}`)
    }
  }
  const type = (text: string) => {
    setText(text)
    if (Date.now() - toldAt.current < TYPING_MS / 2) return
    toldAt.current = Date.now()
    room.typing({ from: me }).catch(() => {})
  }

  return (
    <>
      <h1>{name}</h1>
      <p>
        room: <span id="room" data-status={state.status}>{state.status}</span>, live: <span id="live" data-status={live.status}>{live.status}</span>
      </p>
      <p className="note" id="here">{members.length > 0 && `here: ${namesOf(members)}`}</p>
      {missed && <p className="note">some messages are not kept any more</p>}
      {error !== undefined && <p className="note">{String(error)}</p>}
      <ol>
        {said.map(event => {
          const { from, text } = (event.payload as Said).messageView
          return (
            <li key={event.cursor}>
              <b>{from}</b>
              {text}
            </li>
          )
        })}
      </ol>
      <p className="note" id="typing">{typing && typing !== me ? `${typing} is typing` : ""}</p>
      <p className="note" id="waves">{waves.messages.slice(-1).map(({ payload }) => `${payload.from} waves`)}</p>
      <form onSubmit={event => void say(event)}>
        <input value={text} onChange={event => type(event.target.value)} placeholder="say something" required />
        <button>say</button>
        <button type="button" id="wave" onClick={() => void waves.publish({ from: me }, { excludeSelf: true })}>wave</button>
      </form>
      <p className="note" id="failed">{failed}</p>
    </>
  )
}

/** Names of members, each once: somebody may have two pages open. */
function namesOf(members: readonly Member[]): string {
  return [...new Set(members.map(({ info }) => (info as { name: string }).name))].sort().join(", ")
}

/** Who was typing a moment ago. */
function useTyping(latest: { type: string; cursor: string; payload: unknown } | undefined): string | undefined {
  const [who, setWho] = useState<string>()
  useEffect(() => {
    if (latest?.type !== "typingEvent") return setWho(undefined)
    setWho((latest.payload as { from: string }).from)
    const timer = setTimeout(() => setWho(undefined), TYPING_MS)
    return () => clearTimeout(timer)
  }, [latest])
  return who
}

// With --dev everybody is the user `dev`, who may make the room. With users, your backend adds its members.
await rooms.room(name).changeMembers({ add: ["dev"] })
createRoot(document.querySelector("#root")!).render(
  <StrictMode>
    <Chat />
  </StrictMode>,
)
