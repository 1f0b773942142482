// The page: shows what the application has, and fetches what has changed.
import { watch } from "./sync.js"

const list = document.querySelector("#todos")
const ask = async (method, path, body) => {
  const answer = await fetch(path, { method, ...(body && { body: JSON.stringify(body) }) })
  if (!answer.ok) throw new Error(await answer.text())
  return answer.json()
}

/** Todos by id, in the order in which they were made. */
const todos = new Map()

function show() {
  list.replaceChildren(
    ...[...todos.values()].map(({ id, text, done }) => {
      const line = document.createElement("li")
      line.dataset.id = id
      line.classList.toggle("done", done)
      const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: done })
      box.onchange = () => ask("PATCH", `/todos/${id}`, { done: box.checked })
      const label = Object.assign(document.createElement("span"), { textContent: text })
      const remove = Object.assign(document.createElement("button"), { textContent: "×", title: "remove" })
      remove.onclick = () => ask("DELETE", `/todos/${id}`)
      line.append(box, label, remove)
      return line
    }),
  )
  document.querySelector("#count").textContent = `${[...todos.values()].filter(({ done }) => !done).length} left`
}

/** One at a time, so that an old answer does not overtake a new one. */
let turn = Promise.resolve()
const inTurn = work => (turn = turn.then(work).catch(error => console.error(error)))

async function fetchAll() {
  const all = await ask("GET", "/todos")
  todos.clear()
  for (const todo of all) todos.set(todo.id, todo)
  show()
}

async function fetchChanged(changes) {
  const ids = changes.filter(({ action }) => action !== "DELETE").map(({ entityId }) => entityId)
  const found = ids.length ? await ask("GET", `/todos?ids=${ids}`) : []
  for (const todo of found) todos.set(todo.id, todo)
  // Deleted, or deleted meanwhile.
  for (const { entityId } of changes) if (!found.some(({ id }) => id === entityId)) todos.delete(entityId)
  show()
}

document.querySelector("#add").onsubmit = event => {
  event.preventDefault()
  const field = event.target.elements.text
  ask("POST", "/todos", { text: field.value })
  field.value = ""
}

const { sync } = await ask("GET", "/config")
watch(sync, "todo", {
  changed: changes => inTurn(() => fetchChanged(changes)),
  resync: () => inTurn(fetchAll),
  status: status => (document.querySelector("#status").dataset.status = status),
})
