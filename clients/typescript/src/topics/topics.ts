import { onAbort } from "../connection/abort.js"
import { address, type Target } from "../connection/address.js"
import type { BackoffOptions } from "../connection/backoff.js"
import { closedError, type ConnectionState } from "../connection/connection.js"
import { TidingsError } from "../connection/errors.js"
import { Inbox } from "../connection/inbox.js"
import { Listeners } from "../connection/listeners.js"
import { parts, type ClientOptions } from "../connection/parts.js"
import type { Patience } from "../connection/within.js"
import { Channel } from "./channel.js"
import { refusal, UnsubscribedError } from "./errors.js"
import { Intents } from "./intents.js"
import { bytesOf, type Member, type Message, type Outgoing, type Presence, type PublishErrorCode, type PublishOptions, type PublishResult, type VerifyResult } from "./message.js"
import { isPattern, matcher } from "./pattern.js"
import { Reconciler, type Counts, type MutateOptions, type Restored } from "./reconciler.js"
import type { InputOf, MessageDefinition, OutputOf, StandardSchema } from "./schema.js"
import { listener, type Handlers, type Listener, type ListenOptions, type Subscription } from "./subscription.js"
import type { Frame, Position } from "./wire.js"

export interface TopicsOptions extends Target, ClientOptions {
  /** Closes the client for good. */
  signal?: AbortSignal
  backoff?: BackoffOptions
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
  readonly #listeners = new Map<string, Set<Listener>>()
  readonly #patterns = new Map<string, (topic: string) => boolean>()
  readonly #messages: Listeners<Message>
  readonly #restored: Listeners<Restored>

