/** Todos of an application in RxDB, kept fresh by tidings: it tells that something has changed, and RxDB pulls what. */
import { createRxDatabase, type RxReplicationPullStreamItem } from "rxdb"
import { replicateRxCollection } from "rxdb/plugins/replication"
import { getRxStorageMemory } from "rxdb/plugins/storage-memory"
import { Subject } from "rxjs"
import type { Entities } from "tidings-client/entities"
import { resyncOnChange } from "../adapters/rxdb.js"

export interface Todo {
  id: string
  text: string
  done: boolean
}

/** How far a replica has pulled: the number of the last write that it has seen. */
export interface Checkpoint {
  write: number
}

/** Asks the application for what was written after a checkpoint. What was deleted comes with `_deleted`. */
export type Pull = (after: Checkpoint | undefined, most: number) => Promise<{ documents: (Todo & { _deleted: boolean })[]; checkpoint: Checkpoint }>

const schema = {
  version: 0,
  primaryKey: "id",
  type: "object",
  properties: { id: { type: "string", maxLength: 100 }, text: { type: "string" }, done: { type: "boolean" } },
  required: ["id", "text", "done"],
} as const

/** Opens a replica of the todos. In a browser, take another storage, which outlives the page. */
export async function openTodos(name: string, pull: Pull, entities: Entities) {
  const database = await createRxDatabase({ name, storage: getRxStorageMemory(), multiInstance: false })
  const { todos } = await database.addCollections({ todos: { schema } })
  const stream = new Subject<RxReplicationPullStreamItem<Todo, Checkpoint>>()
  const replication = replicateRxCollection<Todo, Checkpoint>({
    collection: todos!,
    replicationIdentifier: "todos",
    live: true,
    pull: { handler: (after, most) => pull(after, most), batchSize: 100, stream$: stream.asObservable() },
  })
  // First watched, then pulled: what is written between the two is told.
  const watch = resyncOnChange(entities, "todo", stream)
  await watch.ready
  stream.next("RESYNC")
  await replication.awaitInitialReplication()
  const close = async () => {
    watch.close()
    await database.close()
  }
  return { todos: todos!, replication, close }
}
