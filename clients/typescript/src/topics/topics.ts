import { address, type Target } from "../connection/address.js"
import type { BackoffOptions } from "../connection/backoff.js"
import type { ConnectionState } from "../connection/connection.js"
import { environment, type Environment } from "../connection/environment.js"
import { TidingsError } from "../connection/errors.js"
import { Inbox } from "../connection/inbox.js"
import { Listeners } from "../connection/listeners.js"
import { TokenSource, type TokenProvider } from "../connection/token.js"
import { Channel, closed } from "./channel.js"
import { UnsubscribedError, ValidationError } from "./errors.js"
import { Intents } from "./intents.js"
import { bytesOf, type Member, type Message, type Outgoing, type Presence, type PublishOptions, type PublishResult, type VerifyResult } from "./message.js"
import { isPattern, matcher } from "./pattern.js"
import { Reconciler, type Counts, type MutateOptions, type Restored } from "./reconciler.js"
import { validate, type InputOf, type MessageDefinition, type OutputOf, type StandardSchema } from "./schema.js"
import { Subscription, type Handlers, type ListenOptions } from "./subscription.js"
import type { Frame, Position } from "./wire.js"

export interface TopicsOptions extends Target {
  token?: TokenProvider
  /** Closes the client for good. */
  signal?: AbortSignal
  backoff?: BackoffOptions
  /** Errors that belong to no call: a token that could not be renewed, a frame that was not understood. Default: reported. */
  onError?(error: unknown): void
  environment?: Partial<Environment>
}

/** Where a subscription stands. */
export type LocalStatus = "settled" | "pending-subscribe" | "pending-unsubscribe" | "absent"

/** Time that a publish or a request waits for a connection by default. */
const WAIT_MS = 10_000

/**
 * Topics of a project, over one connection. What is subscribed to is kept by the client: after a reconnect one `$set` restores
 * it. As a set it has the topics that the server has confirmed on this connection, in order of subscription.
 */
export class Topics implements ReadonlySet<string> {
  readonly #channel: Channel
  readonly #intents = new Intents()
  readonly #reconciler: Reconciler
  readonly #environment: Environment
  readonly #report: (error: unknown) => void
  readonly #subscriptions = new Map<string, Set<Subscription>>()
  readonly #patterns = new Map<string, (topic: string) => boolean>()
  readonly #messages: Listeners<Message>
  readonly #restored: Listeners<Restored>
  readonly #inboxes = new Set<Inbox<never>>()