  constructor(options: TopicsOptions) {
    const shared = parts(options)
    const { report } = shared.environment
    this.#messages = new Listeners(report)
    this.#restored = new Listeners(report)
    this.#channel = new Channel({
      ...shared,
      url: address(options, "topics"),
      backoff: options.backoff,
      _onHello: hello => void this.#reconciler._restore(hello),
      _onFrame: frame => this.#take(frame),
      _onLost: () => this.#intents._disconnected(),
    })
    this.#reconciler = new Reconciler(this.#channel, this.#intents, {
      _refused: (topic, error) => this.#end(topic, error),
      _restored: restored => {
        this.#restored._emit(restored)
        this.#tell(restored.topic, "restored", restored)
      },
    })
    this.#channel._states._add(() => this.#endIfClosed())
    onAbort(options.signal, () => this.close(options.signal!.reason))
    // Nobody can give the set an `add` that nothing checks.
    Object.freeze(this)
  }

  get state(): ConnectionState {
    return this.#channel.state
  }

  /** Calls back with each new state, until the returned function is called or the signal aborts. */
  onState(callback: (state: ConnectionState) => unknown, signal?: AbortSignal): () => void {
    return this.#channel._states._add(callback, signal)
  }

  /** Calls back with each message of each topic, whoever subscribed. */
  onMessage(callback: (message: Message) => unknown, signal?: AbortSignal): () => void {
    return this.#messages._add(callback, signal)
  }

  /** Calls back for each topic that a reconnect has restored. */
  onRestored(callback: (restored: Restored) => unknown, signal?: AbortSignal): () => void {
    return this.#restored._add(callback, signal)
  }

  /** Connects, and resolves when requests can be sent. A first subscription or publish does so by itself. */
  connect(options: Patience = {}): Promise<void> {
    return this.#channel._whenOpen(options)
  }

  /** Closes the connection for good. */
  close(error?: unknown): void {
    this.#channel.close("closed", error)
  }

  /** Subscribes to a topic or pattern. Calls in one tick share a request unless they have options. */
  async subscribe(topic: string, { ttlMs, presence, ...options }: MutateOptions & { ttlMs?: number; presence?: true | { info: unknown } } = {}): Promise<void> {
    if (ttlMs ?? presence) {
      Object.assign(this.#intents._want(topic), { ttlMs, presence })
      // Asked for again, the server renews it.
      this.#intents._left(topic)
      void this.#reconciler._schedule()
    }
    await this.#reconciler._mutate([topic], [], options)
  }

  /** Ends a subscription; listeners of the topic keep theirs. */
  async unsubscribe(topic: string, options?: MutateOptions): Promise<void> {
    await this.#reconciler._mutate([], [topic], options)
  }

  /** Subscribes to all of them, or to none. */
  subscribeMany(topics: Iterable<string>, options?: MutateOptions): Promise<Counts> {
    return this.#reconciler._mutate(topics, [], options)
  }

  /** Ends all of these subscriptions, or none. */
  unsubscribeMany(topics: Iterable<string>, options?: MutateOptions): Promise<Counts> {
    return this.#reconciler._mutate([], topics, options)
  }

  /** Ends all subscriptions but those of listeners. */
  clear(options?: MutateOptions): Promise<Counts> {
    return this.set([], options)
  }

  /** Subscribes to exactly these topics, beside those of listeners. All or nothing. */
  set(topics: Iterable<string>, options?: MutateOptions): Promise<Counts> {
    const wanted = new Set(topics)
    return this.#reconciler._mutate(wanted, this.#explicit.filter(topic => !wanted.has(topic)), options)
  }

  /** Changes the set of explicit subscriptions by a function. */
  update(mutator: (draft: Set<string>) => void, options?: MutateOptions): Promise<Counts> {
    const draft = new Set(this.#explicit)
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
    const [handlers, { signal, presence } = {}] = rest as [Handlers | ((message: Message) => unknown), ListenOptions?]
    const intents = this.#intents
    const intent = intents._want(topic)
    intent._listeners++
    if (presence && !intents._sent.has(topic)) intent.presence = presence
    const own = typeof handlers === "function" ? { message: handlers } : handlers
    const made = listener(topic, own, definition, intents._settled(topic), this.#channel._report, () => {
      forget()
      this.#left(made)
    })
    this.#listeners.set(topic, (this.#listeners.get(topic) ?? new Set()).add(made))
    if (isPattern(topic)) this.#patterns.set(topic, matcher(topic))
    let forget = () => {}
    forget = onAbort(signal, made.close)
    void this.#reconciler._schedule()
    this.#endIfClosed()
    return made
  }

  /** The messages of a topic for a `for await` loop, which ends with the signal, or throws when the subscription fails. */
  messages(topic: string, { max, ...options }: ListenOptions & { max?: number } = {}): AsyncIterableIterator<Message> {
    let subscription: Subscription | undefined
    const inbox = new Inbox<Message>(() => subscription?.close(), max)
    const error = (error: unknown) => inbox.end({ error })
    subscription = this.listen(topic, { message: message => inbox.push(message), error, ended: why => inbox.end(why) }, options)
    return inbox
  }

  /** Publishes a message. Never throws: the result says what came of it. */
  publish(topic: string, message: Outgoing, options?: PublishOptions): Promise<PublishResult>
  /** Publishes a message of a definition, unless its schema does not accept the payload. */
  publish<S extends StandardSchema>(topic: string, definition: MessageDefinition<string, S>, payload: InputOf<S>, options?: PublishOptions): Promise<PublishResult>
  async publish(topic: string, message: Outgoing | MessageDefinition, ...rest: unknown[]): Promise<PublishResult> {
    try {
      const outgoing: Outgoing = isDefinition(message) ? { type: message.type, payload: await message.check(rest.shift()) } : message
      const { timeoutMs = WAIT_MS, signal, excludeSelf, partitionKey } = (rest[0] ?? {}) as PublishOptions
      await this.#channel._whenOpen({ signal, timeoutMs })
      if (this.#channel._blocked) throw refusal({ code: "RESOURCE_EXHAUSTED", message: "the socket is full", retryable: true })
      const { payload, ...header } = outgoing
      const bytes = bytesOf(payload)
      return await this.#channel._ask("$publish", { topic, message: bytes ? header : outgoing, excludeSelf, partitionKey }, { signal, bytes })
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
    return { ...told, messages: told.messages.map(toMessage) }
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
    await this.#reconciler._schedule()
    const awaited = this.wanted.filter(each => !topic || each === topic)
    await Promise.allSettled(awaited.map(each => this.#intents._settled(each)))
    await this.#ask("$settle", { topic, timeoutMs }, { signal })
  }

  /** The subscriptions as the server has them. */
  list(options?: { signal?: AbortSignal }): Promise<{ topics: string[]; total: number }> {
    return this.#ask("$list", undefined, options)
  }

  /** Where a subscription stands, without asking the server. */
  localStatus(topic: string): LocalStatus {
    const { _wanted: wanted, _confirmed: confirmed } = this.#intents
    const has = confirmed.has(topic)
    return wanted.has(topic) ? (has ? "settled" : "pending-subscribe") : has ? "pending-unsubscribe" : "absent"
  }

  /** What the client is or will be subscribed to, also while it is not connected. */
  get wanted(): string[] {
    return [...this.#intents._wanted.keys()]
  }

  /** Last position heard of a topic with history. */
  position(topic: string): Position | undefined {
    return this.#intents._heard.get(topic)?.position
  }

  get size(): number {
    return this.#intents._confirmed.size
  }
  has(topic: string): boolean {
    return this.#intents._confirmed.has(topic)
  }
  forEach(callback: (value: string, key: string, set: ReadonlySet<string>) => void, self?: unknown): void {
    for (const topic of this) callback.call(self, topic, topic, this)
  }
  /** A snapshot: changes while iterating do not show. */
  entries(): SetIterator<[string, string]> {
    return new Set(this.#intents._confirmed).entries()
  }
  keys(): SetIterator<string> {
    return new Set(this.#intents._confirmed).keys()
  }
  values(): SetIterator<string> {
    return this.keys()
  }
  [Symbol.iterator](): SetIterator<string> {
    return this.keys()
  }

  /** Topics subscribed to by calls, as opposed to by listeners alone. */
  get #explicit(): string[] {
    return this.wanted.filter(topic => this.#intents._wanted.get(topic)!._explicit)
  }

  async #ask<T>(type: string, payload: unknown, { signal }: { signal?: AbortSignal | undefined } = {}): Promise<T> {
    await this.#channel._whenOpen({ signal, timeoutMs: WAIT_MS })
    return this.#channel._ask(type, payload, { signal })
  }

  /** Tells whoever waits or listens that the client is closed for good. */
  #endIfClosed(): void {
    const { state } = this
    if (state.status !== "closed") return
    const error = closedError(state.why)
    this.#intents._waiters._reject(error)
    for (const waiter of this.#channel._waiting) waiter.reject(error)
    for (const there of this.#listeners.values()) for (const each of there) each._end(state.why.reason === "closed" ? {} : { error })
  }

  #left(ended: Listener): void {
    const { topic } = ended
    const there = this.#listeners.get(topic)
    if (there?.delete(ended) && there.size === 0) this.#forget(topic)
    const intent = this.#intents._wanted.get(topic)
    if (intent && intent._listeners > 0) intent._listeners--
    this.#intents._release(topic)
    void this.#reconciler._schedule()
  }

  #take(frame: Frame): void {
    const { type, meta, payload } = frame
    const topic = meta?.topic as string
    const { topics = [], reason, member } = (payload ?? {}) as { topics?: string[]; reason: string; member: Member }
    if (type === "$unsubscribed") for (const each of topics) this.#removed(each, reason)
    else if (type === "$join" || type === "$leave") this.#tell(topic, "presence", { kind: type === "$join" ? "join" : "leave", topic, member })
    else if (topic && !type.startsWith("$") && !this.#heard(topic, meta!)) this.#deliver(toMessage(frame))
  }

  /** Moves the position of a topic with history; returns whether the message was heard before. */
  #heard(topic: string, { epoch, offset }: Record<string, unknown>): boolean {
    if (typeof epoch !== "string" || typeof offset !== "number" || !this.#intents._wanted.has(topic)) return false
    const before = this.position(topic)
    if (before?.epoch === epoch && offset <= before.offset) return true
    this.#intents._hear(topic, { position: { epoch, offset } })
    return false
  }

  #deliver(message: Message): void {
    this.#messages._emit(message)
    const { topic } = message
    // The server may write topics in lower case.
    const named = this.#listeners.has(topic) || this.#patterns.size === this.#listeners.size ? topic : [...this.#listeners.keys()].find(each => each.toLowerCase() === topic)
    if (named) this.#tell(named, "message", message)
    for (const [pattern, matches] of this.#patterns) if (matches(topic)) this.#tell(pattern, "message", message)
  }

  /** Tells the listeners of a topic. */
  #tell<K extends keyof Handlers>(topic: string, name: K, value: Parameters<NonNullable<Handlers[K]>>[0]): void {
    for (const each of [...(this.#listeners.get(topic) ?? [])]) each._tell(name, value)
  }

  #removed(topic: string, reason: string): void {
    this.#intents._left(topic)
    if (reason !== "adapter") {
      const error = new UnsubscribedError(topic, reason)
      this.#intents._refuse(topic, error)
      this.#end(topic, error)
    }
    // The message bus took it back; it may take it again.
    void this.#reconciler._schedule()
  }

  /** The server does not have the subscription, and will not. */
  #end(topic: string, error: unknown): void {
    const there = this.#listeners.get(topic) ?? []
    this.#forget(topic)
    for (const each of there) {
      each._tell("error", error)
      each._end({ error })
    }
  }

  #forget(topic: string): void {
    this.#listeners.delete(topic)
    this.#patterns.delete(topic)
  }
}

function isDefinition(value: unknown): value is MessageDefinition {
  return Boolean((value as Partial<MessageDefinition> | undefined)?.check)
}

function toMessage({ type, meta = {}, payload, binary = false }: Frame): Message {
  return { type, topic: meta.topic as string, payload, meta, binary }
}

/** The outcome of a publish that the server has not answered. */
function failed(cause: unknown): PublishResult {
  const { code, details = {}, retryable = false } = cause as Partial<TidingsError>
  const result = (error: PublishErrorCode, retryable = false): PublishResult => ({ ok: false, error, retryable, details, cause })
  // What cannot be written as JSON.
  if (code === "VALIDATION" || cause instanceof TypeError) return result("VALIDATION")
  if (code === "RESOURCE_EXHAUSTED") return "limit" in details ? result("PAYLOAD_TOO_LARGE") : result("BACKPRESSURE", true)
  // The rest are aborts.
  return cause instanceof TidingsError ? result("CONNECTION_CLOSED", retryable) : result("STATE")
}
