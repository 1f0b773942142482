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
  refused(topic: string, error: unknown): void
  restored(restored: Restored): void
  report(error: unknown): void
}

/** Makes the server have what is wanted: one `$set` after a reconnect, and as few requests as possible while connected. */
export class Reconciler {
  readonly #channel: Channel
  readonly #intents: Intents
  readonly #events: ReconcilerEvents
  /** The connection on which a topic was confirmed last. */
  readonly #known = new Map<string, Hello>()
  readonly #retry: Backoff
  #flushing: Promise<void> | undefined

  constructor(channel: Channel, intents: Intents, events: ReconcilerEvents) {
    this.#channel = channel
    this.#intents = intents
    this.#events = events
    this.#retry = new Backoff(channel.environment.random, { firstMs: 1_000 })
  }

  /** Everything at once: the first frames on a new connection. */
  async restore(hello: Hello): Promise<void> {
    await Promise.all(this.#subscribeAll(hello, "$set"))
    if (hello === this.#channel.hello) this.#channel.ready()
  }

  /** The connection is gone. */
  lost(): void {
    this.#intents.disconnected()
    for (const topic of this.#known.keys()) if (!this.#intents.wanted.has(topic)) this.#known.delete(topic)
  }

  /** Tells the server what has changed, together with all else that changes now. Resolves when it has answered. */
  schedule(): Promise<void> {
    this.#flushing ??= Promise.resolve().then(() => {
      this.#flushing = undefined
      return this.#flush()
    })
    return this.#flushing
  }

  /** Adds and removes explicit subscriptions: all of them or, if the server refuses, none. */
  async mutate(add: Iterable<string>, remove: Iterable<string>, { signal, ...options }: MutateOptions = {}): Promise<Counts> {
    const intents = this.#intents
    const { confirmed, sent, wanted } = intents
    const topics = [...new Set(add)]
    const added = topics.filter(topic => !wanted.get(topic)?.explicit)
    const removed = [...new Set(remove)].filter(topic => wanted.get(topic)?.explicit)
    const mark = (topics: string[], explicit: boolean) => {
      for (const topic of topics) {
        intents.want(topic).explicit = explicit
        intents.release(topic)
      }
    }
    signal?.throwIfAborted()
    mark(added, true)
    mark(removed, false)
    try {
      // From the beginning, as a refusal may be told before the change is answered.
      const settled = Promise.all(topics.map(topic => intents.settled(topic)))
      settled.catch(() => {})
      // What has no options shares a request with all else that changes now.
      const plain = Object.keys(options).length === 0
      if (!this.#channel.hello || (added.length + removed.length === 1 && !signal && plain)) {
        const flushed = this.schedule()
        if (removed.length > 0) await flushed
      } else {
        const joining = added.filter(topic => !sent.has(topic))
        const leaving = removed.filter(topic => sent.has(topic) && !wanted.has(topic))
        await this.#ask(joining, leaving, { options: plain ? undefined : options, signal })
      }
      // An abort that comes when all is done is late.
      if (topics.some(topic => !confirmed.has(topic))) await within(settled, this.#channel.environment.clock, { ...options, signal })
    } catch (error) {
      mark(added, false)
      mark(removed, true)
      for (const topic of added) intents.waiters.reject(error, topic)
      void this.schedule()
      throw error
    }
    return { added: added.length, removed: removed.length, total: wanted.size }
  }

  async #flush(): Promise<void> {
    const { hello, state } = this.#channel
    const { surplus, waiters, wanted } = this.#intents
    if (state.status === "closed") waiters.reject(closedError(state.why))
    else if (hello) {
      // Removals first, so that a swap at the limit is possible.
      const leaving = chunks(surplus, hello.limits.topicsPerRequest).map(topics => this.#leave(topics))
      await Promise.all([...leaving, ...this.#subscribeAll(hello)])
    } else if (wanted.size > 0) this.#channel.start()
  }

  async #leave(topics: string[]): Promise<void> {
    try {
      await this.#ask([], topics)
    } catch (error) {
      this.#events.report(error)
      this.#again(error)
    }
  }

  /** Subscribes to all that is missing; what has options of its own needs a request of its own. */
  #subscribeAll({ limits }: Hello, first?: "$set"): Promise<void>[] {
    const { missing, wanted } = this.#intents
    const special = missing.filter(topic => wanted.get(topic)!.presence ?? wanted.get(topic)!.ttlMs)
    const plain = chunks(missing.filter(topic => !special.includes(topic)), limits.topicsPerRequest)
    return [...plain.map((topics, index) => this.#subscribe(topics, index === 0 ? first : undefined)), ...special.map(topic => this.#subscribe([topic]))]
  }

  /** Subscribes to all of them. One that is refused is dropped, and the others are asked for without it. */
  async #subscribe(topics: string[], type?: "$set"): Promise<void> {
    try {
      await this.#ask(topics, [], { type })
      this.#retry.lasted(SETTLED_MS)
    } catch (error) {
      const { details, retryable } = error as Partial<TidingsError>
      if (retryable) return this.#again(error)
      const refused = topics.length === 1 ? topics[0] : topics.find(topic => topic === details?.topic)
      if (refused !== undefined) {
        this.#known.delete(refused)
        this.#intents.refuse(refused, error)
        this.#events.refused(refused, error)
      }
      const rest = topics.filter(topic => topic !== refused && this.#intents.wanted.has(topic))
      // The server names no topic: it is in one of the halves.
      const half = refused === undefined ? Math.ceil(rest.length / 2) : rest.length
      await Promise.all([this.#subscribe(rest.slice(0, half)), this.#subscribe(rest.slice(half))])
    }
  }

  /** The server could not do it now. */
  #again(error: unknown): void {
    const delay = this.#retry.next((error as Partial<TidingsError>).retryAfterMs)
    this.#channel.after("subscribe", delay, () => void this.schedule())
  }

  /**
   * The smallest request for a change. Throws if the server refuses, and then nothing has changed; not if the connection is lost,
   * as the next one restores what is wanted.
   */
  async #ask(add: string[], remove: string[], { type, options, signal }: { type?: "$set" | undefined; options?: object | undefined; signal?: AbortSignal | undefined } = {}): Promise<void> {
    const channel = this.#channel
    const { hello } = channel
    const { sent, positions, wanted } = this.#intents
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
      payload = { topic, ...(adds && { recover: positions.get(topic), presence, ttlMs }) }
    } else {
      if (!type) verb += "Many"
      const recover = add.flatMap(each => (positions.has(each) ? [[each, positions.get(each)]] : []))
      payload = { topics, ...(recover.length > 0 && { recover: Object.fromEntries(recover) }) }
    }
    try {
      const told = await channel.ask<Told>(verb, { ...payload, options }, { signal })
      if (!hello || hello !== channel.hello) return
      for (const each of add) this.#confirm(each, told.positions?.[each] ?? (add.length === 1 ? told : {}), hello)
      for (const each of remove) if (!sent.has(each)) this.#intents.left(each)
    } catch (error) {
      if (hello === channel.hello) {
        for (const each of add) this.#intents.left(each)
        for (const each of remove) sent.add(each)
      } else if (error instanceof ConnectionClosedError) return
      throw error
    }
  }

  #confirm(topic: string, { epoch, offset, recovered = false }: Partial<Position> & { recovered?: boolean }, hello: Hello): void {
    // After a recovery the messages that were missed follow; the position moves with them.
    if (!recovered && epoch !== undefined && offset !== undefined) this.#intents.positions.set(topic, { epoch, offset })
    this.#intents.confirm(topic)
    // Left and wanted again on the same connection it is new.
    const before = this.#known.get(topic)
    this.#known.set(topic, hello)
    if (before && before !== hello) this.#events.restored({ topic, recovered })
  }
}

function chunks<T>(items: T[], size: number): T[][] {
  return items.length > 0 ? [items.slice(0, size), ...chunks(items.slice(size), size)] : []
}
