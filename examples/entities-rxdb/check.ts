/** Two replicas of one application, with the real RxDB and a real server, whose address is in TIDINGS_URL. */
import assert from "node:assert/strict"
import { Entities } from "tidings-client/entities"
import { openTodos, type Checkpoint, type Todo } from "./todos.js"

const server = process.env.TIDINGS_URL!
const deadline = setTimeout(() => assert.fail("it takes too long"), 60_000)

/** An application that numbers its writes, and tells tidings of each. */
class Application {
  writes = 0
  pulls = 0
  rows = new Map<string, Todo & { _deleted: boolean; write: number }>()

  async write(todo: Todo, action: "CREATE" | "UPDATE" | "DELETE") {
    this.rows.set(todo.id, { ...todo, _deleted: action === "DELETE", write: ++this.writes })
    const body = JSON.stringify([{ entityCode: "todo", entityId: todo.id, action }])
    const answer = await fetch(`${server}/v1/p/changes`, { method: "POST", body, headers: { "content-type": "application/json" } })
    assert.equal(answer.status, 200)
  }

  pull = async (after: Checkpoint | undefined, most: number) => {
    this.pulls++
    const write = after?.write ?? 0
    const rows = [...this.rows.values()].filter(row => row.write > write).sort((one, other) => one.write - other.write).slice(0, most)
    return { documents: rows.map(({ write: _, ...document }) => document), checkpoint: { write: rows.at(-1)?.write ?? write } }
  }
}

const application = new Application()
await application.write({ id: "milk", text: "buy milk", done: false }, "CREATE")
const entities = new Entities({ server, project: "p" })
const replicas = [await openTodos("one", application.pull, entities), await openTodos("other", application.pull, entities)]

/** Waits until every replica has these todos. */
async function have(expected: Todo[]) {
  for (const { todos } of replicas) {
    await new Promise<void>(resolve => {
      todos.find({ sort: [{ id: "asc" }] }).$.subscribe(found => {
        const plain = found.map(({ id, text, done }) => ({ id, text, done }))
        if (JSON.stringify(plain) === JSON.stringify(expected)) resolve()
      })
    })
  }
}

await have([{ id: "milk", text: "buy milk", done: false }])
console.log("ok: a replica has what was there before")

const pulls = application.pulls
await application.write({ id: "milk", text: "buy milk", done: true }, "UPDATE")
await have([{ id: "milk", text: "buy milk", done: true }])
assert.ok(application.pulls > pulls)
console.log("ok: an update is pulled when it is told")

await application.write({ id: "tea", text: "make tea", done: false }, "CREATE")
await application.write({ id: "milk", text: "buy milk", done: true }, "DELETE")
await have([{ id: "tea", text: "make tea", done: false }])
console.log("ok: what is new comes and what is deleted goes")

for (let round = 0; round < 100; round++) await application.write({ id: "tea", text: `cup ${round}`, done: false }, "UPDATE")
await have([{ id: "tea", text: "cup 99", done: false }])
console.log("ok: a hundred updates end with the last")

const idle = application.pulls
await new Promise(resolve => setTimeout(resolve, 500))
assert.equal(application.pulls, idle)
console.log("ok: nothing is pulled while nothing changes")

for (const replica of replicas) await replica.close()
entities.close()
clearTimeout(deadline)
