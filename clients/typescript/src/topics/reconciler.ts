import { Backoff, SETTLED_MS } from "../connection/backoff.js"
import { closedError } from "../connection/connection.js"
import { ConnectionClosedError, TidingsError } from "../connection/errors.js"
import { within } from "../connection/within.js"
import type { Channel } from "./channel.js"
import type { Intents } from "./intents.js"
import type { Hello, Position } from "./wire.js"

/** Options of a change of subscriptions. */
export interface MutateOptions {
  /** Cancels the change if it has not taken effect; later it is ignored. */
  signal?: AbortSignal | undefined
  /** `settled` also waits for the server's message bus. Default: `optimistic`. */
  waitFor?: "optimistic" | "settled"
  /** Longest time that the change may take, in milliseconds. */
  timeoutMs?: number
  /** Whether the server verifies the change with its message bus. Default: `off`. */
  verify?: "off" | "best-effort" | "strict"
}

/** Outcome of a change. */
export interface Counts {
  added: number
  removed: number
  total: number
}

/** What a topic's subscription is after a reconnect. */
export interface Restored {
  topic: string
  /** True: nothing was missed. False: messages may have been missed, or the topic has no history. */
  recovered: boolean
}

interface Told {
  positions?: Record<string, Position & { recovered?: boolean }>
  epoch?: string
  offset?: number
  recovered?: boolean
}

export interface ReconcilerEvents {
  _refused(topic: string, error: unknown): void
  _restored(restored: Restored): void
}

/** Makes the server have what is wanted: one `$set` after a reconnect, and as few requests as possible while connected. */
export class Reconciler {
  readonly #channel: Channel
  readonly #intents: Intents
  readonly #events: ReconcilerEvents
  readonly #retry: Backoff
  #flushing: Promise<void> | undefined

  constructor(channel: Channel, intents: Intents, events: ReconcilerEvents) {
    this.#channel = channel
    this.#intents = intents
    this.#events = events
    this.#retry = new Backoff(channel._environment.random, { firstMs: 1_000 })
  }

  /** Everything at once: the first frames on a new connection. */
  async _restore(hello: Hello): Promise<void> {
    await Promise.all(this.#subscribeAll(hello, "$set"))
    if (hello === this.#channel._hello) this.#channel._ready()
  }

  /** Tells the server what has changed, together with all else that changes now. Resolves when it has answered. */
  _schedule(): Promise<void> {
    this.#flushing ??= Promise.resolve().then(() => {
      this.#flushing = undefined
      return this.#flush()
    })
    return this.#flushing
  }

