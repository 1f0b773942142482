import { onAbort } from "../connection/abort.js"
import { address, type Target } from "../connection/address.js"
import type { BackoffOptions } from "../connection/backoff.js"
import type { ConnectionState } from "../connection/connection.js"
import { Inbox } from "../connection/inbox.js"
import { parts, type ClientOptions } from "../connection/parts.js"
import { Sync } from "./sync.js"
import type { Denied, Invalidation, Resync } from "./wire.js"

export interface EntitiesOptions extends Target, ClientOptions {
  /** Closes the client for good. */
  signal?: AbortSignal
  backoff?: BackoffOptions
  /** Closes the older connections of the user. */
  takeover?: boolean
  /** Ids in one request. Default: 10,000, the server's. */
  maxIds?: number
}

/** What a watcher is told. */
export interface WatchHandlers {
  /** What is cached of these is not valid any more. Each version once, and never an older one after a newer one. */
  invalidate?(invalidation: Invalidation): unknown
  /** Everything that is cached of the type may be wrong. */
  resync?(resync: Resync): unknown
  /** Ids that the server does not subscribe to. */
  denied?(denied: Denied): unknown
  /** Nothing comes any more: the watcher or the client is closed. */
  ended?(why: { error?: unknown }): unknown
}

/** Watches entities of a type. */
export interface Watch {
  readonly entityCode: string
  /**
   * Resolves when the server has the type's subscriptions: what is fetched from then on is invalidated by every later change.
   * A rejection that nobody awaits does no harm.
   */
  readonly ready: Promise<void>
  add(...ids: string[]): void
  remove(...ids: string[]): void
  close(): void
}

/** Changes of entities of a project, over one connection. */
export class Entities {
  readonly #sync: Sync

  constructor(options: EntitiesOptions) {
    const url = address(options, "sync")
    if (options.takeover) url.searchParams.set("takeover", "1")
    this.#sync = new Sync(url, options.maxIds ?? 10_000, { ...parts(options), backoff: options.backoff })
    onAbort(options.signal, () => this.close())
  }

  get state(): ConnectionState {
    return this.#sync.state
  }

  onState(callback: (state: ConnectionState) => unknown, signal?: AbortSignal): () => void {
    return this.#sync._states._add(callback, signal)
  }

  /** Calls back with all changes that any watcher is told. */
  onInvalidate(callback: (invalidation: Invalidation) => unknown, signal?: AbortSignal): () => void {
    return this.#sync._invalidations._add(callback, signal)
  }

  onResync(callback: (resync: Resync) => unknown, signal?: AbortSignal): () => void {
    return this.#sync._resyncs._add(callback, signal)
  }

  /** Watches entities by their ids, or all of a type. */
  watch(entityCode: string, ids: Iterable<string> | "all", handlers: WatchHandlers | ((invalidation: Invalidation) => unknown), { signal }: { signal?: AbortSignal } = {}): Watch {
    return this.#sync._watch(entityCode, ids, handlers, signal)
  }

  /**
   * What watchers are told, for a `for await` loop, which ends with the signal. A resync `subscribed` says that the server has the
   * subscriptions: what is fetched from then on is kept right by what follows. Throws if all is denied, or the server closes the client.
   */
  changes(entityCode: string, ids: Iterable<string> | "all", { max, ...options }: { signal?: AbortSignal; max?: number } = {}): AsyncIterableIterator<Invalidation | Resync> {
    let watch: Watch | undefined
    const inbox = new Inbox<Invalidation | Resync>(() => watch?.close(), max)
    const push = (told: Invalidation | Resync) => inbox.push(told)
    watch = this.watch(entityCode, ids, { invalidate: push, resync: push, ended: why => inbox.end(why) }, options)
    watch.ready.then(() => push({ entityCode, reason: "subscribed" }), (error: unknown) => inbox.end({ error }))
    return inbox
  }

  /** Closes the connection for good. */
  close(): void {
    this.#sync.close()
  }
}
