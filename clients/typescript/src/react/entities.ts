import { useEffect, useState, useSyncExternalStore } from "react"
import type { ConnectionState } from "../connection/connection.js"
import type { Entities, WatchHandlers } from "../entities/entities.js"
import { useLatest } from "./latest.js"

/**
 * Watches entities while the component is shown, and calls back when what is cached of them is not valid any more: fetch it
 * again. Returns whether the server has the subscriptions.
 */
export function useInvalidation(entities: Entities, entityCode: string, ids: readonly string[] | "all", handlers: WatchHandlers | NonNullable<WatchHandlers["invalidate"]>): { ready: boolean } {
  const latest = useLatest<WatchHandlers>(typeof handlers === "function" ? { invalidate: handlers } : handlers)
  const [ready, setReady] = useState(false)
  const key = ids === "all" ? null : JSON.stringify([...ids].sort())

  useEffect(() => {
    let current = true
    const watch = entities.watch(entityCode, key === null ? "all" : (JSON.parse(key) as string[]), {
      invalidate: invalidation => latest.current.invalidate?.(invalidation),
      resync: resync => latest.current.resync?.(resync),
      denied: denied => latest.current.denied?.(denied),
    })
    watch.ready.then(() => current && setReady(true), () => {})
    return () => {
      current = false
      watch.close()
      setReady(false)
    }
  }, [entities, entityCode, key, latest])
  return { ready }
}

/** State of a client's connection: of topics or of entities. */
export function useConnection(client: { readonly state: ConnectionState; onState(callback: (state: ConnectionState) => unknown): () => void }): ConnectionState {
  return useSyncExternalStore(
    listener => client.onState(listener),
    () => client.state,
    () => client.state,
  )
}
