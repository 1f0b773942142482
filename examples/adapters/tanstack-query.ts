/** Keeps the cache of TanStack Query right: what changes on the server is fetched again if a component shows it. */
import type { QueryClient } from "@tanstack/query-core"
import type { Entities, Watch } from "tidings-client/entities"

export interface QueryBinding {
  /** Type of the entities. */
  entityCode: string
  /** Which of them. Default: all. */
  ids?: Iterable<string> | "all"
  /** Key of the queries that show an entity. Default: `[entityCode, entityId]`. */
  entityKey?(entityId: string): readonly unknown[]
  /** Keys of the queries that show lists, which any change may concern. Default: `[[entityCode, "list"]]`. */
  listKeys?: readonly (readonly unknown[])[]
  signal?: AbortSignal
}

/** Invalidates queries as entities change; a deleted entity is removed. Ends with the watch, or with the signal. */
export function invalidateQueries(entities: Entities, queries: QueryClient, binding: QueryBinding): Watch {
  const { entityCode, ids = "all", entityKey = id => [entityCode, id], listKeys = [[entityCode, "list"]], signal } = binding
  const lists = () => listKeys.forEach(queryKey => void queries.invalidateQueries({ queryKey }))
  return entities.watch(
    entityCode,
    ids,
    {
      invalidate({ changes }) {
        for (const { entityId, action } of changes) {
          const queryKey = entityKey(entityId)
          if (action === "DELETE") queries.removeQueries({ queryKey })
          else void queries.invalidateQueries({ queryKey })
        }
        lists()
      },
      // Nobody knows what was missed: everything of the type is fetched again.
      resync: () => {
        void queries.invalidateQueries({ queryKey: [entityCode] })
        lists()
      },
    },
    signal && { signal },
  )
}
