/**
 * Tells a replication of RxDB that there is something to pull. Entities say what has changed and not how, so RxDB's own pull
 * handler fetches it, from its own checkpoint:
 *
 *     const pullStream$ = new Subject<RxReplicationPullStreamItem<Task, Checkpoint>>()
 *     replicateRxCollection({ collection, pull: { handler, stream$: pullStream$.asObservable() }, … })
 *     resyncOnChange(entities, "task", pullStream$)
 */
import type { Entities, Watch } from "tidings-client/entities"

/** A `Subject` of RxJS, as far as it is needed. */
export interface PullStream {
  next(item: "RESYNC"): void
}

/** Changes within one turn are one pull. Ends with the watch, or with the signal. */
export function resyncOnChange(entities: Entities, entityCode: string, stream: PullStream, { signal }: { signal?: AbortSignal } = {}): Watch {
  let waiting = false
  const pull = () => {
    if (waiting) return
    waiting = true
    queueMicrotask(() => {
      waiting = false
      stream.next("RESYNC")
    })
  }
  return entities.watch(entityCode, "all", { invalidate: pull, resync: pull }, signal && { signal })
}