  /** Adds and removes explicit subscriptions: all of them or, if the server refuses, none. */
  async _mutate(add: Iterable<string>, remove: Iterable<string>, { signal, ...options }: MutateOptions = {}): Promise<Counts> {
    const intents = this.#intents
    const { _confirmed: confirmed, _sent: sent, _wanted: wanted } = intents
    const topics = [...new Set(add)]
    const added = topics.filter(topic => !wanted.get(topic)?._explicit)
    const removed = [...new Set(remove)].filter(topic => wanted.get(topic)?._explicit)
    const mark = (topics: string[], explicit: boolean) => {
      for (const topic of topics) {
        intents._want(topic)._explicit = explicit
        intents._release(topic)
      }
    }
    signal?.throwIfAborted()
    mark(added, true)
    mark(removed, false)
    try {
      // From the beginning, as a refusal may be told before the change is answered.
      const settled = Promise.all(topics.map(topic => intents._settled(topic)))
      settled.catch(() => {})
      // What has no options shares a request with all else that changes now.
      const plain = Object.keys(options).length === 0
      if (!this.#channel._hello || (added.length + removed.length === 1 && !signal && plain)) {
        const flushed = this._schedule()
        if (removed.length > 0) await flushed
      } else {
        const joining = added.filter(topic => !sent.has(topic))
        const leaving = removed.filter(topic => sent.has(topic) && !wanted.has(topic))
        await this.#ask(joining, leaving, { options: plain ? undefined : options, signal })
      }
      // An abort that comes when all is done is late.
      if (topics.some(topic => !confirmed.has(topic))) await within(settled, this.#channel._environment.clock, { ...options, signal })
    } catch (error) {
      mark(added, false)
      mark(removed, true)
      for (const topic of added) intents._waiters._reject(error, topic)
      void this._schedule()
      throw error
    }
    return { added: added.length, removed: removed.length, total: wanted.size }
  }

  async #flush(): Promise<void> {
    const { _hello: hello, state } = this.#channel
    const { _surplus: surplus, _waiters: waiters, _wanted: wanted } = this.#intents
    if (state.status === "closed") waiters._reject(closedError(state.why))
    else if (hello) {
      // Removals first, so that a swap at the limit is possible.
      const leaving = chunks(surplus, hello.limits.topicsPerRequest).map(topics => this.#leave(topics))
      await Promise.all([...leaving, ...this.#subscribeAll(hello)])
    } else if (wanted.size > 0) this.#channel._start()
  }

  async #leave(topics: string[]): Promise<void> {
    try {
      await this.#ask([], topics)
    } catch (error) {
      this.#channel._report(error)
      this.#again(error)
    }
  }

  /** Subscribes to all that is missing; what has options of its own needs a request of its own. */
  #subscribeAll({ limits }: Hello, first?: "$set"): Promise<void>[] {
    const { _missing: missing, _wanted: wanted } = this.#intents
    const special = missing.filter(topic => wanted.get(topic)!.presence ?? wanted.get(topic)!.ttlMs)
    const plain = chunks(missing.filter(topic => !special.includes(topic)), limits.topicsPerRequest)
    return [...plain.map((topics, index) => this.#subscribe(topics, index === 0 ? first : undefined)), ...special.map(topic => this.#subscribe([topic]))]
  }

  /** Subscribes to all of them. One that is refused is dropped, and the others are asked for without it. */
  async #subscribe(topics: string[], type?: "$set"): Promise<void> {
    try {
      await this.#ask(topics, [], { type })
      this.#retry._lasted(SETTLED_MS)
    } catch (error) {
      const { details, retryable } = error as Partial<TidingsError>
      if (retryable) return this.#again(error)
      const refused = topics.length === 1 ? topics[0] : topics.find(topic => topic === details?.topic)
      if (refused !== undefined) {
        this.#intents._refuse(refused, error)
        this.#events._refused(refused, error)
      }
      const rest = topics.filter(topic => topic !== refused && this.#intents._wanted.has(topic))
      // The server names no topic: it is in one of the halves.
      const half = refused === undefined ? Math.ceil(rest.length / 2) : rest.length
      await Promise.all([this.#subscribe(rest.slice(0, half)), this.#subscribe(rest.slice(half))])
    }
  }

  /** The server could not do it now. */
  #again(error: unknown): void {
    const delay = this.#retry._next((error as Partial<TidingsError>).retryAfterMs)
    this.#channel._after("subscribe", delay, () => void this._schedule())
  }

  /**
   * The smallest request for a change. Throws if the server refuses, and then nothing has changed; not if the connection is lost,
   * as the next one restores what is wanted.
   */
  async #ask(add: string[], remove: string[], { type, options, signal }: { type?: "$set" | undefined; options?: object | undefined; signal?: AbortSignal | undefined } = {}): Promise<void> {
    const channel = this.#channel
    const { _hello: hello } = channel
    const { _sent: sent, _heard: heard, _wanted: wanted } = this.#intents
    const adds = add.length > 0
    const topics = adds ? add : remove
    if (topics.length === 0) return
    for (const each of add) sent.add(each)
    for (const each of remove) sent.delete(each)
    let verb: string = type ?? (adds ? "$subscribe" : "$unsubscribe")
    let payload: object
    if (adds && remove.length > 0) {
      verb = "$update"
      payload = { add, remove }
    } else if (topics.length === 1 && !type) {
      const [topic] = topics as [string]
      const { presence, ttlMs } = wanted.get(topic) ?? {}
      payload = { topic, ...(adds && { recover: heard.get(topic)?.position, presence, ttlMs }) }
    } else {
      if (!type) verb += "Many"
      const recover = add.map(each => [each, heard.get(each)?.position]).filter(([, position]) => position)
      payload = { topics, ...(recover.length > 0 && { recover: Object.fromEntries(recover) }) }
    }
    try {
      const told = await channel._ask<Told>(verb, { ...payload, options }, { signal })
      if (!hello || hello !== channel._hello) return
      for (const each of add) this.#confirm(each, told.positions?.[each] ?? (add.length === 1 ? told : {}), hello)
      for (const each of remove) if (!sent.has(each)) this.#intents._left(each)
    } catch (error) {
      if (hello === channel._hello) {
        for (const each of add) this.#intents._left(each)
        for (const each of remove) sent.add(each)
      } else if (error instanceof ConnectionClosedError) return
      throw error
    }
  }

  #confirm(topic: string, { epoch, offset, recovered = false }: Partial<Position> & { recovered?: boolean }, hello: Hello): void {
    // After a recovery the messages that were missed follow; the position moves with them.
    const position = !recovered && epoch !== undefined && offset !== undefined && { position: { epoch, offset } }
    // Left and wanted again on the same connection it is new.
    const before = this.#intents._heard.get(topic)?.hello
    this.#intents._hear(topic, { hello, ...position })
    this.#intents._confirm(topic)
    if (before && before !== hello) this.#events._restored({ topic, recovered })
  }
}

function chunks<T>(items: T[], size: number): T[][] {
  return items.length > 0 ? [items.slice(0, size), ...chunks(items.slice(size), size)] : []
}
