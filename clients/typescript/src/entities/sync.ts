import { onAbort } from "../connection/abort.js"
import { socketAddress } from "../connection/address.js"
import { closedError, Connection, type ConnectionOptions, type Ending } from "../connection/connection.js"
import { TidingsError } from "../connection/errors.js"
import { call, Listeners } from "../connection/listeners.js"
import { Waiters } from "../connection/waiters.js"
import type { Watch, WatchHandlers } from "./entities.js"
import { Interest, type EntityId } from "./interest.js"
import type { Change, Denied, Invalidation, Resync, ServerFrame } from "./wire.js"

interface Watcher {
  readonly entityCode: string
  /** Undefined: the whole type. */
  readonly ids: Set<string> | undefined
  readonly handlers: WatchHandlers
}

/** Versions that are remembered to drop what is older. */
const VERSIONS_MAX = 100_000
/** Close codes after which connecting again would not help: taken over by another connection of the user, or what would be sent again. */
const FINAL = [1002, 1003, 1007, 1008, 1009, 4000, 4403]

/** The connection on which the server is told what is watched, and tells what has changed. */
export class Sync extends Connection {
  readonly _heartbeat = '{"type":"PING"}'
  readonly _invalidations: Listeners<Invalidation>
  readonly _resyncs: Listeners<Resync>
  readonly #url: URL
  readonly #maxIds: number
  readonly #interest = new Interest()
  readonly #watchers = new Set<Watcher>()
  readonly #versions = new Map<string, number>()
  /** Cursor by type, from which the server replays after a reconnect. */
  readonly #cursors = new Map<string, string>()
  /** Types subscribed to on this connection, and the requests that are not answered. */
  readonly #subscribed = new Set<string>()
  readonly #asked = new Map<string, string>()
  /** Types whose subscriptions were complete on some connection since they are watched. */
  readonly #known = new Set<string>()
  /** Who waits for a type's subscriptions. */
  readonly #waiters = new Waiters()
  #connected = false
  #number = 0
  #open = false
  #flushing = false
  #retryAfterMs: number | undefined

