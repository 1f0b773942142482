import { onAbort } from "../connection/abort.js"
import { address, type Target } from "../connection/address.js"
import type { BackoffOptions } from "../connection/backoff.js"
import type { ConnectionState } from "../connection/connection.js"
import { environment, type Environment } from "../connection/environment.js"
import { call } from "../connection/listeners.js"
import { TokenSource, type TokenProvider } from "../connection/token.js"
import { Sync } from "./sync.js"
import type { Denied, Invalidation, Resync } from "./wire.js"

export interface EntitiesOptions extends Target {
  token?: TokenProvider
  /** Closes the client for good. */
  signal?: AbortSignal
  backoff?: BackoffOptions
  /** Closes the older connections of the user. */
  takeover?: boolean
  /** Ids in one request. Default: 10,000, the server's. */
  maxIds?: number
  /** Errors that belong to no call. Default: reported. */
  onError?(error: unknown): void
  environment?: Partial<Environment>
}

/** What a watcher is told. */
export interface WatchHandlers {
  /** What is cached of these is not valid any more. Each version once, and never an older one after a newer one. */
  invalidate?(invalidation: Invalidation): unknown
  /** Everything that is cached of the type may be wrong. */
  resync?(resync: Resync): unknown
  /** Ids that the server does not subscribe to. */
  denied?(denied: Denied): unknown
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
    const own = environment(options.environment)
    const { report } = own
    const url = address(options, "sync")
    if (options.takeover) url.searchParams.set("takeover", "1")
    this.#sync = new Sync(url, options.maxIds ?? 10_000, {
      environment: own,
      token: new TokenSource(options.token, own),
      backoff: options.backoff,
      onError: error => call(() => (options.onError ?? report)(error), report),
    })
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

  /** Closes the connection for good. */
  close(): void {
    this.#sync.close()
  }
}