  constructor(options: TopicsOptions) {
    this.#environment = environment(options.environment)
    this.#report = error => (options.onError ?? this.#environment.report)(error)
    this.#messages = new Listeners(this.#environment.report)
    this.#restored = new Listeners(this.#environment.report)
    this.#channel = new Channel({
      url: address(options, "topics"),
      token: new TokenSource(options.token, this.#environment),
      environment: this.#environment,
      backoff: options.backoff,
      onError: this.#report,
      onHello: hello => this.#reconciler.restore(hello),
      onFrame: frame => this.#take(frame),
      onLost: () => this.#reconciler.lost(),
    })
    this.#reconciler = new Reconciler(this.#channel, this.#intents, {
      refused: (topic, error) => this.#end(topic, error),
      restored: restored => {
        this.#restored.emit(restored)
        for (const subscription of this.#subscriptions.get(restored.topic) ?? []) subscription.restored(restored)
      },
      report: this.#report,
    })
    this.#channel.connection.states.add(state => {
      if (state.status !== "closed") return
      const error = closed(state.why)
      this.#intents.fail(error)
      for (const inbox of [...this.#inboxes]) inbox.end(state.why.reason === "closed" ? {} : { error })
    })
    const { signal } = options
    if (signal?.aborted) this.close(signal.reason)
    else signal?.addEventListener("abort", () => this.close(signal.reason), { once: true })
  }

  get state(): ConnectionState {
    return this.#channel.connection.state
  }

  /** Calls back with each new state, until the returned function is called or the signal aborts. */
  onState(callback: (state: ConnectionState) => unknown, signal?: AbortSignal): () => void {
    return this.#channel.connection.states.add(callback, signal)
  }

  /** Calls back with each message of each topic, whoever subscribed. */
  onMessage(callback: (message: Message) => unknown, signal?: AbortSignal): () => void {
    return this.#messages.add(callback, signal)
  }

  /** Calls back for each topic that a reconnect has restored. */
  onRestored(callback: (restored: Restored) => unknown, signal?: AbortSignal): () => void {
    return this.#restored.add(callback, signal)
  }

  /** Connects, and resolves when requests can be sent. A first subscription or publish does so by itself. */
  connect(options: { signal?: AbortSignal; timeoutMs?: number } = {}): Promise<void> {
    return this.#channel.whenOpen(options)
  }

  /** Closes the connection for good. */
  close(error?: unknown): void {
    this.#channel.connection.close("closed", error)
  }

  /** Subscribes to a topic or pattern. Calls in one tick share a request unless they have options. */
  async subscribe(topic: string, { ttlMs, presence, ...options }: MutateOptions & { ttlMs?: number; presence?: true | { info: unknown } } = {}): Promise<void> {
    if (ttlMs !== undefined || presence !== undefined) {
      Object.assign(this.#intents.want(topic), { ttlMs, presence })
      // Asked for again, the server renews it.
      this.#intents.left(topic)
      void this.#reconciler.schedule()
    }
    await this.#reconciler.mutate([topic], [], options)
  }

  /** Ends a subscription; listeners of the topic keep theirs. */
  async unsubscribe(topic: string, options?: MutateOptions): Promise<void> {
    await this.#reconciler.mutate([], [topic], options)
  }

  /** Subscribes to all of them, or to none. */
  async subscribeMany(topics: Iterable<string>, options?: MutateOptions): Promise<{ added: number; total: number }> {
    const { added, total } = await this.#reconciler.mutate(topics, [], options)
    return { added, total }
  }

  /** Ends all of these subscriptions, or none. */
  async unsubscribeMany(topics: Iterable<string>, options?: MutateOptions): Promise<{ removed: number; total: number }> {
    const { removed, total } = await this.#reconciler.mutate([], topics, options)
    return { removed, total }
  }

  /** Ends all subscriptions but those of listeners. */
  async clear(options?: MutateOptions): Promise<{ removed: number }> {
    return { removed: (await this.set([], options)).removed }
  }

  /** Subscribes to exactly these topics, beside those of listeners. All or nothing. */
  set(topics: Iterable<string>, options?: MutateOptions): Promise<Counts> {
    const wanted = new Set(topics)
    const before = [...this.#intents.wanted.values()].filter(intent => intent.explicit).map(intent => intent.topic)
    return this.#reconciler.mutate(wanted, before.filter(topic => !wanted.has(topic)), options)
  }

  /** Changes the set of explicit subscriptions by a function. */
  update(mutator: (draft: Set<string>) => void, options?: MutateOptions): Promise<Counts> {
    const draft = new Set([...this.#intents.wanted.values()].filter(intent => intent.explicit).map(intent => intent.topic))
    mutator(draft)
    return this.set(draft, options)
  }

  /** Listens to a topic or pattern until the listener is closed. The last listener's end unsubscribes. */
  listen(topic: string, handlers: Handlers | ((message: Message) => unknown), options?: ListenOptions): Subscription
  /** Listens to messages of one definition; one that its schema does not accept goes to `error`. */
  listen<T extends string, S extends StandardSchema>(
    topic: string,
    definition: MessageDefinition<T, S>,
    handlers: Handlers<Message<OutputOf<S>, T>> | ((message: Message<OutputOf<S>, T>) => unknown),
    options?: ListenOptions,
  ): Subscription
  listen(topic: string, ...rest: unknown[]): Subscription {
    const definition = isDefinition(rest[0]) ? (rest.shift() as MessageDefinition) : undefined
    const [handlers, options = {}] = rest as [Handlers | ((message: Message) => unknown), ListenOptions?]
    const { signal, presence } = options
    const intent = this.#intents.want(topic)
    intent.listeners++
    if (presence && !this.#intents.sent.has(topic)) intent.presence = presence
    const ready = this.#intents.settled(topic)
    const left = (subscription: Subscription) => {
      signal?.removeEventListener("abort", close)
      this.#leave(topic, subscription, ready)
    }
    const close = () => subscription.close()
    const own = typeof handlers === "function" ? { message: handlers } : handlers
    const subscription = new Subscription(topic, own, definition, ready, this.#report, left)
    this.#subscriptions.set(topic, (this.#subscriptions.get(topic) ?? new Set()).add(subscription))
    if (isPattern(topic)) this.#patterns.set(topic, this.#patterns.get(topic) ?? matcher(topic))
    if (signal?.aborted) close()
    else signal?.addEventListener("abort", close, { once: true })
    void this.#reconciler.schedule()
    return subscription
  }

  /** The messages of a topic for a `for await` loop, which ends with the signal, or throws when the subscription fails. */
  messages(topic: string, options: ListenOptions & { max?: number } = {}): AsyncIterableIterator<Message> {
    const inbox = new Inbox<Message>(() => {
      subscription.close()
      this.#inboxes.delete(inbox as Inbox<never>)
      options.signal?.removeEventListener("abort", end)
    }, options.max)
    const end = () => inbox.end()
    const handlers = { message: (message: Message) => inbox.push(message), error: (error: unknown) => inbox.end({ error }) }
    const subscription = this.listen(topic, handlers, options)
    this.#inboxes.add(inbox as Inbox<never>)
    options.signal?.addEventListener("abort", end, { once: true })
    if (options.signal?.aborted || this.state.status === "closed") end()
    return inbox
  }

  /** Publishes a message. Never throws: the result says what came of it. */
  publish(topic: string, message: Outgoing, options?: PublishOptions): Promise<PublishResult>
  /** Publishes a message of a definition, unless its schema does not accept the payload. */
  publish<S extends StandardSchema>(topic: string, definition: MessageDefinition<string, S>, payload: InputOf<S>, options?: PublishOptions): Promise<PublishResult>
  async publish(topic: string, message: Outgoing | MessageDefinition, ...rest: unknown[]): Promise<PublishResult> {
    try {
      let outgoing = message as Outgoing
      if (isDefinition(message)) outgoing = { type: message.type, payload: await validate(message, rest.shift()) }
      const { excludeSelf, partitionKey, timeoutMs = WAIT_MS, signal } = (rest[0] ?? {}) as PublishOptions
      await this.#channel.whenOpen({ signal, timeoutMs })
      if (this.#channel.connection.blocked) {
        return { ok: false, error: "BACKPRESSURE", retryable: true, cause: "the socket does not take more" }
      }
      const bytes = bytesOf(outgoing.payload)
      const { payload, ...header } = outgoing
      const request = { topic, message: bytes ? header : outgoing, excludeSelf, partitionKey }
      return await this.#channel.ask<PublishResult>("$publish", request, { signal, ...(bytes && { bytes }) })
    } catch (error) {
      return failed(error)
    }
  }

  /** Who is present. Listeners with `presence` hear who comes and goes. */
  presence(topic: string, options?: { signal?: AbortSignal }): Promise<Presence> {
    return this.#ask("$presence", { topic }, options)
  }

  /** Messages of the past: the newest `limit` of them or, with `since`, the oldest after it. */
  async history(
    topic: string,
    { since, limit, signal }: { since?: Position; limit?: number; signal?: AbortSignal } = {},
  ): Promise<Position & { messages: Message[]; recovered?: boolean }> {
    const told = await this.#ask<Position & { messages: Frame[]; recovered?: boolean }>("$history", { topic, since, limit }, { signal })
    return { ...told, messages: told.messages.map(frame => toMessage({ ...frame, binary: false })) }
  }

  /** Asks the server's message bus whether this connection has the subscription. Throws only if the signal aborts. */
  async verify(topic: string, { mode, signal }: { mode?: "strict" | "best-effort"; signal?: AbortSignal } = {}): Promise<VerifyResult> {
    try {
      return await this.#ask<VerifyResult>("$verify", { topic, mode }, { signal })
    } catch (cause) {
      if (signal?.aborted) throw cause
      return { kind: "error", cause }
    }
  }

  /** Resolves when all changes, or those of a topic, have been answered, whatever the answers are. */
  async settle(topic?: string, { timeoutMs, signal }: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<void> {
    await this.#reconciler.schedule()
    const pending = this.#intents.pending.filter(each => topic === undefined || each === topic)
    await Promise.all(pending.map(each => this.#intents.settled(each).catch(() => {})))
    await this.#ask("$settle", { topic, timeoutMs }, { signal })
  }

  /** The subscriptions as the server has them. */
  list(options?: { signal?: AbortSignal }): Promise<{ topics: string[]; total: number }> {
    return this.#ask("$list", undefined, options)
  }

  /** Where a subscription stands, without asking the server. */
  localStatus(topic: string): LocalStatus {
    const { wanted, confirmed } = this.#intents
    if (wanted.has(topic)) return confirmed.has(topic) ? "settled" : "pending-subscribe"
    return confirmed.has(topic) ? "pending-unsubscribe" : "absent"
  }

  /** What the client is or will be subscribed to, also while it is not connected. */
  get wanted(): string[] {
    return [...this.#intents.wanted.keys()]
  }

  /** Last position heard of a topic with history. */
  position(topic: string): Position | undefined {
    return this.#intents.positions.get(topic)
  }

  get size(): number {
    return this.#intents.confirmed.size
  }
  has(topic: string): boolean {
    return this.#intents.confirmed.has(topic)
  }
  forEach(callback: (value: string, key: string, set: ReadonlySet<string>) => void, self?: unknown): void {
    for (const topic of this) callback.call(self, topic, topic, this)
  }
  /** A snapshot: changes while iterating do not show. */
  values(): SetIterator<string> {
    return new Set(this.#intents.confirmed).values()
  }
  keys(): SetIterator<string> {
    return this.values()
  }
  entries(): SetIterator<[string, string]> {
    return new Set(this.#intents.confirmed).entries()
  }
  [Symbol.iterator](): SetIterator<string> {
    return this.values()
  }

  async #ask<T>(type: string, payload: unknown, { signal }: { signal?: AbortSignal | undefined } = {}): Promise<T> {
    await this.#channel.whenOpen({ signal, timeoutMs: WAIT_MS })
    return this.#channel.ask<T>(type, payload, { signal })
  }

  #leave(topic: string, subscription: Subscription, ready: Promise<void>): void {
    const there = this.#subscriptions.get(topic)
    there?.delete(subscription)
    if (there?.size === 0) {
      this.#subscriptions.delete(topic)
      this.#patterns.delete(topic)
    }
    const intent = this.#intents.wanted.get(topic)
    if (intent && intent.listeners > 0) intent.listeners--
    this.#intents.release(topic)
    ready.catch(() => {})
    void this.#reconciler.schedule()
  }

  #take(frame: Frame & { binary: boolean }): void {
    const { type, meta } = frame
    const topic = meta?.topic
    if (type === "$unsubscribed") {
      const { topics, reason } = frame.payload as { topics: string[]; reason: string }
      for (const each of topics) this.#removed(each, reason)
    } else if (typeof topic !== "string") return
    else if (type === "$join" || type === "$leave") {
      const { member } = frame.payload as { member: Member }
      const kind = type === "$join" ? "join" : "leave"
      for (const subscription of this.#subscriptions.get(topic) ?? []) subscription.presence({ kind, topic, member })
    } else if (!type.startsWith("$") && !this.#heard(topic, meta!)) this.#deliver(toMessage(frame))
  }

  /** Moves the position of a topic with history; returns whether the message was heard before. */
  #heard(topic: string, { epoch, offset }: Record<string, unknown>): boolean {
    if (typeof epoch !== "string" || typeof offset !== "number" || !this.#intents.wanted.has(topic)) return false
    const before = this.#intents.positions.get(topic)
    if (before?.epoch === epoch && offset <= before.offset) return true
    this.#intents.positions.set(topic, { epoch, offset })
    return false
  }

  #deliver(message: Message): void {
    this.#messages.emit(message)
    let subscriptions = this.#subscriptions.get(message.topic)
    if (!subscriptions && this.#patterns.size < this.#subscriptions.size) {
      // The server may write topics in lower case.
      const named = [...this.#subscriptions.keys()].find(topic => topic.toLowerCase() === message.topic)
      subscriptions = named === undefined ? undefined : this.#subscriptions.get(named)
    }
    for (const subscription of [...(subscriptions ?? [])]) subscription.deliver(message)
    for (const [pattern, matches] of this.#patterns) {
      if (matches(message.topic)) for (const subscription of [...this.#subscriptions.get(pattern)!]) subscription.deliver(message)
    }
  }

  #removed(topic: string, reason: string): void {
    this.#intents.left(topic)
    // The message bus took it back; it may take it again.
    if (reason === "adapter" && this.#intents.wanted.has(topic)) return void this.#reconciler.schedule()
    const error = new UnsubscribedError(topic, reason)
    this.#intents.refuse(topic, error)
    this.#end(topic, error)
  }

  /** The server does not have the subscription, and will not. */
  #end(topic: string, error: unknown): void {
    const subscriptions = [...(this.#subscriptions.get(topic) ?? [])]
    this.#subscriptions.delete(topic)
    this.#patterns.delete(topic)
    for (const subscription of subscriptions) {
      subscription.fail(error)
      subscription.close()
    }
  }
}

function isDefinition(value: unknown): value is MessageDefinition {
  return typeof value === "object" && value !== null && "schema" in value
}

function toMessage({ type, meta = {}, payload, binary }: Frame & { binary: boolean }): Message {
  return { type, topic: String(meta.topic), payload, meta, binary }
}

function failed(error: unknown): PublishResult {
  if (error instanceof ValidationError) return { ok: false, error: "VALIDATION", retryable: false, details: error.details, cause: error }
  if (error instanceof TidingsError) {
    const large = error.code === "RESOURCE_EXHAUSTED" && "limit" in error.details
    if (large) return { ok: false, error: "PAYLOAD_TOO_LARGE", retryable: false, details: error.details, cause: error }
    if (error.code === "RESOURCE_EXHAUSTED") return { ok: false, error: "BACKPRESSURE", retryable: true, details: error.details, cause: error }
  }
  if (error instanceof TidingsError) return { ok: false, error: "CONNECTION_CLOSED", retryable: error.retryable, cause: error }
  // What cannot be written as JSON, or a publish that was aborted.
  return { ok: false, error: error instanceof TypeError || error instanceof RangeError ? "VALIDATION" : "STATE", retryable: false, cause: error }
}