  constructor(url: URL, maxIds: number, options: ConnectionOptions) {
    super(options)
    const { report } = options.environment
    this.#url = url
    this.#maxIds = maxIds
    this._invalidations = new Listeners(report)
    this._resyncs = new Listeners(report)
    this._states._add(state => {
      if (state.status !== "closed") return
      const error = closedError(state.why)
      this.#waiters._reject(error)
      for (const { handlers } of this.#watchers) call(() => handlers.ended?.(state.why.reason === "closed" ? {} : { error }), report)
    })
  }

  _watch(entityCode: string, ids: Iterable<string> | "all", handlers: WatchHandlers | ((invalidation: Invalidation) => unknown), signal: AbortSignal | undefined): Watch {
    const own: WatchHandlers = typeof handlers === "function" ? { invalidate: handlers } : handlers
    const watcher: Watcher = { entityCode, ids: ids === "all" ? undefined : new Set(ids), handlers: own }
    const held = (): Iterable<EntityId> => watcher.ids ?? [undefined]
    let closed = false
    const close = () => {
      if (closed) return
      closed = true
      forget()
      this.#watchers.delete(watcher)
      call(() => own.ended?.({}), this._environment.report)
      this.#interest._remove(entityCode, held())
      this.#schedule()
    }
    const change = (list: string[], adding: boolean) => {
      if (closed || !watcher.ids) return
      const changed = [...new Set(list)].filter(id => watcher.ids!.has(id) !== adding)
      for (const id of changed) adding ? watcher.ids.add(id) : watcher.ids.delete(id)
      if (adding) this.#interest._add(entityCode, changed)
      else this.#interest._remove(entityCode, changed)
      this.#schedule()
    }
    this.#watchers.add(watcher)
    this.#interest._add(entityCode, held())
    let forget = () => {}
    forget = onAbort(signal, close)
    this.#schedule()
    const ready = this.#whenSubscribed(entityCode)
    ready.catch(() => {})
    return { entityCode, ready, add: (...list) => change(list, true), remove: (...list) => change(list, false), close }
  }

  _address(token: string | null): URL {
    const url = socketAddress(this.#url)
    if (token !== null) url.searchParams.set("token", token)
    return url
  }

  _opened(): void {
    this.#open = true
    this.#retryAfterMs = undefined
    for (const step of this.#steps()) this._send(step)
  }

  _received(data: string | ArrayBuffer): void {
    const { type, payload = {} } = JSON.parse(String(data)) as ServerFrame
    switch (type) {
      case "CONNECTED":
        this.#connected = true
        this.heartbeatMs = payload.heartbeatMs ?? this.heartbeatMs
        return this.#readyIfAnswered()
      case "SUBSCRIBED":
        return this.#confirmed(payload)
      case "INVALIDATE":
        return this.#invalidate(payload)
      case "RESYNC":
        return this.#resync(payload as Resync)
      case "TOKEN_EXPIRING_SOON":
        return void this._renew((payload.expiresIn ?? 0) * 1000, token => {
          if (token !== null) this._send(JSON.stringify({ type: "TOKEN_REFRESH", payload: { token } }))
        })
      case "TOKEN_REFRESHED":
        for (const { entityCode, entityIds = [undefined] } of payload.removed ?? []) {
          for (const entityId of entityIds) this.#denied({ entityCode, ...(entityId !== undefined && { entityId }), code: "Forbidden" })
        }
        return
      case "ERROR":
        return this.#failed(payload)
    }
  }

  _lost(_why: Ending): void {
    this.#open = this.#connected = false
    this.#interest._disconnected()
    this.#subscribed.clear()
    this.#asked.clear()
  }

  _judge(code: number, reason: string): Ending {
    const tokenRefused = code === 4001 || code === 4002 || code === 4401
    const name = code === 4000 ? "taken-over" : code === 4429 ? "too-many-connections" : reason || "lost"
    // Whoever is one connection too many does not hurry.
    const retryAfterMs = this.#retryAfterMs ?? (code === 4429 ? 30_000 : undefined)
    return { reason: name, code, reconnect: !FINAL.includes(code), tokenRefused, retryAfterMs }
  }

  #schedule(): void {
    if (this.#flushing) return
    this.#flushing = true
    queueMicrotask(() => {
      this.#flushing = false
      if (!this.#interest._empty) this._start()
      if (this.#open) for (const step of this.#steps()) this._send(step)
    })
  }

  /** Frames for what has changed. */
  #steps(): string[] {
    return this.#interest._steps().flatMap(({ type, entityCode, ids }) => {
      const single = ids.filter(id => id !== undefined)
      const frames = []
      // No ids is the whole type.
      for (let at = 0; at === 0 || at < single.length; at += this.#maxIds) {
        const requestId = String(++this.#number)
        const payload: Record<string, unknown> = { entityCode, entityIds: single.slice(at, at + this.#maxIds), requestId }
        if (type === "SUBSCRIBE") {
          this.#asked.set(requestId, entityCode)
          const since = this.#cursors.get(entityCode)
          // What is new on this connection has no past that was missed.
          if (since !== undefined && !this.#subscribed.has(entityCode)) payload.since = since
        }
        frames.push(JSON.stringify({ type, payload }))
      }
      if (type === "UNSUBSCRIBE" && !this.#interest._wants(entityCode)) {
        this.#cursors.delete(entityCode)
        this.#known.delete(entityCode)
        this.#subscribed.delete(entityCode)
      }
      return frames
    })
  }

  #confirmed({ requestId, entityCode, cursor, denied }: NonNullable<ServerFrame["payload"]>): void {
    const code = entityCode ?? this.#asked.get(String(requestId))
    if (code === undefined) return
    for (const { entityId, code: why } of denied ?? []) this.#denied({ entityCode: code, entityId, code: why })
    const missing = !this.#subscribed.has(code) && !this.#cursors.has(code)
    // A later one does not move the cursor: changes of what was there before may still be on their way.
    if (cursor !== undefined && missing) this.#cursors.set(code, cursor)
    this.#settled(requestId)
    if ([...this.#asked.values()].includes(code)) return
    this.#subscribed.add(code)
    // Nothing says what was missed since the last connection.
    if (this.#known.has(code) && missing) this.#resync({ entityCode: code, reason: "cursor-unknown" }, cursor)
    this.#known.add(code)
    this.#waiters._resolve(code)
  }

  #settled(requestId: string | undefined): void {
    this.#asked.delete(String(requestId))
    this.#readyIfAnswered()
  }

  #readyIfAnswered(): void {
    if (this.#connected && this.#asked.size === 0 && this.state.status === "connecting") this._ready()
  }

  #whenSubscribed(entityCode: string): Promise<void> {
    const { state } = this
    if (state.status === "closed") return Promise.reject(closedError(state.why))
    // What is there already needs no request, so nothing else would tell.
    queueMicrotask(() => {
      queueMicrotask(() => {
        if (this.#subscribed.has(entityCode) && ![...this.#asked.values()].includes(entityCode)) this.#waiters._resolve(entityCode)
      })
    })
    return this.#waiters._wait(entityCode)
  }

  #denied(denied: Denied): void {
    const { entityCode, entityId, code } = denied
    this.#interest._refuse(entityCode, entityId)
    for (const watcher of [...this.#watchers]) {
      const { ids, handlers } = watcher
      if (watcher.entityCode !== entityCode || (ids ? entityId === undefined || !ids.delete(entityId) : entityId !== undefined)) continue
      if (handlers.denied) call(() => handlers.denied!(denied), this._environment.report)
      else this._report(new TidingsError(`${entityCode} ${entityId ?? "as a whole"} cannot be watched: ${code}`, { code, details: denied }))
    }
  }

  #invalidate({ entityCode = "", changes = [], cursor }: NonNullable<ServerFrame["payload"]>): void {
    const fresh = changes.filter(change => this.#isNew(entityCode, change))
    // It covers all types whose requests have been answered; the others may still get what they have missed.
    if (cursor !== undefined) for (const code of this.#subscribed) this.#cursors.set(code, cursor)
    if (fresh.length === 0) return
    this._invalidations._emit({ entityCode, changes: fresh })
    for (const watcher of [...this.#watchers]) {
      if (watcher.entityCode !== entityCode) continue
      const own = watcher.ids ? fresh.filter(change => watcher.ids!.has(change.entityId)) : fresh
      if (own.length > 0) call(() => watcher.handlers.invalidate?.({ entityCode, changes: own }), this._environment.report)
    }
  }

  /** Whether the version is newer than what was told before; remembers it. */
  #isNew(entityCode: string, { entityId, version }: Change): boolean {
    const key = `${entityCode}\n${entityId}`
    const before = this.#versions.get(key)
    if (before !== undefined && version <= before) return false
    this.#versions.delete(key)
    this.#versions.set(key, version)
    if (this.#versions.size > VERSIONS_MAX) this.#versions.delete(this.#versions.keys().next().value!)
    return true
  }

  /** Tells that all may be wrong; resumes from the cursor, if there is one. */
  #resync(resync: Resync, cursor?: string): void {
    const { entityCode } = resync
    // Another source may count its versions anew.
    for (const key of this.#versions.keys()) if (entityCode === undefined || key.startsWith(`${entityCode}\n`)) this.#versions.delete(key)
    if (entityCode === undefined) this.#cursors.clear()
    else if (cursor !== undefined) this.#cursors.set(entityCode, cursor)
    else this.#cursors.delete(entityCode)
    // Told before the subscription is answered, it need not be told again with the answer.
    for (const code of entityCode === undefined ? [...this.#known] : [entityCode]) if (!this.#subscribed.has(code)) this.#known.delete(code)
    this._resyncs._emit(resync)
    for (const { entityCode: code, handlers } of [...this.#watchers]) {
      if (entityCode === undefined || entityCode === code) call(() => handlers.resync?.(resync), this._environment.report)
    }
  }

  #failed({ code = "ERROR", message = "", requestId, retryAfter }: NonNullable<ServerFrame["payload"]>): void {
    if (retryAfter !== undefined) this.#retryAfterMs = retryAfter * 1000
    const entityCode = requestId === undefined ? undefined : this.#asked.get(requestId)
    const error = new TidingsError(message, { code, details: { requestId, entityCode } })
    if (entityCode !== undefined && code === "InvalidCursor") {
      // Without the cursor the subscription holds; what was missed is not known, which is told when it does.
      this.#cursors.delete(entityCode)
      this.#interest._forget(entityCode)
      this.#schedule()
    } else if (entityCode !== undefined && code === "Forbidden") this.#denied({ entityCode, code })
    else this._report(error)
    if (entityCode !== undefined && code !== "InvalidCursor") this.#waiters._reject(error, entityCode)
    this.#settled(requestId)
  }
}
