/** Things to do, in a table of PostgreSQL: whoever changes it, every page that shows it fetches it again. */
import { StrictMode, useCallback, useEffect, useRef, useState, type FormEvent } from "react"
import { createRoot } from "react-dom/client"
import { Entities } from "tidings-client/entities"
import { useConnection, useInvalidation } from "tidings-client/react"

interface Todo {
  id: string
  title: string
  done: boolean
}

/** Asks the application; tidings is only told, by the database, that something has changed. */
async function api<T>(method: string, path: string, body?: unknown): Promise<T> {
  const response = await fetch(path, { method, ...(body !== undefined && { body: JSON.stringify(body) }) })
  if (!response.ok) throw new Error(await response.text())
  return (await response.json()) as T
}

const { server } = await api<{ server: string }>("GET", "/config")
// Made once for the page, outside of components. With users, `token` asks your backend; --dev needs none.
const entities = new Entities({ server })

function useTodos() {
  const [todos, setTodos] = useState<Todo[]>([])
  const [error, setError] = useState("")
  const asked = useRef(0)
  const refetch = useCallback(async () => {
    // One request at a time; what changes while it is under way needs another.
    if (asked.current++ > 0) return
    try {
      do {
        asked.current = 1
        setTodos(await api("GET", "/todos"))
      } while (asked.current > 1)
      setError("")
    } catch (error) {
      setError(String(error))
    }
    asked.current = 0
  }, [])
  const { ready } = useInvalidation(entities, "todo", "all", { invalidate: refetch, resync: refetch })
  // What is fetched once the server has the subscription is invalidated by every later change.
  useEffect(() => void refetch(), [ready, refetch])
  const change = async (method: string, path: string, body?: unknown) => {
    try {
      await api(method, path, body)
      // While the connection is away nobody tells.
      if (!ready || entities.state.status !== "connected") await refetch()
    } catch (error) {
      setError(String(error))
    }
  }
  return { todos, error, change }
}

function List() {
  const { todos, error, change } = useTodos()
  const { status } = useConnection(entities)
  const [title, setTitle] = useState("")
  const add = (event: FormEvent) => {
    event.preventDefault()
    setTitle("")
    void change("POST", "/todos", { title })
  }
  return (
    <>
      <h1>To do</h1>
      <ul>
        {todos.map(({ id, title, done }) => (
          <li key={id} data-done={done}>
            <label>
              <input type="checkbox" checked={done} onChange={() => void change("PATCH", `/todos/${id}`, { done: !done })} />
              {title}
            </label>
            <button aria-label={`remove ${title}`} onClick={() => void change("DELETE", `/todos/${id}`)}>
              ×
            </button>
          </li>
        ))}
      </ul>
      <form onSubmit={add}>
        <input value={title} onChange={event => setTitle(event.target.value)} placeholder="what is to be done" maxLength={200} required />
        <button>add</button>
      </form>
      <p className="note">
        {todos.filter(({ done }) => !done).length} left · changes: <span id="live" data-status={status}>{status}</span>
      </p>
      <p className="note" id="error">{error}</p>
    </>
  )
}

createRoot(document.querySelector("#root")!).render(
  <StrictMode>
    <List />
  </StrictMode>,
)
