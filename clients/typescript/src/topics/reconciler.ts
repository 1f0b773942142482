import { Backoff, SETTLED_MS } from "../connection/backoff.js"
import { abortReason, ConnectionClosedError, TidingsError } from "../connection/errors.js"
import { within } from "../connection/within.js"
import type { Channel } from "./channel.js"
import { closed } from "./channel.js"
import { TopicError } from "./errors.js"
import type { Intent, Intents } from "./intents.js"
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
  #cancelRetry = () => {}

  constructor(channel: Channel, intents: Intents, events: ReconcilerEvents) {
    this.#channel = channel
    this.#intents = intents
    this.#events = events
    this.#retry = new Backoff(channel.connection.environment.random, { firstMs: 1_000 })
  }

  /** Everything at once: the first frames on a new connection. */
  restore({ limits }: Hello): void {
    const { plain, special } = this.#split([...this.#intents.wanted.keys()])
    const requests = chunks(plain, limits.topicsPerRequest).map((topics, index) =>
      this.#subscribe(topics, index === 0 ? "$set" : "$subscribeMany"),
    )
    requests.push(...special.map(intent => this.#subscribe([intent.topic], "$subscribe")))
    const { hello } = this.#channel
    void Promise.all(requests).then(() => {
      if (hello && hello === this.#channel.hello) this.#channel.connection.ready()
    })
  }

  /** The connection is gone. */
  lost(): void {
    this.#cancelRetry()
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
  async mutate(add: Iterable<string>, remove: Iterable<string>, options: MutateOptions = {}): Promise<Counts> {
    const intents = this.#intents
    const wanted = [...new Set(add)]
    const added = wanted.filter(topic => !intents.wanted.get(topic)?.explicit)
    const removed = [...new Set(remove)].filter(topic => intents.wanted.get(topic)?.explicit)
    if (options.signal?.aborted) throw abortReason(options.signal)
    this.#explicit(added, true)
    this.#explicit(removed, false)
    try {
      // From the beginning, as a refusal may be told before the change is answered.
      const settled = Promise.all(wanted.map(topic => intents.settled(topic)))
      settled.catch(() => {})
      await this.#commit(added, removed, options)
      // An abort that comes when all is done is late.
      if (wanted.some(topic => !intents.confirmed.has(topic))) await within(settled, this.#channel.connection.environment.clock, options)
    } catch (error) {
      this.#explicit(added, false)
      this.#explicit(removed, true)
      for (const topic of added) intents.fail(error, topic)
      void this.schedule()
      throw error
    }
    return { added: added.length, removed: removed.length, total: intents.wanted.size }
  }

  #explicit(topics: string[], explicit: boolean): void {
    for (const topic of topics) {
      this.#intents.want(topic).explicit = explicit
      this.#intents.release(topic)
    }
  }

  async #commit(added: string[], removed: string[], { signal, ...options }: MutateOptions): Promise<void> {
    const { sent, wanted, confirmed } = this.#intents
    const { hello } = this.#channel
    // What has no options shares a request with all else that changes now.
    const lone = added.length + removed.length === 1 && !signal && Object.keys(options).length === 0
    if (!hello || lone) {
      const flushed = this.schedule()
      return removed.length > 0 ? flushed : undefined
    }
    const add = added.filter(topic => !sent.has(topic))
    const remove = removed.filter(topic => sent.has(topic) && !wanted.has(topic))
    if (add.length === 0 && remove.length === 0) return
    for (const topic of add) sent.add(topic)
    for (const topic of remove) this.#intents.sent.delete(topic)
    const [type, payload] = change(add, remove)
    try {
      const told = await this.#channel.ask<Told>(type, { ...payload, options: Object.keys(options).length > 0 ? options : undefined }, { signal })
      if (hello !== this.#channel.hello) return
      this.#confirm(add, told, hello)
      for (const topic of remove) if (!sent.has(topic)) this.#intents.left(topic)
    } catch (error) {
      // The next connection restores it.
      if (hello !== this.#channel.hello && error instanceof ConnectionClosedError) return
      for (const topic of add) this.#intents.left(topic)
      for (const topic of remove) {
        sent.add(topic)
        confirmed.add(topic)
      }
      throw error
    }
  }

  async #flush(): Promise<void> {
    const { state } = this.#channel.connection
    if (state.status === "closed") return this.#intents.fail(closed(state.why))
    const { hello } = this.#channel
    if (!hello) {
      if (this.#intents.wanted.size > 0) this.#channel.connection.start()
      return
    }
    const { add, remove } = this.#intents.differences()
    const { plain, special } = this.#split(add)
    // Removals first, so that a swap at the limit is possible.
    const leaving = chunks(remove, hello.limits.topicsPerRequest).map(topics => this.#leave(topics))
    const coming = chunks(plain, hello.limits.topicsPerRequest).map(topics => this.#subscribe(topics))
    coming.push(...special.map(intent => this.#subscribe([intent.topic])))
    await Promise.all([...leaving, ...coming])
  }

  async #leave(topics: string[]): Promise<void> {
    const { hello } = this.#channel
    for (const topic of topics) this.#intents.sent.delete(topic)
    try {
      await this.#channel.ask(...change([], topics))
      for (const topic of topics) if (!this.#intents.sent.has(topic)) this.#intents.left(topic)
    } catch (error) {
      if (hello !== this.#channel.hello) return
      for (const topic of topics) this.#intents.sent.add(topic)
      this.#events.report(error)
      this.#again(error)
    }
  }

  /** Subscribes to all of them. One that is refused is dropped, and the others are asked for without it. */
  async #subscribe(topics: string[], type?: "$set" | "$subscribe" | "$subscribeMany"): Promise<void> {
    if (topics.length === 0) return
    const { hello } = this.#channel
    const { sent, wanted, positions } = this.#intents
    for (const topic of topics) sent.add(topic)
    const [single, payload] = type === "$set" || type === "$subscribeMany" ? [type, { topics }] : change(topics, [])
    const intent = wanted.get(topics[0]!)
    const recover = topics.flatMap(topic => {
      const position = positions.get(topic)
      return position ? [[topic, position] as const] : []
    })
    try {
      const told = await this.#channel.ask<Told>(single, {
        ...payload,
        recover: recover.length === 0 ? undefined : single === "$subscribe" ? recover[0]![1] : Object.fromEntries(recover),
        ...(single === "$subscribe" && { presence: intent?.presence, ttlMs: intent?.ttlMs }),
      })
      if (!hello || hello !== this.#channel.hello) return
      this.#retry.lasted(SETTLED_MS)
      this.#confirm(topics, told, hello)
    } catch (error) {
      if (hello !== this.#channel.hello) return
      for (const topic of topics) this.#intents.left(topic)
      await this.#refused(topics, error)
    }
  }

  async #refused(topics: string[], error: unknown): Promise<void> {
    if (error instanceof TidingsError && error.retryable) return this.#again(error)
    const named = topics.length === 1 ? topics[0] : error instanceof TopicError ? topics.find(topic => topic === error.topic) : undefined
    if (named !== undefined) this.#drop(named, error)
    const rest = topics.filter(topic => topic !== named && this.#intents.wanted.has(topic))
    // The server names no topic: it is in one of the halves.
    const half = named === undefined ? Math.ceil(rest.length / 2) : rest.length
    await Promise.all([this.#subscribe(rest.slice(0, half)), this.#subscribe(rest.slice(half))])
  }

  #drop(topic: string, error: unknown): void {
    this.#known.delete(topic)
    this.#intents.refuse(topic, error)
    this.#events.refused(topic, error)
  }

  /** The server could not do it now. */
  #again(error: unknown): void {
    this.#cancelRetry()
    const delay = this.#retry.next(error instanceof TopicError ? error.retryAfterMs : undefined)
    this.#cancelRetry = this.#channel.connection.environment.clock.after(delay, () => void this.schedule())
  }

  #confirm(topics: string[], told: Told, hello: Hello): void {
    for (const topic of topics) {
      const position: Partial<Position> & { recovered?: boolean } = told.positions?.[topic] ?? (topics.length === 1 ? told : {})
      const { epoch, offset, recovered = false } = position
      // After a recovery the messages that were missed follow; the position moves with them.
      if (!recovered && epoch !== undefined && offset !== undefined) this.#intents.positions.set(topic, { epoch, offset })
      this.#intents.confirm(topic)
      // Left and wanted again on the same connection it is new.
      const before = this.#known.get(topic)
      this.#known.set(topic, hello)
      if (before && before !== hello) this.#events.restored({ topic, recovered })
    }
  }

  /** Topics that can share a request, and those that need one of their own. */
  #split(topics: string[]): { plain: string[]; special: Intent[] } {
    const intents = topics.flatMap(topic => this.#intents.wanted.get(topic) ?? [])
    const own = (intent: Intent) => intent.presence !== undefined || intent.ttlMs !== undefined
    return { plain: intents.filter(intent => !own(intent)).map(({ topic }) => topic), special: intents.filter(own) }
  }
}

/** The smallest request for a change. */
function change(add: string[], remove: string[]): [type: string, payload: object] {
  if (add.length > 0 && remove.length > 0) return ["$update", { add, remove }]
  const [topics, single, many] = add.length > 0 ? [add, "$subscribe", "$subscribeMany"] as const : [remove, "$unsubscribe", "$unsubscribeMany"] as const
  return topics.length === 1 ? [single, { topic: topics[0] }] : [many, { topics }]
}

function chunks<T>(items: T[], size: number): T[][] {
  const chunks = []
  for (let at = 0; at < items.length; at += size) chunks.push(items.slice(at, at + size))
  return chunks
}
